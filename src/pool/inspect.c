/*
 * Questions about a pool: what lies at an address, what the books say, and whether everything still
 * fits together.
 */
#include "pool/internal.h"

#include "pool/host.h"
#include "pool/page_map.h"

#include <errno.h>
#include <string.h>

/* --- what lies at an address --- */

static _Atomic uint64_t last_id;

/* One of the two kinds, live, covering the address. */
struct found {
    struct pool *pool;
    struct block *block;
    struct range *range;
    uint64_t life; /* of a small block */
    uint64_t address, requested;
};

/*
 * A question about a block that lives, and goes on living while it is asked, is answered without any
 * lock: what leads to that block stays as it is, whatever happens beside it. Any other question may meet
 * descriptors that are taken to pieces or used again. So each counts how often that has happened, is
 * looked at before and after, and what was read in between is forgotten if it has moved.
 */
static bool find_small(page_map_entry entry, uint64_t address, struct found *found) {
    struct page *page = page_map_page(entry);
    uint32_t opened = atomic_load(&page->opened);
    struct block *block = page_find(page, address);
    uint64_t life = block ? block_life(block) : 0;
    uint64_t start = block ? (uint64_t)block_unit(block) << UNIT_SHIFT : 0;
    start += address & ~(PAGE_BYTES - 1);
    if (life_state(life) == BLOCK_LIVE && address - start < life_requested(life)) {
        *found = (struct found){page->pool, block, NULL, life, start, life_requested(life)};
    }
    atomic_thread_fence(memory_order_acquire);
    return page_map_get(address) == entry && atomic_load(&page->opened) == opened;
}

/* No data race that matters: what is read of a descriptor in other use is not used. */
__attribute__((no_sanitize("thread"))) static bool peek(struct range *range, struct found *found) {
    if (!range || life_state(*(const volatile uint64_t *)&range->block.life) != BLOCK_LIVE) {
        return false;
    }
    atomic_thread_fence(memory_order_acquire);
    found->range = range;
    found->address = *(const volatile uint64_t *)&range->block.address;
    found->requested = *(const volatile uint64_t *)&range->requested;
    return true;
}

static bool covers(struct range *range, uint64_t address, struct found *found) {
    return peek(range, found) && address - found->address < found->requested;
}

/* A large block is longer than half a page: it starts in this half, in the one before, or covers the
 * page's first byte. */
static bool find_large(page_map_entry entry, uint64_t address, struct found *found) {
    struct pool *pool = page_map_owner(address);
    uint64_t half = PAGE_BYTES / 2;
    if (!pool) {
        return page_map_get(address) == entry;
    }
    uint64_t recycled = atomic_load(&pool->large.recycled);
    struct found any = {.pool = pool};
    if (covers(page_map_start(address), address, &any) ||
        (address & half && covers(page_map_start(address - half), address, &any)) ||
        covers((struct range *)entry, address, &any)) {
        *found = any;
    }
    atomic_thread_fence(memory_order_acquire);
    return page_map_get(address) == entry && page_map_owner(address) == pool &&
           atomic_load(&pool->large.recycled) == recycled;
}

static int find_live(uint64_t address, struct found *found) {
    bool settled = false;
    while (!settled) {
        page_map_entry entry = page_map_get(address);
        *found = (struct found){0};
        settled = page_map_page(entry) ? find_small(entry, address, found)
                                       : find_large(entry, address, found);
    }
    return found->pool ? 0 : page_map_owner(address) ? -EINVAL : -ENOENT;
}

/* Locks and returns the pool that `address` lies in, or NULL. */
static struct pool *lock_owner(uint64_t address) {
    struct pool *pool = page_map_owner(address);
    if (!pool) {
        return NULL;
    }
    lock_acquire(&pool->lock);
    if (page_map_owner(address) != pool) {
        lock_release(&pool->lock);
        return NULL;
    }
    return pool;
}

struct pool *pool_covering(uint64_t address, uint64_t bytes) {
    struct pool *pool = NULL;
    for (uint64_t a = address & ~(PAGE_BYTES - 1); a < address + bytes && !pool; a += PAGE_BYTES) {
        pool = page_map_owner(a);
    }
    return pool;
}

