/*
 * The allocator of one context.
 *
 *      pool_alloc                                   pool_free
 *          |                                            |
 *      thread cache      (cache.h)   <------------------+    no lock, no driver call
 *          |  miss                                      |  another thread's
 *      transfer cache    (transfer.h) <-----------------+    its own lock
 *          |  miss                                      |  over quota (quota.c)
 *      ---------------------- the pool's lock -----------------------
 *      supply: whom to ask, in which order (slow_path.c)
 *          |                                            |
 *      the source: ready memory, pending memory, segments (source/source.h)
 *          |
 *      backend: the driver
 *
 * Addresses are those of the device and are never dereferenced. Functions return 0, a negative
 * errno, or the driver's positive code as the backend gave it.
 */
#ifndef GPUCACHE_POOL_POOL_H
#define GPUCACHE_POOL_POOL_H

#include "pool/address.h"
#include "source/backend.h"
#include "source/config.h"
#include "stats/stats.h"

#include <stdbool.h>
#include <stdint.h>

struct pool;

/** A pool over `backend`, which must outlive it. NULL without host memory. */
struct pool *pool_create(struct backend *backend, const struct pool_config *config);

/**
 * The context is gone and took its memory along: forgets every block, gives nothing back, and says how
 * many bytes it had from the driver. A free that another thread is in the middle of leaves nothing
 * behind. The pool may be used again when its backend stands for another context of the same device.
 */
uint64_t pool_forget(struct pool *pool);
struct backend *pool_backend(struct pool *pool);

/** Returns when no thread is inside a wait of the backend any more. New ones do not begin while that is
 * quiet. */
void pool_wait_for_waiters(struct pool *pool);

/** What the pool may have has changed: it is measured by that, and what was refused before may be tried again. */
void pool_set_capacity(struct pool *pool, uint64_t capacity);

/**
 * Memory for `bytes`. -EINVAL: of 0 there is none. -ENOMEM: neither the pool nor the driver has it. -EDQUOT: nor does the
 * limit allow it. -ERANGE: the pool cannot manage what the driver gave; ask the driver directly. Positive: the driver's error.
 */
int pool_alloc(struct pool *pool, uint64_t bytes, uint64_t *address);

/** Frees a block of whichever pool owns it. -ENOENT: no pool's memory. -EINVAL: inside a pool, but
 * no live block starts there. */
int pool_free(uint64_t address);

/* A block that the program has freed, and that something no epoch knows of still holds back. */
struct block;
struct pool_deferred {
    struct pool *pool;
    uint64_t generation; /* of the pool: the contexts it had outlived */
    uint64_t bytes;
    struct block *block;
};

/**
 * Takes a live block from the program: nobody finds it any more, but its memory stays untouched until
 * pool_reclaim(). Answers as pool_free() does.
 */
int pool_defer_free(uint64_t address, struct pool_deferred *retired);

/**
 * Everything that was ever to touch the block's memory has finished: it is ready, without an epoch of
 * its own. Does nothing if the context has ended meanwhile. Records and waits for nothing.
 */
void pool_reclaim(const struct pool_deferred *retired);

/** Bytes of blocks that are retired and not reclaimed. */
uint64_t pool_retired_bytes(struct pool *pool);

/**
 * Reclaims retired blocks whose streams have got to the free. Streams may be held up by a barrier
 * for memory that the calling thread has freed: its own frees would have waited natively, so that
 * barrier is waited for. Barriers for other threads' frees are not.
 */
void pool_reclaim_own(struct pool *pool);

/** Returns when all work has finished behind which memory was handed out: whatever can reach that
 * memory from now on need not stand behind the barriers. */
void pool_wait_for_barriers(struct pool *pool);

/**
 * Gives idle memory back to the driver, `bytes` of it or all there is; if `wait`, after pool_finish(), and after waiting for other
 * work under way, for a second at most. Returns when the driver has it. 0: something went back; -ENOENT: nothing is
 * idle; -EBUSY: it cannot go now. A call of another thread that may end the context is waited for first, for ten
 * seconds at most; if it has, all went back.
 */
