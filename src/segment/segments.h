/*
 * Growth and release of a pool whose backend allocates whole segments from the driver (segments
 * backend). The pool's lock is held on entry and on return.
 */
#ifndef GPUCACHE_SEGMENT_SEGMENTS_H
#define GPUCACHE_SEGMENT_SEGMENTS_H

#include "source/source.h"

extern const struct memory_policy segments_policy;

#endif
