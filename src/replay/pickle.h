/*
 * Reads a pickle of protocol 2 to 5 with plain data: numbers, texts, lists, tuples, sets,
 * dictionaries.
 *
 * A pickle is a program for a stack machine, whose operations can import and call any function. A
 * file with such an operation is refused, and the error names it. The length of the file bounds
 * work and memory: no operation makes more than a few words, and values that the memo shares are
 * shared in memory too. For a packed file the caller sets another bound. Because of the sharing a
 * list may contain itself, so a walk over the values must stop when pickle_visit() returns false.
 */
#ifndef GPUCACHE_REPLAY_PICKLE_H
#define GPUCACHE_REPLAY_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT,
    PICKLE_HUGE, /* an integer of more than 64 bits, which cannot be a size */
    PICKLE_FLOAT,
    PICKLE_TEXT, /* a text or bytes; without a NUL */
    PICKLE_LIST, /* a list, tuple or set */
    PICKLE_DICT
};

struct pickle_value {
    uint8_t kind;
    uint32_t length; /* bytes of a text */
    union {
        int64_t integer;
        double number;
        const char *text;
        struct pickle_list *list; /* a dictionary is key, value, key, value */
    };
};

struct pickle_list {
    struct pickle_value *items;
    size_t count, capacity;
    struct pickle_list *next; /* the list of all lists, to free them */
};

struct pickle {
    struct pickle_value root;
    struct pickle_list *lists;
    uint64_t reads_left;
};

/**
 * Reads a pickle. Returns 0, -ENOMEM, or -EINVAL with the error and its offset in `why`. Texts
 * point into `bytes`; lists take at most `most` bytes. The caller frees the pickle in all cases.
 */
int pickle_read(const char *bytes, size_t count, size_t most, struct pickle *pickle, char *why,
                size_t why_size);

/** Reads JSON as pickle_read() reads a pickle. */
int pickle_read_json(const char *bytes, size_t count, size_t most, struct pickle *pickle, char *why,
                     size_t why_size);
void pickle_free(struct pickle *pickle);

/** Returns the value of a key in a dictionary, or NULL. */
const struct pickle_value *pickle_get(const struct pickle_value *dict, const char *key);

/** Returns the number of items of a list, or 0 for other values. */
size_t pickle_count(const struct pickle_value *list);

/** Counts a value that is read. Returns false after more reads than a file of that length has
 * values: the values then contain themselves or one another many times. */
bool pickle_visit(struct pickle *pickle);

bool pickle_is(const struct pickle_value *value, const char *text);

/** Reads an integer from 0 to `most`. Returns false for any other value, and for NULL. */
bool pickle_u64(const struct pickle_value *value, uint64_t most, uint64_t *number);

#endif
