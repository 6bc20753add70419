/*
 * A transfer cache: freed memory on its way back to the thread that asked for it.
 *
 * Every thread's cache has one. What another thread frees of its blocks, and does not need itself, it
 * puts there in magazines, and the thread, when it misses a size, takes all of them: between the two
 * blocks go round without merging or cutting anything, and without the pool's lock. Of blocks that
 * nobody knows the cache of, or whose thread has ended, the common cache's takes care, which every
 * thread looks at after its own.
 *
 *      oldest  [ 8 x 64 KiB | stamp 7 ]  [ 32 x 4 KiB | stamp 7 ]  [ 4 x 1 MiB | stamp 9 ]  newest
 *
 * A magazine is some blocks of one bin in the order of their stamps; it is usable when the youngest of
 * them is. A transfer cache has a lock of its own, under which nothing is waited for: it comes after the
 * pool's, and after entering a cache. It has a quota of its own, which grows when there is no room, and
 * is emptied when memory is short.
 */
#ifndef GPUCACHE_POOL_TRANSFER_H
#define GPUCACHE_POOL_TRANSFER_H

#include "memory/block.h"
#include "memory/tuning.h"
#include "process/lock.h"
#include "stats/counters.h"

#include <stdbool.h>
#include <stdint.h>

struct cache;
struct pool;
struct alloc_request;

struct magazine {
    struct block *first, *last;
    uint32_t count, bin;
    uint64_t bytes;
    uint64_t stamp; /* none of its blocks has a younger one */
};

/** How many blocks one of that bin has. */
static inline uint32_t magazine_blocks(unsigned at) {
    uint64_t fit = at < SMALL_CLASSES ? MAGAZINE_BYTES / size_class_bytes(at) : 0;
    return fit > MAGAZINE_MOST    ? MAGAZINE_MOST
           : fit > MAGAZINE_LEAST ? (uint32_t)fit
                                  : MAGAZINE_LEAST;
}

struct transfer {
    struct lock lock;
    struct cache *cache;    /* whose it is, for ever */
    unsigned number;        /* whose blocks come here; 0: nobody's, or everybody's */
    uint32_t first, count;  /* of a ring, oldest first */
    stat_counter bytes;     /* waiting here */
    _Atomic uint64_t quota; /* as many may; written under the pool's lock */
    struct magazine magazines[TRANSFER_MAGAZINES];
};

void transfer_start(struct transfer *transfer, struct cache *cache);

/** Whose blocks come here from now on: those with a cache's new number; 0: nobody's. */
void transfer_set_owner_id(struct transfer *transfer, unsigned number);

/** The one for blocks of that number, locked. */
struct transfer *transfer_lock(struct pool *pool, unsigned number);
void transfer_unlock(struct transfer *transfer);

/** Locked: room for one of so many bytes. */
bool transfer_has_room(const struct transfer *transfer, uint64_t bytes);
void transfer_put(struct transfer *transfer, const struct magazine *magazine);

/** Inside the cache: what the bin has more of than its rotation needs, or, if the cache has no room, what
 * nobody asks for, goes into the transfer cache of that number's. False: that has no room for it. */
bool transfer_ship(struct cache *cache, unsigned at, unsigned number);

/** Whether there is anything for a cache. Without a lock; mostly there is not. */
bool transfer_has_any(const struct cache *cache);

/** Inside the cache: whatever is usable goes there, as far as there is room, and a block for the request
 * is taken. NULL: nothing fits. */
struct block *transfer_take(struct cache *cache, const struct alloc_request *request,
                            uint64_t safe);

/** The least `usable` with which that finds a block; 0: none. */
uint64_t transfer_stamp(struct cache *cache, const struct alloc_request *request);

/** Under the pool's lock: everything in it goes to the pool. True if there was anything. */
bool transfer_empty(struct transfer *transfer);

/** The context is gone, and the memory with it. */
void transfer_forget(struct transfer *transfer);

#endif
