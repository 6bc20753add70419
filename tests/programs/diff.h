/*
 * Functions of the clients of diff.py, which print one line per behaviour: "area: what: answers".
 *
 * Answers are codes, sizes, offsets and contents, never an address, a time, or a count over the
 * whole process. A client must print the same lines natively and under the library.
 */
#ifndef GPUCACHE_TESTS_DIFF_H
#define GPUCACHE_TESTS_DIFF_H

#include "program.h"

#include <stdarg.h>
#include <stdbool.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static inline __attribute__((format(printf, 1, 2))) void line(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    putchar('\n');
    fflush(stdout);
}

/* Prints the answers of several calls. The array makes the calls in order; arguments of one
 * function have no order. */
#define CODES(what, ...)                                                                           \
    codes(what, (int[]){__VA_ARGS__}, sizeof((int[]){__VA_ARGS__}) / sizeof(int))

static inline void codes(const char *what, const int *code, size_t count) {
    printf("%s:", what);
    for (size_t i = 0; i < count; i++)
        printf(" %d", code[i]);
    putchar('\n');
    fflush(stdout);
}

static inline CUdeviceptr take(size_t bytes) {
    CUdeviceptr p = 0;
    CHECK(cuMemAlloc(&p, bytes));
    return p;
}

/* Copies the first and the last word of a block to the CPU. Returns codes and words as text. */
static inline const char *ends(CUdeviceptr p, size_t bytes) {
    static char text[4][64];
    static unsigned turn;
    uint32_t first = 0, last = 0;
    CUresult a = cuMemcpyDtoH(&first, p, 4), b = cuMemcpyDtoH(&last, p + bytes - 4, 4);
    char *out = text[turn++ % 4];
    snprintf(out, 64, "%d %d %x..%x", a, b, first, last);
    return out;
}

#endif
