/*
 * The stack machine that reads plain data (machine.h). pickle.c and json.c call it. One thread uses
 * a machine, without a lock. Invariant: machine->most is what stack, marks, memo and lists may
 * still take.
 */
#include "replay/machine.h"

#include "replay/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int machine_fail(struct machine *machine, const char *wrong) {
    machine->wrong = wrong;
    return -EINVAL;
}

int machine_truncated(struct machine *machine) {
    return machine_fail(machine, "it ends there");
}

/** Subtracts bytes from the bound. Returns 0, or -EFBIG beyond the bound. */
static int count_memory(struct machine *machine, size_t bytes) {
    if (bytes > machine->most) {
        machine->wrong = "it takes more memory than a file of its size may";
        return -EFBIG;
    }
    machine->most -= bytes;
    return 0;
}

int machine_grow(struct machine *machine, void *list, size_t count, size_t *capacity, size_t each) {
    void **of = list;
    if (count < *capacity)
        return 0;
    size_t more = *capacity ? 2 * *capacity : 16;
    int r = count_memory(machine, (more - *capacity) * each);
    if (r == 0) {
        *of = checked(realloc(*of, more * each));
        *capacity = more;
    }
    return r;
}

int machine_push(struct machine *machine, struct plain_value value) {
    int r = machine_grow(machine, &machine->stack, machine->depth, &machine->stack_capacity,
                         sizeof value);
    if (r == 0)
        machine->stack[machine->depth++] = value;
    return r;
}

/** Returns the number of items below the last mark, which no operation may pop. */
static size_t items_below_mark(const struct machine *machine) {
    return machine->mark_count > 0 ? machine->marks[machine->mark_count - 1] : 0;
}

bool machine_has_items(const struct machine *machine, size_t items) {
    return machine->depth - items_below_mark(machine) >= items;
}

int machine_push_items(struct machine *machine, unsigned kind, size_t items) {
    int r = count_memory(machine, sizeof *machine->values->lists + items * sizeof *machine->stack);
    if (r != 0)
        return r;
    struct plain_list *list = checked(calloc(1, sizeof *list));
    list->next = machine->values->lists;
    machine->values->lists = list;
    if (items > 0) {
        list->items = checked(malloc(items * sizeof *list->items));
        machine->depth -= items;
        memcpy(list->items, &machine->stack[machine->depth], items * sizeof *list->items);
        list->count = list->capacity = items;
    }
    return machine_push(machine, (struct plain_value){.kind = (uint8_t)kind, .list = list});
}

bool machine_pop_mark(struct machine *machine, size_t *items) {
    if (machine->mark_count == 0)
        return false;
    *items = machine->depth - machine->marks[--machine->mark_count];
    return true;
}

int machine_push_marked(struct machine *machine, unsigned kind) {
    size_t items;
    if (!machine_pop_mark(machine, &items))
        return machine_fail(machine, "there is no mark");
    if (kind == PLAIN_DICT && items % 2 != 0)
        return machine_fail(machine, "a key has no value");
    return machine_push_items(machine, kind, items);
}

int machine_mark(struct machine *machine) {
    int r = machine_grow(machine, &machine->marks, machine->mark_count, &machine->mark_capacity,
                         sizeof(size_t));
    if (r == 0)
        machine->marks[machine->mark_count++] = machine->depth;
    return r;
}

int machine_read(const char *bytes, size_t count, size_t most, int (*run)(struct machine *machine),
                 const char *wrong, struct plain *values, char *why, size_t why_size) {
    const unsigned char *begin = (const unsigned char *)bytes;
    struct machine machine = {
        .at = begin, .begin = begin, .end = begin + count, .values = values, .most = most};
    *values = (struct plain){.reads_left = count};
    int r = run(&machine);
    if (r == 0)
        values->root = machine.stack[0];
    else
        snprintf(why, why_size, "is %s at byte %zu: %s", wrong, (size_t)(machine.at - begin),
                 machine.wrong);
    free(machine.stack);
    free(machine.memo);
    free(machine.marks);
    return r;
}
