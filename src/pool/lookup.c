/*
 * Finds the live block around an address. Keeps the ID and the flag of a live block, and marks its
 * memory as externally visible. Implements lookup.h, and address.h except pool_export(). Invariant:
 * a look-up of a block that stays live is right.
 *
 * Look-ups take no lock, except pool_find_segment() and the first pool_block_id() of a block.
 * Changes take source.lock, except pool_tag(). Only pool_mark_externally_visible() waits for work.
 */
#include "pool/internal.h"

#include "heap/host.h"
#include "pool/lookup.h"

#include <errno.h>

static _Atomic uint64_t last_id;

/* A live block that covers an address: `block` is set if it is small, `range` if it is large. */
struct found {
    struct pool *pool;
    struct block *block;
    struct range *range;
    uint64_t header; /* small blocks only */
    uint64_t address, requested;
};

/*
 * Look-up without a lock:
 *
 *   1. If the block is live and stays live during the call, neither the page map nor the
 *      descriptors of this address change. The answer is right.
 *   2. Otherwise the look-up may read descriptors that are being freed or reused. A slab counts how
 *      often it was opened, an arena the changes of its ranges. find_small() and find_large() read
 *      the counter before and after, and return false if it changed; find_live() then retries.
 *      Changes inside an open slab need no counter: find_small() reads state and size in one word.
 *
 * The two functions set *found if a live block covers the address.
 */
static bool find_small(page_map_entry entry, uint64_t address, struct found *found) {
    struct slab *slab = page_map_slab(entry);
    uint32_t opened = atomic_load(&slab->opened);
    struct block *block = slab_find(slab, address);
    uint64_t header = block ? block_header(block) : 0;
    uint64_t start = block ? (uint64_t)block_unit(block) << UNIT_SHIFT : 0;
    start += address & ~(PAGE_BYTES - 1);
    if (header_state(header) == BLOCK_LIVE && address - start < header_requested(header))
        *found = (struct found){slab->pool, block, NULL, header, start, header_requested(header)};
    atomic_thread_fence(memory_order_acquire);
    return page_map_get(address) == entry && atomic_load(&slab->opened) == opened;
}

/* Returns whether a large block covers `address`. Sets range, address and size of *found. */
static bool covers(struct range *range, uint64_t address, struct found *found) {
    found->range = range;
    return range_peek(range, &found->address, &found->requested) &&
           address - found->address < found->requested;
}

/*
 * A large block is longer than half a page of the page map (1 MiB), so at most one starts in each
 * half. The block around `address` starts in the half of `address`, starts in the first half of the
 * page, or covers the first byte of the page.
 */
static bool find_large(page_map_entry entry, uint64_t address, struct found *found) {
    struct pool *pool = page_map_pool(address);
    uint64_t half = PAGE_BYTES / 2;
    if (!pool)
        return page_map_get(address) == entry;
    struct source *source = &pool->source;
    uint64_t changes = atomic_load(&source->large.changes);
    struct found candidate = {.pool = pool};
    if (covers(page_map_start(address), address, &candidate) ||
        (address & half && covers(page_map_start(address - half), address, &candidate)) ||
        covers((struct range *)entry, address, &candidate))
        *found = candidate;
    atomic_thread_fence(memory_order_acquire);
    return page_map_get(address) == entry && page_map_pool(address) == pool &&
           atomic_load(&source->large.changes) == changes;
}

/* Finds the live block around `address`. Returns as pool_find(). Takes no lock. */
static int find_live(uint64_t address, struct found *found) {
    bool stable = false;
    while (!stable) {
        page_map_entry entry = page_map_get(address);
        *found = (struct found){0};
        stable = page_map_slab(entry) ? find_small(entry, address, found)
                                      : find_large(entry, address, found);
    }
    return found->pool ? 0 : page_map_pool(address) ? -EINVAL : -ENOENT;
}

