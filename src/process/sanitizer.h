/*
 * Detects that compute-sanitizer started this process.
 *
 * compute-sanitizer checks every allocation of the driver. A pool would hide accesses beyond the
 * end of a block or after its free. Profilers inject a library in the same way, but a pool does not
 * disturb them.
 */
#ifndef GPUCACHE_PROCESS_SANITIZER_H
#define GPUCACHE_PROCESS_SANITIZER_H

#include <stdbool.h>

bool sanitizer_is_there(void);

#endif
