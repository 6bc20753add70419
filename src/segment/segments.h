/*
 * Segments: the memory of a pool whose backend allocates whole segments from the driver. The pool's
 * lock is held on entry and on return.
 */
#ifndef GPUCACHE_SEGMENT_SEGMENTS_H
#define GPUCACHE_SEGMENT_SEGMENTS_H

#include "source/source.h"

extern const struct memory_policy segments_policy;

/**
 * Polls until the driver has all memory that was released, for at most `limit_ns` ns (0: asks
 * once). Releases the lock between two queries.
 */
void segments_wait_for_return(struct source *source, uint64_t limit_ns);

#endif
