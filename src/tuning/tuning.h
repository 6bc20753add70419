/* Declares every constant of tuning.def under its name. */
#ifndef GPUCACHE_TUNING_TUNING_H
#define GPUCACHE_TUNING_TUNING_H

#include "process/ablation.h"

#include <stdint.h>

/* COUNT makes an enumerator: an int that may be the length of an array. */
#define COUNT(name, value, meaning, program) enum { name = (value) };
#define BYTES(name, bytes, meaning, program) static const uint64_t name = (bytes);
#define TIME(name, us, meaning, program) static const uint64_t name = (uint64_t)(us)*1000;
#include "tuning/tuning.def"
#undef COUNT
#undef BYTES
#undef TIME

#endif
