/*
 * gpucache report --html: one page that needs no network.
 *
 * The page is page.html with page.css, the script (page.js and others), and the reports as JSON. The
 * script draws all of it, and no text of a report becomes markup. tool/page.py assembles the parts at
 * build time.
 *
 * The data in the page is one JSON object:
 *
 *   written   who wrote the page, and when
 *   reports   the reports, each as GPUCACHE_REPORT_FORMAT=json has it, with resolved names
 *   extras    of each report: the program's name, notes, and the flight recorder of a live page
 *   frames    of each frame of a call stack: its words for a short line (holders_print_short()),
 *             and bits: 1 the program's own, 2 a line of Python, 4 of a library that calls the driver
 *   traces    the events of traces (html_trace.c)
 */
#ifndef GPUCACHE_TOOL_HTML_H
#define GPUCACHE_TOOL_HTML_H

#include "tool/parsed_report.h"
#include "tool/trace_file.h"

#define HTML_EVENTS 1000000 /* the newest of a trace that a page has */

struct html {
    const struct parsed_reports *reports;
    const struct trace_file *traces;
    size_t trace_count;
};

/** Returns -EEXIST if a page must not be written there: a regular file holds something that is
 * no page. Else 0. */
int html_check(const char *path);

/** Writes the page to a new file, over an earlier page, or to what is no regular file; "-" is
 * stdout. Returns 0 or a negative errno, -EEXIST as html_check(). */
int html_write(const struct html *page, const char *path);

/** Writes the data of a page. */
void html_print_data(const struct html *page, struct print *out);

/** Writes one trace as an element of `traces`. */
void html_print_trace(const struct trace_file *file, struct print *out);

#endif
