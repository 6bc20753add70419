/*
 * The opcodes of a pickle (CPython's Lib/pickletools.py), for the stack machine of machine.h. An
 * operation gets the argument that the table of opcodes has for it.
 */
#include "replay/machine.h"

#include <stdio.h>

/* ---- scalars and texts ---- */

/** Reads an unsigned little-endian number. Returns false at the end of the file. */
static bool take_number(struct machine *machine, unsigned bytes, uint64_t *value) {
    if ((size_t)(machine->end - machine->at) < bytes)
        return false;
    *value = 0;
    for (unsigned i = 0; i < bytes; i++)
        *value |= (uint64_t)machine->at[i] << 8 * i;
    machine->at += bytes;
    return true;
}

/** Reads the length of what follows. Returns false if the file has fewer bytes. */
static bool take_length(struct machine *machine, unsigned bytes, uint64_t *length) {
    return take_number(machine, bytes, length) && *length <= (uint64_t)(machine->end - machine->at);
}

static int skip(struct machine *machine, unsigned bytes) {
    uint64_t ignored;
    return take_number(machine, bytes, &ignored) ? 0 : machine_truncated(machine);
}

static int push_none(struct machine *machine, unsigned unused) {
    (void)unused;
    return machine_push(machine, (struct plain_value){.kind = PLAIN_NONE});
}

static int push_bool(struct machine *machine, unsigned value) {
    return machine_push(machine, (struct plain_value){.kind = PLAIN_BOOL, .integer = value});
}

static int push_unsigned(struct machine *machine, unsigned bytes) {
    uint64_t value;
    if (!take_number(machine, bytes, &value))
        return machine_truncated(machine);
    return machine_push(machine,
                        (struct plain_value){.kind = PLAIN_INT, .integer = (int64_t)value});
}

static int push_signed(struct machine *machine, unsigned bytes) {
    int r = push_unsigned(machine, bytes);
    struct plain_value *top = r == 0 ? &machine->stack[machine->depth - 1] : NULL;
    if (top)
        top->integer = (int32_t)(uint32_t)top->integer;
    return r;
}

