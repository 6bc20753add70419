/*
 * gpucache report --html: one page that needs nothing else, neither a network nor a script to be read.
 *
 * Everything is drawn here, as SVG and as boxes of a share of the width; labels are text beside the drawings,
 * so they keep their size on any screen. html.js adds tooltips, html.css has the colours for light and dark.
 * What comes from outside (commands, names, stacks, verdicts) goes through html_text(), which leaves nothing that
 * could end a text, a tag or an attribute.
 */
#ifndef GPUCACHE_TOOL_HTML_H
#define GPUCACHE_TOOL_HTML_H

#include "tool/sheet.h"

#include <stdio.h>

/** The reports of one process, oldest first. */
struct html_process {
    const struct sheet **sheets;
    size_t count;
    size_t number; /* in the page */
    bool brief;    /* one of many: at one moment only, and at an OOM */
};

/** Returns -EEXIST if a page must not be written there: a regular file holds something that is
 * no page. Else 0. */
int html_check(const char *path);

/** Writes the page of all these reports to a new file, over an earlier page, or to what is no
 * regular file; "-" is stdout. Returns 0 or a negative errno, -EEXIST as html_check(). */
int html_write(const struct sheets *sheets, const char *path);

/* ---- its parts ---- */

/** A text of unknown origin, for the inside of an element or a quoted attribute. NULL is "". */
void html_text(FILE *out, const char *text);

/** A size or a duration for an axis, short: 512 MiB, 90 s. */
#define HTML_LABEL 32
const char *html_size(char label[HTML_LABEL], uint64_t bytes);
const char *html_time(char label[HTML_LABEL], double seconds);
/** Writes a time in the unit that suits `longest`: all times of an axis have one. */
const char *html_time_like(char label[HTML_LABEL], double seconds, double longest);

/** Bytes from one line of a grid to the next: a power of two, about four of them up to `most`. */
uint64_t html_step(uint64_t most);

/** One device of a process; its newest figures are those of the last sheet. */
void html_device(FILE *out, const struct html_process *of, int ordinal);

/** Memory over time: from the process's reports, and from the flight recorder of a live page. */
void html_over_time(FILE *out, const struct html_process *of, int ordinal);

/** What is live, by call stack or by size. */
void html_holders(FILE *out, const struct sheet *sheet, const struct stats_device *device);

/** In percent; of nothing 0. */
double html_share(uint64_t part, uint64_t whole);

/** The pool's memory by address. */
void html_map(FILE *out, const struct stats_device *device, const struct segment_map *map);

/** The place of a device in a report, or NULL. */
const struct stats_device *html_find(const struct sheet *sheet, int ordinal);

#endif
