/*
 * A transfer cache: blocks of a thread that other threads freed, on their way back to the owner.
 *
 * Every cache has one. A thread that frees blocks of another thread keeps as many as it needs
 * itself, and ships the others to the owner's transfer cache in magazines. The owner takes them
 * after a miss. Blocks then circulate between two threads without the pool's lock, and without
 * merging and splitting. The common cache's transfer cache has the blocks without an owner, or
 * whose thread ended; every thread searches it after its own.
 *
 *      oldest  [ 8 x 64 KiB | stamp 7 ]  [ 32 x 4 KiB | stamp 7 ]  [ 4 x 1 MiB | stamp 9 ]  newest
 *
 * Each has a lock, taken after the pool's lock and after entering a cache; no thread waits while it
 * holds that lock. Each has at most as many bytes as the quota of its cache. The pool empties
 * transfer caches when memory is short.
 * Invariant: a magazine is safe when its last block is. Each block before it is safe already, or
 * has no higher stamp.
 */
#ifndef GPUCACHE_TCACHE_TRANSFER_H
#define GPUCACHE_TCACHE_TRANSFER_H

#include "base/lock.h"
#include "heap/block.h"
#include "stats/counters.h"
#include "tuning/tuning.h"

#include <stdbool.h>
#include <stdint.h>

struct cache;
struct pool;
struct alloc_request;

/* Blocks of one bin that move between caches together, linked by `next`. */
struct magazine {
    struct block *first, *last;
    uint32_t count, bin;
    uint64_t bytes;
    uint64_t stamp; /* stamp of the last block; the magazine is safe when that is safe */
};

/** Returns how many blocks a magazine of that bin has. */
static inline uint32_t magazine_blocks(unsigned at) {
    uint64_t fit = at < SMALL_CLASSES ? MAGAZINE_BYTES / size_class_bytes(at) : 0;
    return fit > MAGAZINE_MOST    ? MAGAZINE_MOST
           : fit > MAGAZINE_LEAST ? (uint32_t)fit
                                  : MAGAZINE_LEAST;
}

struct transfer {
    struct lock lock;
    struct cache *cache;   /* cache whose transfer cache this is; never changes */
    unsigned owner_id;     /* owner ID of the blocks accepted; 0: none, or the common cache */
    uint32_t first, count; /* ring: index of the oldest magazine, number of magazines */
    stat_counter bytes;    /* bytes of all magazines; read without the lock */
    struct magazine magazines[TRANSFER_MAGAZINES];
};

void transfer_start(struct transfer *transfer, struct cache *cache);

/** Sets the owner ID whose blocks are accepted: the cache's own ID, or 0 for none. */
void transfer_set_owner_id(struct transfer *transfer, unsigned owner_id);

/**
 * Locks and returns the transfer cache for blocks of an owner ID: the owner's, or the common one
 * if the owner has ended or is inactive. The caller releases the lock of the result.
 */
struct transfer *transfer_lock(struct pool *pool, unsigned owner_id);

/**
 * Returns whether a magazine of `bytes` fits the quota and the ring. With the transfer cache's
 * lock.
 */
bool transfer_would_take(const struct transfer *transfer, uint64_t bytes);
/** Adds a magazine as the newest; it must fit. With the transfer cache's lock. */
void transfer_put(struct transfer *transfer, const struct magazine *magazine);

/**
 * Ships the blocks of bin `at` above the bin's target to the transfer cache of `owner_id`, in whole
 * magazines. If the cache is over its quota, ships idle bins too. Returns false if the transfer
 * cache became full. Inside the cache.
 */
bool transfer_ship(struct cache *cache, unsigned at, unsigned owner_id);

/**
 * Moves safe magazines of the cache's own transfer cache to the cache, within its quota, then
 * removes and returns a block for the request. Does the same with the common transfer cache if no
 * block was found. Returns NULL if no safe block fits. Takes no lock of an empty transfer cache.
 * Inside the cache.
 */
struct block *transfer_take(struct cache *cache, const struct alloc_request *request,
                            uint64_t safe);

/**
 * Returns a safe epoch with which transfer_take() finds a block, or 0. Takes no lock of an empty
 * transfer cache. Inside the cache.
 */
uint64_t transfer_stamp(struct cache *cache, const struct alloc_request *request);

/** Moves all blocks to the pool. Returns whether there were any. The pool's lock is held. */
bool transfer_empty(struct transfer *transfer);

/**
 * Forgets all magazines: their context has ended, and the driver has the memory. The pool's lock
 * is held.
 */
void transfer_forget(struct transfer *transfer);

#endif