bool pool_touches(uint64_t address, uint64_t bytes) {
    bool any = false;
    for (uint64_t a = address & ~(PAGE_BYTES - 1); a < address + bytes && !any; a += PAGE_BYTES) {
        any = page_map_owner(a) || page_map_get(a) != 0; /* the entry is what goes last */
    }
    return any;
}

int pool_find(uint64_t address, struct pool_block *out) {
    struct found found;
    int r = find_live(address, &found);
    if (r == 0) {
        *out = (struct pool_block){found.pool, found.address, found.requested};
    }
    return r;
}

int pool_find_segment(uint64_t address, struct pool_block *block, struct pool_segment *segment) {
    struct pool *pool = lock_owner(address);
    if (!pool) {
        return -ENOENT;
    }
    struct found found;
    int r = find_live(address, &found);
    if (r == 0) {
        const struct range *range = found.block ? page_of(found.block)->range : found.range;
        *block = (struct pool_block){pool, found.address, found.requested};
        uint64_t bytes = range_is_window(range) ? range->bytes : range->segment->bytes;
        *segment = (struct pool_segment){range->segment->base, bytes};
    }
    lock_release(&pool->lock);
    return r;
}

/* The number that a live block has been given already; 0: none. */
static uint64_t known_id(const struct found *found) {
    if (found->range) {
        return atomic_load(&found->range->id);
    }
    bool named = found->life & LIFE_NAMED;
    uint64_t id = named ? page_of(found->block)->names[block_unit(found->block)] : 0;
    return block_life(found->block) == found->life ? id : 0;
}

/* Of a live block: the one it has, else `fresh`. 0 if it is freed meanwhile, or without host memory. */
static uint64_t name_block(struct block *block, uint64_t fresh) {
    struct page *page = page_of(block);
    if (!page->names) {
        page->names = host_map(PAGE_UNITS * sizeof *page->names, 4096);
    }
    uint64_t life = block_life(block), *name = page->names + block_unit(block);
    if (!page->names || life_state(life) != BLOCK_LIVE) {
        return 0;
    }
    if (!(life & LIFE_NAMED)) {
        *name = fresh;
        if (!atomic_compare_exchange_strong(&block->life, &life, life | LIFE_NAMED)) {
            return 0;
        }
    }
    return *name;
}

uint64_t pool_block_id(uint64_t address) {
    struct found found;
    uint64_t id = find_live(address, &found) == 0 ? known_id(&found) : 0;
    struct pool *pool = id ? NULL : lock_owner(address);
    if (!pool) {
        return id;
    }
    if (find_live(address, &found) == 0) {
        uint64_t fresh = atomic_fetch_add(&last_id, 1) + 1;
        if (found.block) {
            id = name_block(found.block, fresh);
        } else {
            if (found.range->id == 0) {
                found.range->id = fresh;
            }
            id = found.range->id;
        }
    }
    lock_release(&pool->lock);
    return id;
}

int pool_mark_reached_from_outside(uint64_t address) {
    struct pool *pool = lock_owner(address);
    if (!pool) {
        return -ENOENT;
    }
    struct found found;
    int r = find_live(address, &found);
    if (r == 0) {
        if (found.block) {
            struct page *page = page_of(found.block);
            atomic_store(&page->reached_from_outside, true);
            page->range->segment->reached_from_outside = true;
            page_map_set(page->address, PAGE_BYTES, page_map_of_page(page, true));
        } else {
            found.range->segment->reached_from_outside = true;
        }
        order_settle(pool);
    }
    lock_release(&pool->lock);
    return r;
}

/* --- the books --- */

static void add_metric(struct stats_metric *to, const struct books_metric *from) {
    to->current += books_get(&from->current);
    to->peak += books_get(&from->peak);
    to->total += books_get(&from->total);
    to->freed += books_get(&from->freed);
}

