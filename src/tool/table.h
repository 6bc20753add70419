/*
 * A table of several reports, with one row for each device of each process.
 */
#ifndef GPUCACHE_TOOL_TABLE_H
#define GPUCACHE_TOOL_TABLE_H

#include "tool/parsed_report.h"

#define TABLE_FIGURES 6
#define TABLE_FEWEST 3 /* the median of fewer rows is not used */

struct table_row {
    const struct parsed_report *report;
    const struct stats_device *device;
    uint64_t figures[TABLE_FIGURES];
};

/* The distribution of a column's values. */
struct table_spread {
    uint64_t least, median, most, far; /* values further than `far` from the median are marked */
};

struct table {
    struct table_row *rows; /* sorted by rank */
    size_t count;
    struct table_spread spreads[TABLE_FIGURES]; /* valid if there are rows */
};

extern const struct table_column {
    const char *title;
    bool bytes;
} table_columns[TABLE_FIGURES];

/** Makes the table of all reports. The caller frees it with table_free(). */
struct table table_of(const struct parsed_reports *reports);
void table_free(struct table *table);

/** Returns a value as the column shows it. */
const char *table_worded(char buffer[LINES_VALUE], unsigned column, uint64_t value);
bool table_is_far(const struct table *table, const struct table_row *row, unsigned column);

#endif
