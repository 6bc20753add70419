/*
 * A fuzz target: one file with one function, which reads a text of unknown origin the way the
 * library or the command reads it.
 *
 * driver.c calls the function with inputs made from a small corpus. libFuzzer calls it under the
 * name that libFuzzer wants, in a build with -Dlibfuzzer=true. The target ends the process if a
 * reader breaks one of its promises; the sanitizers see the rest.
 */
#ifndef GPUCACHE_FUZZ_H
#define GPUCACHE_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef GPUCACHE_LIBFUZZER
#define fuzz_one LLVMFuzzerTestOneInput
#endif

/** Reads one input. Returns 0. The input is not ended by NUL and may be empty. */
int fuzz_one(const uint8_t *data, size_t size);

/** Ends the process unless the condition holds, and names the place. */
#define FUZZ_CHECK(condition)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            fuzz_refuse(#condition, __FILE__, __LINE__);                                           \
    } while (0)

_Noreturn void fuzz_refuse(const char *condition, const char *file, int line);

/** The part of an input that a target has not used yet. */
struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

/** Copies the next bytes to `to`, and zeros behind the end of the input. */
void fuzz_take(struct fuzz_input *input, void *to, size_t bytes);
uint8_t fuzz_take_byte(struct fuzz_input *input);

/** Returns the path of a file that holds these bytes and no others. It is the same file in each
 * call. */
const char *fuzz_file(const void *bytes, size_t size);

/** Checks that a text has no control character but the end of a line, so that it cannot command
 * a terminal. */
void fuzz_check_plain(const char *text);

/** Checks that a text is one value of JSON. */
void fuzz_check_json(const char *text, size_t length);

/** Checks that it is a pickle that gpucache replay can read. */
void fuzz_check_pickle(const char *bytes, size_t length);

#endif
