/*
 * The state of gpucache top, and its screen.
 */
#ifndef GPUCACHE_TOOL_SCREEN_SCREEN_H
#define GPUCACHE_TOOL_SCREEN_SCREEN_H

#include "report/derived.h"
#include "tool/report/pages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOP_NOTHING "no process of yours uses CUDA under the library"
#define TOP_HISTORY 512 /* values in the history of a device of a process */

#define TOP_LEAST_HISTORY 16 /* columns; the history is not drawn in fewer */
#define TOP_UNKNOWN UINT64_MAX
#define NVML_UNKNOWN UINT64_MAX

struct nvml_values {
    uint64_t used, total; /* bytes of the device, by all processes; total 0: unknown */
    uint64_t process;     /* bytes of the process, or NVML_UNKNOWN */
    uint64_t others;      /* bytes of all other processes, or NVML_UNKNOWN */
    uint64_t busy;        /* percent of the last sample period with a kernel, or NVML_UNKNOWN */
};

enum top_column {
#define COLUMN(id, title, width, kind, worth, meaning) TOP_##id,
#include "tool/screen/top.def"
    TOP_COLUMNS
};

struct top_history {
    int pid;
    uint64_t started_ns;
    unsigned ordinal;
    bool seen; /* found at the last read */
    size_t count;
    uint64_t values[TOP_HISTORY]; /* live bytes, newest last */
};

struct top_row {
    struct page *page;
    struct stats_device device;
    struct report_derived derived;
    struct top_history *history;
    struct nvml_values nvml;
    uint64_t values[TOP_COLUMNS]; /* TOP_UNKNOWN: the table prints `-` */
    uint64_t sizes_age;           /* nanoseconds by which the live sizes are older */
};

struct top {
    struct pages pages;
    struct top_row *rows;
    size_t row_count;
    struct top_history **histories;
    size_t history_count;
    int *pids; /* the processes that the user named; empty: all */
    size_t pid_count;
    enum top_column column; /* rows are sorted by it */
    bool reversed;          /* in the opposite order */
    bool kill;              /* a key may end a process */
    char filter[64];        /* only rows with this text are shown; empty: all */
    bool dead;              /* killed processes are shown too, with their last values */
    bool detail;            /* the view of one process is shown */
    unsigned known;         /* a bit for each column in which some row has a value */
    bool tick;              /* an interval has passed; a key press adds nothing to the history */
    uint64_t interval_ms;
    unsigned width; /* columns of the screen; 0: no limit */
};

/** Discards all values, so that the next calls read them again. */
void nvml_refresh(void);

/**
 * Reads the values of a process on a device, by the device's UUID in a report. The bytes of other
 * processes are known only if NVML sees this process and the bytes of all others.
 */
void nvml_read(const char *uuid, int pid, struct nvml_values *values);

/** Reads all pages again. Rows are valid until the next call. */
void top_read(struct top *top);

/** Sets the values of a row from its statistics, and the bits of top->known. */
void top_set_values(struct top *top, struct top_row *row);

/** Prints the table, with the columns that top->width has space for. */
void top_print_head(struct print *out, const struct top *top);
void top_print_row(struct print *out, const struct top *top, const struct top_row *row);

/** Returns the columns of the table, with names of usual length. */
unsigned top_width(const struct top *top);

/** Returns the column of the table at a column of the screen. */
enum top_column top_column_at(const struct top *top, unsigned x);

/** Returns why the terminal cannot show the screen, or NULL if it can. */
const char *screen_obstacle(void);

/** Shows the screen until the user quits. Returns the exit status. */
int screen_run(struct top *top);

#endif
