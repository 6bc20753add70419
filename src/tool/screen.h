/*
 * The state of gpucache top, and its screen.
 */
#ifndef GPUCACHE_TOOL_SCREEN_H
#define GPUCACHE_TOOL_SCREEN_H

#include "report/emitter.h"
#include "tool/nvml.h"
#include "tool/pages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOP_NOTHING "no process of yours uses CUDA under the library"
#define TOP_HISTORY 512 /* values in the history of a device of a process */

enum top_column {
    TOP_PID,
    TOP_LIVE,
    TOP_CACHED,
    TOP_RESERVED,
    TOP_PEAK,
    TOP_FRAG,
    TOP_HIT,
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
    bool has_nvml; /* NVML has values for the device */
    struct nvml_figures nvml;
    uint64_t sizes_age; /* nanoseconds by which the live sizes are older */
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
    bool dead;              /* killed processes are shown too, with their last values */
    bool detail;            /* the view of one process is shown */
    bool nvml;              /* some row has values of NVML */
    bool tick;              /* an interval has passed; a key press adds nothing to the history */
    uint64_t interval_ms;
    unsigned width; /* columns of the screen; 0: no limit */
};

/** Reads all pages again. Rows are valid until the next call. */
void top_read(struct top *top);

double top_hit_rate(const struct top_row *row);

/** Prints the table, with the columns that top->width has space for. */
void top_print_head(struct print *out, const struct top *top);
void top_print_row(struct print *out, const struct top *top, const struct top_row *row);

/** Returns the columns of the table, with names of usual length. */
unsigned top_width(const struct top *top);

/** Returns whether there is a terminal and ncurses for it. */
bool screen_can(void);

/** Shows the screen until the user quits. Returns the exit status. */
int screen_run(struct top *top);

#endif
