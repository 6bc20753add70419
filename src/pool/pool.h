/*
 * The allocator of one CUDA context. Files of src/driver and `gpucache replay` call it.
 *
 *       pool_alloc                                   pool_free
 *           |                                            |
 *       thread cache      (cache.h)   <------------------+  no lock, no driver call
 *           |  miss                                      |  block of another thread
 *       transfer cache    (transfer.h) <-----------------+  lock of that cache
 *           |  miss                                      |  over the quota (quota.c)
 *       ------------------------- source.lock ----------------------------
 *       slow path: tries the sources in order (slow_path.c)
 *           |                                            |
 *       source: free memory, pending memory, segments (source/source.h)
 *           |
 *       backend: the driver
 *
 * Addresses are device addresses and are never dereferenced. Functions return 0, a negative errno,
 * or the positive error code of the driver.
 */
#ifndef GPUCACHE_POOL_POOL_H
#define GPUCACHE_POOL_POOL_H

#include "pool/address.h"
#include "source/backend.h"
#include "source/config.h"
#include "stats/memory_list.h"
#include "stats/stats.h"

#include <stdbool.h>
#include <stdint.h>

struct pool;

/** Creates a pool over `backend`, which must outlive the pool. Returns NULL without host memory. */
struct pool *pool_create(struct backend *backend, const struct pool_config *config);

/**
 * Forgets every block, after the context has ended. Segments ended with the context: returns their
 * bytes, for the caller to refund. With VMM, releases all handles to the driver and returns 0. Also
 * forgets the blocks of frees in progress. Takes remap.lock and source.lock. The pool may be used
 * again once its backend stands for another context of the same device.
 */
uint64_t pool_forget(struct pool *pool);
struct backend *pool_backend(struct pool *pool);

/** Waits without a limit for threads in backend calls. A suspended backend begins no new call. */
void pool_wait_for_waiters(struct pool *pool);

/**
 * Sets the capacity of the device in bytes, recomputes the budget, and allows growth that was
 * refused before.
 */
void pool_set_capacity(struct pool *pool, uint64_t capacity);

/**
 * Allocates `bytes` bytes. Waits for earlier work only as the slow path allows (slow_path.c).
 *
 *   -EINVAL   `bytes` is 0
 *   -ENOMEM   neither the pool nor the driver has the memory
 *   -EDQUOT   the limit of the process does not allow it
 *   -ERANGE   the pool cannot grow, or its context has ended; ask the driver directly
 *   > 0       error code of the driver
 */
int pool_alloc(struct pool *pool, uint64_t bytes, uint64_t *address);

/**
 * Frees a block, whichever pool owns it.
 *
 *   0         freed
 *   -ENOENT   no pool owns the address
 *   -EINVAL   a pool owns the address, but no live block starts there
 *   > 0       driver code of a broken context, or of a thread that the driver refuses. The block
 *             stays live, unless the context broke during the call
 */
int pool_free(uint64_t address);

/*
 * A deferred free: the program has freed the block in the order of a stream, and work of the stream
 * that no epoch covers may still use it.
 */
struct block;
struct pool_deferred {
    struct pool *pool;
    uint64_t generation; /* generation of the pool at the free */
    uint64_t bytes;
    struct block *block;
};

/**
 * Frees a live block without reusing its memory before pool_reclaim(). Look-ups no longer find the
 * block. Returns the same values as pool_free().
 */
int pool_defer_free(uint64_t address, struct pool_deferred *deferred);

/**
 * Makes the block of a deferred free available at once, without an epoch: all work that could touch
 * it has completed. Does nothing if the context has ended. Records no event and waits for nothing.
 */
void pool_reclaim(const struct pool_deferred *deferred);

/** Returns the bytes of deferred frees that are not reclaimed yet. */
uint64_t pool_deferred_bytes(struct pool *pool);

/**
 * Reclaims the deferred frees that their streams have reached. Waits for a barrier that may hold up
 * these streams if it is for memory that the calling thread freed: the native free would have
 * waited for the same work. Waits for no barrier of another thread's free.
 */
void pool_reclaim_own(struct pool *pool);

/**
 * Waits, by queries, for the work in front of all barriers. Afterwards an access that no barrier
 * holds back may reach memory that was handed out behind one.
 */
void pool_wait_for_barriers(struct pool *pool);

/**
 * Gives `bytes` bytes of idle memory back to the driver; UINT64_MAX means all. Returns when the
 * driver has that memory, or after 1 s. With `wait` the function first waits
 *
 *   1. for events recorded in frees, as pool_wait_for_events_in_free() does;
 *   2. for a call of another thread that may end the context, at most 10 s. If the context ended,
 *      all memory went back and the result is 0;
 *   3. for other work in progress, at most 1 s.
 *
 * Returns 0 if memory went back, -ENOENT if nothing is idle, and -EBUSY if idle memory cannot go
 * now. Takes source.lock and releases it around waits.
 */
int pool_give_back(struct pool *pool, uint64_t bytes, bool wait);

/**
 * Waits for events recorded in frees: without a limit for those of the calling thread, at most 10 s
 * for those of others. The native frees waited for the same work. Returns whether there was such an
 * event.
 */
bool pool_wait_for_events_in_free(struct pool *pool);

