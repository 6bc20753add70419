/*
 * Expands patterns of file names from the environment. No name of a program or host leads to
 * another folder, and each attempt has a new name.
 *
 * No file is made: the function that would make one only records the name.
 */
#include "fuzz.h"

#include "base/program.c"

#include "report/file.c"

#include "options/value.h"

#include <stdio.h>

#define ATTEMPTS_HERE 8

static char names[ATTEMPTS_HERE][VALUE_PATTERN];
static unsigned taken, taken_most;

static int take_name(const char *path) {
    FUZZ_CHECK(taken < ATTEMPTS_HERE && strlen(path) < VALUE_PATTERN);
    for (unsigned i = 0; i < taken; i++)
        FUZZ_CHECK(strcmp(names[i], path) != 0);
    strcpy(names[taken++], path);
    return taken < taken_most ? -EEXIST : 1;
}

static size_t count_slashes(const char *text) {
    size_t count = 0;
    for (; *text; text++)
        count += *text == '/';
    return count;
}

/** Checks that a text that stands for a name is a part of a file name, and no way to another
 * folder. */
static void check_name(const char *text) {
    char part[512];
    struct print out;
    print_init(&out, -1, part, sizeof part);
    print_name(&out, text);
    print_end(&out);
    FUZZ_CHECK(strcmp(part, ".") != 0 && strcmp(part, "..") != 0);
    for (const char *at = part; *at; at += print_visible_length(at))
        FUZZ_CHECK(*at != '/' && print_visible_length(at) > 0);
}

int fuzz_one(const uint8_t *data, size_t size) {
    static char text[2 * VALUE_PATTERN], pattern[VALUE_PATTERN], path[VALUE_PATTERN];
    struct fuzz_input input = {data, size};
    taken_most = 1 + fuzz_take_byte(&input) % ATTEMPTS_HERE;
    size_t limit = 1 + fuzz_take_byte(&input) % 64u * 65u;
    self = (struct program){.rank = fuzz_take_byte(&input) - 1};
    fuzz_take(&input, self.name, fuzz_take_byte(&input) % sizeof self.name);
    fuzz_take(&input, self.host, fuzz_take_byte(&input) % sizeof self.host);
    size_t length = input.left < sizeof text - 1 ? input.left : sizeof text - 1;
    fuzz_take(&input, text, length);
    text[length] = '\0';
    check_name(self.name);
    check_name(self.host);
    if (!value_pattern(text, pattern))
        return 0;
    FUZZ_CHECK(memchr(pattern, '\0', sizeof pattern));
    taken = 0;
    int r = open_pattern(pattern, path, limit, take_name);
    FUZZ_CHECK(r == 1 || r == -ENAMETOOLONG);
    FUZZ_CHECK(r != 1 || (taken == taken_most && strlen(path) < limit));
    for (unsigned i = 0; i < taken; i++)
        FUZZ_CHECK(count_slashes(names[i]) == count_slashes(pattern));
    return 0;
}
