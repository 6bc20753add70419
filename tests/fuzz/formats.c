/*
 * Checks that the files which the command writes can be read again.
 */
#include "fuzz.h"

#include "replay/plain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check_read(int r, struct plain *values, const char *why) {
    plain_free(values);
    if (r != 0)
        fprintf(stderr, "%s\n", why);
    FUZZ_CHECK(r == 0);
}

void fuzz_check_json(const char *text, size_t length) {
    struct plain values;
    char why[256] = "", *copy = strndup(text, length);
    FUZZ_CHECK(copy && strlen(copy) == length);
    check_read(json_read(copy, length, SIZE_MAX, &values, why, sizeof why), &values, why);
    free(copy);
}

void fuzz_check_pickle(const char *bytes, size_t length) {
    struct plain values;
    char why[256] = "";
    check_read(pickle_read(bytes, length, SIZE_MAX, &values, why, sizeof why), &values, why);
}
