/*
 * Queries about addresses: the pool that owns an address, and the live block around it. Unless a
 * function says otherwise, it runs in constant time without a lock. Files of src/driver call them.
 */
#ifndef GPUCACHE_POOL_ADDRESS_H
#define GPUCACHE_POOL_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

struct pool;

/** Returns whether `address` lies in memory of any pool. */
bool pool_has(uint64_t address);

/** Returns whether `pool` owns a part of [address, address + bytes). Reads one entry a page. */
bool pool_covers(const struct pool *pool, uint64_t address, uint64_t bytes);

/** A live block: first address and requested bytes. */
struct pool_block {
    struct pool *pool;
    uint64_t address, requested;
};

/**
 * Finds the live block that covers `address`, which need not be its start. Returns 0, -ENOENT
 * outside all pools, or -EINVAL inside a pool but outside live blocks.
 */
int pool_find(uint64_t address, struct pool_block *block);

/**
 * Returns 1 if [address, address + bytes) begins in a pool but does not lie in one live block, else
 * 0. Returns -EAGAIN if no live block covers `address` while the pool has deferred frees: the
 * program may use that memory until the stream reaches the free. Sets `*pool` to the pool of
 * `address`, or NULL.
 */
int pool_exceeds(uint64_t address, uint64_t bytes, struct pool **pool);

/** A live block, as pool_describe() describes it. */
struct pool_description {
    struct pool *pool;
    uint64_t requested, bytes; /* bytes requested; bytes of the whole block */
    uint64_t tag;              /* set by pool_tag(); without a tag 0 or an epoch number */
};

/**
 * Describes the live block that starts at `address`. Returns 0, -ENOENT or -EINVAL as pool_find().
 */
int pool_describe(uint64_t address, struct pool_description *described);

/**
 * Sets the tag of a block that was just handed out to the calling thread, before any other thread
 * knows its address. Fills `*described`; returns as pool_describe().
 */
int pool_tag(uint64_t address, uint64_t tag, struct pool_description *described);

/**
 * Finds the live block as pool_find() does, and the driver's allocation around it. With VMM there
 * is no such allocation: `*segment` then begins at the block. Takes source.lock.
 */
struct pool_segment {
    uint64_t address, bytes;
};
int pool_find_segment(uint64_t address, struct pool_block *block, struct pool_segment *segment);

/**
 * Returns the ID of this allocation of the block, which no other allocation of the process has.
 * Returns 0 outside live blocks or without host memory. The first call for a block takes
 * source.lock.
 */
uint64_t pool_block_id(uint64_t address);

/**
 * Returns the flag of the live block around `address`, 0 or 1: CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
 * Returns -ENOENT if the flag was not set since the allocation, or outside live blocks.
 */
int pool_flag(uint64_t address);

/**
 * Sets the flag of the live block around `address` until the block is freed. Returns 0, -ENOENT
 * outside all pools, or -EINVAL outside live blocks or without host memory. A block that has an ID
 * (pool_block_id()) needs no host memory. Takes source.lock.
 */
int pool_set_flag(uint64_t address, bool flag);

/**
 * Marks the memory of the live block around `address` as externally visible, for the rest of the
 * context: another process, a network card or the CPU may reach it, and no barrier holds them back.
 * The slab or the segments of the block are reused only after earlier work has completed. Waits, by
 * queries, for the work in front of the barriers that the block was handed out behind. Returns as
 * pool_find(). Takes source.lock, and releases it around the wait.
 */
int pool_mark_externally_visible(uint64_t address);

/** Handles under a live block; vmm backend only. */
#define POOL_EXPORT_HANDLES 16
struct pool_exported {
    struct pool *pool;
    uint64_t offset, bytes; /* offset of the block in its first handle; bytes requested */
    uint32_t pages, count;  /* VMM pages under the block; entries in handle[] */
    uint32_t length;        /* VMM pages of each handle in handle[] */
    uint64_t handle[POOL_EXPORT_HANDLES];
};

/**
 * Fills `*exported` with handles of the block at `address`. The first one begins `first` VMM pages
 * after the block's first handle. Stops when the array is full or a handle of another length
 * follows. The block must have the ID `id` (pool_block_id()) and be externally visible.
 *
 * Returns 0 with remap.lock held until pool_export_end(), so that the handles do not go back to the
 * backend. Returns -ENOENT if there is no such block, and -EINVAL if no handle begins there.
 */
int pool_export(uint64_t address, uint64_t id, uint32_t first, struct pool_exported *exported);
void pool_export_end(const struct pool_exported *exported);

#endif
