/*
 * Functions that all GPU test programs share: error checks, a clock, a seeded random number, the
 * `time:` line.
 *
 * A program prints its results on stdout; they must be the same natively and under the library.
 * Values that may differ between two runs (times, bytes) go on lines of their own, `time: NAME
 * VALUE UNIT`, and remarks on lines that begin with `note:`. The runner (run.py) removes both kinds
 * of lines before it compares.
 */
#ifndef GPU_CHECK_H
#define GPU_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define DIE(...)                                                                                   \
    do {                                                                                           \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                            \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
        exit(2);                                                                                   \
    } while (0)

/* Makes a call that must succeed: the CUDA runtime and the driver both return 0 then. */
#define CHECK(call)                                                                                \
    do {                                                                                           \
        int check_code_ = (int)(call);                                                             \
        if (check_code_ != 0)                                                                      \
            DIE("%s: error %d", #call, check_code_);                                               \
    } while (0)

static inline double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void print_time(const char *name, double value, const char *unit) {
    printf("time: %s %.6g %s\n", name, value, unit);
}

/* Returns the next number of the splitmix64 generator. */
static inline uint64_t rng(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline long arg_long(int argc, char **argv, int index, long otherwise) {
    return index < argc ? atol(argv[index]) : otherwise;
}

#endif
