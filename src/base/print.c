/*
 * The formatter. stdio cannot be used: it allocates and locks, and the program may have replaced,
 * redirected or closed its streams. A report must also be possible in a signal handler and in a
 * dying process.
 */
#include "base/print.h"

#include "base/write.h"

#include <errno.h>
#include <string.h>
#include <sys/types.h>

#define DECIMALS_MAX 9

static const uint64_t power_of_ten[DECIMALS_MAX + 1] = {
    1, 10, 100, 1000, 10000, 100000, 1000000, 10000000, 100000000, 1000000000,
};

/* --- the buffer --- */

void print_init(struct print *out, int fd, char *buffer, size_t capacity) {
    *out = (struct print){.fd = fd, .buffer = buffer, .capacity = capacity};
}

/** Writes the first `length` bytes of the buffer to the descriptor, and removes them. */
static void write_out(struct print *out, size_t length) {
    int result = out->in_time ? write_in_time(out->fd, out->buffer, length)
                              : write_all(out->fd, out->buffer, length);
    if (result != 0)
        out->error = result;
    out->used -= length;
    memmove(out->buffer, out->buffer + length, out->used);
}

/**
 * Empties a full buffer up to its last line end, or completely. Without a descriptor, sets the
 * error.
 */
static void spill(struct print *out) {
    if (out->fd < 0) {
        out->error = -ENOSPC;
        return;
    }
    const char *last_newline = memrchr(out->buffer, '\n', out->used);
    write_out(out, last_newline ? (size_t)(last_newline + 1 - out->buffer) : out->used);
}

int print_flush(struct print *out) {
    if (out->fd >= 0 && out->used > 0 && out->error == 0)
        write_out(out, out->used);
    return out->error;
}

const char *print_end(struct print *out) {
    if (out->used == out->capacity)
        out->used--;
    out->buffer[out->used] = '\0';
    return out->buffer;
}

void print_bytes(struct print *out, const void *bytes, size_t length) {
    const char *from = bytes;
    while (length > 0 && out->error == 0) {
        size_t part = out->capacity - out->used;
        if (part == 0) {
            spill(out);
            continue;
        }
        if (part > length)
            part = length;
        memcpy(out->buffer + out->used, from, part);
        out->used += part;
        from += part;
        length -= part;
    }
}

/* --- plain values --- */

void print_char(struct print *out, char character) {
    print_bytes(out, &character, 1);
}

void print_str(struct print *out, const char *text) {
    print_bytes(out, text, strlen(text));
}

/** Prints a number of base 10 or 16, with zeros in front up to `min_digits` digits. */
static void print_base(struct print *out, uint64_t value, unsigned base, unsigned min_digits) {
    char digits[20];
    size_t at = sizeof digits;
    while (value != 0 || min_digits > 0) {
        digits[--at] = "0123456789abcdef"[value % base];
        value /= base;
        if (min_digits > 0)
            min_digits--;
    }
    print_bytes(out, digits + at, sizeof digits - at);
}

void print_u64(struct print *out, uint64_t value) {
    print_base(out, value, 10, 1);
}

void print_i64(struct print *out, int64_t value) {
    if (value < 0)
        print_char(out, '-');
    print_u64(out, value < 0 ? -(uint64_t)value : (uint64_t)value);
}

void print_hex(struct print *out, uint64_t value) {
    print_base(out, value, 16, 1);
}

void print_repeat(struct print *out, char character, size_t times) {
    while (times-- > 0 && out->error == 0)
        print_char(out, character);
}

/* --- values for people --- */

static void print_hundredths(struct print *out, uint64_t hundredths) {
    print_u64(out, hundredths / 100);
    print_char(out, '.');
    print_base(out, hundredths % 100, 10, 2);
}

/** Returns the value in hundredths of the unit, rounded. */
static uint64_t in_hundredths(uint64_t value, uint64_t unit) {
    return (uint64_t)(((unsigned __int128)value * 100 + unit / 2) / unit);
}

/** Prints four digits: two decimals, from 1000 on one. */
static void print_four_digits(struct print *out, uint64_t hundredths) {
    if (hundredths < 100000) {
        print_hundredths(out, hundredths);
        return;
    }
    print_u64(out, (hundredths + 5) / 100);
    print_char(out, '.');
    print_u64(out, (hundredths + 5) / 10 % 10);
}

void print_size(struct print *out, uint64_t bytes) {
    if (bytes < 1024) {
        print_u64(out, bytes);
        print_str(out, " B");
        return;
    }
    static const char prefixes[] = "KMGTPE";
    size_t i = 0;
    uint64_t unit = 1024;
    /* Compares after rounding: 1023.95 KiB prints as 1.00 MiB, not as 1024.0 KiB. */
    while (in_hundredths(bytes, unit) >= 102395 && prefixes[i + 1] != '\0') {
        unit *= 1024;
        i++;
    }
    print_four_digits(out, in_hundredths(bytes, unit));
    print_char(out, ' ');
    print_char(out, prefixes[i]);
    print_str(out, "iB");
}

