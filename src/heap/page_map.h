/*
 * The page map: leads from a device address to the descriptor of what lies there, in two loads.
 *
 *      address  63..49 | 48..35 | 34..21 | 20..0
 *               must be   root     leaf    inside one 2 MiB page
 *               zero
 *
 * A page here is 2 MiB of device addresses. The map has three tables:
 *
 * 1. entries, one per page: the slab in the page, or the range of the arena that covers the page's
 *    first byte. The lowest bit tells which. 0: no memory of a pool.
 * 2. owners, one per page: the pool.
 * 3. starts, one per half page: the last large block handed out that begins there. A large block is
 *    longer than half a page, so there is never a second one.
 *
 * Writers hold the lock of the pool that owns the page; readers hold none. Invariant: the entries
 * and descriptors that lead to a live block do not change while the block is live. All others may:
 * the pool cuts, merges and recycles ranges under its lock. A reader that does not hold the block
 * takes that lock and repeats the look-up, or compares a count of changes before and after
 * (pool/lookup.c). Descriptors are never unmapped (host.h), so an outdated result is never a fault.
 */
#ifndef GPUCACHE_HEAP_PAGE_MAP_H
#define GPUCACHE_HEAP_PAGE_MAP_H

#include "heap/page.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE_MAP_LEAF_BITS 14
#define PAGE_MAP_ROOT_BITS 14
#define PAGE_MAP_ADDRESS_BITS (PAGE_SHIFT + PAGE_MAP_LEAF_BITS + PAGE_MAP_ROOT_BITS)

struct pool;
struct range;
struct slab;

typedef uintptr_t page_map_entry;

struct page_map_leaf {
    _Atomic page_map_entry entries[1 << PAGE_MAP_LEAF_BITS];
    _Atomic(struct pool *) owners[1 << PAGE_MAP_LEAF_BITS];
    _Atomic(struct range *) starts[2 << PAGE_MAP_LEAF_BITS];
};

/* Index of the page of `address` in its leaf. */
#define PAGE_MAP_INDEX(address) (((address) >> PAGE_SHIFT) & ((1 << PAGE_MAP_LEAF_BITS) - 1))

extern _Atomic(struct page_map_leaf *) page_map_root[1 << PAGE_MAP_ROOT_BITS];

static inline struct page_map_leaf *page_map_leaf_of(uint64_t address) {
    if (address >> PAGE_MAP_ADDRESS_BITS)
        return NULL;
    return atomic_load_explicit(&page_map_root[address >> (PAGE_SHIFT + PAGE_MAP_LEAF_BITS)],
                                memory_order_acquire);
}

static inline page_map_entry page_map_get(uint64_t address) {
    struct page_map_leaf *leaf = page_map_leaf_of(address);
    return leaf
               ? atomic_load_explicit(&leaf->entries[PAGE_MAP_INDEX(address)], memory_order_acquire)
               : 0;
}

/** Returns the pool that `address` lies in, or NULL. */
static inline struct pool *page_map_pool(uint64_t address) {
    struct page_map_leaf *leaf = page_map_leaf_of(address);
    return leaf ? atomic_load_explicit(&leaf->owners[PAGE_MAP_INDEX(address)], memory_order_acquire)
                : NULL;
}

/* Index of the half page of `address` in the `starts` of its leaf. */
#define PAGE_MAP_START(address) (((address) >> (PAGE_SHIFT - 1)) & ((2 << PAGE_MAP_LEAF_BITS) - 1))

/**
 * Returns the large block last handed out that begins in the half page of `address`, or NULL. The
 * result is outdated if it is not live any more or its descriptor was recycled (range_peek()).
 */
static inline struct range *page_map_start(uint64_t address) {
    struct page_map_leaf *leaf = page_map_leaf_of(address);
    return leaf ? atomic_load_explicit(&leaf->starts[PAGE_MAP_START(address)], memory_order_acquire)
                : NULL;
}

/** Enters a large block that begins at `address`. Requires page_map_prepare(). */
static inline void page_map_set_start(uint64_t address, struct range *range) {
    atomic_store_explicit(&page_map_leaf_of(address)->starts[PAGE_MAP_START(address)], range,
                          memory_order_release);
}

/*
 * Tags in the low bits of an entry. PAGE_MAP_EXTERNAL says that the slab is externally visible
 * (slab.h). The entry of a range has no tag: it is the pointer.
 */
#define PAGE_MAP_SLAB ((page_map_entry)1)
#define PAGE_MAP_EXTERNAL ((page_map_entry)2)

static inline struct slab *page_map_slab(page_map_entry entry) {
    return entry & PAGE_MAP_SLAB ? (struct slab *)(entry & ~(page_map_entry)3) : NULL;
}

/** Returns whether the entry is a slab that is not externally visible. */
static inline bool page_map_is_plain_slab(page_map_entry entry) {
    return (entry & 3) == PAGE_MAP_SLAB;
}

/** Returns the slab of an entry for which page_map_is_plain_slab() holds. */
static inline struct slab *page_map_plain_slab(page_map_entry entry) {
    return (struct slab *)(entry - PAGE_MAP_SLAB);
}

static inline page_map_entry page_map_of_slab(const struct slab *slab, bool external) {
    return (page_map_entry)slab | PAGE_MAP_SLAB | (external ? PAGE_MAP_EXTERNAL : 0);
}

/**
 * Maps a spare leaf, if there is none, so that page_map_prepare() can add one leaf without host
 * memory. Another thread may take the spare. Returns false without host memory. Needs no lock.
 */
bool page_map_spare(void);

/**
 * Makes leaves for all pages of [address, address + bytes), so that setting them cannot fail.
 * Returns 0; -ENOMEM without host memory; -ERANGE for addresses beyond the map. Needs no lock.
 */
int page_map_prepare(uint64_t address, uint64_t bytes);

/**
 * Sets the entry of every page whose first byte lies in [address, address + bytes). Requires
 * page_map_prepare().
 */
void page_map_set(uint64_t address, uint64_t bytes, page_map_entry entry);

/** Sets the owner of every page of a segment. Requires page_map_prepare(). */
void page_map_set_owner(uint64_t address, uint64_t bytes, struct pool *owner);

/**
 * Returns whether any page of [address, address + bytes) has an owner or an entry. A pool clears
 * the owner first: a page with an entry alone belongs to a pool that is in pool_forget(). Skips a
 * missing leaf with one load. Needs no lock.
 */
bool page_map_any(uint64_t address, uint64_t bytes);

/**
 * Calls `on_page` for every page of `owner` that has an entry, in order of addresses. Needs no
 * lock: pages may change during the call. `argument` is passed on.
 */
void page_map_each(const struct pool *owner,
                   void (*on_page)(uint64_t address, page_map_entry entry, void *argument),
                   void *argument);

/**
 * Clears all pages of [address, address + bytes) that `owner` owns. Pages of other pools stay.
 */
void page_map_remove(uint64_t address, uint64_t bytes, struct pool *owner);

#endif
