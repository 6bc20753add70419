/*
 * Detects that compute-sanitizer started this process. compute-sanitizer checks allocations of the
 * driver; a pool would hide accesses beyond the end of a block or after its free. Profilers inject
 * a library in the same way, but a pool does not disturb them. Takes no lock of its own.
 */
#ifndef GPUCACHE_BASE_SANITIZER_H
#define GPUCACHE_BASE_SANITIZER_H

#include <stdbool.h>

/** Returns whether compute-sanitizer started this process. */
bool sanitizer_is_there(void);

#endif
