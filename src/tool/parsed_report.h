/*
 * A report as the tool has it, wherever it came from: a live page, or a file of the library's.
 */
#ifndef GPUCACHE_TOOL_PARSED_REPORT_H
#define GPUCACHE_TOOL_PARSED_REPORT_H

#include "process/print.h"
#include "report/emitter.h"
#include "tool/pages.h"
#include "tool/stacks.h"

#include <stdbool.h>
#include <stddef.h>

struct parsed_report {
    char source[256]; /* the file, or the process number */
    struct report_process process;
    struct program program;
    struct report_head head;
    struct report_oom oom;
    struct lines verdict;
    struct stats_device *devices;
    struct segment_map *maps; /* of each device; without pieces if that is not known */
    /* Of a live page: the flight recorder, and what of it each device's figures contain. */
    struct page_event *events;
    size_t event_count;
    struct page_moment *moments;
    size_t device_count;
    char **texts; /* that the others point into */
    size_t text_count;
    struct parsed_stacks *stacks;    /* NULL: there are none */
    struct page *page;               /* NULL: from a file */
    char note[256], sizes_note[128]; /* what has to be said of the figures; empty: nothing */
};

struct parsed_reports {
    struct parsed_report **list;
    size_t count;
    size_t memory_left; /* bytes that reports out of files may still take */
};

/**
 * Adds the reports that a file holds. Lines that are none of the library's JSON are left out.
 * False, and why, if there is none at all, or if one has more devices, or takes more memory, than a
 * report of the library can: that one and those behind it are not read.
 */
bool parsed_reports_read_file(struct parsed_reports *reports, const char *path, const char **why);

/** The same of a process, which is asked for fresh figures if it runs. The page stays the caller's.
 */
void parsed_reports_read_page(struct parsed_reports *reports, struct page *page);

void parsed_reports_free(struct parsed_reports *reports);

/** Writes one report. */
void parsed_report_print(const struct parsed_report *report, enum report_format format,
                         struct print *out);

/** All of them as one table, one row for each device of each process. */
void parsed_reports_print_table(const struct parsed_reports *reports, struct print *out);

/** Two of them side by side. */
void parsed_reports_print_difference(const struct parsed_report *before,
                                     const struct parsed_report *after, struct print *out);

#endif
