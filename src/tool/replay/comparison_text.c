/*
 * Prints one comparison as a table, or several as one table.
 */
#include "heap/page.h"
#include "report/lines.h"
#include "tool/replay/comparison.h"

#include <errno.h>
#include <string.h>

#define NAME_LEAST 18
#define FILE_LEAST 18
#define RATIO_CELL 9
#define RATIO_MOST 1000 /* larger ratios have no decimals, so that they fit into a cell */

static const char *decimals(char buffer[LINES_VALUE], double value, unsigned count) {
    struct print out;
    print_init(&out, -1, buffer, LINES_VALUE);
    print_double(&out, value, count);
    return print_end(&out);
}
#define DECIMALS(value, count) decimals((char[LINES_VALUE]){0}, value, count)

/** Prints microseconds as milliseconds, with as many decimals as needed. */
static const char *delay_of(char buffer[LINES_VALUE], uint64_t us) {
    return decimals(buffer, (double)us / 1000,
                    us % 1000 == 0  ? 0
                    : us % 100 == 0 ? 1
                    : us % 10 == 0  ? 2
                                    : 3);
}

static size_t width_of_names(const struct comparison *comparison) {
    size_t width = NAME_LEAST;
    for (size_t i = 0; i < comparison->count; i++) {
        size_t length = strlen(comparison->rows[i].candidate->name);
        width = length > width ? length : width;
    }
    return width;
}

/* ---- one history ---- */

static void print_left_out(const struct history *history, struct print *out) {
    const struct {
        uint64_t count;
        const char *what;
    } kinds[] = {
        {history->unknown_frees, "frees of blocks that it does not allocate"},
        {history->lost_frees, "blocks that are allocated again without a free"},
        {history->failures, "allocations that failed when it was recorded"},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].count > 0)
            print_format(out, "    left out, %s: %s\n", kinds[i].what, COUNT(kinds[i].count));
    if (history->cut)
        print_str(out, "    its last line is not whole\n");
}

static void print_recorded(const struct history *history, struct print *out) {
    if (history->recorded_by) {
        print_format(out, "    %s reserved %s when it was recorded: ", history->recorded_by,
                     SIZE(history->recorded_peak));
        print_format(out, "%s times what was requested\n",
                     DECIMALS((double)history->recorded_peak / (double)history->requested_peak, 3));
    }
}

static void print_head(const struct comparison *comparison, size_t width, struct print *out) {
    const struct history *history = comparison->history;
    uint64_t us = history->events[history->count - 1].time_us;
    print_plain(out, comparison->file, sizeof comparison->file);
    print_format(out, ": %s event%s in %s s", COUNT(history->count), PLURAL(history->count),
                 DECIMALS((double)us / 1e6, 2));
    if (history->period_count > 0) {
        print_format(out, ", %s period%s", COUNT(history->period_count),
                     PLURAL(history->period_count));
    }
    print_format(out, "; at most %s requested\n", SIZE(history->requested_peak));
    print_left_out(history, out);
    print_recorded(history, out);
    print_char(out, '\n');
    print_cell(out, "", width, PRINT_LEFT);
    print_str(out, "  delay       peak     over     pages     late,    driver's   their  waited  "
                   "idle, by tenths\n");
    print_cell(out, "allocator", width, PRINT_LEFT);
    print_str(out, "     ms   reserved  request    mapped  a period       calls     ~ms      ms  "
                   "of the events, %\n");
}

static bool uses_pages(const struct row *row) {
    return row->candidate->is_model ? row->candidate->model == MODEL_EXPANDABLE
                                    : row->candidate->setting.pages;
}

static void print_failure(const struct row *row, struct print *out) {
    const struct account *account = row->account;
    if (account->out_of_memory) {
        print_format(out, "  out of memory at event %s, with %s requested and ",
                     COUNT(account->at + 1), SIZE(account->requested));
        print_format(out, "%s reserved\n", SIZE(account->reserved));
    } else if (account->error == -ECHILD) {
        print_str(out, "  the process that ran it has died\n");
    } else {
        print_format(out, "  failed: %s\n",
                     account->error == -EUCLEAN ? "the pool is broken" : strerror(-account->error));
    }
}

static void print_mapped(const struct row *row, struct print *out) {
    const struct account *account = row->account;
    bool late = uses_pages(row) && account->history->period_count > 0;
    print_cell(out, uses_pages(row) ? COUNT(account->mapped) : "-", 10, PRINT_RIGHT);
    print_cell(out, late ? DECIMALS(account_mapped_late(account), 1) : "-", 10, PRINT_RIGHT);
}

