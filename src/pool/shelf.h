/*
 * Shelves: freed memory on its way back to the thread that asked for it.
 *
 * Every thread's cache has one. A thread that only frees puts what its full cache holds on the shelf
 * of the cache that handed it out, in one piece, and the other thread, when it misses a size, takes
 * it from there in one piece: between the two of them blocks go round without merging or cutting
 * anything, and without the pool's lock. Of what nobody knows the cache, or whose thread has ended,
 * the common cache's shelf takes care, which every thread looks at after its own.
 *
 *      small blocks   crates        a list for each size class: shelf.c
 *      large ones     batches       one list of mixed sizes: range_shelf.c
 *
 * A shelf has a lock of its own, under which nothing is waited for: it comes after the pool's, and
 * after entering a cache. It holds a bounded number of bytes, and is cleared when memory is short.
 */
#ifndef GPUCACHE_POOL_SHELF_H
#define GPUCACHE_POOL_SHELF_H

#include "pool/arena.h"
#include "pool/page.h"
#include "pool/size_class.h"
#include "stats/books.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct cache;
struct pool;

/* Some blocks of one class, in the order of their stamps. */
struct batch {
    struct block *first, *last;
    uint32_t count;
};

#define SHELF_CRATES 16
#define CRATE_SHARE 4 /* a thread that only frees packs one with one part in this of its cache */
struct packed {
    struct batch batch;
    unsigned size_class;
};

struct crate {
    uint64_t bytes;
    uint64_t stamp; /* none of its blocks has a younger one */
    unsigned used;
    struct packed batches[SMALL_CLASSES]; /* in any order */
};

#define SHELF_RANGE_BATCHES 64
#define RANGE_BATCH_SHARE 4 /* a batch holds one part in this of what a cache may park of them */
struct range_batch {
    struct range *first, *last; /* linked by queue_next */
    uint64_t bytes;
    uint64_t stamp;   /* of the youngest */
    uint64_t drawers; /* which there may be something of: one bit each */
};

struct shelf {
    pthread_mutex_t lock;
    struct pool *pool;         /* for ever */
    unsigned number;           /* whose blocks come here; 0: nobody's, or everybody's */
    atomic_uint count;         /* of crates: a ring, oldest first, */
    unsigned first;            /* which begins there */
    books_counter bytes;       /* in them */
    atomic_uint range_count;   /* of batches, oldest first */
    books_counter range_bytes; /* in them */
    struct range_batch range_batches[SHELF_RANGE_BATCHES];
    struct crate crates[SHELF_CRATES];
};

void shelf_start(struct shelf *shelf, struct pool *pool);

/** Whose blocks come here from now on: those with a cache's new number; 0: nobody's. */
void shelf_set_number(struct shelf *shelf, unsigned number);

/** The shelf for what a cache has to give away, locked. */
struct shelf *shelf_lock_receiver(struct cache *cache);

/** The shelves that a cache takes from. */
#define SHELVES 2
struct shelves {
    struct shelf *of[SHELVES];
};
struct shelves shelves_of(struct cache *cache);

/** Whether there is anything on them: small blocks, or large ones. Without a lock; mostly there is
 * not. */
bool shelves_have(struct cache *cache, bool large);

/* Small blocks. Inside the cache, with the pool's lock or without. */

/** Puts all that is parked where it belongs. False: there is no room. */
bool shelf_put(struct cache *cache);

/** Takes what is usable, of that class or of others. False: nothing. */
bool shelf_take(struct cache *cache, unsigned size_class, uint64_t usable);

/** The epoch that makes the next crate usable; 0: there is none. */
uint64_t shelf_stamp(struct cache *cache);

/** Under the pool's lock, after a miss: a cache that is only ever taken from gives up half of what
 * has collected in it, if that keeps a crate waiting. True if it has. */
bool shelf_make_way(struct cache *cache);

/* Large ones, likewise. */
bool range_shelf_put(struct cache *cache);
struct range *
range_shelf_take(struct cache *cache, uint64_t bytes,
                 uint64_t usable); /* one that fits, and more for the cache; or NULL */
uint64_t range_shelf_stamp(struct cache *cache, uint64_t bytes);

/** Under the pool's lock: everything on it goes to the pages; to the arena. True if there was
 * anything. */
bool shelf_empty(struct pool *pool, struct shelf *shelf);
bool range_shelf_empty(struct pool *pool, struct shelf *shelf);

/** The context is gone, and the memory with it. */
void shelf_forget(struct shelf *shelf);

#endif
