/*
 * Reads a pickle of protocol 2 to 5 with plain data: numbers, texts, lists, tuples, sets,
 * dictionaries.
 *
 * A pickle is a program for a stack machine, whose operations can import and call any function. A
 * file with such an operation is refused, and the error names it. The length of the file bounds
 * work and memory: no operation makes more than a few words, and values that the memo shares are
 * shared in memory too. For a packed file the caller sets another bound.
 */
#ifndef GPUCACHE_REPLAY_PICKLE_H
#define GPUCACHE_REPLAY_PICKLE_H

#include "replay/plain.h"

/**
 * Reads a pickle. Returns 0, -EFBIG beyond the bound, or -EINVAL. Writes the error and its offset
 * to `why`. Texts point into `bytes`; lists take at most `most` bytes. The caller frees the values
 * in all cases.
 */
int pickle_read(const char *bytes, size_t count, size_t most, struct plain *values, char *why,
                size_t why_size);

#endif
