/*
 * Writes the opcodes of Python's pickle protocol 2 (CPython's Lib/pickletools.py):
 *
 *      ] ( e      empty list; mark; append the values since the mark
 *      } ( u      empty dictionary; mark; add the keys and values since the mark
 *      K M J \x8a integer of 1, 2, 4 or more bytes       \x88 \x89  true, false
 *      X  \x86    text; pair of the last two values       q r  h j   put into the memo; get from it
 */
#include "report/pickle.h"
#include <string.h>

#define BATCH 1000 /* values of a list that one opcode `e` appends */

static void put(struct pickle_writer *to, char opcode) {
    print_char(to->out, opcode);
}

/** Writes an integer of `count` bytes, little endian. */
static void put_bytes(struct pickle_writer *to, uint64_t value, unsigned count) {
    for (unsigned i = 0; i < count; i++)
        print_char(to->out, (char)(value >> 8 * i));
}

/* ---- separators ---- */

/** Writes a mark if the next value is the first of a batch of a list. */
static void begin_element(struct pickle_writer *to) {
    if (to->is_json || to->depth == 0 || to->open[to->depth - 1].kind == '}')
        return;
    uint32_t count = to->open[to->depth - 1].count++;
    if (count % BATCH == 0)
        print_str(to->out, count > 0 ? "e(" : "(");
}

static void open(struct pickle_writer *to, char kind) {
    begin_element(to);
    if (to->is_json)
        json_put_open(&to->json, kind == ']' ? '[' : '{');
    else
        print_str(to->out, kind == ']' ? "]" : "}(");
    to->open[to->depth].kind = kind;
    to->open[to->depth++].count = 0;
}

void pickle_list(struct pickle_writer *to) {
    open(to, ']');
}

void pickle_dict(struct pickle_writer *to) {
    open(to, '}');
}

void pickle_close(struct pickle_writer *to) {
    to->depth--;
    char kind = to->open[to->depth].kind;
    if (to->is_json)
        json_put_close(&to->json, kind);
    else if (kind == '}')
        put(to, 'u');
    else if (to->open[to->depth].count > 0)
        put(to, 'e');
}

void pickle_begin(struct pickle_writer *to, struct print *out, bool json) {
    memset(to, 0, sizeof *to);
    to->out = out;
    to->is_json = json;
    to->json = json_put_to(out);
    if (!json)
        print_bytes(out, "\x80\x02", 2);
}

void pickle_end(struct pickle_writer *to) {
    put(to, to->is_json ? '\n' : '.');
}

/* ---- values ---- */

static void write_int(struct pickle_writer *to, int64_t value) {
    if (value >= 0 && value < 256) {
        put(to, 'K');
        put_bytes(to, (uint64_t)value, 1);
    } else if (value >= 0 && value < 65536) {
        put(to, 'M');
        put_bytes(to, (uint64_t)value, 2);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        put(to, 'J');
        put_bytes(to, (uint64_t)value, 4);
    } else {
        unsigned count = 5; /* bytes, including the sign bit */
        while (count < 8 && value >> (8 * count - 1) != 0 && value >> (8 * count - 1) != -1)
            count++;
        put(to, '\x8a');
        put_bytes(to, count, 1);
        put_bytes(to, (uint64_t)value, count);
    }
}

void pickle_int(struct pickle_writer *to, int64_t value) {
    begin_element(to);
    if (to->is_json)
        json_put_i64(&to->json, value);
    else
        write_int(to, value);
}

void pickle_bool(struct pickle_writer *to, bool value) {
    begin_element(to);
    if (to->is_json)
        json_put_bool(&to->json, value);
    else
        put(to, value ? '\x88' : '\x89');
}

/** Writes a text, with U+FFFD for bytes that are no UTF-8, as in the JSON: readers refuse them. */
static size_t write_utf8(struct print *out, const char *text) {
    size_t bytes = 0;
    while (*text) {
        size_t length = print_visible_length(text);
        bool plain = length > 0 || (unsigned char)*text < 0x20;
        length = length > 0 ? length : 1;
        if (out)
            print_bytes(out, plain ? text : "\xef\xbf\xbd", plain ? length : 3);
        bytes += plain ? length : 3;
        text += length;
    }
    return bytes;
}

static void write_text(struct pickle_writer *to, const char *text) {
    if (to->is_json) {
        json_put_text(&to->json, text);
        return;
    }
    put(to, 'X');
    put_bytes(to, write_utf8(NULL, text), 4);
    write_utf8(to->out, text);
}

void pickle_text(struct pickle_writer *to, const char *text) {
    begin_element(to);
    write_text(to, text);
}

static void write_word(struct pickle_writer *to, const char *word) {
    unsigned at = 0;
    while (at < to->known_count && to->known[at] != word && strcmp(to->known[at], word) != 0)
        at++;
    bool known = at < to->known_count;
    if (to->is_json || !known)
        write_text(to, word);
    if (to->is_json || (!known && at == PICKLE_KNOWN))
        return;
    put(to, known ? 'h' : 'q');
    put_bytes(to, at, 1);
    if (!known)
        to->known[to->known_count++] = word;
}

void pickle_word(struct pickle_writer *to, const char *word) {
    begin_element(to);
    write_word(to, word);
}

void pickle_key(struct pickle_writer *to, const char *key) {
    if (to->is_json)
        json_put_key(&to->json, key);
    else
        write_word(to, key);
}

void pickle_pair(struct pickle_writer *to, int64_t first, int64_t second) {
    begin_element(to);
    if (to->is_json) {
        json_put_open(&to->json, '[');
        json_put_i64(&to->json, first);
        json_put_i64(&to->json, second);
        json_put_close(&to->json, ']');
        return;
    }
    write_int(to, first);
    write_int(to, second);
    put(to, '\x86');
}

static void put_memo_index(struct pickle_writer *to, char small, char large, uint32_t place) {
    put(to, place < 256 ? small : large);
    put_bytes(to, place, place < 256 ? 1 : 4);
}

bool pickle_again(struct pickle_writer *to, uint32_t place) {
    if (to->is_json || place == 0)
        return false;
    begin_element(to);
    put_memo_index(to, 'h', 'j', place);
    return true;
}

uint32_t pickle_remember(struct pickle_writer *to) {
    if (to->is_json)
        return 0;
    to->remembered = to->remembered ? to->remembered + 1 : PICKLE_KNOWN;
    put_memo_index(to, 'q', 'r', to->remembered);
    return to->remembered;
}
