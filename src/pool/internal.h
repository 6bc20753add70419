/* Includes and macros that the files of src/pool share. No other folder includes this header. */
#ifndef GPUCACHE_POOL_INTERNAL_H
#define GPUCACHE_POOL_INTERNAL_H

#include "policy/budget.h"
#include "pool/slow_path.h"
#include "source/pending.h"
#include "source/source.h"
#include "sync/sync.h"
#include "tcache/owner.h"
#include "tcache/peaks.h"
#include "tcache/pool_state.h"
#include "tcache/quota.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#endif
