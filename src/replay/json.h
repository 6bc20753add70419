/*
 * Reads JSON: reports of the library, and memory snapshots.
 */
#ifndef GPUCACHE_REPLAY_JSON_H
#define GPUCACHE_REPLAY_JSON_H

#include "replay/plain.h"

/**
 * Reads one value, behind which only blanks may follow. Decodes texts in place: `bytes` changes,
 * and must outlive the values. A NUL follows the `count` bytes, and ends each text.
 * U+FFFD stands for a NUL in a text, and for a surrogate without its other half.
 *
 * Returns 0, -EFBIG if the values take more than `most` bytes, or -EINVAL. Writes the error and its
 * offset to `why`. The caller frees the values in all cases.
 */
int json_read(char *bytes, size_t count, size_t most, struct plain *values, char *why,
              size_t why_size);

/* Return 0 or "" for NULL and for a value of another kind. */
uint64_t json_u64(const struct plain_value *value);
int64_t json_i64(const struct plain_value *value);
bool json_is_true(const struct plain_value *value);
const char *json_text(const struct plain_value *value);

/** Returns seconds as nanoseconds, to the last digit. */
uint64_t json_seconds(const struct plain_value *value);

bool json_is_number(const struct plain_value *value);

#endif
