/*
 * Reads the formats with one event per line. A line in another format is an error, which names the
 * line. Only the last line may be incomplete, because the program may have been killed.
 */
#include "replay/input.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define FIELDS 6
#define DAY_US UINT64_C(86400000000)
#define LATE_US UINT64_C(3600000000)  /* at most, that a line of another thread comes late */
#define TIME_MOST (UINT64_C(1) << 53) /* in us: 285 years */

struct rows {
    struct history *history;
    const struct format *format;
    uint64_t last_us, days_us; /* the last time; whole days so far: times restart at midnight */
    uint64_t number;           /* of the current line */
};

struct field {
    const char *text;
    size_t length;
};

/** Splits a line into fields. A line with more than FIELDS fields gives FIELDS + 1. */
static size_t split(const char *line, size_t length, char separator, struct field fields[FIELDS]) {
    size_t count = 0;
    while (count < FIELDS) {
        const char *end = memchr(line, separator, length);
        size_t of = end ? (size_t)(end - line) : length;
        fields[count++] = (struct field){line, of};
        if (!end)
            return count;
        line += of + 1;
        length -= of + 1;
    }
    return FIELDS + 1;
}

static bool is(struct field field, const char *text) {
    return field.length == strlen(text) && memcmp(field.text, text, field.length) == 0;
}

static bool number_of(struct field field, unsigned base, uint64_t *value) {
    static const char digits[] = "0123456789abcdef";
    *value = 0;
    for (size_t i = 0; i < field.length; i++) {
        const char *digit = memchr(digits, tolower((unsigned char)field.text[i]), base);
        if (!digit || __builtin_mul_overflow(*value, base, value) ||
            __builtin_add_overflow(*value, (uint64_t)(digit - digits), value))
            return false;
    }
    return field.length > 0;
}

/** Reads 0x7f0000000000, 0, (nil) or nullptr. */
static bool pointer_of(struct field field, uint64_t *value) {
    *value = 0;
    if (is(field, "(nil)") || is(field, "nullptr"))
        return true;
    bool hex = field.length > 2 && field.text[0] == '0' && (field.text[1] | 32) == 'x';
    return number_of(hex ? (struct field){field.text + 2, field.length - 2} : field, 16, value);
}

/** Reads 12:34:56.123456, 12:34:56:123456, or seconds since 1970 with decimals. */
static bool time_of(struct rows *rows, struct field field, uint64_t *us) {
    struct field parts[FIELDS], last;
    size_t count = split(field.text, field.length, ':', parts);
    uint64_t hours = 0, minutes = 0, seconds, decimals = 0;
    if (count != 1 && count != 3 && count != 4)
        return false;
    if (count >= 3 && (!number_of(parts[0], 10, &hours) || !number_of(parts[1], 10, &minutes) ||
                       hours > 24 || minutes > 59))
        return false;
    last = parts[count == 4 ? 2 : count - 1];
    const char *dot = memchr(last.text, '.', last.length);
    struct field behind = {0};
    if (count == 4) {
        behind = parts[3];
    } else if (dot) {
        behind = (struct field){dot + 1, last.length - (size_t)(dot + 1 - last.text)};
        last.length = (size_t)(dot - last.text);
    }
    behind.length = behind.length > 6 ? 6 : behind.length;
    if (!number_of(last, 10, &seconds) || seconds > TIME_MOST / 1000000 ||
        (behind.length > 0 && !number_of(behind, 10, &decimals)))
        return false;
    for (size_t i = behind.length; behind.length > 0 && i < 6; i++)
        decimals *= 10;
    *us = rows->days_us + (hours * 3600 + minutes * 60 + seconds) * 1000000 + decimals;
    if (count > 1 && *us + DAY_US / 2 < rows->last_us) {
        rows->days_us += DAY_US;
        *us += DAY_US;
    } else if (count > 1 && rows->days_us > 0 && *us + LATE_US > rows->last_us + DAY_US) {
        *us -= DAY_US; /* a late line, from before midnight */
    }
    rows->last_us = *us;
    return true;
}

static bool size_of(struct field field, uint64_t *bytes) {
    return number_of(field, 10, bytes) && *bytes <= HISTORY_BYTES_MOST;
}

/** Reads an event. Returns false for a line in another format. */
static bool read_trace(struct rows *rows, const struct field *fields, size_t count) {
    uint64_t time, thread, id, bytes = 0;
    if (count < 4 || count > 5 || !number_of(fields[0], 10, &time) || time > TIME_MOST ||
        !number_of(fields[1], 10, &thread) || !number_of(fields[3], 10, &id))
        return false;
    bool frees = is(fields[2], "f");
    if (!frees && (!is(fields[2], "a") || count != 5 || !size_of(fields[4], &bytes)))
        return false;
    history_on_thread(rows->history, thread);
    if (frees)
        history_free(rows->history, time, id);
    else
        history_allocate(rows->history, time, id, bytes, 0);
    return true;
}