/* The class of `bytes`, which is no smaller than what was of class `from`. */
static unsigned class_from(unsigned from, uint64_t bytes) {
    while (from < STATS_SIZE_CLASSES - 1 && bytes > (uint64_t)512 << from) {
        from++;
    }
    return from;
}

/* What thread caches counted, by the size classes of the statistics. */
static void count_classes(const struct pool *pool, bool frees,
                          uint64_t counts[STATS_SIZE_CLASSES]) {
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        unsigned class = 0;
        for (unsigned i = 0; i < SMALL_CLASSES; i++) {
            const struct bin *bin = &cache->bins[i];
            class = class_from(class, size_class_bytes(i));
            counts[class] += books_get(frees ? &bin->frees : &bin->allocs);
        }
        for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++) {
            counts[i] += books_get(frees ? &cache->large_frees[i] : &cache->large_allocs[i]);
        }
    }
}

/* In the order of budget_sums(), and for its reason. */
static void add_classes(const struct pool *pool, struct stats_device *stats) {
    uint64_t allocs[STATS_SIZE_CLASSES] = {0}, frees[STATS_SIZE_CLASSES] = {0};
    count_classes(pool, false, allocs);
    atomic_thread_fence(memory_order_acquire);
    count_classes(pool, true, frees);
    for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++) {
        stats->size_classes[i].total += allocs[i];
        stats->size_classes[i].live += allocs[i] > frees[i] ? allocs[i] - frees[i] : 0;
    }
}

/*
 * What is live is counted by the caches; the pool's books know the peak of the last look. Returns the
 * peak.
 */
static uint64_t add_sum(struct stats_metric *to, const struct books_metric *from,
                        struct budget_sum sum, bool shared) {
    uint64_t last = books_get(&from->peak), now = shared ? sum.live : sum.highest;
    to->current += sum.live;
    to->total += sum.taken;
    to->freed += sum.taken - sum.live;
    to->peak += now > last ? now - last : 0; /* `last` is in it already */
    return now > last ? now : last;
}

/* Live blocks by requested size: a small table of sizes, then the ones that hold most. */
static void count_live(struct live_sizes *sizes, uint64_t bytes) {
    uint64_t hash = bytes * 0x9e3779b97f4a7c15u >> 32;
    for (unsigned i = 0; i < LIVE_SIZES; i++) {
        struct stats_live *row = &sizes->rows[(hash + i) % LIVE_SIZES];
        if (row->count == 0 && sizes->used++ >= LIVE_SIZES - 1) {
            return; /* more different sizes than a report can name */
        }
        if (row->count == 0 || row->bytes == bytes) {
            row->bytes = bytes;
            row->count++;
            return;
        }
    }
}

static void count_page(struct live_sizes *sizes, struct page *page) {
    for (unsigned word = 0; word < PAGE_HEAD_WORDS; word++) {
        uint64_t bits = atomic_load_explicit(&page_heads(page)[word], memory_order_acquire);
        for (; bits; bits &= bits - 1) {
            unsigned unit = word << 6 | (unsigned)__builtin_ctzll(bits);
            uint64_t life = block_life(page_unit(page, unit));
            if (life_state(life) == BLOCK_LIVE) {
                count_live(sizes, life_requested(life));
            }
        }
    }
}

/* What starts in one page of the map. */
static void count_at(uint64_t address, page_map_entry entry, void *sizes) {
    uint64_t half = PAGE_BYTES / 2;
    if (page_map_page(entry)) {
        count_page(sizes, page_map_page(entry));
        return;
    }
    for (uint64_t start = address; start < address + PAGE_BYTES; start += half) {
        struct found found;
        if (peek(page_map_start(start), &found) && found.address - start < half) {
            count_live(sizes, found.requested);
        }
    }
}

