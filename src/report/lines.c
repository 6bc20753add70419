/*
 * Clauses filled into lines. Each clause is formatted apart first, because only then it is known
 * where it fits; one byte of every line is kept for the comma that may have to follow.
 */
#include "report/lines.h"

#include "process/print.h"

#include <string.h>

void lines_init(struct lines *lines, size_t max, size_t columns) {
    lines->count = 0;
    lines->max = max < LINES_MAX ? max : LINES_MAX;
    lines->columns = columns < LINES_COLUMNS ? columns : LINES_COLUMNS;
    lines->full = false;
}

static void add_line(struct lines *lines, const char *indent, const char *words) {
    if (lines->full || lines->count == lines->max) {
        lines->full = true;
        return;
    }
    struct print out;
    print_init(&out, -1, lines->text[lines->count++], lines->columns + 1);
    print_str(&out, indent);
    print_str(&out, words);
    print_end(&out);
}

void lines_start(struct lines *lines, const char *format, ...) {
    char words[LINES_COLUMNS + 1];
    struct print out;
    print_init(&out, -1, words, sizeof words);
    va_list values;
    va_start(values, format);
    print_vformat(&out, format, values);
    va_end(values);
    add_line(lines, "", print_end(&out));
}

void lines_clause(struct lines *lines, const char *format, ...) {
    if (lines->full || lines->count == 0)
        return;
    char words[LINES_COLUMNS + 1];
    struct print out;
    print_init(&out, -1, words, sizeof words);
    va_list values;
    va_start(values, format);
    print_vformat(&out, format, values);
    va_end(values);
    print_end(&out);

    char *line = lines->text[lines->count - 1];
    size_t used = strlen(line);
    bool fits = used + strlen(", ") + strlen(words) + strlen(",") <= lines->columns;
    if (!fits && lines->count == lines->max) {
        lines->full = true;
        return;
    }
    print_init(&out, -1, line + used, lines->columns + 1 - used);
    print_str(&out, ",");
    if (fits) {
        print_str(&out, " ");
        print_str(&out, words);
    }
    print_end(&out);
    if (!fits)
        add_line(lines, "  ", words);
}

const char *lines_size(char *buffer, uint64_t bytes) {
    struct print out;
    print_init(&out, -1, buffer, LINES_VALUE);
    print_size(&out, bytes);
    return print_end(&out);
}

const char *lines_count(char *buffer, uint64_t count) {
    struct print out;
    print_init(&out, -1, buffer, LINES_VALUE);
    print_count(&out, count);
    return print_end(&out);
}

const char *lines_percent(char *buffer, uint64_t part, uint64_t whole) {
    struct print out;
    print_init(&out, -1, buffer, LINES_VALUE);
    print_percent(&out, part, whole);
    return print_end(&out);
}

const char *lines_ratio(char *buffer, double value) {
    struct print out;
    print_init(&out, -1, buffer, LINES_VALUE);
    print_double(&out, value, 2);
    return print_end(&out);
}

const char *lines_seconds(char *buffer, uint64_t nanoseconds) {
    struct print out;
    print_init(&out, -1, buffer, LINES_VALUE);
    print_seconds(&out, nanoseconds, 3);
    return print_end(&out);
}