static void print_row(const struct row *row, bool first, size_t width, struct print *out) {
    const struct account *account = row->account;
    char delay[LINES_VALUE] = "any";
    print_cell(out, first ? row->candidate->name : "", width, PRINT_LEFT);
    print_cell(out, row->candidate->is_model ? delay : delay_of(delay, row->delay_us), 7,
               PRINT_RIGHT);
    if (account->out_of_memory || account->error != 0) {
        print_failure(row, out);
        return;
    }
    print_cell(out, SIZE(account->reserved_peak), 11, PRINT_RIGHT);
    print_cell(out, DECIMALS(account_ratio(account), 3), 9, PRINT_RIGHT);
    print_mapped(row, out);
    print_cell(out, COUNT(account->calls), 12, PRINT_RIGHT);
    print_cell(out, DECIMALS((double)account->calls_ns / 1e6, 0), 8, PRINT_RIGHT);
    print_cell(out, DECIMALS((double)account->waited_us / 1e3, 0), 8, PRINT_RIGHT);
    print_char(out, ' ');
    for (unsigned i = 0; i < ACCOUNT_PARTS; i++)
        print_cell(out, DECIMALS(100 * account_idle(account, i), 0), 4, PRINT_RIGHT);
    print_char(out, '\n');
}

void comparison_print(const struct comparison *comparison, struct print *out) {
    size_t width = width_of_names(comparison);
    print_head(comparison, width, out);
    for (size_t i = 0; i < comparison->count; i++) {
        const struct row *row = &comparison->rows[i];
        print_row(row, i == 0 || row->candidate != row[-1].candidate, width, out);
    }
}

/* ---- several ---- */

static const char *ratio_of(char buffer[LINES_VALUE], const struct row *row) {
    return row->account->out_of_memory ? "OOM"
           : row->account->error != 0  ? "failed"
                                       : decimals(buffer, account_ratio(row->account),
                                                 account_ratio(row->account) < RATIO_MOST ? 3 : 0);
}

static const char *mapped_of(char buffer[LINES_VALUE], const struct row *row) {
    const struct account *account = row->account;
    uint64_t live = account->requested_peak / PAGE_BYTES + 1;
    bool there = uses_pages(row) && !row->candidate->is_model &&
                 account->history->period_count > 0 && !account->out_of_memory &&
                 account->error == 0;
    return there ? decimals(buffer, 100 * account_mapped_late(account) / (double)live, 2) : "-";
}

static const char ratios[] = "reserved over requested", mapped[] = "mapped, % of live";

/** Fills the columns of the ratios up to their heading, and separates them from the next ones. */
static void print_gap(size_t delays, struct print *out) {
    size_t columns = delays * RATIO_CELL, heading = sizeof ratios - 1;
    print_repeat(out, ' ', (columns < heading ? heading - columns : 0) + 2);
}

static void print_several_head(const struct replay_request *request, size_t files, size_t width,
                               struct print *out) {
    size_t columns = request->delay_count * RATIO_CELL, heading = sizeof ratios - 1;
    char delay[LINES_VALUE];
    print_repeat(out, ' ', files + width);
    print_cell(out, ratios, (columns > heading ? columns : heading) + 2, PRINT_LEFT);
    print_format(out, "%s\n", mapped);
    print_cell(out, "file", files, PRINT_LEFT);
    print_cell(out, "allocator", width, PRINT_LEFT);
    for (int half = 0; half < 2; half++) {
        for (size_t i = 0; i < request->delay_count; i++)
            print_cell(out, delay_of(delay, request->delays_us[i]), RATIO_CELL, PRINT_RIGHT);
        if (half == 0)
            print_gap(request->delay_count, out);
    }
    print_str(out, " ms\n");
}

/** Prints the rows of one candidate as one line. */
static void print_line(const struct row *rows, size_t count, size_t delays, size_t width,
                       struct print *out) {
    char text[LINES_VALUE];
    print_cell(out, rows->candidate->name, width, PRINT_LEFT);
    for (size_t i = 0; i < delays; i++) {
        const char *ratio = i < count ? ratio_of(text, &rows[i]) : "";
        print_cell(out, ratio, RATIO_CELL, PRINT_RIGHT);
    }
    print_gap(delays, out);
    for (size_t i = 0; i < count; i++)
        print_cell(out, mapped_of(text, &rows[i]), RATIO_CELL, PRINT_RIGHT);
    print_char(out, '\n');
}

void comparisons_print(const struct comparison *list, size_t count,
                       const struct replay_request *request, struct print *out) {
    size_t width = NAME_LEAST, files = FILE_LEAST;
    for (size_t i = 0; i < count; i++) {
        size_t of = width_of_names(&list[i]), name = strlen(list[i].file);
        width = of > width ? of : width;
        files = name > files ? name : files;
    }
    files += 2;
    print_several_head(request, files, width, out);
    for (size_t i = 0; i < count; i++) {
        const struct comparison *of = &list[i];
        for (size_t at = 0, rows; at < of->count; at += rows) {
            rows = 1;
            while (at + rows < of->count && of->rows[at + rows].candidate == of->rows[at].candidate)
                rows++;
            print_cell(out, at > 0 ? "" : of->file, files, PRINT_LEFT);
            print_line(&of->rows[at], rows, request->delay_count, width, out);
        }
    }
}
