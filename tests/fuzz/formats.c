/*
 * Checks that the files which the command writes can be read again.
 */
#include "fuzz.h"

#include "replay/pickle.h"

#include <stdio.h>

static void check_read(int r, struct plain *pickle, const char *why) {
    plain_free(pickle);
    if (r != 0)
        fprintf(stderr, "%s\n", why);
    FUZZ_CHECK(r == 0);
}

void fuzz_check_json(const char *text, size_t length) {
    struct plain json;
    char why[256] = "";
    check_read(pickle_read_json(text, length, SIZE_MAX, &json, why, sizeof why), &json, why);
}

void fuzz_check_pickle(const char *bytes, size_t length) {
    struct plain pickle;
    char why[256] = "";
    check_read(pickle_read(bytes, length, SIZE_MAX, &pickle, why, sizeof why), &pickle, why);
}
