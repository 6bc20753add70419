/*
 * Bounded output without stdio: what every line and every report of the library is written with.
 *
 * A `struct print` is a buffer of the caller's and a place where it goes. With a descriptor, a full
 * buffer is written out, up to the end of its last whole line, so that two threads that report at
 * once do not cut each other's lines; what fits into the buffer leaves in one write. Without one (fd -1) the buffer is the result, and what does
 * not fit is dropped and remembered as an error. Nothing here allocates, takes a lock, depends on
 * the locale or changes errno, so it serves signal handlers, exit and dying processes alike.
 */
#ifndef GPUCACHE_PROCESS_PRINT_H
#define GPUCACHE_PROCESS_PRINT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct print {
    int fd; /* -1: keep the text in the buffer */
    char *buffer;
    size_t capacity;
    size_t used;
    int error; /* 0, or the negative errno of the first failure; everything after it is dropped */
    bool in_time; /* write_in_time() instead of write_all() */
};

enum print_align { PRINT_LEFT, PRINT_RIGHT };

/** Starts writing to fd through a buffer of the caller's, which must hold at least one byte. */
void print_init(struct print *out, int fd, char *buffer, size_t capacity);

/** Writes out what is buffered (nothing without a descriptor). Returns 0 or the first failure as a
 * negative errno. */
int print_flush(struct print *out);

/** Ends the text kept in the buffer with NUL, dropping the last byte if it is full. Only without a
 * descriptor. */
const char *print_end(struct print *out);

void print_bytes(struct print *out, const void *bytes, size_t length);
void print_char(struct print *out, char character);
void print_str(struct print *out, const char *text);
void print_u64(struct print *out, uint64_t value);
void print_i64(struct print *out, int64_t value);
void print_hex(struct print *out, uint64_t value);

/** Bytes for people: `512 B`, `1.50 GiB`, `1023.9 MiB`; never more than 10 columns. */
void print_size(struct print *out, uint64_t bytes);

/** A number for people: exact up to 10 digits, then `18.44 E` (powers of 1000), never more than 10
 * columns. */
void print_count(struct print *out, uint64_t count);

/** Fixed decimals (at most 9), rounded. What is not a number prints as 0. */
void print_double(struct print *out, double value, unsigned decimals);

/** Nanoseconds as seconds, cut (not rounded) to so many decimals (at most 9). */
void print_seconds(struct print *out, uint64_t nanoseconds, unsigned decimals);

/** part/whole in per cent with two decimals, cut, so that 100.00 means all of it. Nothing of
 * nothing is 0. */
void print_percent(struct print *out, uint64_t part, uint64_t whole);

/** The character, so many times. */
void print_repeat(struct print *out, char character, size_t times);

/** The text at one side of a cell of so many columns; longer text is cut. What is not printable
 * ASCII becomes `?`. */
void print_cell(struct print *out, const char *text, size_t columns, enum print_align align);

/** Text of unknown origin as one column a character: what is not printable ASCII becomes `?`; cut
 * with `...`. */
void print_plain(struct print *out, const char *text, size_t columns);

/** Text of unknown origin that a reader may copy back into a shell's "": escapes, and `...` after
 * so many columns. */
void print_escaped(struct print *out, const char *text, size_t columns);

/** A JSON string with its quotes; bytes that are not UTF-8 become U+FFFD, other text that
 * print_visible_length() gives 0 for is escaped. NULL prints null. */
void print_json_string(struct print *out, const char *text);

/** Prints text of unknown origin in full. `?` stands for what print_visible_length() gives 0 for,
 * so the text can neither command a terminal nor begin a line. */
void print_untrusted(struct print *out, const char *text);

/** Returns the bytes of the character that the text begins with; 0 for a control character (C1 ones
 * too), for one that ends a line or changes the direction of text, and for what is not UTF-8. */
size_t print_visible_length(const char *text);

/** printf's %s %c %d %i %u %x with l, ll or z, and %p %%; no widths, no precisions. NULL prints
 * (null). */
void print_format(struct print *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
void print_vformat(struct print *out, const char *format, va_list values)
    __attribute__((format(printf, 2, 0)));

#endif
