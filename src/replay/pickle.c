/*
 * Executes the opcodes of a pickle (CPython's Lib/pickletools.py) on the stack machine (pickle.h).
 */
#include "replay/pickle.h"

#include "replay/pickle_machine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

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

static int skip(struct machine *machine, unsigned bytes) {
    uint64_t ignored;
    return machine_number(machine, bytes, &ignored) ? 0 : machine_truncated(machine);
}

static int stop(struct machine *machine) {
    if (machine->depth != 1 || machine->mark_count != 0)
        return machine_fail(machine, "more or less than one value is left");
    machine->stopped = true;
    return 0;
}

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

/** Executes an opcode of scalars and texts. Returns 1 for other opcodes. */
static int run_value(struct machine *machine, unsigned char opcode) {
    switch (opcode) {
    case 'N': /* NONE */
        return machine_push(machine, (struct plain_value){.kind = PLAIN_NONE});
    case 0x88: /* NEWTRUE */
    case 0x89: /* NEWFALSE */
        return machine_push(machine,
                            (struct plain_value){.kind = PLAIN_BOOL, .integer = opcode == 0x88});
    case 'J':
        return machine_push_integer(machine, 4, true);
    case 'K':
        return machine_push_integer(machine, 1, false);
    case 'M':
        return machine_push_integer(machine, 2, false);
    case 0x8a: /* LONG1 */
        return machine_push_long(machine, 1);
    case 0x8b: /* LONG4 */
        return machine_push_long(machine, 4);
    case 'G': /* BINFLOAT */
        return machine_push_float(machine);
    case 'U':  /* SHORT_BINSTRING: a str of Python 2 */
    case 'C':  /* SHORT_BINBYTES */
    case 0x8c: /* SHORT_BINUNICODE */
        return machine_push_text(machine, 1);
    case 'T': /* BINSTRING */
    case 'B': /* BINBYTES */
    case 'X': /* BINUNICODE */
        return machine_push_text(machine, 4);
    case 0x8d: /* BINUNICODE8 */
    case 0x8e: /* BINBYTES8 */
    case 0x96: /* BYTEARRAY8 */
        return machine_push_text(machine, 8);
    default:
        return 1;
    }
}

/** Executes an opcode of lists, tuples, sets and dictionaries. Returns 1 for other opcodes. */
static int run_container(struct machine *machine, unsigned char opcode) {
    switch (opcode) {
    case ']':
    case ')':  /* EMPTY_TUPLE */
    case 0x8f: /* EMPTY_SET */
        return machine_push_list(machine, PLAIN_LIST, 0);
    case '}':
        return machine_push_list(machine, PLAIN_DICT, 0);
    case 'l':
    case 't':
    case 0x91: /* FROZENSET */
        return machine_push_marked(machine, PLAIN_LIST);
    case 'd': /* DICT */
        return machine_push_marked(machine, PLAIN_DICT);
    case 0x85: /* TUPLE1 */
    case 0x86:
    case 0x87:
        return machine_push_tuple(machine, opcode - 0x84u);
    case 'a':
        return machine_append(machine, PLAIN_LIST, 1);
    case 'e':  /* APPENDS */
    case 0x90: /* ADDITEMS */
        return machine_append_marked(machine, PLAIN_LIST);
    case 's':
        return machine_append(machine, PLAIN_DICT, 2);
    case 'u': /* SETITEMS */
        return machine_append_marked(machine, PLAIN_DICT);
    default:
        return 1;
    }
}

static int run_other(struct machine *machine, unsigned char opcode) {
    switch (opcode) {
    case '(':
        return machine_mark(machine);
    case 'q': /* BINPUT */
        return machine_store_at(machine, 1);
    case 'r': /* LONG_BINPUT */
        return machine_store_at(machine, 4);
    case 0x94: /* MEMOIZE */
        return machine_store(machine, machine->memo_count);
    case 'h': /* BINGET */
        return machine_fetch(machine, 1);
    case 'j': /* LONG_BINGET */
        return machine_fetch(machine, 4);
    case '0': /* POP */
        return machine_drop(machine);
    case '1': /* POP_MARK */
        return machine_drop_marked(machine);
    case '2': /* DUP */
        return machine_duplicate(machine);
    case 0x95: /* FRAME: the length of the next part */
        return skip(machine, 8);
    case '.':
        return stop(machine);
    default:
        return refuse(machine, opcode);
    }
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
        int r = run_value(machine, opcode);
        r = r == 1 ? run_container(machine, opcode) : r;
        r = r == 1 ? run_other(machine, opcode) : r;
        if (r != 0)
            return r;
    }
    return 0;
}

int pickle_read(const char *bytes, size_t count, size_t most, struct plain *values, char *why,
                size_t why_size) {
    const unsigned char *begin = (const unsigned char *)bytes;
    struct machine machine = {
        .at = begin, .begin = begin, .end = begin + count, .values = values, .most = most};
    *values = (struct plain){.reads_left = count};
    int r = run(&machine);
    if (r == 0) {
        values->root = machine.stack[0];
    } else {
        snprintf(why, why_size, "is a broken or refused pickle at byte %zu: %s",
                 (size_t)(machine.at - begin), machine.wrong);
    }
    machine_free(&machine);
    return r;
}
