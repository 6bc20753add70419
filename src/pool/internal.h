/* Includes and macros that the files of src/pool share. No other folder includes this header. */
#ifndef GPUCACHE_POOL_INTERNAL_H
#define GPUCACHE_POOL_INTERNAL_H

#include "pool/owner.h"
#include "pool/peaks.h"
#include "pool/quota.h"
#include "pool/slow_path.h"
#include "pool/state.h"
#include "source/budget.h"
#include "source/pending.h"
#include "source/source.h"
#include "source/sync.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#endif