/* Returns the pool that owns `address`, with source.lock held, or NULL. */
static struct pool *lock_pool_at(uint64_t address) {
    struct pool *pool = page_map_pool(address);
    if (!pool)
        return NULL;
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    if (page_map_pool(address) != pool) {
        lock_release(&source->lock);
        return NULL;
    }
    return pool;
}

bool pool_has(uint64_t address) {
    return page_map_pool(address) != NULL;
}

bool pool_covers(const struct pool *pool, uint64_t address, uint64_t bytes) {
    bool any = false;
    for (uint64_t a = address & ~(PAGE_BYTES - 1); a < address + bytes && !any; a += PAGE_BYTES)
        any = page_map_pool(a) == pool;
    return any;
}

int pool_find(uint64_t address, struct pool_block *out) {
    struct found found;
    int r = find_live(address, &found);
    if (r == 0)
        *out = (struct pool_block){found.pool, found.address, found.requested};
    return r;
}

int pool_exceeds(uint64_t address, uint64_t bytes, struct pool **pool) {
    *pool = page_map_pool(address);
    if (!*pool)
        return 0;
    struct found found;
    int r = find_live(address, &found);
    if (r == 0)
        return bytes > found.address + found.requested - address;
    const struct pool *now = r == -EINVAL ? page_map_pool(address) : NULL;
    bool held = now && (atomic_load(&now->deferring) > 0 || atomic_load(&now->deferred_bytes) > 0);
    return held ? -EAGAIN : now != NULL;
}

struct range *find_range(uint64_t address, struct pool_block *block) {
    struct found found;
    if (find_live(address, &found) != 0)
        return NULL;
    *block = (struct pool_block){found.pool, found.address, found.requested};
    return found.block ? slab_of(found.block)->range : found.range;
}

int pool_find_segment(uint64_t address, struct pool_block *block, struct pool_segment *segment) {
    struct pool *pool = lock_pool_at(address);
    if (!pool)
        return -ENOENT;
    int r = -EINVAL;
    const struct range *range = find_range(address, block);
    if (range) {
        r = 0;
        const struct segment *around = range->segment;
        *segment = around->is_allocation ? (struct pool_segment){around->base, around->bytes}
                                         : (struct pool_segment){block->address, range->bytes};
    }
    lock_release(&pool->source.lock);
    return r;
}

/*
 * The name of a live block is one word beside its descriptor: its ID and its flag (address.h).
 *
 *      bit 63: the flag was set | bit 62: the flag | bits 61..0: the ID
 *
 * The name ends with the block, so no table of flags can be full.
 */
#define NAME_HAS_FLAG ((uint64_t)1 << 63)
#define NAME_FLAG ((uint64_t)1 << 62)
#define NAME_ID (NAME_FLAG - 1)

/*
 * Returns the name of a live block, or 0 if the block has none. If the block is freed during
 * the call, returns 0 for a small block, perhaps the last name for a large one. Takes no lock.
 */
static uint64_t known_name(const struct found *found) {
    if (found->range)
        return atomic_load(&found->range->name);
    bool named = found->header & HEADER_HAS_ID;
    uint64_t name = named ? slab_of(found->block)->names[block_unit(found->block)] : 0;
    return block_header(found->block) == found->header ? name : 0;
}

/*
 * Returns the location of a live small block's name. Sets the name to `fresh` if there was none.
 * Returns NULL if another thread frees the block, or without host memory. Needs source.lock.
 */
static _Atomic uint64_t *prepare_small_name(struct block *block, uint64_t fresh) {
    struct slab *slab = slab_of(block);
    if (!slab->names)
        slab->names = host_map(SLAB_UNITS * sizeof *slab->names, 4096);
    uint64_t header = block_header(block);
    if (!slab->names || header_state(header) != BLOCK_LIVE)
        return NULL;
    _Atomic uint64_t *name = slab->names + block_unit(block);
    if (!(header & HEADER_HAS_ID)) {
        *name = fresh;
        if (!atomic_compare_exchange_strong(&block->header, &header, header | HEADER_HAS_ID))
            return NULL;
    }
    return name;
}

