/*
 * Writes JSON: brackets, keys and values, with the commas between them.
 *
 *      struct json_put to = json_put_to(&out);
 *      json_put_open(&to, '{');
 *      json_put_key(&to, "sizes");
 *      json_put_open(&to, '[');
 *      json_put_u64(&to, 1);
 *      json_put_u64(&to, 2);
 *      json_put_close(&to, ']');
 *      json_put_close(&to, '}');                   {"sizes":[1,2]}
 *
 * The caller closes what it opens, and writes a key before each value of an object. Allocates
 * nothing and takes no lock.
 */
#ifndef GPUCACHE_BASE_JSON_PUT_H
#define GPUCACHE_BASE_JSON_PUT_H

#include "base/print.h"

#include <stdbool.h>
#include <stdint.h>

struct json_put {
    struct print *out;
    bool comma; /* a comma must stand before the next key or element */
};

static inline struct json_put json_put_to(struct print *out) {
    return (struct json_put){.out = out};
}

/** Begins an array or object: '[' or '{'. */
void json_put_open(struct json_put *to, char bracket);

/** Ends an array or object: ']' or '}'. */
void json_put_close(struct json_put *to, char bracket);

/** Begins a line for the next key or element. */
void json_put_line(struct json_put *to);

void json_put_key(struct json_put *to, const char *name);

/** Writes a number as a key. */
void json_put_number_key(struct json_put *to, uint64_t number);

/* Write a value: an element of an array, or the value of the last key. */

void json_put_u64(struct json_put *to, uint64_t value);
void json_put_i64(struct json_put *to, int64_t value);
void json_put_bool(struct json_put *to, bool value);
void json_put_null(struct json_put *to);

/** Writes a text; NULL is null. Bytes that are not UTF-8 become U+FFFD. */
void json_put_text(struct json_put *to, const char *text);

/** Writes a number, or null if it is unknown. */
void json_put_u64_or_null(struct json_put *to, uint64_t value, bool known);

/** Writes a number with fixed decimals (at most 9). */
void json_put_double(struct json_put *to, double value, unsigned decimals);

/** Writes nanoseconds as seconds with nine decimals. */
void json_put_seconds(struct json_put *to, uint64_t nanoseconds);

/* Write a key and its value, or the bracket that begins it. */

void json_put_named_open(struct json_put *to, const char *name, char bracket);
void json_put_named_u64(struct json_put *to, const char *name, uint64_t value);
void json_put_named_i64(struct json_put *to, const char *name, int64_t value);
void json_put_named_bool(struct json_put *to, const char *name, bool value);
void json_put_named_text(struct json_put *to, const char *name, const char *text);

/** Begins a value that the caller prints itself to `to->out`. */
void json_put_raw(struct json_put *to);

#endif
