/*
 * Several reports as one table, and two side by side.
 *
 * The ranks of a job do the same work on the same devices, so what one of them has apart from the
 * others is worth a look. A figure is marked when it lies more than a tenth away from the median, and
 * more than five times as far as half of the ranks do: one rank with a leak stands out, a job whose
 * ranks all differ marks none.
 */
#include "tool/sheet.h"
#include "tool/tool.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIGURES 6
#define FEWEST 3 /* rows that have a median worth the name */
#define FAR_SHARE 10
#define FAR_SPREADS 5
#define CELL 13

struct row {
    const struct sheet *sheet;
    const struct stats_device *device;
    uint64_t figures[FIGURES];
};

static const struct {
    const char *title;
    bool bytes;
} columns[FIGURES] = {{"LIVE", true},          {"PEAK", true},    {"RESERVED", true},
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

/* What the rows of a column are like. */
struct spread {
    uint64_t least, median, most, far; /* what is further away than `far` is marked */
};

static struct spread spread_of(const struct row *rows, size_t count, unsigned column,
                               uint64_t *values) {
    struct spread of;
    for (size_t i = 0; i < count; i++)
        values[i] = rows[i].figures[column];
    qsort(values, count, sizeof *values, compare);
    of.least = values[0];
    of.median = values[count / 2];
    of.most = values[count - 1];
    for (size_t i = 0; i < count; i++)
        values[i] = distance(rows[i].figures[column], of.median);
    qsort(values, count, sizeof *values, compare);
    of.far = values[count / 2] * FAR_SPREADS;
    of.far = of.far > of.median / FAR_SHARE ? of.far : of.median / FAR_SHARE;
    of.far = count < FEWEST ? UINT64_MAX : of.far;
    return of;
}

static void print_head(struct print *out) {
    print_str(out, "RANK      PID  HOST              DEV");
    for (unsigned i = 0; i < FIGURES; i++) {
        print_cell(out, columns[i].title, CELL + 1, PRINT_RIGHT);
        print_char(out, ' ');
    }
    print_char(out, '\n');
}

static bool is_far(const struct row *row, const struct spread *spreads, unsigned column) {
    return distance(row->figures[column], spreads[column].median) > spreads[column].far;
}

static void print_row(struct print *out, const struct row *row, const struct spread *spreads) {
    char text[LINES_VALUE];
    const struct program *program = row->sheet->process.program;
    print_cell(out, program->rank < 0 ? "-" : COUNT((uint64_t)program->rank), 4, PRINT_RIGHT);
    print_cell(out, COUNT((uint64_t)row->sheet->process.pid), 9, PRINT_RIGHT);
    print_str(out, "  ");
    print_cell(out, program->host, 16, PRINT_LEFT);
    print_cell(out, COUNT((uint64_t)row->device->ordinal), 5, PRINT_RIGHT);
    for (unsigned i = 0; i < FIGURES; i++) {
        print_cell(out, worded(text, i, row->figures[i]), CELL + 1, PRINT_RIGHT);
        print_char(out, is_far(row, spreads, i) ? '*' : ' ');
    }
    print_char(out, '\n');
}

static void print_summary(struct print *out, const char *name, const struct spread *spreads,
                          size_t offset) {
    print_cell(out, name, 36, PRINT_LEFT);
    for (unsigned i = 0; i < FIGURES; i++) {
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
    int64_t x = first->sheet->process.program->rank, y = second->sheet->process.program->rank;
    if (x != y)
        return (x > y) - (x < y);
    return first->device->ordinal - second->device->ordinal;
}

static struct row row_of(const struct sheet *sheet, const struct stats_device *device) {
    struct report_derived derived;
    report_derive(device, &derived);
    return (struct row){sheet,
                        device,
                        {device->requested.current, device->requested.peak,
                         device->reserved.current, device->reserved.peak, derived.outside.current,
                         device->ooms}};
}

void sheets_print_table(const struct sheets *sheets, struct print *out) {
    struct spread spreads[FIGURES];
    size_t count = 0;
    for (size_t i = 0; i < sheets->count; i++)
        count += sheets->list[i]->device_count;
    struct row *rows = calloc(count + 1, sizeof *rows);
    uint64_t *values = calloc(count + 1, sizeof *values);
    if (!rows || !values)
        fail(STATUS_OWN_FAILURE, "memory", strerror(ENOMEM));
    count = 0;
    for (size_t i = 0; i < sheets->count; i++)
        for (size_t k = 0; k < sheets->list[i]->device_count; k++)
            rows[count++] = row_of(sheets->list[i], &sheets->list[i]->devices[k]);
    qsort(rows, count, sizeof *rows, by_rank);
    print_head(out);
    for (unsigned i = 0; i < FIGURES && count > 0; i++)
        spreads[i] = spread_of(rows, count, i, values);
    for (size_t i = 0; i < count; i++)
        print_row(out, &rows[i], spreads);
    if (count > 1) {
        print_summary(out, "least", spreads, offsetof(struct spread, least));
        print_summary(out, "median", spreads, offsetof(struct spread, median));
        print_summary(out, "most", spreads, offsetof(struct spread, most));
        print_str(out, count < FEWEST ? "" : "* is far from the median\n");
    }
    free(rows);
    free(values);
}

/* ---- two ---- */

static void print_change(struct print *out, const char *name, bool bytes, uint64_t before,
                         uint64_t after) {
    const char *(*format)(char *, uint64_t) = bytes ? lines_size : lines_count;
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

static void print_changes(struct print *out, const struct stats_device *before,
                          const struct stats_device *after) {
    print_format(out, "device %d: ", before->ordinal);
    print_plain(out, before->name, 24);
    print_char(out, '\n');
    print_repeat(out, ' ', 34 + CELL - 6);
    print_str(out, "before        after        change\n");
#define METRIC(field, json, label)                                                                 \
    print_change(out, label ", peak", strstr(json, "_bytes") != NULL, before->field.peak,          \
                 after->field.peak);
#define OUTSIDE(field, json)                                                                       \
    print_change(out, "Outside, " json ", peak", true, before->field.peak, after->field.peak);
#include "stats/fields.def"
#define METRIC(field, json, label)                                                                 \
    print_change(out, label ", live", strstr(json, "_bytes") != NULL, before->field.current,       \
                 after->field.current);
#include "stats/fields.def"
    print_change(out, "Allocations, in all", false, before->allocations.total,
                 after->allocations.total);
#define COUNTER(field) print_change(out, #field, false, before->field, after->field);
#include "stats/fields.def"
}

void sheets_print_difference(const struct sheet *before, const struct sheet *after,
                             struct print *out) {
    bool any = false;
    print_format(out, "before: %s, pid %lld\nafter:  %s, pid %lld\n", before->source,
                 (long long)before->process.pid, after->source, (long long)after->process.pid);
    for (size_t i = 0; i < before->device_count; i++) {
        for (size_t k = 0; k < after->device_count; k++) {
            if (before->devices[i].ordinal == after->devices[k].ordinal) {
                print_changes(out, &before->devices[i], &after->devices[k]);
                any = true;
            }
        }
    }
    if (!any)
        print_str(out, "They have no device in common.\n");
}