void print_count(struct print *out, uint64_t count) {
    if (count < 10000000000) {
        print_u64(out, count);
        return;
    }
    static const char prefixes[] = "GTPE";
    size_t i = 0;
    uint64_t unit = power_of_ten[9];
    while (in_hundredths(count, unit) >= 100000 && prefixes[i + 1] != '\0') {
        unit *= 1000;
        i++;
    }
    print_hundredths(out, in_hundredths(count, unit));
    print_char(out, ' ');
    print_char(out, prefixes[i]);
}

/** Prints whole.part; `part` counts units of 10^-decimals. */
static void print_fixed(struct print *out, uint64_t whole, uint64_t part, unsigned decimals) {
    print_u64(out, whole);
    if (decimals > 0) {
        print_char(out, '.');
        print_base(out, part, 10, decimals);
    }
}

void print_double(struct print *out, double value, unsigned decimals) {
    if (decimals > DECIMALS_MAX)
        decimals = DECIMALS_MAX;
    if (value != value)
        value = 0;
    bool negative = value < 0;
    if (negative)
        value = -value;
    if (value >= 18446744073709549568.0) /* the largest double that fits */
        value = 18446744073709549568.0;
    uint64_t whole = (uint64_t)value;
    uint64_t part = (uint64_t)((value - (double)whole) * (double)power_of_ten[decimals] + 0.5);
    if (part >= power_of_ten[decimals]) {
        whole++;
        part = 0;
    }
    if (negative && (whole != 0 || part != 0))
        print_char(out, '-');
    print_fixed(out, whole, part, decimals);
}

void print_seconds(struct print *out, uint64_t nanoseconds, unsigned decimals) {
    if (decimals > DECIMALS_MAX)
        decimals = DECIMALS_MAX;
    uint64_t part = nanoseconds % power_of_ten[9] / power_of_ten[9 - decimals];
    print_fixed(out, nanoseconds / power_of_ten[9], part, decimals);
}

void print_percent(struct print *out, uint64_t part, uint64_t whole) {
    print_hundredths(out, whole == 0 ? 0 : (uint64_t)((unsigned __int128)part * 10000 / whole));
    print_char(out, '%');
}

/* --- text --- */

static bool is_continuation(unsigned char byte) {
    return (byte & 0xc0) == 0x80;
}

/** Counts the characters of a text, at most `most`. */
static size_t count_characters(const char *text, size_t most) {
    size_t count = 0;
    for (; *text && count < most; text++)
        count += !is_continuation((unsigned char)*text);
    return count;
}

/** Prints `count` characters of a text, with `?` for each one that is not printable ASCII. */
static void print_ascii(struct print *out, const char *text, size_t count) {
    for (; *text && count > 0; text++) {
        unsigned char byte = (unsigned char)*text;
        if (is_continuation(byte))
            continue;
        print_char(out, byte < 0x20 || byte >= 0x7f ? '?' : (char)byte);
        count--;
    }
}

void print_cell(struct print *out, const char *text, size_t columns, enum print_align align) {
    size_t count = count_characters(text, columns);
    if (align == PRINT_RIGHT)
        print_repeat(out, ' ', columns - count);
    print_ascii(out, text, count);
    if (align == PRINT_LEFT)
        print_repeat(out, ' ', columns - count);
}

void print_plain(struct print *out, const char *text, size_t columns) {
    bool cut = count_characters(text, columns + 1) > columns;
    size_t dots = !cut ? 0 : columns < 3 ? columns : 3;
    print_ascii(out, text, columns - dots);
    print_repeat(out, '.', dots);
}

void print_escaped(struct print *out, const char *text, size_t columns) {
    size_t column = 0;
    for (; *text; text++) {
        unsigned char byte = (unsigned char)*text;
        bool plain = byte >= 0x20 && byte < 0x7f;
        bool quoted = byte == '"' || byte == '\\';
        size_t width = !plain ? 4 : quoted ? 2 : 1;
        if (column + width > columns) {
            print_str(out, "...");
            return;
        }
        column += width;
        if (!plain) {
            print_str(out, "\\x");
            print_base(out, byte, 16, 2);
        } else {
            if (quoted)
                print_char(out, '\\');
            print_char(out, (char)byte);
        }
    }
}

/**
 * Returns the length of the UTF-8 sequence at `text`, or 0 if it is invalid: overlong, surrogate,
 * cut short or beyond U+10FFFF.
 */
