/*
 * What lies at an address: whose memory it is, and which live block. Where nothing else is said, in a few steps and without a
 * lock.
 */
#ifndef GPUCACHE_POOL_ADDRESS_H
#define GPUCACHE_POOL_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

struct pool;

/** Whether `address` lies in the memory of some pool. */
bool pool_has(uint64_t address);

/** Whether this pool counts a part of [address, address + bytes) as its own. */
bool pool_covers(const struct pool *pool, uint64_t address, uint64_t bytes);

/** Whether some pool has any of the range, or is about to have forgotten it. */
bool pool_touches(uint64_t address, uint64_t bytes);

/** A live block as its program knows it. */
struct pool_block {
    struct pool *pool;
    uint64_t address, requested;
};

/** The live block that covers `address` (not only its start); -ENOENT as above, -EINVAL inside a
 * pool but not in a live block. In a few steps and without a lock. */
int pool_find(uint64_t address, struct pool_block *block);

/** 1 if these bytes begin in a pool and are not all in one live block, else 0. Not known, -EAGAIN, of what no block covers
 * while streams have yet to free some: until then those may be used. `pool`: that which they begin in, or NULL. */
int pool_exceeds(uint64_t address, uint64_t bytes, struct pool **pool);

/**
 * The live block that starts at `address`, with the bytes of all of it and what was noted for this life of it last (0 or an
 * epoch: nothing). Answers as pool_free() does, in a few steps and without a lock.
 */
struct pool_look {
    struct pool *pool;
    uint64_t requested, bytes, tag;
};
int pool_look(uint64_t address, struct pool_look *look);

/** Notes something for a block that was just handed out to the calling thread, and which it has told nobody of. */
int pool_tag(uint64_t address, uint64_t tag, struct pool_look *look);

/** The same, with the driver's own allocation around the block. Takes the pool's lock. */
struct pool_segment {
    uint64_t address, bytes;
};
int pool_find_segment(uint64_t address, struct pool_block *block, struct pool_segment *segment);

/** The number that tells this life of a block from every other one in the process; 0 if `address`
 * is in no live block. */
uint64_t pool_block_id(uint64_t address);

/** The flag of the live block around `address`: 0 or 1. -ENOENT if this life of the block has none,
 * or there is no such block. Without a lock. */
int pool_flag(uint64_t address);

/**
 * Sets the flag, until the block is freed. -ENOENT outside the pools; -ENOMEM without host memory,
 * or in no live block. A block that has a number (pool_block_id) needs no host memory. Takes the
 * pool's lock.
 */
int pool_set_flag(uint64_t address, bool flag);

/**
 * From now on something that the context's own order does not bind can reach the block's memory
 * (another process, a network card, the CPU): what it covers changes hands only when earlier work
 * has finished. For good. Returns when the work has finished that the block was handed out behind.
 */
int pool_mark_externally_visible(uint64_t address);

/** Where the backend maps pages: its names of some of those that a live block lies in. */
#define POOL_EXPORT_HANDLES 16
struct pool_exported {
    struct pool *pool;
    uint64_t offset, bytes; /* of the block: where it begins in the first of its pages */
    uint32_t pages, count;  /* how many of 2 MiB it lies in, and how many are named: */
    uint32_t length;        /* of 2 MiB has each of those so many */
    uint64_t handle[POOL_EXPORT_HANDLES];
};

/**
 * Names the pages of a block from its `first` on, as many as fit; until pool_export_end() the backend does not get
 * them back. The block begins at `address`, has this number and was marked as reached from outside. -ENOENT: there
 * is none; -EINVAL: it has no such page, or none that begins there.
 */
int pool_export(uint64_t address, uint64_t id, uint32_t first, struct pool_exported *exported);
void pool_export_end(const struct pool_exported *exported);

#endif
