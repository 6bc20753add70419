/*
 * gpucache report --html: writes one page that needs no network.
 *
 * The page is page.html with page.css, the script (page.js and others), and the reports as JSON.
 * The script draws everything, and no text of a report becomes markup. page.py assembles the parts
 * at build time.
 *
 * The data in the page is one JSON object:
 *
 *   written   the program that wrote the page, and the time
 *   reports   the reports, each as GPUCACHE_REPORT_FORMAT=json has it, with resolved names
 *   extras    of each report: the program's name, notes, and the flight recorder of a live page
 *   frames    of each frame of a call stack: its short text (holders_print_short()), and bits:
 *             1 the program's own, 2 a line of Python, 4 in a library that calls the driver
 *   kinds     of each kind of event, by its number in live/flight.def: its words
 *   roles     of each kind that the script treats differently: allocate, free or refused
 *   traces    the events of traces (html_trace.c)
 */
#ifndef GPUCACHE_TOOL_PAGE_HTML_H
#define GPUCACHE_TOOL_PAGE_HTML_H

#include "base/json_put.h"
#include "tool/report/parsed_report.h"
#include "tool/trace/trace_file.h"

#define HTML_EVENTS 1000000 /* a page has at most as many events of a trace, the newest */

struct html {
    const struct parsed_reports *reports;
    struct trace_file *traces;
    size_t trace_count;
};

/** Returns -EEXIST if the path is a regular file with other contents than a page; otherwise 0. */
int html_check(const char *path);

/** Writes the page to a new file, over an earlier page, or to a device or FIFO; "-" is stdout.
 * Returns 0 or a negative errno; -EEXIST as html_check(). */
int html_write(const struct html *page, const char *path);

/** Writes the data of a page. */
void html_print_data(const struct html *page, struct print *out);

/** Writes one trace as an element of `traces`. */
void html_put_trace(const struct trace_file *file, struct json_put *to);

#endif
