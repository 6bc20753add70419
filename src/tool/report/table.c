/*
 * Prints several reports as one table, and two reports in adjacent columns.
 *
 * The ranks of a job do the same work on equal devices, so a rank with other values may have a
 * leak. A value is marked if it differs from the median by more than a tenth, and by more than five
 * times the median difference. One rank with a leak is then marked, and none in a job whose ranks
 * all differ.
 */
#include "report/holders.h"
#include "report/lines.h"
#include "tool/common/tool.h"
#include "tool/report/parsed_report.h"
#include "tool/report/stacks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAR_SHARE 10
#define FAR_SPREADS 5
#define CELL 13
#define METRIC_COLUMNS 6
#define NAMED 5  /* stacks with the largest changes, at most */
#define FEWEST 3 /* the median of fewer rows is not used */

struct row {
    const struct parsed_report *report;
    const struct stats_device *device;
    uint64_t metrics[METRIC_COLUMNS];
};

/* The distribution of a column's values. */
struct spread {
    uint64_t least, median, most, far; /* values further than `far` from the median are marked */
};

static const struct {
    const char *title;
    bool bytes;
} columns[METRIC_COLUMNS] = {{"LIVE", true},          {"PEAK", true},    {"RESERVED", true},
                             {"PEAK RESERVED", true}, {"OUTSIDE", true}, {"OOMS", false}};

static const char *worded(char buffer[LINES_VALUE], unsigned column, uint64_t value) {
    return columns[column].bytes ? lines_size(buffer, value) : lines_count(buffer, value);
}

static int compare(const void *a, const void *b) {
    uint64_t first = *(const uint64_t *)a, second = *(const uint64_t *)b;
    return (first > second) - (first < second);
}

static uint64_t distance(uint64_t a, uint64_t b) {
    return a > b ? a - b : b - a;
}

/** Returns the median of sorted values, which is the mean of the middle two for an even count. */
static uint64_t median(const uint64_t *sorted, size_t count) {
    uint64_t low = sorted[(count - 1) / 2], high = sorted[count / 2];
    return low + (high - low) / 2;
}

static struct spread spread_of(const struct row *rows, size_t count, unsigned column,
                               uint64_t *values) {
    struct spread of;
    for (size_t i = 0; i < count; i++)
        values[i] = rows[i].metrics[column];
    qsort(values, count, sizeof *values, compare);
    of.least = values[0];
    of.median = median(values, count);
    of.most = values[count - 1];
    for (size_t i = 0; i < count; i++)
        values[i] = distance(rows[i].metrics[column], of.median);
    qsort(values, count, sizeof *values, compare);
    of.far = median(values, count) * FAR_SPREADS;
    of.far = of.far > of.median / FAR_SHARE ? of.far : of.median / FAR_SHARE;
    of.far = count < FEWEST ? UINT64_MAX : of.far;
    return of;
}

/** Returns by how many bytes the peaks of requested and allocated memory may be too small. */
static uint64_t peak_error(const struct stats_device *device) {
    return device->peaks_exact ? 0 : device->peak_error_bytes;
}

static void print_head(struct print *out) {
    print_str(out, "RANK      PID  HOST              DEV");
    for (unsigned i = 0; i < METRIC_COLUMNS; i++) {
        print_cell(out, columns[i].title, CELL + 1, PRINT_RIGHT);
        print_char(out, ' ');
    }
    print_char(out, '\n');
}

static void print_row(struct print *out, const struct spread *spreads, const struct row *row) {
    char text[LINES_VALUE];
    const struct program *program = row->report->process.program;
    print_cell(out, program->rank < 0 ? "-" : COUNT((uint64_t)program->rank), 4, PRINT_RIGHT);
    print_cell(out, COUNT((uint64_t)row->report->process.pid), 9, PRINT_RIGHT);
    print_str(out, "  ");
    print_cell(out, program->host, 16, PRINT_LEFT);
    print_cell(out, COUNT((uint64_t)row->device->ordinal), 5, PRINT_RIGHT);
    for (unsigned i = 0; i < METRIC_COLUMNS; i++) {
        print_cell(out, worded(text, i, row->metrics[i]), CELL + 1, PRINT_RIGHT);
        bool far = distance(row->metrics[i], spreads[i].median) > spreads[i].far;
        print_char(out, far ? '*' : ' ');
    }
    print_char(out, '\n');
}

static void print_summary(struct print *out, const char *name, const struct spread *spreads,
                          size_t offset) {
    print_cell(out, name, 36, PRINT_LEFT);
    for (unsigned i = 0; i < METRIC_COLUMNS; i++) {
        char text[LINES_VALUE];
        uint64_t value;
        memcpy(&value, (const char *)&spreads[i] + offset, sizeof value);
        print_cell(out, worded(text, i, value), CELL + 1, PRINT_RIGHT);
        print_char(out, ' ');
    }
    print_char(out, '\n');
}

static int by_rank(const void *a, const void *b) {
    const struct row *first = a, *second = b;
    int64_t x = first->report->process.program->rank, y = second->report->process.program->rank;
    if (x != y)
        return (x > y) - (x < y);
    int a_device = first->device->ordinal, b_device = second->device->ordinal;
    return (a_device > b_device) - (a_device < b_device);
}

