/*
 * Writes nested lists and dictionaries, as a Python pickle or as JSON.
 *
 * The pickle has protocol 2, and only the opcodes that PyTorch's memory viewer knows: the viewer
 * has its own unpickler. PyTorch's unpickler passes each batch of a list as the arguments of one
 * call, so batches are small.
 */
#ifndef GPUCACHE_REPORT_PICKLE_H
#define GPUCACHE_REPORT_PICKLE_H

#include "base/json_put.h"

#include <stdbool.h>
#include <stdint.h>

#define PICKLE_DEPTH 16
#define PICKLE_KNOWN 128 /* texts of pickle_word() that are written only once */

struct pickle_writer {
    struct print *out;
    bool is_json;
    struct json_put json; /* used if is_json; writes to `out` */
    unsigned depth;
    struct {
        char kind; /* ]: a list; }: a dictionary */
        uint32_t count;
    } open[PICKLE_DEPTH];
    const char *known[PICKLE_KNOWN];
    unsigned known_count;
    uint32_t remembered; /* the last index of the memo that pickle_remember() used */
};

void pickle_begin(struct pickle_writer *to, struct print *out, bool json);
void pickle_end(struct pickle_writer *to);

/* Write a value: the top-level one, an element of a list, or the value of a key. */
void pickle_list(struct pickle_writer *to);
void pickle_dict(struct pickle_writer *to);
void pickle_close(struct pickle_writer *to);
void pickle_int(struct pickle_writer *to, int64_t value);
void pickle_bool(struct pickle_writer *to, bool value);
void pickle_text(struct pickle_writer *to, const char *text);
void pickle_pair(struct pickle_writer *to, int64_t first, int64_t second);

/** Writes a text that occurs often, such as a key. The text must stay valid. */
void pickle_word(struct pickle_writer *to, const char *word);
void pickle_key(struct pickle_writer *to, const char *key);

/**
 * Writes a reference to a list or dictionary that is in the memo at index `place`. Returns false if
 * `place` is 0 (the value is new) or if the format is JSON. The caller then writes the value.
 */
bool pickle_again(struct pickle_writer *to, uint32_t place);
/** Puts the value written last into the memo. Returns its index; 0 in JSON. */
uint32_t pickle_remember(struct pickle_writer *to);

#endif