/* Merges the largest into the snapshot's list, largest total first. */
static void name_largest(struct stats_device *stats, const struct live_sizes *sizes) {
    for (unsigned i = 0; i < LIVE_SIZES; i++) {
        struct stats_live row = sizes->rows[i];
        size_t at = stats->live_groups;
        while (at > 0 &&
               row.bytes * row.count > stats->live[at - 1].bytes * stats->live[at - 1].count) {
            at--;
        }
        if (row.count == 0 || at >= STATS_LIVE_SIZES) {
            continue;
        }
        size_t moved =
            stats->live_groups < STATS_LIVE_SIZES ? stats->live_groups : STATS_LIVE_SIZES - 1;
        memmove(&stats->live[at + 1], &stats->live[at], (moved - at) * sizeof row);
        stats->live[at] = row;
        stats->live_groups = moved + 1;
    }
}

/*
 * A million blocks take a while, and nobody waits for it: what the map leads to is read as it is found,
 * without a lock. The table is the pool's, because a report may run on a signal stack of a few kilobytes;
 * where another reader is at it, the list is left out.
 */
void pool_read_live(struct pool *pool, struct stats_device *stats) {
    struct live_sizes *sizes = &pool->live_sizes;
    if (!atomic_exchange(&sizes->busy, true)) {
        memset(sizes->rows, 0, sizeof sizes->rows);
        sizes->used = 0;
        page_map_each(pool, count_at, sizes);
        name_largest(stats, sizes);
        atomic_store(&sizes->busy, false);
    }
}

void pool_read(struct pool *pool, struct stats_device *stats) {
    const struct books *books = &pool->books;
    /* A report from a signal handler may have interrupted whoever holds the lock. Without it the largest
     * free block is that of the last look, and what an ending thread leaves to the next may be seen
     * twice or not at all. */
    bool locked = lock_try(&pool->lock);
    if (locked) {
        budget_book_reserve(pool);
    }
#define METRIC(field, json, label) add_metric(&stats->field, &books->field);
#define OUTSIDE(field, json) add_metric(&stats->field, &books->field);
#define COUNTER(field) stats->field += books_get(&books->field);
#include "stats/fields.def"
    stats->ready_bytes += books_get(&books->ready_bytes);
    stats->free_blocks += books_get(&books->free_blocks);
    uint64_t largest = books_get(&books->largest_free_bytes);
    if (largest > stats->largest_free_bytes) {
        stats->largest_free_bytes = largest;
    }
    stats->releasable_bytes += books_get(&books->releasable_bytes);
    add_classes(pool, stats);
    struct budget_sums sums = budget_sums(pool);
    if (locked) {
        lock_release(&pool->lock);
    }
    bool shared = books_get(&books->peaks_shared) || sums.used > 1;
    add_sum(&stats->allocations, &books->allocations, sums.of[TIDE_COUNT], shared);
    add_sum(&stats->allocated, &books->allocated, sums.of[TIDE_ALLOCATED], shared);
    uint64_t peak = add_sum(&stats->requested, &books->requested, sums.of[TIDE_REQUESTED], shared);
    if (shared) {
        uint64_t upper = books_get(&books->peak_upper), now = sums.of[TIDE_REQUESTED].highest;
        upper = upper > now ? upper : now;
        now = books_get(&books->active.peak); /* which covers all that is live */
        upper = upper < now ? upper : now;
        stats->peaks_exact = false;
        stats->peak_error_bytes += upper > peak ? upper - peak : 0;
    }
}

uint64_t pool_idle_bytes(struct pool *pool) {
    uint64_t allocated = budget_sums(pool).of[TIDE_ALLOCATED].live;
    uint64_t reserved = books_get(&pool->books.reserved.current);
    allocated += atomic_load(&pool->retired_bytes);
    return reserved > allocated ? reserved - allocated : 0;
}

void pool_reset_peaks(struct pool *pool) {
    lock_acquire(&pool->lock);
    books_reset_peaks(&pool->books);
    books_set(&pool->books.requested.peak, 0); /* the caches' share is added by the look */
    books_set(&pool->books.allocated.peak, 0);
    books_set(&pool->books.allocations.peak, 0);
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        cache_seize(cache);
        for (unsigned i = 0; i < TIDES; i++) {
            tide_level(&cache->tides[i]);
        }
        cache_return(cache);
    }
    pool->looks = 0;
    budget_look_at_all(pool);
    lock_release(&pool->lock);
}
