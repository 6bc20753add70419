/*
 * Several reports side by side: one row for each device of each process.
 */
#ifndef GPUCACHE_TOOL_TABLE_H
#define GPUCACHE_TOOL_TABLE_H

#include "tool/parsed_report.h"

#define TABLE_FIGURES 6
#define TABLE_FEWEST 3 /* rows that have a median worth the name */

struct table_row {
    const struct parsed_report *report;
    const struct stats_device *device;
    uint64_t figures[TABLE_FIGURES];
};

/* The spread of a column over its rows. */
struct table_spread {
    uint64_t least, median, most, far; /* what is further away than `far` is marked */
};

struct table {
    struct table_row *rows; /* in the order of ranks */
    size_t count;
    struct table_spread spreads[TABLE_FIGURES]; /* if there are any rows */
};

extern const struct table_column {
    const char *title;
    bool bytes;
} table_columns[TABLE_FIGURES];

/** A table of all reports; freed by table_free(). */
struct table table_of(const struct parsed_reports *reports);
void table_free(struct table *table);

/** A figure as the column shows it. */
const char *table_worded(char buffer[LINES_VALUE], unsigned column, uint64_t value);
bool table_is_far(const struct table *table, const struct table_row *row, unsigned column);

#endif
