/*
 * Time in nanoseconds. Two sources, because a program may replace libc's clock_gettime() by one
 * that stops or jumps (libfaketime). Both may be called in a signal handler.
 */
#ifndef GPUCACHE_BASE_CLOCK_H
#define GPUCACHE_BASE_CLOCK_H

#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000u

static inline uint64_t clock_to_ns(const struct timespec *time) {
    return (uint64_t)time->tv_sec * SECOND_NS + (uint64_t)time->tv_nsec;
}

static inline struct timespec clock_from_ns(uint64_t ns) {
    return (struct timespec){(time_t)(ns / SECOND_NS), (long)(ns % SECOND_NS)};
}

/** Returns the time of libc's clock, without a system call: for measurements. */
static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec now = {0};
    clock_gettime(clock, &now);
    return clock_to_ns(&now);
}

/** Returns the kernel's monotonic time, by a system call: for the limit of a wait, which has to end
 * even if libc's clock stops. */
static inline uint64_t clock_kernel_ns(void) {
    struct timespec now = {0};
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return clock_to_ns(&now);
}

#endif
