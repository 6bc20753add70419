/*
 * A pause in a thread of the program's.
 *
 * libc's nanosleep is a cancellation point: a thread that is being cancelled would end inside the allocator, with a
 * lock held or a block in no book. The plain system call is none, and another preloaded library that has a nanosleep
 * of its own does not make it last longer or shorter.
 */
#ifndef GPUCACHE_PROCESS_NAP_H
#define GPUCACHE_PROCESS_NAP_H

#include <stdint.h>

/** Less than a second; less than was asked for where a signal comes, or a sandbox refuses sleep. */
void nap(uint64_t ns);

#endif