/** Reads an event without a time. The events get times one microsecond apart. */
static bool read_plain(struct rows *rows, const struct field *fields, size_t count) {
    uint64_t id, bytes = 0;
    if (count < 2 || !number_of(fields[1], 10, &id))
        return false;
    bool frees = count == 2 && is(fields[0], "f");
    if (!frees && (count != 3 || !is(fields[0], "a") || !size_of(fields[2], &bytes)))
        return false;
    if (frees)
        history_free(rows->history, rows->number, id);
    else
        history_allocate(rows->history, rows->number, id, bytes, 0);
    return true;
}

static bool read_rmm(struct rows *rows, const struct field *fields, size_t count) {
    uint64_t thread, time, pointer, bytes, stream;
    if (count != 6 || !time_of(rows, fields[1], &time) || !pointer_of(fields[3], &pointer) ||
        !size_of(fields[4], &bytes) || !pointer_of(fields[5], &stream))
        return false;
    bool has_thread = number_of(fields[0], 10, &thread);
    bool frees = is(fields[2], "free") || is(fields[2], "deallocate");
    bool allocates = is(fields[2], "allocate"), fails = is(fields[2], "allocate failure");
    history_on_thread(rows->history, has_thread ? thread : 0);
    rows->history->failures += fails;
    if (frees && pointer)
        history_free(rows->history, time, pointer);
    else if (allocates && pointer)
        history_allocate(rows->history, time, pointer, bytes, stream);
    return frees || allocates || fails;
}

static const struct format {
    const char *head, *form; /* the first line, or NULL; the form of the others, for messages */
    char separator;
    bool (*read)(struct rows *rows, const struct field *fields, size_t count);
} of_trace = {"time_us,thread,op,id,bytes", "time_us,thread,a|f,id,bytes", ',', read_trace},
  of_plain = {NULL, "a ID BYTES, or f ID", ' ', read_plain},
  of_rmm = {"Thread,Time,Action,Pointer,Size,Stream",
            "thread,time,allocate|free|deallocate|allocate failure,pointer,size,stream", ',',
            read_rmm};

static bool read_line(struct rows *rows, const char *line, size_t length) {
    struct field fields[FIELDS] = {0};
    const char *head = rows->format->head;
    if (length > 0 && line[length - 1] == '\r')
        length--;
    if (length == 0 || (head && is((struct field){line, length}, head)))
        return true;
    if (line[0] == '#') {
        if (length >= 8 && memcmp(line, "# period", 8) == 0)
            history_period(rows->history);
        return true;
    }
    size_t count = split(line, length, rows->format->separator, fields);
    return rows->format->read(rows, fields, count);
}

/** Returns the format of the first line that is not a comment, or NULL for an unknown format. */
static const struct format *format_of(const struct input *input) {
    const char *line = input->bytes, *end = input->bytes + input->count;
    while (line < end && *line == '#') {
        const char *next = memchr(line, '\n', (size_t)(end - line));
        line = next ? next + 1 : end;
    }
    const char *stop = memchr(line, '\n', (size_t)(end - line));
    size_t length = (size_t)((stop ? stop : end) - line);
    length -= length > 0 && line[length - 1] == '\r';
    struct field fields[FIELDS] = {0}, whole = {line, length};
    uint64_t any;
    size_t count = split(line, length, ',', fields);
    if (is(whole, of_trace.head) ||
        (count >= 4 && count <= 5 && (is(fields[2], "a") || is(fields[2], "f"))))
        return &of_trace;
    if (is(whole, of_rmm.head) ||
        (count == 6 && number_of(fields[0], 10, &any) && pointer_of(fields[3], &any)))
        return &of_rmm;
    count = split(line, length, ' ', fields);
    bool plain = count >= 2 && count <= 3 && (is(fields[0], "a") || is(fields[0], "f"));
    return plain ? &of_plain : NULL;
}

bool rows_are_known(const struct input *input) {
    return format_of(input) != NULL;
}

static void explain(struct histories *histories, const struct rows *rows, struct field line) {
    char start[48];
    size_t count = line.length < sizeof start - 1 ? line.length : sizeof start - 1;
    for (size_t i = 0; i < count; i++)
        start[i] = line.text[i] >= ' ' && line.text[i] <= '~' ? line.text[i] : '?';
    start[count] = '\0';
    snprintf(histories->why, sizeof histories->why, "line %llu is `%s`; wanted is %s",
             (unsigned long long)rows->number, start, rows->format->form);
}

int rows_read(const struct input *input, struct histories *histories) {
    struct rows rows = {.format = format_of(input), .history = histories_of(histories, -1)};
    const char *at = input->bytes, *end = input->bytes + input->count;
    while (rows.format && at < end) { /* NULL: the caller has not called rows_are_known() */
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        struct field line = {at, (size_t)((stop ? stop : end) - at)};
        rows.number++;
        bool good = read_line(&rows, line.text, line.length);
        rows.history->cut = !good && !stop;
        if (!good && stop) {
            explain(histories, &rows, line);
            return -EINVAL;
        }
        at = stop ? stop + 1 : end;
    }
    return 0;
}
