/*
 * Time, and sleep. All functions may be called in a signal handler, and take no lock.
 *
 * A preloaded library may replace libc's clock_gettime() and nanosleep() by functions that stop or
 * jump (libfaketime). nanosleep() of libc is a cancellation point as well: a cancelled thread would
 * end inside the allocator, with a lock held or a block that no list contains. Waits therefore use
 * system calls.
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

/** Sleeps for `ns` nanoseconds. Returns earlier if a signal comes, or if a sandbox refuses. */
void sleep_ns(uint64_t ns);

/**
 * Lets other threads run in a loop that waits for one of them. `turn` counts the turns of the loop.
 * Yields at first, and then sleeps: a real-time thread that only yields would keep its processor
 * from threads of lower priority.
 */
void let_others_run(unsigned turn);

/** As sleep_ns(), but signals do not end the sleep. */
void sleep_despite_signals(uint64_t ns);

#endif