int pool_give_back(struct pool *pool, uint64_t bytes, bool wait);

/** Waits for what native frees would have waited for, as far as events on time tell: those of this thread however long it takes, others
 * for ten seconds at most. True if there was any. */
bool pool_finish(struct pool *pool);

/** The same with everything, and with the host memory of what is not used, but without pool_finish(); a call that may end the
 * context is waited for a second at most. -ENOENT counts as 0. */
int pool_trim(struct pool *pool, bool wait);

/** What was idle and did not go when all was last asked for. What is idle beyond that has been freed since. */
uint64_t pool_left_bytes(struct pool *pool);

/**
 * What has been idle for all of the decay time goes back by itself, where giving it back waits for nothing. pool_tick()
 * is called every so often, DECAY_TICKS times in that time; false: nothing is idle, and the backend will be told when
 * something is. pool_decay() gives some of it back; true: some, and there may be more. Neither waits for the device.
 * With no lock held, by one thread for all pools.
 */
bool pool_tick(struct pool *pool);
bool pool_decay(struct pool *pool);

/** The code of the error that killed the context, or 0: then nothing more can be served from this
 * pool. */
int pool_broken(struct pool *pool);
void pool_break(struct pool *pool, int code);

/** Everything submitted before the call was seen to have finished: `ticket` is from
 * pool_sync_begin() before that wait. */
uint64_t pool_sync_begin(struct pool *pool);
void pool_sync_end(struct pool *pool, uint64_t ticket);

/**
 * For memory of other kinds that is freed now, by the program: a stamp, with an event on time. It has finished when everything
 * submitted before has.
 */
uint64_t pool_stamp_in_free(struct pool *pool);
bool pool_has_finished(struct pool *pool, uint64_t stamp);

/** Whether everything submitted to the context has finished: a driver call that waits for it would not. */
bool pool_is_idle(struct pool *pool);

/** How many streams the program has besides the default one; all pools go by it when they decide how far to grow. */
void pool_expect_streams(unsigned streams);

/** Held while the caller begins a capture, or orders the context's work by itself: no event is being recorded. */
void pool_hold(struct pool *pool);
void pool_release(struct pool *pool);

/**
 * A capture is about to begin, and has been announced. While it lasts nothing can be recorded: what was freed
 * before gets its event now, and frees wait for what they would else record (sync_in_free).
 */
void pool_before_capture(struct pool *pool);
void pool_capture_announced(struct pool *pool);

/**
 * While held: the program is about to record an event of the context, or to make the context wait
 * for one. Barriers stand in line behind all records (epoch.h), its ones behind ours and ours behind
 * its. So from now on nothing is recorded late, and no barrier follows such a record until there is
 * one on time after it.
 */
void pool_application_syncs(struct pool *pool, bool records);

/** Adds the pool's books to a snapshot. Waits for no lock. */
void pool_read(struct pool *pool, struct stats_device *stats);

/** The sizes of what is live, and behind what the map holds already (NULL: it is not wanted) the pool's memory;
 * takes as long as there are blocks, but holds nobody up. */
void pool_survey(struct pool *pool, struct stats_device *stats, struct segment_map *map);
uint64_t pool_idle_bytes(struct pool *pool); /* all that is not live */

/** Of that, what is ready and cannot go back to the driver, because something beside it is live, or in a page of small
 * blocks freed but not usable yet; nothing where nothing is live. What has finished by now is looked for first. */
uint64_t pool_stuck_bytes(struct pool *pool);
void pool_reset_peaks(struct pool *pool);

/** In the child of a fork: the end of its one thread gives nothing back. */
void pool_forked(void);

/** Walks the whole pool and returns where the first broken invariant stands (file and line), or NULL. For tests; takes
 * the lock. */
const char *pool_check(struct pool *pool);

#endif
