/*
 * Nested lists and dictionaries, as a Python pickle or as JSON.
 *
 * The pickle is of protocol 2 and has only those opcodes that PyTorch's memory viewer knows, which
 * reads it with an unpickler of its own. That one spreads each batch of a list over the arguments
 * of one call, so batches are small.
 */
#ifndef GPUCACHE_TOOL_PICKLE_H
#define GPUCACHE_TOOL_PICKLE_H

#include "process/print.h"

#include <stdbool.h>
#include <stdint.h>

#define PICKLE_DEPTH 16
#define PICKLE_KNOWN 128 /* texts that are written in full once */

struct pickle {
    struct print *out;
    bool json;
    unsigned depth;
    struct {
        char kind; /* ] a list, } a dictionary */
        uint32_t count;
    } open[PICKLE_DEPTH];
    const char *known[PICKLE_KNOWN];
    unsigned known_count;
    uint32_t remembered; /* the last place in the memo */
};

void pickle_begin(struct pickle *to, struct print *out, bool json);
void pickle_end(struct pickle *to);

/* A value: the whole, an element of a list, or what stands behind a key. */
void pickle_list(struct pickle *to);
void pickle_dict(struct pickle *to);
void pickle_close(struct pickle *to);
void pickle_int(struct pickle *to, int64_t value);
void pickle_bool(struct pickle *to, bool value);
void pickle_text(struct pickle *to, const char *text);
void pickle_pair(struct pickle *to, int64_t first, int64_t second);

/** The same for a text that comes again and again, and that stays where it is; as keys are. */
void pickle_word(struct pickle *to, const char *word);
void pickle_key(struct pickle *to, const char *key);

/**
 * A list or dictionary that comes again: it is written once, and after its pickle_close()
 * remembered. False: 0 was given, for a first time, or this is JSON; then it is to be written.
 */
bool pickle_again(struct pickle *to, uint32_t place);
uint32_t pickle_remember(struct pickle *to);

#endif
