/*
 * Reading JSON: what the library's own reports need, with integers of 64 bits as they stand.
 */
#ifndef GPUCACHE_TOOL_JSON_H
#define GPUCACHE_TOOL_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum json_kind {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};

struct json {
    enum json_kind kind;
    char *name; /* in an object */
    /* of a string its own copy; of a number where it stands in what is read, without an end */
    const char *text;
    struct json *first, *next;
};

/**
 * Reads one value from *at, which ends with NUL and outlives the value, and moves *at behind it.
 * Returns NULL if that is no JSON, with errno EFBIG if the value takes more memory than JSON_MEMORY
 * and JSON_TIMES the bytes of the text. Freed with json_free().
 */
#define JSON_MEMORY ((size_t)64 << 20)
#define JSON_TIMES 12
struct json *json_read(const char **at);
void json_free(struct json *value);

/* Of NULL and of a value of another kind: NULL, 0, "". */
const struct json *json_get(const struct json *object, const char *name);
uint64_t json_u64(const struct json *value);
int64_t json_i64(const struct json *value);
double json_double(const struct json *value);
bool json_is_true(const struct json *value);
const char *json_text(const struct json *value);

/** Seconds as nanoseconds, to the last digit. */
uint64_t json_seconds(const struct json *value);

#endif
