/*
 * The stack machine that executes a pickle with plain data: a stack with marks, and a memo. The
 * reader of JSON uses its stack, marks and lists too: an opening bracket pushes a mark.
 *
 * Functions return 0, or -EINVAL or -EFBIG with the error in `wrong`. A read past the end of the
 * file is an error, and so is a pop below the last mark.
 */
#ifndef GPUCACHE_REPLAY_MACHINE_H
#define GPUCACHE_REPLAY_MACHINE_H

#include "replay/plain.h"

struct machine {
    const unsigned char *at, *begin, *end;
    struct plain *values; /* the result, which owns all lists */
    struct plain_value *stack, *memo;
    size_t depth, stack_capacity, memo_count, memo_capacity; /* capacities: in items */
    size_t *marks, mark_count, mark_capacity;                /* depths of the stack */
    size_t most;                                             /* bytes that may still be allocated */
    uint64_t dicts;    /* JSON: a bit for each open bracket, innermost lowest; 1: a dictionary */
    const char *wrong; /* the error, or NULL */
    bool stopped;
};

/** Calls run(), and puts the one value that it leaves on the stack into values->root. After an
 * error writes `wrong`, the offset and the error to `why`. */
int machine_read(const char *bytes, size_t count, size_t most, int (*run)(struct machine *machine),
                 const char *wrong, struct plain *values, char *why, size_t why_size);

int machine_fail(struct machine *machine, const char *wrong);
int machine_truncated(struct machine *machine);
int machine_push(struct machine *machine, struct plain_value value);
int machine_mark(struct machine *machine);
/** Pops all items above the last mark, and pushes a list or dictionary of them. */
int machine_push_marked(struct machine *machine, unsigned kind);

/** Pops the uppermost items and pushes a list or dictionary of them. */
int machine_push_items(struct machine *machine, unsigned kind, size_t items);

/** Returns whether so many items lie above the last mark. */
bool machine_has_items(const struct machine *machine, size_t items);

/** Removes the last mark. Sets *items to the number of items above it. Returns false if there is no
 * mark. */
bool machine_pop_mark(struct machine *machine, size_t *items);

/** Enlarges a list, whose address is in `list`, for one more item of `each` bytes. Returns 0, or
 * -EFBIG beyond the bound. */
int machine_grow(struct machine *machine, void *list, size_t count, size_t *capacity, size_t each);

#endif