/*
 * Returns the location of the name of the live block around `address`, and creates the name if
 * necessary. Returns NULL if there is no such block, or without host memory. Needs source.lock.
 */
static _Atomic uint64_t *prepare_name(uint64_t address) {
    struct found found;
    if (find_live(address, &found) != 0)
        return NULL;
    uint64_t fresh = atomic_fetch_add(&last_id, 1) + 1;
    if (found.block)
        return prepare_small_name(found.block, fresh);
    if (found.range->name == 0)
        found.range->name = fresh;
    return &found.range->name;
}

uint64_t pool_block_id(uint64_t address) {
    struct found found;
    uint64_t name = find_live(address, &found) == 0 ? known_name(&found) : 0;
    struct pool *pool = name ? NULL : lock_pool_at(address);
    if (pool) {
        const _Atomic uint64_t *at = prepare_name(address);
        name = at ? *at : 0;
        lock_release(&pool->source.lock);
    }
    return name & NAME_ID;
}

int pool_flag(uint64_t address) {
    struct found found;
    uint64_t name = find_live(address, &found) == 0 ? known_name(&found) : 0;
    return name & NAME_HAS_FLAG ? (name & NAME_FLAG) != 0 : -ENOENT;
}

int pool_set_flag(uint64_t address, bool flag) {
    struct pool *pool = lock_pool_at(address);
    if (!pool)
        return -ENOENT;
    _Atomic uint64_t *name = prepare_name(address);
    if (name)
        *name = (*name & NAME_ID) | NAME_HAS_FLAG | (flag ? NAME_FLAG : 0);
    lock_release(&pool->source.lock);
    return name ? 0 : -EINVAL; /* not a live block */
}

int pool_mark_externally_visible(uint64_t address) {
    struct pool *pool = lock_pool_at(address);
    if (!pool)
        return -ENOENT;
    struct source *source = &pool->source;
    struct found found;
    int r = find_live(address, &found);
    if (r == 0) {
        struct slab *slab = found.block ? slab_of(found.block) : NULL;
        struct range *range = slab ? slab->range : found.range;
        if (slab) {
            atomic_store(&slab->externally_visible, true);
            page_map_set(slab->address, PAGE_BYTES, page_map_of_slab(slab, true));
        }
        for (struct segment *s = range->segment; s; s = range_next_segment(range, s))
            s->externally_visible = true;
        sync_wait_barriers_by_queries(source);
    }
    lock_release(&source->lock);
    return r;
}

/* --- look-up by the start address, in as few steps as a free takes --- */

/* Fills *described. Returns the descriptor, or NULL if no live block starts there. No lock. */
__attribute__((no_sanitize("thread"))) static struct block *
look_up(uint64_t address, struct pool_description *described) {
    struct block_at at = find_block_at(address);
    described->pool = at.pool;
    if (header_state(at.header) != BLOCK_LIVE)
        return NULL;
    const struct range *range = at.slab ? NULL : range_of(at.block);
    described->requested =
        range ? *(const volatile uint64_t *)&range->requested : header_requested(at.header);
    described->bytes = range ? *(const volatile uint64_t *)&range->bytes : header_bytes(at.header);
    described->tag = *(const volatile uint64_t *)&at.block->stamp;
    return at.block;
}

int pool_describe(uint64_t address, struct pool_description *described) {
    return look_up(address, described) ? 0 : described->pool ? -EINVAL : -ENOENT;
}

int pool_tag(uint64_t address, uint64_t tag, struct pool_description *described) {
    struct block *block = look_up(address, described);
    if (block)
        block->stamp = tag;
    return block ? 0 : described->pool ? -EINVAL : -ENOENT;
}