/** Pushes an integer in two's complement, of any length. */
static int push_long(struct machine *machine, unsigned length_bytes) {
    uint64_t length, value = 0;
    if (!take_length(machine, length_bytes, &length))
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
static int push_float(struct machine *machine, unsigned bytes) {
    int r = skip(machine, bytes);
    return r == 0 ? machine_push(machine, (struct plain_value){.kind = PLAIN_FLOAT}) : r;
}

static int push_text(struct machine *machine, unsigned length_bytes) {
    uint64_t length;
    if (!take_length(machine, length_bytes, &length))
        return machine_truncated(machine);
    if (length > UINT32_MAX)
        return machine_fail(machine, "a text has more than 4 GiB");
    struct plain_value value = {
        .kind = PLAIN_TEXT, .length = (uint32_t)length, .text = (const char *)machine->at};
    machine->at += length;
    return machine_push(machine, value);
}

/* ---- lists and dictionaries ---- */

static int push_empty(struct machine *machine, unsigned kind) {
    return machine_push_items(machine, kind, 0);
}

static int push_tuple(struct machine *machine, unsigned items) {
    return machine_push_items(machine, PLAIN_LIST, items);
}

/** Pops the uppermost items and appends them to the list or dictionary below. */
static int append_items(struct machine *machine, unsigned kind, size_t items) {
    if (!machine_has_items(machine, items + 1))
        return machine_fail(machine, "the stack is empty");
    struct plain_value *to = &machine->stack[machine->depth - items - 1];
    if (to->kind != kind || (kind == PLAIN_DICT && items % 2 != 0))
        return machine_fail(machine, "items are added to what is no list or dictionary");
    struct plain_list *list = to->list;
    for (size_t i = 0; i < items; i++) {
        int r =
            machine_grow(machine, &list->items, list->count, &list->capacity, sizeof *list->items);
        if (r != 0)
            return r;
        list->items[list->count++] = to[1 + i];
    }
    machine->depth -= items;
    return 0;
}

static int append(struct machine *machine, unsigned kind) {
    return append_items(machine, kind, kind == PLAIN_DICT ? 2 : 1);
}

static int append_marked(struct machine *machine, unsigned kind) {
    size_t items;
    return machine_pop_mark(machine, &items) ? append_items(machine, kind, items)
                                             : machine_fail(machine, "there is no mark");
}

/* ---- the stack and the memo ---- */

static int mark(struct machine *machine, unsigned unused) {
    (void)unused;
    return machine_mark(machine);
}

static int store_at(struct machine *machine, uint64_t place) {
    /* Picklers number the memo in order. A larger number than the file's length could only serve to
     * use up memory. */
    if (place > (uint64_t)(machine->end - machine->begin))
        return machine_fail(machine, "a number of the memo is larger than the file");
    while (machine->memo_count <= place) {
        int r = machine_grow(machine, &machine->memo, machine->memo_count, &machine->memo_capacity,
                             sizeof *machine->memo);
        if (r != 0)
            return r;
        machine->memo[machine->memo_count++] = (struct plain_value){.kind = PLAIN_NONE};
    }
    machine->memo[place] = machine->stack[machine->depth - 1];
    return 0;
}

static int store(struct machine *machine, unsigned bytes) {
    uint64_t place;
    return take_number(machine, bytes, &place) ? store_at(machine, place)
                                               : machine_truncated(machine);
}

static int store_next(struct machine *machine, unsigned unused) {
    (void)unused;
    return store_at(machine, machine->memo_count);
}

static int fetch(struct machine *machine, unsigned bytes) {
    uint64_t place;
    if (!take_number(machine, bytes, &place))
        return machine_truncated(machine);
    if (place >= machine->memo_count)
        return machine_fail(machine, "the memo has no such number");
    return machine_push(machine, machine->memo[place]);
}

static int drop(struct machine *machine, unsigned unused) {
    (void)unused;
    if (machine_has_items(machine, 1))
        machine->depth--;
    else if (machine->mark_count > 0)
        machine->mark_count--;
    else
        return machine_fail(machine, "the stack is empty");
    return 0;
}

static int drop_marked(struct machine *machine, unsigned unused) {
    (void)unused;
    size_t items;
    if (!machine_pop_mark(machine, &items))
        return machine_fail(machine, "there is no mark");
    machine->depth -= items;
    return 0;
}

static int duplicate(struct machine *machine, unsigned unused) {
    (void)unused;
    return machine_push(machine, machine->stack[machine->depth - 1]);
}

static int stop(struct machine *machine, unsigned unused) {
    (void)unused;
    if (machine->depth != 1 || machine->mark_count != 0)
        return machine_fail(machine, "more or less than one value is left");
    machine->stopped = true;
    return 0;
}

/* ---- opcodes ---- */

/* `items`: how many items above the last mark the operation needs. */
static const struct {
    int (*run)(struct machine *machine, unsigned argument);
    uint8_t argument, items;
} opcodes[256] = {
    /* scalars and texts */
    ['N'] = {push_none, 0, 0},
    [0x88] = {push_bool, true, 0},
    [0x89] = {push_bool, false, 0},
    ['J'] = {push_signed, 4, 0},
    ['K'] = {push_unsigned, 1, 0},
    ['M'] = {push_unsigned, 2, 0},
    [0x8a] = {push_long, 1, 0},
    [0x8b] = {push_long, 4, 0},
    ['G'] = {push_float, 8, 0},
    ['U'] = {push_text, 1, 0},
    ['C'] = {push_text, 1, 0},
    [0x8c] = {push_text, 1, 0},
    ['T'] = {push_text, 4, 0},
    ['B'] = {push_text, 4, 0},
    ['X'] = {push_text, 4, 0},
    [0x8d] = {push_text, 8, 0},
    [0x8e] = {push_text, 8, 0},
    [0x96] = {push_text, 8, 0},
    /* lists, tuples, sets and dictionaries */
    [']'] = {push_empty, PLAIN_LIST, 0},
    [')'] = {push_empty, PLAIN_LIST, 0},
    [0x8f] = {push_empty, PLAIN_LIST, 0},
    ['}'] = {push_empty, PLAIN_DICT, 0},
    ['l'] = {machine_push_marked, PLAIN_LIST, 0},
    ['t'] = {machine_push_marked, PLAIN_LIST, 0},
    [0x91] = {machine_push_marked, PLAIN_LIST, 0},
    ['d'] = {machine_push_marked, PLAIN_DICT, 0},
    [0x85] = {push_tuple, 1, 1},
    [0x86] = {push_tuple, 2, 2},
    [0x87] = {push_tuple, 3, 3},
    ['a'] = {append, PLAIN_LIST, 2},
    ['e'] = {append_marked, PLAIN_LIST, 0},
    [0x90] = {append_marked, PLAIN_LIST, 0},
    ['s'] = {append, PLAIN_DICT, 3},
    ['u'] = {append_marked, PLAIN_DICT, 0},
    /* the stack and the memo; FRAME, which has the length of the next part; STOP */
    ['('] = {mark, 0, 0},
    ['q'] = {store, 1, 1},
    ['r'] = {store, 4, 1},
    [0x94] = {store_next, 0, 1},
    ['h'] = {fetch, 1, 0},
    ['j'] = {fetch, 4, 0},
    ['0'] = {drop, 0, 0},
    ['1'] = {drop_marked, 0, 0},
    ['2'] = {duplicate, 0, 1},
    [0x95] = {skip, 8, 0},
    ['.'] = {stop, 0, 0},
};

/* Opcodes that import, call or load something named by the pickle. They are refused by name. */
static const struct {
    unsigned char opcode;
    const char *name;
} refused[] = {
    {'c', "GLOBAL"},        {'R', "REDUCE"},       {'b', "BUILD"},
    {'i', "INST"},          {'o', "OBJ"},          {'P', "PERSID"},
    {'Q', "BINPERSID"},     {0x81, "NEWOBJ"},      {0x82, "EXT1"},
    {0x83, "EXT2"},         {0x84, "EXT4"},        {0x92, "NEWOBJ_EX"},
    {0x93, "STACK_GLOBAL"}, {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
};

static int refuse(struct machine *machine, unsigned char opcode) {
    static char wrong[96];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].opcode == opcode) {
            snprintf(wrong, sizeof wrong, "%s would import or run code, and is refused",
                     refused[i].name);
            return machine_fail(machine, wrong);
        }
    }
    snprintf(wrong, sizeof wrong, "there is no operation 0x%02x in a pickle of plain data", opcode);
    return machine_fail(machine, wrong);
}

static int run(struct machine *machine) {
    if (machine->end - machine->at < 2)
        return machine_truncated(machine);
    if (machine->at[0] != 0x80 || machine->at[1] < 2 || machine->at[1] > 5)
        return machine_fail(machine, "protocols 2 to 5 are known");
    machine->at += 2;
    while (!machine->stopped) {
        if (machine->at >= machine->end)
            return machine_truncated(machine);
        unsigned char opcode = *machine->at++;
        int r = !opcodes[opcode].run ? refuse(machine, opcode)
                : !machine_has_items(machine, opcodes[opcode].items)
                    ? machine_fail(machine, "the stack is empty")
                    : opcodes[opcode].run(machine, opcodes[opcode].argument);
        if (r != 0)
            return r;
    }
    return 0;
}

int pickle_read(const char *bytes, size_t count, size_t most, struct plain *values, char *why,
                size_t why_size) {
    return machine_read(bytes, count, most, run, "a broken or refused pickle", values, why,
                        why_size);
}