static struct row row_of(const struct parsed_report *report, const struct stats_device *device) {
    struct report_derived derived;
    report_derive(device, &derived);
    return (struct row){report,
                        device,
                        {device->requested.current, device->requested.peak,
                         device->reserved.current, device->reserved.peak, derived.unpooled.current,
                         device->ooms}};
}

void parsed_reports_print_table(const struct parsed_reports *reports, struct print *out) {
    struct spread spreads[METRIC_COLUMNS];
    size_t count = 0, most = 0;
    uint64_t error = 0;
    for (size_t i = 0; i < reports->count; i++)
        most += reports->list[i]->device_count;
    struct row *rows = checked(calloc(most + 1, sizeof *rows));
    uint64_t *values = checked(calloc(most + 1, sizeof *values));
    for (size_t i = 0; i < reports->count; i++)
        for (size_t k = 0; k < reports->list[i]->device_count; k++)
            rows[count++] = row_of(reports->list[i], &reports->list[i]->devices[k].stats);
    for (size_t i = 0; i < count; i++)
        error = peak_error(rows[i].device) > error ? peak_error(rows[i].device) : error;
    qsort(rows, count, sizeof *rows, by_rank);
    for (unsigned i = 0; i < METRIC_COLUMNS && count > 0; i++)
        spreads[i] = spread_of(rows, count, i, values);
    print_head(out);
    for (size_t i = 0; i < count; i++)
        print_row(out, spreads, &rows[i]);
    if (count > 1) {
        print_summary(out, "least", spreads, offsetof(struct spread, least));
        print_summary(out, "median", spreads, offsetof(struct spread, median));
        print_summary(out, "most", spreads, offsetof(struct spread, most));
        print_str(out, count < FEWEST ? "" : "* is far from the median\n");
    }
    if (error > 0)
        print_format(out, "PEAK may be up to %s too small\n", SIZE(error));
    free(values);
    free(rows);
}

/* ---- two reports ---- */

typedef const char *format_value(char *buffer, uint64_t value);

static void print_change(struct print *out, const char *name, format_value *format, uint64_t before,
                         uint64_t after) {
    char text[LINES_VALUE], change[LINES_VALUE + 1];
    if (before == 0 && after == 0)
        return;
    print_cell(out, name, 34, PRINT_LEFT);
    print_cell(out, format(text, before), CELL, PRINT_RIGHT);
    print_cell(out, format(text, after), CELL, PRINT_RIGHT);
    change[0] = after > before ? '+' : after < before ? '-' : '=';
    format(change + 1, distance(before, after));
    print_cell(out, before == after ? "=" : change, CELL + 1, PRINT_RIGHT);
    if (before != 0 && before != after)
        print_format(out, "   x %s", RATIO((double)after / (double)before));
    print_char(out, '\n');
}

/** Prints the change of a counter. A counter of nanoseconds is printed in seconds. */
static void print_counter(struct print *out, const char *name, uint64_t before, uint64_t after) {
    char key[TOOL_COUNTER_KEY];
    bool time = tool_counter_key(name, key);
    print_change(out, key, time ? lines_seconds : lines_count, before, after);
}

static void print_changes(struct print *out, const struct stats_device *before,
                          const struct stats_device *after) {
    print_format(out, "device %d: ", before->ordinal);
    print_plain(out, before->name, 24);
    if (after->ordinal != before->ordinal) {
        print_format(out, ", and device %d: ", after->ordinal);
        print_plain(out, after->name, 24);
    }
    print_char(out, '\n');
    print_repeat(out, ' ', 34 + CELL - 6);
    print_str(out, "before        after        change\n");
#define FORMAT(json) (strstr(json, "_bytes") ? lines_size : lines_count)
#define METRIC(field, json, label)                                                                 \
    print_change(out, label ", peak", FORMAT(json), before->field.peak, after->field.peak);
#define UNPOOLED(field, json)                                                                      \
    print_change(out, "Outside, " json ", peak", lines_size, before->field.peak, after->field.peak);
#include "stats/fields.def"
#define METRIC(field, json, label)                                                                 \
    print_change(out, label ", live", FORMAT(json), before->field.current, after->field.current);
#include "stats/fields.def"
    print_change(out, "Allocations, in all", lines_count, before->allocations.total,
                 after->allocations.total);
#define COUNTER(field) print_counter(out, #field, before->field, after->field);
#include "stats/fields.def"
    uint64_t error = peak_error(before), other = peak_error(after);
    if (error > 0 || other > 0)
        print_format(out, "Peaks of requested and allocated memory may be up to %s too small\n",
                     SIZE(error > other ? error : other));
}

/* ---- the call stacks of two reports ---- */

/* Two stacks are equal if their frames have the same names and lines. If a source line has moved,
 * its stack appears as removed in one report and as new in the other. */

struct change {
    uint64_t before, after; /* bytes at the peak */
    const struct parsed_stacks *of;
    uint32_t stack;
};

