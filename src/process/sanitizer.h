/*
 * Whether compute-sanitizer started this process. It watches every allocation of the driver, and a pool would hide
 * from it what a program does beyond the end of a block or after its free. Profilers inject a library in the
 * same way and are none of that: a pool does them no harm.
 */
#ifndef GPUCACHE_PROCESS_SANITIZER_H
#define GPUCACHE_PROCESS_SANITIZER_H

#include <stdbool.h>

bool sanitizer_is_there(void);

#endif