/**
 * Gives all idle memory and unused host memory back. Does not call pool_wait_for_events_in_free().
 * With `wait`, waits at most 1 s for a call that may end the context, and as pool_give_back() for
 * other work. Returns as pool_give_back(), except that 0 replaces -ENOENT.
 */
int pool_trim(struct pool *pool, bool wait);

/**
 * Returns the free bytes in segments with other blocks, after the last release of all memory. If
 * that release could not wait for all work, returns all free and pending bytes. Any further free
 * memory was freed later.
 */
uint64_t pool_unreleasable_bytes(struct pool *pool);

/**
 * Decay: gives memory back that was idle for the whole decay time, if that takes no wait for the
 * device. One thread calls both functions for all pools, with no lock held.
 *
 *   pool_tick()    runs DECAY_TICKS times per decay time. Returns false if nothing is idle: the
 *                  next call is due after watch_idle() (source/backend.h).
 *   pool_decay()   gives one segment back. Returns whether there may be more.
 */
bool pool_tick(struct pool *pool);
bool pool_decay(struct pool *pool);

/** Returns the fault that made the context unusable, or 0. A broken pool serves no request. */
int pool_broken(struct pool *pool);

/** Returns the code with which the driver answers calls of this thread now, or 0. A fault breaks
 * the pool. Other codes concern this call only (host function, no context). Call without lock. */
int pool_health(struct pool *pool);

/**
 * Bracket a wait of the program for all work of the context. pool_sync_begin() returns a ticket
 * before the wait. pool_sync_end() then marks all memory freed before pool_sync_begin() as safe.
 */
uint64_t pool_sync_begin(struct pool *pool);
void pool_sync_end(struct pool *pool, uint64_t ticket);

/**
 * Stamp memory outside the pool. pool_stamp_in_free() is called in the program's free of that
 * memory, returns the stamp and records an event. pool_has_finished() returns whether all work
 * submitted before the stamp has completed; it only queries.
 */
uint64_t pool_stamp_in_free(struct pool *pool);
bool pool_has_finished(struct pool *pool, uint64_t stamp);

/** Returns whether all work submitted to the context has completed. */
bool pool_work_is_done(struct pool *pool);

/**
 * Waits for all work of the context, for at most `limit_ns`, if the program has freed memory: the
 * native free would have waited. Waits by queries, then in the driver for the completed event,
 * which prints the output of printf(). Does nothing with REUSE_SYNC, whose frees wait.
 */
void pool_wait_for_work(struct pool *pool, uint64_t limit_ns);

/** Sets the number of the program's streams, the default one not counted, for all budgets. */
void pool_expect_streams(unsigned streams);

/** Lock and unlock source.lock: meanwhile no other thread records an event. Used to begin a
 * capture, and around context events that the program records. */
void pool_lock(struct pool *pool);
void pool_unlock(struct pool *pool);

/**
 * Prepare for a stream capture, during which the context records no event.
 *
 *   1. pool_before_capture() queries, and normally records an event for the memory freed so far.
 *   2. The caller announces the capture.
 *   3. pool_capture_announced() waits for records in progress. From now on, frees wait for work
 *      instead of recording an event (sync_in_free).
 */
void pool_before_capture(struct pool *pool);
void pool_capture_announced(struct pool *pool);

/**
 * Records, between pool_lock() and pool_unlock(), that the program is about to record a context
 * event (`records`) or to make the context wait for one. Barriers and records of a context run in
 * order (epoch.h): the program's barriers wait for the library's records, and the reverse. From
 * then on queries of allocations record no event. Waits before out of memory, before memory goes
 * back, and at the end of the process still do. The pool uses no barrier after an
 * application-recorded event until a later free has recorded one.
 */
void pool_application_syncs(struct pool *pool, bool records);

/** Adds the pool's counters and metrics to `stats`. Waits for no lock; safe in a signal handler. */
void pool_read(struct pool *pool, struct stats_device *stats);

/**
 * Adds the sizes of live blocks to `stats`, and appends the pool's memory to `map` unless `map` is
 * NULL. Takes time in proportion to the number of blocks, and no lock.
 */
void pool_survey(struct pool *pool, struct stats_device *stats, struct segment_map *map);

/**
 * Adds the segments and live blocks of the pool to `to`. Takes source.lock for a time in proportion
 * to the number of blocks.
 */
void pool_list_memory(struct pool *pool, struct memory_list *to);

/**
 * Returns the bytes of the pool that no live or deferred block has: free, cached and pending ones,
 * and segments that are being unmapped. Takes no lock; an estimate while other threads allocate.
 */
uint64_t pool_unused_bytes(struct pool *pool);

/**
 * Returns the bytes that are not live and cannot go back to the driver: free memory next to a live
 * block, and freed small blocks whose segment holds a live block. Returns 0 if nothing is live and
 * no free is deferred. Queries events first. Of slabs without a live block, looks at the blocks of
 * the first STUCK_SLABS_MOST. Counts only the free memory of segments behind them.
 */
uint64_t pool_stuck_bytes(struct pool *pool);
void pool_reset_peaks(struct pool *pool);

/**
 * Checks every invariant of the pool, under its locks. Returns the file and line of the first
 * broken one, or NULL. For tests.
 */
const char *pool_check(struct pool *pool);

#endif
