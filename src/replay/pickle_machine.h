/*
 * The stack machine that executes a pickle with plain data: a stack with marks, and a memo.
 *
 * Functions return 0, or -EINVAL or -EFBIG with the error in `wrong`. A read past the end of the
 * file is an error, and so is a pop below the last mark. The reader of JSON uses the stack, marks
 * and lists too.
 */
#ifndef GPUCACHE_REPLAY_PICKLE_MACHINE_H
#define GPUCACHE_REPLAY_PICKLE_MACHINE_H

#include "replay/plain.h"

struct machine {
    const unsigned char *at, *begin, *end;
    struct plain *values; /* the result, which owns all lists */
    struct plain_value *stack, *memo;
    size_t depth, stack_capacity, memo_count, memo_capacity; /* capacities: in items */
    size_t *marks, mark_count, mark_capacity;                /* depths of the stack */
    size_t most;                                             /* bytes that may still be allocated */
    const char *wrong;                                       /* the error, or NULL */
    bool stopped;
};

/** Frees the memory of the machine, but not machine->values. */
void machine_free(struct machine *machine);

int machine_fail(struct machine *machine, const char *wrong);
int machine_truncated(struct machine *machine);
int machine_push(struct machine *machine, struct plain_value value);
/** Reads an unsigned little-endian number. Returns false at the end of the file. */
bool machine_number(struct machine *machine, unsigned bytes, uint64_t *value);
int machine_push_integer(struct machine *machine, unsigned bytes, bool is_signed);
int machine_push_long(struct machine *machine, unsigned length_bytes);
int machine_push_float(struct machine *machine);
int machine_push_text(struct machine *machine, unsigned length_bytes);
int machine_push_list(struct machine *machine, enum plain_kind kind, size_t items);
int machine_push_marked(struct machine *machine, enum plain_kind kind);
int machine_push_tuple(struct machine *machine, size_t items);
int machine_append(struct machine *machine, enum plain_kind kind, size_t items);
int machine_append_marked(struct machine *machine, enum plain_kind kind);
int machine_mark(struct machine *machine);
int machine_store(struct machine *machine, uint64_t place);
int machine_store_at(struct machine *machine, unsigned bytes);
int machine_fetch(struct machine *machine, unsigned bytes);
int machine_drop(struct machine *machine);
int machine_drop_marked(struct machine *machine);
int machine_duplicate(struct machine *machine);

#endif
