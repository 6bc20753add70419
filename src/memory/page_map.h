/*
 * The page map: from a device address to the descriptor of what lies there, in two loads.
 *
 *      address  63..49 | 48..35 | 34..21 | 20..0
 *               must be   root     leaf    inside one 2 MiB page
 *               zero
 *
 * Every 2 MiB page of pooled memory has one entry. It leads either to the page that small blocks
 * live in, or to the large range that covers the page's first byte; the lowest bit tells which. An
 * entry of 0 means: not ours. A third table has one entry for every half of a page: the range of the
 * large block that starts there. Large blocks are larger than that, so there is never a second one;
 * and a block that its owner holds stays where it is, so its range is found without a lock. Writers hold a pool's lock; readers hold nothing, and because
 * descriptors are never unmapped (host.h) a stale entry is at worst wrong, never a fault. Ranges
 * are cut, merged and recycled under the lock of the pool that owns the page, so whoever finds one
 * asks for the owner, takes its lock and looks again. Small pages never change while something in
 * them is live and may be used as found.
 */
#ifndef GPUCACHE_MEMORY_PAGE_MAP_H
#define GPUCACHE_MEMORY_PAGE_MAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PAGE_SHIFT 21
#define PAGE_BYTES ((uint64_t)1 << PAGE_SHIFT)
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

#define PAGE_MAP_INDEX(address) (((address) >> PAGE_SHIFT) & ((1 << PAGE_MAP_LEAF_BITS) - 1))

extern _Atomic(struct page_map_leaf *) page_map_root[1 << PAGE_MAP_ROOT_BITS];

static inline struct page_map_leaf *page_map_leaf_of(uint64_t address) {
    if (address >> PAGE_MAP_ADDRESS_BITS) {
        return NULL;
    }
    return atomic_load_explicit(&page_map_root[address >> (PAGE_SHIFT + PAGE_MAP_LEAF_BITS)],
                                memory_order_acquire);
}

static inline page_map_entry page_map_get(uint64_t address) {
    struct page_map_leaf *leaf = page_map_leaf_of(address);
    return leaf
               ? atomic_load_explicit(&leaf->entries[PAGE_MAP_INDEX(address)], memory_order_acquire)
               : 0;
}

/** The pool whose memory `address` lies in, or NULL. */
static inline struct pool *page_map_owner(uint64_t address) {
    struct page_map_leaf *leaf = page_map_leaf_of(address);
    return leaf ? atomic_load_explicit(&leaf->owners[PAGE_MAP_INDEX(address)], memory_order_acquire)
                : NULL;
}

#define PAGE_MAP_START(address) (((address) >> (PAGE_SHIFT - 1)) & ((2 << PAGE_MAP_LEAF_BITS) - 1))

/** The range that was last handed out in this half of a page, or NULL. Stale if it does not start at
 * `address` or is not live. */
static inline struct range *page_map_start(uint64_t address) {
    struct page_map_leaf *leaf = page_map_leaf_of(address);
    return leaf ? atomic_load_explicit(&leaf->starts[PAGE_MAP_START(address)], memory_order_acquire)
                : NULL;
}

/** A range of more than half a page starts at `address`, which is in the map. */
static inline void page_map_set_start(uint64_t address, struct range *range) {
    atomic_store_explicit(&page_map_leaf_of(address)->starts[PAGE_MAP_START(address)], range,
                          memory_order_release);
}

/* The two kinds of entry. What the second bit of a page's entry says is in page.h. */
#define PAGE_MAP_PAGE ((page_map_entry)1)
#define PAGE_MAP_EXTERNAL ((page_map_entry)2)

static inline struct slab *page_map_page(page_map_entry entry) {
    return entry & PAGE_MAP_PAGE ? (struct slab *)(entry & ~(page_map_entry)3) : NULL;
}

/** A page that nothing but the context's own work reaches. */
static inline bool page_map_is_plain_page(page_map_entry entry) {
    return (entry & 3) == PAGE_MAP_PAGE;
}

/** Of one that is. */
static inline struct slab *page_map_plain_page(page_map_entry entry) {
    return (struct slab *)(entry - PAGE_MAP_PAGE);
}

static inline page_map_entry page_map_of_page(const struct slab *slab, bool external) {
    return (page_map_entry)slab | PAGE_MAP_PAGE | (external ? PAGE_MAP_EXTERNAL : 0);
}

static inline page_map_entry page_map_of_range(const struct range *range) {
    return (page_map_entry)range;
}

/** Makes sure that one leaf can be had, as far as nobody else takes it. False without host memory. */
bool page_map_spare(void);

/**
 * Makes sure that every page of [address, address + bytes) can be set without failing.
 * Returns 0, -ENOMEM, or -ERANGE for addresses the map cannot hold.
 */
int page_map_prepare(uint64_t address, uint64_t bytes);

/** Sets the entry of every page whose first byte lies in [address, address + bytes). Prepared
 * before. */
void page_map_set(uint64_t address, uint64_t bytes, page_map_entry entry);

/** The same for the owner; addresses and bytes are those of a segment. */
void page_map_set_owner(uint64_t address, uint64_t bytes, struct pool *owner);

/** Calls `visit` for every page that has an entry and that `owner` owns, as they are found; without a lock. */
void page_map_each(const struct pool *owner,
                   void (*visit)(uint64_t address, page_map_entry entry, void *with), void *with);

/** Nothing is there any more of what `owner` has entered, and it owns nothing there. What another pool
 * has entered since stays. */
void page_map_leave(uint64_t address, uint64_t bytes, struct pool *owner);

#endif
