/* The headers that the files of src/tcache and src/pool share. */
#ifndef GPUCACHE_TCACHE_INTERNAL_H
#define GPUCACHE_TCACHE_INTERNAL_H

#include "policy/budget.h"
#include "sync/pending.h"
#include "sync/sync.h"
#include "tcache/owner.h"
#include "tcache/peaks.h"
#include "tcache/pool_state.h"
#include "tcache/quota.h"

#endif
