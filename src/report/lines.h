/*
 * A few lines of words: clauses filled into lines of bounded width and number.
 *
 * For the sentences of a text report, where the figures decide how much fits on a line. A sentence
 * that does not fit is left out as a whole, so that a report keeps its size whatever the figures are
 * and no sentence ends in the middle; so the most important comes first.
 */
#ifndef GPUCACHE_REPORT_LINES_H
#define GPUCACHE_REPORT_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINES_MAX 9
#define LINES_COLUMNS 75

struct lines {
    char text[LINES_MAX][LINES_COLUMNS + 1];
    size_t count;
    size_t max, columns; /* bounds, at most the constants above */
    size_t start;        /* the line on which the sentence begins */
    bool left_out;       /* the sentence did not fit */
};

void lines_init(struct lines *lines, size_t max, size_t columns);

/** Starts a sentence, on a line of its own. */
void lines_start(struct lines *lines, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Goes on behind a comma, or a colon if the line ends with one, on the same line if it fits, else indented on the next. */
void lines_clause(struct lines *lines, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** The same with one of a list, which may end early. False, and nothing said, if it does not fit. */
bool lines_item(struct lines *lines, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Values as text, for the formats above: SIZE(bytes) and so on stand for a string that lives as
 * long as the block. */
#define LINES_VALUE 32
#define SIZE(bytes) lines_size((char[LINES_VALUE]){0}, bytes)
#define COUNT(count) lines_count((char[LINES_VALUE]){0}, count)
#define PERCENT(part, whole) lines_percent((char[LINES_VALUE]){0}, part, whole)
#define RATIO(value) lines_ratio((char[LINES_VALUE]){0}, value)
#define SECONDS(nanoseconds) lines_seconds((char[LINES_VALUE]){0}, nanoseconds)

/* What a noun has behind it. */
#define PLURAL(count) ((count) == 1 ? "" : "s")

const char *lines_size(char *buffer, uint64_t bytes);
const char *lines_count(char *buffer, uint64_t count);
const char *lines_percent(char *buffer, uint64_t part, uint64_t whole);
const char *lines_ratio(char *buffer, double value);
const char *lines_seconds(char *buffer, uint64_t nanoseconds);

#endif
