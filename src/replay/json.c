/*
 * Reads JSON with the stack machine of pickles. An opening bracket pushes a mark. A closing bracket
 * makes a list or dictionary of the values above the mark. machine->most bounds the memory.
 */
#include "base/utf8.h"
#include "replay/machine.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define DEEPEST 64 /* nested brackets; one bit each */

static void skip_blanks(struct machine *machine) {
    while (machine->at < machine->end && strchr(" \t\r\n", *machine->at) && *machine->at)
        machine->at++;
}

/** Skips blanks and the wanted character. Returns false if another character follows. */
static bool take(struct machine *machine, char wanted) {
    skip_blanks(machine);
    bool there = machine->at < machine->end && *machine->at == (unsigned char)wanted;
    machine->at += there;
    return there;
}

static bool take_word(struct machine *machine, const char *word) {
    size_t length = strlen(word);
    bool there =
        (size_t)(machine->end - machine->at) >= length && memcmp(machine->at, word, length) == 0;
    machine->at += there ? length : 0;
    return there;
}

static int fail(struct machine *machine) {
    return machine->at < machine->end ? machine_fail(machine, "that is no JSON")
                                      : machine_truncated(machine);
}

/* ---- texts ---- */

/** Reads the four digits of an escape. Returns false, and moves nothing, if there are fewer. */
static bool take_unit(struct machine *machine, unsigned *unit) {
    char digits[5] = "";
    for (size_t i = 0; i < 4; i++) {
        if (machine->end - machine->at <= (ptrdiff_t)i || !isxdigit(machine->at[i]))
            return false;
        digits[i] = (char)machine->at[i];
    }
    *unit = (unsigned)strtoul(digits, NULL, 16);
    machine->at += 4;
    return true;
}

/** Reads a character behind `\u`, which may be a pair of surrogates. */
static bool take_character(struct machine *machine, unsigned *code) {
    unsigned low = 0;
    if (!take_unit(machine, code))
        return false;
    const unsigned char *behind = machine->at;
    if (*code >= 0xD800 && *code < 0xDC00 && take_word(machine, "\\u") &&
        take_unit(machine, &low) && low >= 0xDC00 && low < 0xE000)
        *code = 0x10000 + ((*code - 0xD800) << 10) + (low - 0xDC00);
    else
        machine->at = behind;
    if (*code == 0 || (*code >= 0xD800 && *code < 0xE000))
        *code = 0xFFFD;
    return true;
}

/** Decodes the escape behind a backslash. No character is longer than its escape. */
static bool take_escape(struct machine *machine, char **to) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    int byte = machine->at < machine->end ? *machine->at : 0;
    const char *letter = byte ? strchr(letters, byte) : NULL;
    unsigned code = letter ? (unsigned char)meanings[letter - letters] : 0;
    machine->at += letter || byte == 'u';
    if (!letter && (byte != 'u' || !take_character(machine, &code)))
        return false;
    *to = utf8_put(*to, code);
    return true;
}

/** Reads a text from behind its first quote, and decodes it in place. */
static int read_text(struct machine *machine) {
    char *first = (char *)(uintptr_t)machine->at, *to = first;
    while (machine->at < machine->end && *machine->at != '"')
        if (*machine->at != '\\')
            *to++ = (char)*machine->at++;
        else if (machine->at++, !take_escape(machine, &to))
            return fail(machine);
    if (machine->at == machine->end)
        return machine_truncated(machine);
    machine->at++;
    *to = '\0';
    if (to - first > UINT32_MAX)
        return machine_fail(machine, "a text has more than 4 GiB");
    return machine_push(
        machine,
        (struct plain_value){.kind = PLAIN_TEXT, .length = (uint32_t)(to - first), .text = first});
}

/* ---- other values ---- */

