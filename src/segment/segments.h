/*
 * Growth and release of a pool whose backend allocates whole segments from the driver (segments
 * backend). The pool's lock is held on entry and on return.
 */
#ifndef GPUCACHE_SEGMENT_SEGMENTS_H
#define GPUCACHE_SEGMENT_SEGMENTS_H

#include "source/source.h"

extern const struct memory_policy segments_policy;

/**
 * Queries until the driver has all memory that was released, for at most `limit_ns` ns (0: one
 * query). Clears freeing_bytes if the driver has it. Releases the lock between two queries.
 */
void segments_wait_for_return(struct source *source, uint64_t limit_ns);

#endif
