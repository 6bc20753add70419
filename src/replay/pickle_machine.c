/* The operations of the stack machine (pickle_machine.h). machine->most bounds all memory. */
#include "replay/pickle_machine.h"

#include "replay/memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void machine_free(struct machine *machine) {
    free(machine->stack);
    free(machine->memo);
    free(machine->marks);
}

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

/** Enlarges a list for one more item. Returns 0, or -EFBIG beyond the bound. */
static int grow(struct machine *machine, void *list, size_t count, size_t *capacity, size_t each) {
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
    int r = grow(machine, &machine->stack, machine->depth, &machine->stack_capacity, sizeof value);
    if (r == 0)
        machine->stack[machine->depth++] = value;
    return r;
}

/** Returns the number of items below the last mark, which no operation may pop. */
static size_t items_below_mark(const struct machine *machine) {
    return machine->mark_count > 0 ? machine->marks[machine->mark_count - 1] : 0;
}

static bool has_items(const struct machine *machine, size_t items) {
    return machine->depth - items_below_mark(machine) >= items;
}

bool machine_number(struct machine *machine, unsigned bytes, uint64_t *value) {
    if ((size_t)(machine->end - machine->at) < bytes)
        return false;
    *value = 0;
    for (unsigned i = 0; i < bytes; i++)
        *value |= (uint64_t)machine->at[i] << 8 * i;
    machine->at += bytes;
    return true;
}

int machine_push_integer(struct machine *machine, unsigned bytes, bool is_signed) {
    uint64_t value;
    if (!machine_number(machine, bytes, &value))
        return machine_truncated(machine);
    int64_t integer = is_signed ? (int64_t)(int32_t)(uint32_t)value : (int64_t)value;
    return machine_push(machine, (struct plain_value){.kind = PLAIN_INT, .integer = integer});
}

/** Pushes an integer in two's complement, of any length. */
int machine_push_long(struct machine *machine, unsigned length_bytes) {
    uint64_t length, value = 0;
    if (!machine_number(machine, length_bytes, &length) ||
        length > (uint64_t)(machine->end - machine->at))
        return machine_truncated(machine);
    bool negative = length > 0 && machine->at[length - 1] & 0x80;
    bool fits = true;
    for (uint64_t i = 0; i < length; i++) {
        unsigned char byte = machine->at[i];
        if (i < 8)
            value |= (uint64_t)byte << 8 * i;
        else
            fits = fits && byte == (negative ? 0xff : 0);
    }
    for (uint64_t i = length; i < 8 && negative; i++)
        value |= (uint64_t)0xff << 8 * i;
    machine->at += length;
    fits = fits && (length <= 8 || ((int64_t)value < 0) == negative);
    return machine_push(machine, (struct plain_value){.kind = fits ? PLAIN_INT : PLAIN_HUGE,
                                                      .integer = (int64_t)value});
}

/** Pushes a number without its value, which no reader of pickles uses. */
int machine_push_float(struct machine *machine) {
    uint64_t value;
    return machine_number(machine, 8, &value)
               ? machine_push(machine, (struct plain_value){.kind = PLAIN_FLOAT})
               : machine_truncated(machine);
}

int machine_push_text(struct machine *machine, unsigned length_bytes) {
    uint64_t length;
    if (!machine_number(machine, length_bytes, &length) ||
        length > (uint64_t)(machine->end - machine->at))
        return machine_truncated(machine);
    if (length > UINT32_MAX)
        return machine_fail(machine, "a text has more than 4 GiB");
    struct plain_value value = {
        .kind = PLAIN_TEXT, .length = (uint32_t)length, .text = (const char *)machine->at};
    machine->at += length;
    return machine_push(machine, value);
}

