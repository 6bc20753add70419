/*
 * Reads JSON into the values of a pickle, with the pickle's machine. An opening bracket pushes a
 * mark. A closing bracket makes a list or dictionary of the values above the mark. The bound on
 * memory is the same.
 *
 * Texts keep their escapes, because keys and words of a snapshot have none.
 */
#include "replay/pickle_machine.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEEPEST 64 /* nested brackets; one bit each */

struct reader {
    struct machine machine;
    uint64_t dicts; /* a bit for each open bracket, innermost lowest; 1: a dictionary */
    unsigned depth;
};

static void skip_blanks(struct machine *machine) {
    while (machine->at < machine->end && strchr(" \t\r\n", *machine->at) && *machine->at) {
        machine->at++;
    }
}

/** Skips blanks and the wanted character. Returns false if another character follows. */
static bool take(struct machine *machine, char wanted) {
    skip_blanks(machine);
    bool there = machine->at < machine->end && *machine->at == (unsigned char)wanted;
    machine->at += there;
    return there;
}

static int fail(struct machine *machine) {
    return machine->at < machine->end ? machine_fail(machine, "that is no JSON")
                                      : machine_truncated(machine);
}

/** Reads a text, from the character after its first quote. */
static int read_text(struct machine *machine) {
    const unsigned char *first = machine->at;
    while (machine->at < machine->end && *machine->at != '"') {
        machine->at += *machine->at == '\\' && machine->end - machine->at > 1 ? 2 : 1;
    }
    size_t length = (size_t)(machine->at - first);
    if (!take(machine, '"')) {
        return machine_truncated(machine);
    }
    if (length > UINT32_MAX) {
        return machine_fail(machine, "a text has more than 4 GiB");
    }
    return machine_push(machine, (struct plain_value){.kind = PLAIN_TEXT,
                                                      .length = (uint32_t)length,
                                                      .text = (const char *)first});
}

static int read_number(struct machine *machine) {
    struct plain_value value = {.kind = PLAIN_INT};
    bool negative = take(machine, '-'), fits = true;
    const unsigned char *first = machine->at;
    while (machine->at < machine->end && isdigit(*machine->at)) {
        int64_t digit = *machine->at++ - '0';
        fits = fits && !__builtin_mul_overflow(value.integer, 10, &value.integer) &&
               !__builtin_add_overflow(value.integer, negative ? -digit : digit, &value.integer);
    }
    if (machine->at == first) {
        return fail(machine);
    }
    const unsigned char *whole = machine->at;
    while (machine->at < machine->end && *machine->at && strchr("+-.eE0123456789", *machine->at)) {
        machine->at++;
    }
    if (machine->at > whole) { /* no value that a reader of snapshots uses has a fraction */
        value = (struct plain_value){.kind = PLAIN_FLOAT};
    } else if (!fits) {
        value.kind = PLAIN_HUGE;
    }
    return machine_push(machine, value);
}

static bool take_word(struct machine *machine, const char *word) {
    size_t length = strlen(word);
    bool there =
        (size_t)(machine->end - machine->at) >= length && memcmp(machine->at, word, length) == 0;
    machine->at += there ? length : 0;
    return there;
}

/** Reads a text, a number or a word. */
static int read_plain(struct machine *machine) {
    static const struct {
        const char *word;
        struct plain_value value;
    } words[] = {{"null", {.kind = PLAIN_NONE}},
                 {"true", {.kind = PLAIN_BOOL, .integer = 1}},
                 {"false", {.kind = PLAIN_BOOL, .integer = 0}},
                 {"NaN", {.kind = PLAIN_FLOAT}},
                 {"Infinity", {.kind = PLAIN_FLOAT}},
                 {"-Infinity", {.kind = PLAIN_FLOAT}}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (take_word(machine, words[i].word)) {
            return machine_push(machine, words[i].value);
        }
    }
    return take(machine, '"') ? read_text(machine) : read_number(machine);
}

static int read_key(struct machine *machine) {
    int r = take(machine, '"') ? read_text(machine) : fail(machine);
    return r != 0 ? r : take(machine, ':') ? 0 : fail(machine);
}

/** Closes the brackets that end here. Sets *more if a comma was read, so another value follows. */
static int end_value(struct reader *reader, bool *more) {
    struct machine *machine = &reader->machine;
    for (*more = false; reader->depth > 0 && !*more;) {
        bool dict = reader->dicts & 1;
        if (take(machine, ',')) {
            *more = true;
            return dict ? read_key(machine) : 0;
        }
        if (!take(machine, dict ? '}' : ']')) {
            return fail(machine);
        }
        int r = machine_push_marked(machine, dict ? PLAIN_DICT : PLAIN_LIST);
        if (r != 0) {
            return r;
        }
        reader->dicts >>= 1;
        reader->depth--;
    }
    return 0;
}

/** Opens a list or dictionary. Sets *more if it is not empty. */
static int open_bracket(struct reader *reader, bool dict, bool *more) {
    struct machine *machine = &reader->machine;
    if (reader->depth == DEEPEST) {
        return machine_fail(machine, "its brackets are too deep");
    }
    reader->dicts = reader->dicts << 1 | dict;
    reader->depth++;
    int r = machine_mark(machine);
    skip_blanks(machine);
    if (r != 0 || machine->at == machine->end) {
        return r != 0 ? r : machine_truncated(machine);
    }
    *more = *machine->at != (dict ? '}' : ']');
    return *more ? dict ? read_key(machine) : 0 : end_value(reader, more);
}

static int run(struct reader *reader) {
    struct machine *machine = &reader->machine;
    bool more = true;
    int r = 0;
    while (more && r == 0) {
        bool dict = take(machine, '{');
        if (dict || take(machine, '[')) {
            r = open_bracket(reader, dict, &more);
        } else {
            r = read_plain(machine);
            r = r == 0 ? end_value(reader, &more) : r;
        }
    }
    skip_blanks(machine);
    return r == 0 && machine->at < machine->end ? fail(machine) : r;
}

int pickle_read_json(const char *bytes, size_t count, size_t most, struct plain *pickle, char *why,
                     size_t why_size) {
    const unsigned char *begin = (const unsigned char *)bytes;
    struct reader reader = {
        .machine = {
            .at = begin, .begin = begin, .end = begin + count, .pickle = pickle, .most = most}};
    *pickle = (struct plain){.reads_left = count};
    int r = run(&reader);
    if (r == 0) {
        pickle->root = reader.machine.stack[0];
    } else if (reader.machine.wrong) {
        snprintf(why, why_size, "is broken JSON at byte %zu: %s",
                 (size_t)(reader.machine.at - begin), reader.machine.wrong);
    }
    machine_free(&reader.machine);
    return r;
}
