/* What the files of this room share. Nobody else includes it. */
#ifndef GPUCACHE_POOL_INTERNAL_H
#define GPUCACHE_POOL_INTERNAL_H

#include "pool/budget.h"
#include "pool/order.h"
#include "pool/owner.h"
#include "pool/quota.h"
#include "pool/source.h"
#include "pool/state.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#endif