static size_t utf8_length(const unsigned char *text) {
    /* Ranges of the first and the second byte: the table of well-formed UTF-8 in Unicode. */
    static const struct {
        unsigned char first_min, first_max, second_min, second_max, length;
    } forms[] = {
        {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
        {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
        {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    if (text[0] < 0x80)
        return 1;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (text[0] < forms[i].first_min || text[0] > forms[i].first_max)
            continue;
        if (text[1] < forms[i].second_min || text[1] > forms[i].second_max)
            return 0;
        for (size_t rest = 2; rest < forms[i].length; rest++)
            if (!is_continuation(text[rest]))
                return 0;
        return forms[i].length;
    }
    return 0;
}

/**
 * Returns whether the character is in U+0080 to U+009F. Terminals take some of them as the
 * beginning of a command.
 */
static bool is_c1(const unsigned char *text) {
    return text[0] == 0xc2 && text[1] >= 0x80 && text[1] < 0xa0;
}

/**
 * Returns whether the character ends a line (U+2028, U+2029) or changes the direction of the text
 * after it. A terminal would then show that text in another place.
 */
static bool moves_text(const char *text) {
    static const char *const ranges[][2] = {
        {"\u061c", "\u061c"}, {"\u200e", "\u200f"}, {"\u2028", "\u202e"}, {"\u2066", "\u2069"}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        size_t length = strlen(ranges[i][0]);
        if (strncmp(text, ranges[i][0], length) >= 0 && strncmp(text, ranges[i][1], length) <= 0)
            return true;
    }
    return false;
}

size_t print_visible_length(const char *text) {
    const unsigned char *at = (const unsigned char *)text;
    return *at < 0x20 || *at == 0x7f || is_c1(at) || moves_text(text) ? 0 : utf8_length(at);
}

void print_untrusted(struct print *out, const char *text) {
    while (*text) {
        size_t visible = print_visible_length(text),
               length = utf8_length((const unsigned char *)text);
        print_bytes(out, visible > 0 ? text : "?", visible > 0 ? visible : 1);
        text += length > 0 ? length : 1;
    }
}

/** Returns the code of a character of at most three bytes. */
static unsigned code_of(const unsigned char *text, size_t length) {
    return length == 1   ? text[0]
           : length == 2 ? (text[0] & 0x1fu) << 6 | (text[1] & 0x3fu)
                         : (text[0] & 0xfu) << 12 | (text[1] & 0x3fu) << 6 | (text[2] & 0x3fu);
}

void print_json_string(struct print *out, const char *text) {
    if (!text) {
        print_str(out, "null");
        return;
    }
    print_char(out, '"');
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        size_t length = utf8_length(at);
        if (length == 0) {
            print_str(out, "\\ufffd");
            length = 1;
        } else if (*at == '"' || *at == '\\') {
            print_char(out, '\\');
            print_char(out, (char)*at);
        } else if (print_visible_length((const char *)at) > 0) {
            print_bytes(out, at, length);
        } else {
            print_str(out, "\\u");
            print_base(out, code_of(at, length), 16, 4);
        }
        at += length;
    }
    print_char(out, '"');
}

/* --- formats --- */

void print_vformat(struct print *out, const char *format, va_list values) {
    for (; *format; format++) {
        if (*format != '%') {
            print_char(out, *format);
            continue;
        }
        enum { INT, LONG, LONG_LONG, SIZE } width = INT;
        format++;
        if (*format == 'z') {
            width = SIZE;
            format++;
        } else if (*format == 'l') {
            width = LONG;
            if (*++format == 'l') {
                width = LONG_LONG;
                format++;
            }
        }
        switch (*format) {
        case 'd':
        case 'i':
            print_i64(out, width == INT         ? va_arg(values, int)
                           : width == LONG      ? va_arg(values, long)
                           : width == LONG_LONG ? va_arg(values, long long)
                                                : va_arg(values, ssize_t));
            break;
        case 'u':
        case 'x': {
            uint64_t value = width == INT         ? va_arg(values, unsigned)
                             : width == LONG      ? va_arg(values, unsigned long)
                             : width == LONG_LONG ? va_arg(values, unsigned long long)
                                                  : va_arg(values, size_t);
            print_base(out, value, *format == 'x' ? 16 : 10, 1);
            break;
        }
        case 's': {
            const char *text = va_arg(values, const char *);
            print_str(out, text ? text : "(null)");
            break;
        }
        case 'c':
            print_char(out, (char)va_arg(values, int));
            break;
        case 'p':
            print_str(out, "0x");
            print_hex(out, (uintptr_t)va_arg(values, void *));
            break;
        case '%':
            print_char(out, '%');
            break;
        default: /* the size of the value is unknown, so the next value cannot be found */
            print_str(out, "(bad format)");
            return;
        }
    }
}

void print_format(struct print *out, const char *format, ...) {
    va_list values;
    va_start(values, format);
    print_vformat(out, format, values);
    va_end(values);
}
