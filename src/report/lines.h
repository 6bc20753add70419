/*
 * Fills the sentences of a text report into lines. The number of lines and their width are bounded.
 *
 * A sentence that does not fit is left out as a whole. The report keeps its size for any values,
 * and no sentence ends in the middle. Callers therefore write the most important sentence first.
 * The caller owns the lines: no lock, no allocation.
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
    size_t start;        /* the line on which the current sentence begins */
    bool left_out;       /* the current sentence did not fit */
};

void lines_init(struct lines *lines, size_t max, size_t columns);

/** Starts a sentence on a new line. */
void lines_start(struct lines *lines, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/**
 * Adds a clause to the sentence, after a comma, or after the colon that ends the line. Uses the
 * next line, indented, if the clause does not fit.
 */
void lines_clause(struct lines *lines, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Adds a clause as lines_clause() does. If it does not fit, keeps the sentence, returns false. */
bool lines_item(struct lines *lines, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Values as text, for the formats above: SIZE(bytes) and the others give a string that is valid
 * until the end of the enclosing C block. */
#define LINES_VALUE 32
#define SIZE(bytes) lines_size((char[LINES_VALUE]){0}, bytes)
#define COUNT(count) lines_count((char[LINES_VALUE]){0}, count)
#define PERCENT(part, whole) lines_percent((char[LINES_VALUE]){0}, part, whole)
#define RATIO(value) lines_ratio((char[LINES_VALUE]){0}, value)
#define SECONDS(nanoseconds) lines_seconds((char[LINES_VALUE]){0}, nanoseconds)

/* The ending of a noun after a count. */
#define PLURAL(count) ((count) == 1 ? "" : "s")

const char *lines_size(char *buffer, uint64_t bytes);
const char *lines_count(char *buffer, uint64_t count);
const char *lines_percent(char *buffer, uint64_t part, uint64_t whole);
const char *lines_ratio(char *buffer, double value);
const char *lines_seconds(char *buffer, uint64_t nanoseconds);

#endif
