/*
 * The sources of memory for a request that the thread caches could not serve. Each function tries
 * one source; slow_path.c has their order.
 *
 * The pool's lock is held on entry and on return; the functions may release it in between. A function
 * that returns true, or 0 with request->block set, has put the block there, in state BLOCK_CACHED.
 * try_free() and try_free_or_split() are in sync/pending.h.
 */
#ifndef GPUCACHE_POOL_TRY_H
#define GPUCACHE_POOL_TRY_H

#include "sync/pending.h"

/** Queries events: first for the epoch that covers enough bytes, then for all pending memory. */
bool try_completed(struct source *source, struct alloc_request *request);

/**
 * Makes pending memory safe by a barrier or a wait: first just enough for the request, then all
 * that events recorded in frees cover. The second attempt is needed because another thread may take
 * the memory during a wait, and may have freed other memory since.
 */
bool try_barrier(struct source *source, struct alloc_request *request);

/** Tries pending memory in all ways: try_completed(), then try_barrier(). */
bool try_pending(struct source *source, struct alloc_request *request);

/**
 * Waits for everything freed so far, for at most `time_budget_ns` per wait. Retries the request
 * each time an epoch has finished, before a thread that did not wait can take the memory.
 */
bool try_wait(struct source *source, struct alloc_request *request, uint64_t time_budget_ns);

/**
 * Makes other pools of the device release idle memory, and with `wait` also memory that work still
 * uses. Does not serve the request itself. True if there was any, or the driver had enough.
 */
bool try_other_pools(struct source *source, const struct alloc_request *request, bool wait);

/**
 * Grows the pool by a segment and retries. *refusal is what source_grow() returned. Returns 0 if
 * the request is served, -EAGAIN if the driver or the limit refused and releasing memory may help,
 * or the error of source_grow().
 */
int try_grow(struct source *source, struct alloc_request *request, int *refusal);

#endif
