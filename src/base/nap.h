/*
 * Sleeps in a thread of the program, without a cancellation point.
 *
 * nanosleep of libc is a cancellation point: a cancelled thread would end inside the allocator,
 * with a lock held or a block that no list contains. The system call is not a cancellation point,
 * and a nanosleep of another preloaded library cannot change its time. Takes no lock.
 */
#ifndef GPUCACHE_BASE_NAP_H
#define GPUCACHE_BASE_NAP_H

#include <stdint.h>

/**
 * Sleeps for `ns` nanoseconds, less than one second. Returns earlier if a signal comes, or if a
 * sandbox refuses to sleep.
 */
void nap(uint64_t ns);

#endif