/** Pops the uppermost items and pushes a list of them. */
int machine_push_list(struct machine *machine, enum plain_kind kind, size_t items) {
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

static bool pop_mark(struct machine *machine, size_t *items) {
    if (machine->mark_count == 0)
        return false;
    *items = machine->depth - machine->marks[--machine->mark_count];
    return true;
}

int machine_push_marked(struct machine *machine, enum plain_kind kind) {
    size_t items;
    if (!pop_mark(machine, &items))
        return machine_fail(machine, "there is no mark");
    if (kind == PLAIN_DICT && items % 2 != 0)
        return machine_fail(machine, "a key has no value");
    return machine_push_list(machine, kind, items);
}

int machine_push_tuple(struct machine *machine, size_t items) {
    return has_items(machine, items) ? machine_push_list(machine, PLAIN_LIST, items)
                                     : machine_fail(machine, "the stack is empty");
}

/** Pops the uppermost items and appends them to the list or dictionary below. */
int machine_append(struct machine *machine, enum plain_kind kind, size_t items) {
    if (!has_items(machine, items + 1))
        return machine_fail(machine, "the stack is empty");
    struct plain_value *to = &machine->stack[machine->depth - items - 1];
    if (to->kind != kind || (kind == PLAIN_DICT && items % 2 != 0))
        return machine_fail(machine, "items are added to what is no list or dictionary");
    struct plain_list *list = to->list;
    for (size_t i = 0; i < items; i++) {
        int r = grow(machine, &list->items, list->count, &list->capacity, sizeof *list->items);
        if (r != 0)
            return r;
        list->items[list->count++] = to[1 + i];
    }
    machine->depth -= items;
    return 0;
}

int machine_append_marked(struct machine *machine, enum plain_kind kind) {
    size_t items;
    return pop_mark(machine, &items) ? machine_append(machine, kind, items)
                                     : machine_fail(machine, "there is no mark");
}

int machine_mark(struct machine *machine) {
    int r = grow(machine, &machine->marks, machine->mark_count, &machine->mark_capacity,
                 sizeof(size_t));
    if (r == 0)
        machine->marks[machine->mark_count++] = machine->depth;
    return r;
}

int machine_store(struct machine *machine, uint64_t place) {
    if (!has_items(machine, 1))
        return machine_fail(machine, "the stack is empty");
    /* Picklers number the memo in order. A larger number than the file's length could only serve to
     * use up memory. */
    if (place > (uint64_t)(machine->end - machine->begin))
        return machine_fail(machine, "a number of the memo is larger than the file");
    while (machine->memo_count <= place) {
        int r = grow(machine, &machine->memo, machine->memo_count, &machine->memo_capacity,
                     sizeof *machine->memo);
        if (r != 0)
            return r;
        machine->memo[machine->memo_count++] = (struct plain_value){.kind = PLAIN_NONE};
    }
    machine->memo[place] = machine->stack[machine->depth - 1];
    return 0;
}

int machine_store_at(struct machine *machine, unsigned bytes) {
    uint64_t place;
    return machine_number(machine, bytes, &place) ? machine_store(machine, place)
                                                  : machine_truncated(machine);
}

int machine_fetch(struct machine *machine, unsigned bytes) {
    uint64_t place;
    if (!machine_number(machine, bytes, &place))
        return machine_truncated(machine);
    if (place >= machine->memo_count)
        return machine_fail(machine, "the memo has no such number");
    return machine_push(machine, machine->memo[place]);
}

int machine_drop(struct machine *machine) {
    if (has_items(machine, 1))
        machine->depth--;
    else if (machine->mark_count > 0)
        machine->mark_count--;
    else
        return machine_fail(machine, "the stack is empty");
    return 0;
}

int machine_drop_marked(struct machine *machine) {
    size_t items;
    if (!pop_mark(machine, &items))
        return machine_fail(machine, "there is no mark");
    machine->depth -= items;
    return 0;
}

int machine_duplicate(struct machine *machine) {
    return has_items(machine, 1) ? machine_push(machine, machine->stack[machine->depth - 1])
                                 : machine_fail(machine, "the stack is empty");
}
