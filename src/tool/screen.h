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
#define TOP_HISTORY 512 /* values that are remembered of a device of a process */

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

struct history {
    int pid;
    uint64_t started_ns;
    unsigned ordinal;
    bool seen; /* at the last look */
    size_t count;
    uint64_t values[TOP_HISTORY]; /* live bytes, the newest last */
};

struct top_row {
    struct page *page;
    struct stats_device device;
    struct report_derived derived;
    struct history *history;
    bool has_nvml; /* NVML knows the device */
    struct nvml_figures nvml;
    uint64_t sizes_age; /* by how much the sizes of what is live are older; ns */
};

struct top {
    struct pages pages;
    struct top_row *rows;
    size_t row_count;
    struct history **histories;
    size_t history_count;
    int *pids; /* that are wanted; none: all */
    size_t pid_count;
    enum top_column column; /* sorted by */
    bool dead;              /* the last figures of killed processes too */
    bool detail;            /* one process is shown */
    bool nvml;              /* some row has its figures */
    bool tick;              /* an interval has passed: a key alone makes no history */
    uint64_t interval_ms;
    unsigned width; /* of the screen; 0: whatever there is */
};

/** Reads everything anew. Rows are good until the next time. */
void top_read(struct top *top);

double top_hit_rate(const struct top_row *row);

/** Prints the table, with the columns that top->width has space for. */
void top_print_head(struct print *out, const struct top *top);
void top_print_row(struct print *out, const struct top *top, const struct top_row *row);

/** Columns that it takes, with the names of usual programs. */
unsigned top_width(const struct top *top);

/** Whether there is a screen to be had. */
bool screen_can(void);

/** Shows it until the user has had enough. */
int screen_run(struct top *top);

#endif
