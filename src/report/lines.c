/*
 * Fills clauses into lines (lines.h). Each clause is formatted into its own buffer first, to know
 * whether it fits on the line. One byte of every line stays free for a comma that may follow.
 */
#include "report/lines.h"

#include "base/print.h"

#include <string.h>

void lines_init(struct lines *lines, size_t max, size_t columns) {
    lines->count = lines->start = 0;
    lines->max = max < LINES_MAX ? max : LINES_MAX;
    lines->columns = columns < LINES_COLUMNS ? columns : LINES_COLUMNS;
    lines->left_out = false;
}

__attribute__((format(printf, 2, 0))) static void format_words(char words[LINES_COLUMNS + 1],
                                                               const char *format, va_list values) {
    struct print out;
    print_init(&out, -1, words, LINES_COLUMNS + 1);
    print_vformat(&out, format, values);
    print_end(&out);
}

static void add_line(struct lines *lines, const char *indent, const char *words) {
    struct print out;
    print_init(&out, -1, lines->text[lines->count++], lines->columns + 1);
    print_str(&out, indent);
    print_str(&out, words);
    print_end(&out);
}

/**
 * Appends words to the sentence, on a new line if needed. Returns false if no line is left.
 */
static bool append_words(struct lines *lines, const char *words) {
    char *line = lines->text[lines->count - 1];
    size_t used = strlen(line);
    const char *joint = used > 0 && line[used - 1] == ':' ? "" : ",";
    bool fits = used + strlen(joint) + 1 + strlen(words) + strlen(",") <= lines->columns;
    if (!fits && lines->count == lines->max)
        return false;
    struct print out;
    print_init(&out, -1, line + used, lines->columns + 1 - used);
    print_str(&out, joint);
    if (fits) {
        print_str(&out, " ");
        print_str(&out, words);
    }
    print_end(&out);
    if (!fits)
        add_line(lines, "  ", words);
    return true;
}

void lines_start(struct lines *lines, const char *format, ...) {
    char words[LINES_COLUMNS + 1];
    lines->left_out = lines->count == lines->max;
    if (lines->left_out)
        return;
    va_list values;
    va_start(values, format);
    format_words(words, format, values);
    va_end(values);
    lines->start = lines->count;
    add_line(lines, "", words);
}

void lines_clause(struct lines *lines, const char *format, ...) {
    char words[LINES_COLUMNS + 1];
    if (lines->left_out || lines->count == 0)
        return;
    va_list values;
    va_start(values, format);
    format_words(words, format, values);
    va_end(values);
    if (!append_words(lines, words)) {
        lines->count = lines->start;
        lines->left_out = true;
    }
}

bool lines_item(struct lines *lines, const char *format, ...) {
    char words[LINES_COLUMNS + 1];
    if (lines->left_out || lines->count == 0)
        return false;
    va_list values;
    va_start(values, format);
    format_words(words, format, values);
    va_end(values);
    return append_words(lines, words);
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
