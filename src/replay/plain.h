/*
 * Plain data as JSON and pickles hold it: numbers, texts, lists, dictionaries.
 *
 * The length of the file bounds work and memory. A pickle may share values, and a list may contain
 * itself. A walk over the values of a pickle must therefore stop when plain_count_read() returns
 * false.
 */
#ifndef GPUCACHE_REPLAY_PLAIN_H
#define GPUCACHE_REPLAY_PLAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum plain_kind {
    PLAIN_NONE,
    PLAIN_BOOL,
    PLAIN_INT,
    PLAIN_HUGE, /* an integer that does not fit into int64_t */
    PLAIN_FLOAT,
    PLAIN_TEXT, /* a text or bytes. A NUL follows in JSON, not in a pickle */
    PLAIN_LIST, /* a list, tuple or set */
    PLAIN_DICT
};

struct plain_value {
    uint8_t kind;
    uint32_t length; /* bytes of a text */
    union {
        int64_t integer;
        const char *text;        /* of HUGE and FLOAT: the digits in JSON, NULL in a pickle */
        struct plain_list *list; /* a dictionary is key, value, key, value */
    };
};

struct plain_list {
    struct plain_value *items;
    size_t count, capacity;
    struct plain_list *next; /* the next list of plain.lists */
};

struct plain {
    struct plain_value root;
    struct plain_list *lists;
    uint64_t reads_left; /* calls of plain_count_read() that return true */
};

/**
 * Reads one value, behind which only blanks may follow. Decodes texts in place: `bytes` changes,
 * and must outlive the values. A NUL follows the `count` bytes, and ends each text.
 * U+FFFD stands for a NUL in a text, and for a surrogate without its other half.
 *
 * Returns 0, -EFBIG if the values take more than `most` bytes, or -EINVAL. Writes the error and its
 * offset to `why`. The caller frees the values in all cases.
 */
int json_read(char *bytes, size_t count, size_t most, struct plain *values, char *why,
              size_t why_size);

/*
 * A pickle is a program for a stack machine, whose operations can import and call any function. A
 * file with such an operation is refused, and the error names it. The memo has at most as many
 * places as the file has bytes, and values that it shares are shared in memory too.
 */

/**
 * Reads a pickle. Returns 0, -EFBIG beyond the bound, or -EINVAL. Writes the error and its offset
 * to `why`. Texts point into `bytes`; lists, stack and memo together take at most `most` bytes. The
 * caller frees the values in all cases.
 */
int pickle_read(const char *bytes, size_t count, size_t most, struct plain *values, char *why,
                size_t why_size);

void plain_free(struct plain *plain);

/** Returns the value of a key in a dictionary, or NULL. Compares at most the first 96 keys. */
const struct plain_value *plain_get(const struct plain_value *dict, const char *key);

/** Returns an item of a list, or NULL beyond the last one and for other values. */
const struct plain_value *plain_item(const struct plain_value *list, size_t at);

/** Returns the number of items of a list, or 0 for other values. */
size_t plain_count(const struct plain_value *list);

/** Counts a value that is read. Returns false after more reads than a file of that length has
 * values: the values then contain themselves or one another many times. */
bool plain_count_read(struct plain *plain);

bool plain_is(const struct plain_value *value, const char *text);

/** Reads an integer from 0 to `most`. Returns false for any other value, and for NULL. */
bool plain_u64(const struct plain_value *value, uint64_t most, uint64_t *number);

/* Return 0, false or "" for NULL and for a value of another kind. A float counts as the integer
 * before its point. Numbers that are too large for the type become its bound. */
uint64_t json_u64(const struct plain_value *value);
int64_t json_i64(const struct plain_value *value);
bool json_is_true(const struct plain_value *value);
const char *json_text(const struct plain_value *value);

/** Returns seconds as nanoseconds, to the last digit. */
uint64_t json_seconds(const struct plain_value *value);

bool json_is_number(const struct plain_value *value);

#endif