static int read_number(struct machine *machine) {
    struct plain_value value = {.kind = PLAIN_INT};
    skip_blanks(machine);
    const char *text = (const char *)machine->at;
    bool negative = take(machine, '-'), fits = true;
    const unsigned char *first = machine->at;
    while (machine->at < machine->end && isdigit(*machine->at)) {
        int64_t digit = *machine->at++ - '0';
        fits = fits && !__builtin_mul_overflow(value.integer, 10, &value.integer) &&
               !__builtin_add_overflow(value.integer, negative ? -digit : digit, &value.integer);
    }
    if (machine->at == first)
        return fail(machine);
    const unsigned char *whole = machine->at;
    while (machine->at < machine->end && *machine->at && strchr("+-.eE0123456789", *machine->at))
        machine->at++;
    if (machine->at > whole || !fits) {
        value.kind = machine->at > whole ? PLAIN_FLOAT : PLAIN_HUGE;
        value.text = text;
    }
    return machine_push(machine, value);
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
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (take_word(machine, words[i].word))
            return machine_push(machine, words[i].value);
    return take(machine, '"') ? read_text(machine) : read_number(machine);
}

static int read_key(struct machine *machine) {
    int r = take(machine, '"') ? read_text(machine) : fail(machine);
    return r != 0 ? r : take(machine, ':') ? 0 : fail(machine);
}

/** Closes the brackets that end here. Sets *more if a comma was read, so another value follows. */
static int end_value(struct machine *machine, bool *more) {
    for (*more = false; machine->mark_count > 0 && !*more;) {
        bool dict = machine->dicts & 1;
        if (take(machine, ',')) {
            *more = true;
            return dict ? read_key(machine) : 0;
        }
        if (!take(machine, dict ? '}' : ']'))
            return fail(machine);
        int r = machine_push_marked(machine, dict ? PLAIN_DICT : PLAIN_LIST);
        if (r != 0)
            return r;
        machine->dicts >>= 1;
    }
    return 0;
}

/** Opens a list or dictionary. Sets *more if it is not empty. */
static int open_bracket(struct machine *machine, bool dict, bool *more) {
    if (machine->mark_count == DEEPEST)
        return machine_fail(machine, "its brackets are too deep");
    machine->dicts = machine->dicts << 1 | dict;
    int r = machine_mark(machine);
    skip_blanks(machine);
    if (r != 0 || machine->at == machine->end)
        return r != 0 ? r : machine_truncated(machine);
    *more = *machine->at != (dict ? '}' : ']');
    return *more ? dict ? read_key(machine) : 0 : end_value(machine, more);
}

static int run(struct machine *machine) {
    bool more = true;
    int r = 0;
    while (more && r == 0) {
        bool dict = take(machine, '{');
        if (dict || take(machine, '[')) {
            r = open_bracket(machine, dict, &more);
        } else {
            r = read_plain(machine);
            r = r == 0 ? end_value(machine, &more) : r;
        }
    }
    skip_blanks(machine);
    return r == 0 && machine->at < machine->end ? fail(machine) : r;
}

int json_read(char *bytes, size_t count, size_t most, struct plain *values, char *why,
              size_t why_size) {
    return machine_read(bytes, count, most, run, "broken JSON", values, why, why_size);
}

/* ---- values for callers ---- */

bool json_is_number(const struct plain_value *value) {
    return value && value->kind >= PLAIN_INT && value->kind <= PLAIN_FLOAT;
}

/** Returns the digits of a float, or of an integer that does not fit into int64_t. */
static const char *digits(const struct plain_value *value) {
    return json_is_number(value) && value->kind != PLAIN_INT && value->text ? value->text : "0";
}

uint64_t json_u64(const struct plain_value *value) {
    return value && value->kind == PLAIN_INT ? (uint64_t)value->integer
                                             : strtoull(digits(value), NULL, 10);
}

int64_t json_i64(const struct plain_value *value) {
    return value && value->kind == PLAIN_INT ? value->integer : strtoll(digits(value), NULL, 10);
}

bool json_is_true(const struct plain_value *value) {
    return value && value->kind == PLAIN_BOOL && value->integer;
}

const char *json_text(const struct plain_value *value) {
    return value && value->kind == PLAIN_TEXT ? value->text : "";
}

uint64_t json_seconds(const struct plain_value *value) {
    const char *point = digits(value) + strspn(digits(value), "-0123456789");
    uint64_t ns = json_u64(value) * 1000000000, unit = 100000000;
    for (const char *at = *point == '.' ? point + 1 : ""; *at >= '0' && *at <= '9' && unit; at++) {
        ns += (uint64_t)(*at - '0') * unit;
        unit /= 10;
    }
    return ns;
}
