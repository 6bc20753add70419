/*
 * Reads a pickle of protocol 2 to 5 that holds plain data: numbers, texts, lists, tuples, sets,
 * dictionaries.
 *
 * A pickle is a program for a machine with a stack; some of its operations import and call whatever
 * they name. None of these is known here: a file that has one is refused, with its name. Work and
 * memory are bounded by the length of the file: no operation makes more than a few words, and what
 * the memo shares is shared here too. Where the file was packed, the caller has a bound besides. So
 * lists may contain themselves; whoever walks them goes by pickle_visit().
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
    PICKLE_HUGE, /* an integer of more than 64 bits, and so nobody's size */
    PICKLE_FLOAT,
    PICKLE_TEXT, /* bytes too; not ended by NUL */
    PICKLE_LIST, /* tuples and sets too */
    PICKLE_DICT
};

struct pickle_value {
    uint8_t kind;
    uint32_t length; /* of a text */
    union {
        int64_t integer;
        double number;
        const char *text;
        struct pickle_list *list; /* of a dictionary: key, value, key, value */
    };
};

struct pickle_list {
    struct pickle_value *items;
    size_t count, capacity;
    struct pickle_list *next; /* all of them */
};

struct pickle {
    struct pickle_value root;
    struct pickle_list *lists;
    uint64_t visits_left;
};

/** 0; -EINVAL and `why`, which says where; -ENOMEM. Texts stay in `bytes`; lists take `most` bytes
 * at most. To be freed in any case. */
int pickle_read(const char *bytes, size_t count, size_t most, struct pickle *pickle, char *why,
                size_t why_size);

/** The same for JSON. */
int pickle_read_json(const char *bytes, size_t count, size_t most, struct pickle *pickle, char *why,
                     size_t why_size);
void pickle_free(struct pickle *pickle);

/** The value that a dictionary has for a key, or NULL. */
const struct pickle_value *pickle_get(const struct pickle_value *dict, const char *key);

/** The items of a list; 0 of anything else. */
size_t pickle_count(const struct pickle_value *list);

/** False when more was looked at than a file of that length has to show: then it shows some of it
 * again and again. */
bool pickle_visit(struct pickle *pickle);

bool pickle_is(const struct pickle_value *value, const char *text);

/** An integer from 0 up to `most`; false for any other value, and for NULL. */
bool pickle_u64(const struct pickle_value *value, uint64_t most, uint64_t *number);

#endif