struct changes {
    struct change list[NAMED]; /* largest first */
    unsigned count, others;    /* changes in the list, and not in it */
};

static uint64_t size_of(const struct change *change) {
    return change->after > change->before ? change->after - change->before
                                          : change->before - change->after;
}

static void add_change(struct changes *changes, const struct change *change) {
    unsigned at = changes->count;
    if (size_of(change) == 0)
        return;
    while (at > 0 && size_of(&changes->list[at - 1]) < size_of(change))
        at--;
    changes->others += changes->count == NAMED;
    if (at == NAMED)
        return;
    changes->count += changes->count < NAMED;
    memmove(&changes->list[at + 1], &changes->list[at], (changes->count - 1 - at) * sizeof *change);
    changes->list[at] = *change;
}

/** Returns the next row of the device. Rows are sorted by stack. */
static const struct stack_row *next_row(const struct parsed_stacks *stacks, int device,
                                        size_t *at) {
    while (*at < stacks->row_count && stacks->rows[*at].device != device)
        ++*at;
    return *at < stacks->row_count ? &stacks->rows[*at] : NULL;
}

static void collect_changes(struct changes *changes, const struct parsed_stacks *before,
                            const struct parsed_stacks *after, int device, int device_after) {
    size_t i = 0, k = 0;
    const struct stack_row *x, *y;
    while (x = next_row(before, device, &i), y = next_row(after, device_after, &k), x || y) {
        int order = !y   ? -1
                    : !x ? 1
                         : stack_frames_compare(&before->stacks[x->holder.stack - 1],
                                                &after->stacks[y->holder.stack - 1]);
        struct change change = {
            order <= 0 ? x->holder.held.peak.bytes : 0, order >= 0 ? y->holder.held.peak.bytes : 0,
            order < 0 ? before : after, order < 0 ? x->holder.stack : y->holder.stack};
        add_change(changes, &change);
        i += order <= 0;
        k += order >= 0;
    }
}

static void print_stack_change(struct print *out, const struct change *change) {
    struct print first = PRINT_TEXT(512);
    struct print second = PRINT_TEXT(512);
    print_format(&first, "  %s%s, from %s to %s", change->after > change->before ? "+" : "-",
                 SIZE(size_of(change)), SIZE(change->before), SIZE(change->after));
    holders_print_stack(&change->of->view, change->stack, &first, &second);
    print_untrusted(out, print_end(&first));
    print_char(out, '\n');
    if (second.used > 0) {
        print_untrusted(out, print_end(&second));
        print_char(out, '\n');
    }
}

/** Prints which stacks of a device held more, or less, at its peak than in the earlier report. The
 * device may have another number there. Both reports must be resolved in the same way. Prints
 * nothing if one of them has no stacks. */
static void print_stack_changes(const struct parsed_stacks *before,
                                const struct parsed_stacks *after, int device, int device_after,
                                struct print *out) {
    struct changes changes = {.count = 0};
    if (!before || !after)
        return;
    collect_changes(&changes, before, after, device, device_after);
    print_str(out, changes.count > 0 ? "Held at the peak, by who asked:\n"
                                     : "Held at the peak, by who asked: the same\n");
    for (unsigned i = 0; i < changes.count; i++)
        print_stack_change(out, &changes.list[i]);
    if (changes.others > 0)
        print_format(out, "  and %u less\n", changes.others);
}

/* ---- both reports ---- */

/** Prints the devices of a report that the other report lacks. */
static void print_unpaired(struct print *out, const struct parsed_report *report,
                           const struct parsed_report *other, const char *where) {
    for (size_t i = 0; i < report->device_count; i++) {
        const struct stats_device *device = &report->devices[i].stats;
        bool found = false;
        for (size_t k = 0; k < other->device_count; k++)
            found |= device->ordinal == other->devices[k].stats.ordinal;
        if (found)
            continue;
        print_format(out, "device %d: ", device->ordinal);
        print_plain(out, device->name, 24);
        print_format(out, ": only %s\n", where);
    }
}

static void print_source(struct print *out, const char *which, const struct parsed_report *report) {
    print_str(out, which);
    print_untrusted(out, report->source);
    print_format(out, ", pid %lld\n", (long long)report->process.pid);
}

void parsed_reports_print_difference(const struct parsed_report *before,
                                     const struct parsed_report *after, struct print *out) {
    /* Each rank of a job has one device of its own. */
    bool any = false, single = before->device_count == 1 && after->device_count == 1;
    print_source(out, "before: ", before);
    print_source(out, "after:  ", after);
    for (size_t i = 0; i < before->device_count; i++) {
        for (size_t k = 0; k < after->device_count; k++) {
            const struct stats_device *x = &before->devices[i].stats, *y = &after->devices[k].stats;
            if (single || x->ordinal == y->ordinal) {
                print_changes(out, x, y);
                print_stack_changes(before->stacks, after->stacks, x->ordinal, y->ordinal, out);
                any = true;
            }
        }
    }
    if (!any)
        print_str(out, "They have no device in common.\n");
    if (!single) {
        print_unpaired(out, before, after, "before");
        print_unpaired(out, after, before, "after");
    }
}
