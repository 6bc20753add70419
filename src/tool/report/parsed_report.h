/*
 * A report in the tool's memory, read from a live page or from a file of the library.
 */
#ifndef GPUCACHE_TOOL_REPORT_PARSED_REPORT_H
#define GPUCACHE_TOOL_REPORT_PARSED_REPORT_H

#include "base/print.h"
#include "report/emitter.h"
#include "tool/report/pages.h"
#include "tool/report/stacks.h"

#include <stdbool.h>
#include <stddef.h>

struct parsed_device {
    struct stats_device stats;
    struct page_moment moment; /* from a file only the map, without pieces if it is unknown */
};

struct parsed_report {
    char source[256]; /* name of the file, or the process number */
    struct report_process process;
    struct program program;
    struct report_head head;
    struct report_oom oom;
    struct lines verdict;
    struct parsed_device *devices;
    size_t device_count;
    struct page_event *events; /* of a live page: the flight recorder */
    size_t event_count;
    char **texts; /* the texts that the other fields point to */
    size_t text_count;
    struct parsed_stacks *stacks;    /* NULL: none */
    struct page *page;               /* NULL: the report is from a file */
    char note[256], sizes_note[128]; /* notes on the values, for the user; empty: none */
};

struct parsed_reports {
    struct parsed_report **list;
    size_t count;
    size_t memory_left; /* bytes that reports from files may still take */
};

/**
 * Adds the reports of a file; `-` is the standard input. Ignores lines that are not JSON of the
 * library. Returns false and sets *why in four cases:
 *
 *   - The file has no report.
 *   - The file cannot be read, or a line is longer than any report. The reports before are added.
 *   - A report was cut off. The others are added.
 *   - A report has more devices or takes more memory than a report of the library can. The function
 *     adds neither that report nor later ones.
 */
bool parsed_reports_read_file(struct parsed_reports *reports, const char *path, const char **why);

/** Adds the report of a process from its page, which must stay open. The caller has asked for new
 * values (pages_ask()). */
void parsed_reports_read_page(struct parsed_reports *reports, struct page *page);

/**
 * Removes all but the newest report of each process: a process may have written one when memory ran
 * out and another at its exit. `only_if_several`: keeps all if they are of one process. Returns how
 * many were removed.
 */
size_t parsed_reports_keep_newest(struct parsed_reports *reports, bool only_if_several);

void parsed_reports_free(struct parsed_reports *reports);

/** Writes one report. */
void parsed_report_print(const struct parsed_report *report, enum report_format format,
                         struct print *out);

/** Prints all reports as one table, with a row for each device of each process. */
void parsed_reports_print_table(const struct parsed_reports *reports, struct print *out);

/** Prints two reports in adjacent columns, and their difference. */
void parsed_reports_print_difference(const struct parsed_report *before,
                                     const struct parsed_report *after, struct print *out);

#endif
