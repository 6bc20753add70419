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
    char *text; /* of a string, or of a number as it was written */
    struct json *first, *next;
};

/** Reads one value from *at and moves it behind. NULL: that is no JSON. Freed with json_free(). */
struct json *json_read(const char **at);
void json_free(struct json *value);

/* Of NULL and of a value of another kind: NULL, 0, "". */
const struct json *json_get(const struct json *object, const char *name);
uint64_t json_u64(const struct json *value);
int64_t json_i64(const struct json *value);
double json_double(const struct json *value);
const char *json_text(const struct json *value);

/** Seconds as nanoseconds, to the last digit. */
uint64_t json_seconds(const struct json *value);

#endif
