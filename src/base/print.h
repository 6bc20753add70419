/*
 * Bounded output without stdio. Every line and every report of the library is written with it.
 *
 * A `struct print` is a buffer of the caller and a destination. With a descriptor, a full buffer is
 * written up to the end of its last whole line. Two threads that report at once then do not cut
 * each other's lines, and a text that fits into the buffer is one write. Without a descriptor (fd
 * -1) the buffer is the result. Text that does not fit is dropped, and an error is recorded.
 *
 * Nothing here allocates, takes a lock, depends on the locale or changes errno. Signal handlers,
 * exit and dying processes can therefore use it.
 */
#ifndef GPUCACHE_BASE_PRINT_H
#define GPUCACHE_BASE_PRINT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct print {
    int fd; /* -1: the text stays in the buffer */
    char *buffer;
    size_t capacity;
    size_t used;
    int error;    /* 0, or the negative errno of the first failure; later text is dropped */
    bool in_time; /* write_in_time() instead of write_all() */
};

/** The initialiser of a struct print without a descriptor. Its buffer is valid until the end of the
 * enclosing C block. */
#define PRINT_TEXT(bytes)                                                                          \
    { .fd = -1, .buffer = (char[bytes]){0}, .capacity = (bytes) }

enum print_align { PRINT_LEFT, PRINT_RIGHT };

/** Starts writing to `fd` through a buffer of the caller of at least one byte. */
void print_init(struct print *out, int fd, char *buffer, size_t capacity);

/**
 * Writes out the buffered text; does nothing without a descriptor. Returns 0 or the first failure
 * as a negative errno.
 */
int print_flush(struct print *out);

/**
 * Ends the text in the buffer with NUL and returns it. Drops the last byte if the buffer is full.
 * Only without a descriptor.
 */
const char *print_end(struct print *out);

void print_bytes(struct print *out, const void *bytes, size_t length);
void print_char(struct print *out, char character);
void print_str(struct print *out, const char *text);
void print_u64(struct print *out, uint64_t value);
void print_i64(struct print *out, int64_t value);
void print_hex(struct print *out, uint64_t value);

/** Prints bytes for people: `512 B`, `1.50 GiB`, `1023.9 MiB`. At most 10 columns. */
void print_size(struct print *out, uint64_t bytes);

/**
 * Prints a number for people: exact up to 10 digits, then `18.44 E` (powers of 1000). At most 10
 * columns.
 */
void print_count(struct print *out, uint64_t count);

/** Prints a number with fixed decimals (at most 9), rounded. NaN prints as 0. */
void print_double(struct print *out, double value, unsigned decimals);

/** Prints nanoseconds as seconds, cut (not rounded) to `decimals` decimals (at most 9). */
void print_seconds(struct print *out, uint64_t nanoseconds, unsigned decimals);

/**
 * Prints part/whole in per cent with two decimals, cut, so that 100.00 means all of it. A whole of
 * 0 prints as 0.
 */
void print_percent(struct print *out, uint64_t part, uint64_t whole);

/** Prints the character `times` times. */
void print_repeat(struct print *out, char character, size_t times);

/**
 * Prints a text at one side of a cell of `columns` columns. Longer text is cut. Characters that are
 * not printable ASCII become `?`.
 */
void print_cell(struct print *out, const char *text, size_t columns, enum print_align align);

/**
 * Prints text of unknown origin, one column for each character. Characters that are not printable
 * ASCII become `?`; longer text is cut with `...`.
 */
void print_plain(struct print *out, const char *text, size_t columns);

/**
 * Prints text of unknown origin as the inside of a C string: \" and \\, and \xNN for each byte that
 * is not printable ASCII. Cuts it with `...` after `columns` columns.
 */
void print_escaped(struct print *out, const char *text, size_t columns);

/**
 * Prints a JSON string with its quotes; NULL prints null. Bytes that are not UTF-8 become U+FFFD.
 * Characters for which print_visible_length() returns 0 are escaped.
 */
void print_json_string(struct print *out, const char *text);

/**
 * Prints text of unknown origin in full. Characters for which print_visible_length() returns 0
 * become `?`, so the text can neither command a terminal nor begin a line.
 */
void print_untrusted(struct print *out, const char *text);

/**
 * Returns the bytes of the first character of the text. Returns 0 for a control character (also
 * C1), for one that ends a line or changes the direction of text, and for invalid UTF-8.
 */
size_t print_visible_length(const char *text);

/**
 * Prints by a format of printf: %s %c %d %i %u %x with l, ll or z, and %p %%. Widths and precisions
 * are not supported. NULL prints (null).
 */
void print_format(struct print *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void print_vformat(struct print *out, const char *format, va_list values)
    __attribute__((format(printf, 2, 0)));

#endif
