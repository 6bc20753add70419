/*
 * Opens and closes slabs. Takes blocks from their free runs and gives blocks back. Looks up an
 * address in a slab. slab.h has the drawing, the lock and the invariant.
 */
#include "heap/slab.h"

#include "heap/arena.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void become(struct block *block, enum block_state state, unsigned units) {
    block_become(block, (uint64_t)state | (uint64_t)units << HEADER_UNITS_SHIFT);
}

/* Flips the bit of the block's first unit in slab_heads(), and keeps head_words in step. */
static void toggle_head(const struct block *block) {
    unsigned unit = block_unit(block);
    struct slab *slab = slab_of(block);
    _Atomic uint64_t *word = slab_heads(slab) + (unit >> 6);
    uint64_t before = atomic_load_explicit(word, memory_order_relaxed);
    uint64_t now = before ^ (uint64_t)1 << (unit & 63);
    atomic_store_explicit(word, now, memory_order_release);
    if (before == 0 || now == 0) {
        uint64_t words = atomic_load_explicit(&slab->head_words, memory_order_relaxed);
        atomic_store_explicit(&slab->head_words, words ^ (uint64_t)1 << (unit >> 6),
                              memory_order_release);
    }
}

/* Returns the bits of `word` from bit 0 up to and including `bit`; the others are 0. */
static uint64_t up_to(uint64_t word, unsigned bit) {
    return word & ~(uint64_t)0 >> (63 - bit);
}

/*
 * Finds the last block that starts at the unit of `address` or before it. Searches the unit's own
 * word of slab_heads(), then the last earlier word that head_words marks.
 */
struct block *slab_find(struct slab *slab, uint64_t address) {
    unsigned unit = (unsigned)((address & (PAGE_BYTES - 1)) >> UNIT_SHIFT), word = unit >> 6;
    const _Atomic uint64_t *heads = slab_heads(slab);
    uint64_t bits = up_to(atomic_load_explicit(&heads[word], memory_order_acquire), unit & 63);
    if (bits == 0) {
        uint64_t words = atomic_load_explicit(&slab->head_words, memory_order_acquire);
        words = word > 0 ? up_to(words, word - 1) : 0;
        word = 63 - (unsigned)__builtin_clzll(words | 1);
        bits = words ? atomic_load_explicit(&heads[word], memory_order_acquire) : 0;
    }
    unsigned start = word << 6 | (63 - (unsigned)__builtin_clzll(bits | 1));
    struct block *block = slab_unit(slab, start);
    return bits != 0 && start + block_units(block) > unit ? block : NULL;
}

bool slab_has_live(struct slab *slab) {
    for (unsigned unit = 0; slab_next_block(slab, &unit); unit++)
        if (block_state(slab_unit(slab, unit)) == BLOCK_LIVE)
            return true;
    return false;
}

/* --- the lists of free runs --- */

/*
 * Returns how many units of a free run may be handed out: all but the reserved first unit of a
 * segment (arena.h says why it is reserved).
 */
static unsigned allocatable_units(const struct block *run, unsigned units) {
    const struct slab *slab = slab_of(run);
    const struct segment *segment = slab->range->segment;
    bool reserved =
        block_unit(run) == 0 && slab->address == segment->base && segment->is_allocation;
    return reserved ? units - 1 : units;
}

static void insert_run(struct runs *runs, struct block *run, unsigned units) {
    unsigned length = allocatable_units(run, units);
    struct block *head = runs->lists[length];
    run->previous = NULL;
    run->next = head;
    if (head)
        head->previous = run;
    runs->lists[length] = run;
    runs->lengths[length >> 6] |= (uint64_t)1 << (length & 63);
    runs->words[length >> 12] |= (uint64_t)1 << (length >> 6 & 63);
    become(run, BLOCK_FREE, units);
    if (units > 1)
        become(block_after(run, units - 1), BLOCK_TAIL, units);
    runs->free_units += units;
    runs->count++;
}

static void remove_run(struct runs *runs, struct block *run) {
    unsigned units = block_units(run), length = allocatable_units(run, units);
    if (run->previous) {
        run->previous->next = run->next;
    } else {
        runs->lists[length] = run->next;
        if (!run->next) {
            runs->lengths[length >> 6] &= ~((uint64_t)1 << (length & 63));
            if (runs->lengths[length >> 6] == 0)
                runs->words[length >> 12] &= ~((uint64_t)1 << (length >> 6 & 63));
        }
    }
    if (run->next)
        run->next->previous = run->previous;
    become(run, BLOCK_INSIDE, 0);
    become(block_after(run, units - 1), BLOCK_INSIDE, 0);
    runs->free_units -= units;
    runs->count--;
}

/*
 * Returns the smallest length of at least `units` in the lists of free runs, or 0 if there is none.
 * Searches the word of `lengths` that has bit `units`, then by `words` the next word with a bit.
 */
static unsigned best_length(const struct runs *runs, unsigned units) {
    unsigned word = units >> 6;
    uint64_t bits = runs->lengths[word] & (~(uint64_t)0 << (units & 63));
    if (bits == 0) {
        unsigned group = (word + 1) >> 6;
        uint64_t words = group < 2 ? runs->words[group] & (~(uint64_t)0 << ((word + 1) & 63)) : 0;
        if (words == 0 && group == 0)
            words = runs->words[++group];
        if (words == 0)
            return 0;
        word = group << 6 | (unsigned)__builtin_ctzll(words);
        bits = runs->lengths[word];
    }
    return word << 6 | (unsigned)__builtin_ctzll(bits);
}

/* Returns a free run of exactly `units` units including the reserved first one, or NULL. */
static struct block *first_unit_run(const struct runs *runs, unsigned units) {
    struct block *run = runs->lists[units - 1];
    while (run && block_units(run) < units)
        run = run->next;
    return run;
}

struct block *runs_take(struct runs *runs, unsigned units, unsigned bin, bool any) {
    unsigned length = best_length(runs, units);
    struct block *block = length > 0 ? runs->lists[length]
                          : any      ? first_unit_run(runs, units)
                                     : NULL;
    if (!block)
        return NULL;
    unsigned whole = block_units(block);
    remove_run(runs, block);
    if (whole > length && length > 0) { /* cuts from the end: the reserved first unit stays free */
        insert_run(runs, block, whole - units);
        block = block_after(block, whole - units);
    } else if (whole > units) {
        insert_run(runs, block_after(block, units), whole - units);
    }
    block->stamp = 0;
    block->next = NULL;
    block->address = slab_of(block)->address + ((uint64_t)block_unit(block) << UNIT_SHIFT);
    block_become(block, BLOCK_CACHED | (uint64_t)units << HEADER_UNITS_SHIFT |
                            (uint64_t)bin << HEADER_BIN_SHIFT);
    toggle_head(block);
    slab_of(block)->used_units += units;
    return block;
}

static void close_slab(struct runs *runs, struct slab *slab) {
    slab->next = runs->closed;
    runs->closed = slab;
}

struct range *runs_give(struct runs *runs, struct block *block) {
    struct slab *slab = slab_of(block);
    unsigned start = block_unit(block), units = block_units(block);
    slab->used_units -= units;
    toggle_head(block);
    become(block, BLOCK_INSIDE, 0);
    if (start + units < SLAB_UNITS) {
        struct block *right = slab_unit(slab, start + units);
        if (block_state(right) == BLOCK_FREE) {
            units += block_units(right);
            remove_run(runs, right);
        }
    }
    if (start > 0) {
        struct block *tail = slab_unit(slab, start - 1);
        enum block_state state = block_state(tail);
        /* a run of one unit has no separate tail */
        if (state == BLOCK_TAIL || state == BLOCK_FREE) {
            block = slab_unit(slab, start - block_units(tail));
            units += block_units(block);
            remove_run(runs, block);
        }
    }
    if (slab->used_units > 0) {
        insert_run(runs, block, units);
        return NULL;
    }
    page_map_set(slab->address, PAGE_BYTES, (page_map_entry)slab->range);
    close_slab(runs, slab);
    return slab->range;
}

uint64_t runs_largest(const struct runs *runs) {
    for (unsigned group = 2; group-- > 0;) {
        if (runs->words[group]) {
            unsigned word = group << 6 | (63 - (unsigned)__builtin_clzll(runs->words[group]));
            unsigned length = word << 6 | (63 - (unsigned)__builtin_clzll(runs->lengths[word]));
            return (uint64_t)length << UNIT_SHIFT;
        }
    }
    return 0;
}

/* --- slabs --- */

bool runs_prepare(struct runs *runs) {
    if (!runs->closed && runs->fresh_count == 0) {
        void *region = host_map(SLAB_REGION_BYTES, SLAB_REGION_BYTES);
        if (!region)
            return false;
        runs->fresh = slab_first((uintptr_t)region);
        runs->fresh_count = SLAB_REGION_SLABS;
    }
    return true;
}

/*
 * Gives back the host pages that hold only descriptors of this slab. A host page has up to 64 KiB
 * on aarch64, and madvise() rounds a length up to whole host pages. `to` is therefore rounded down:
 * otherwise madvise() would clear descriptors of the next slab.
 */
static void drop_descriptors(struct slab *slab) {
    uintptr_t page = (uintptr_t)getpagesize();
    uintptr_t from = ((uintptr_t)slab->blocks + page - 1) & ~(page - 1);
    uintptr_t to = (uintptr_t)(&slab->blocks[SLAB_UNITS]) & ~(page - 1);
    if (from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
    slab->resident = false;
}

void runs_trim(struct runs *runs) {
    for (struct slab *slab = runs->closed; slab; slab = slab->next)
        if (slab->resident)
            drop_descriptors(slab);
}

/**
 * Counts `opened` before any field changes that find_small() in pool/lookup.c reads: that function
 * compares the count.
 */
int runs_add_slab(struct runs *runs, struct range *range) {
    if (!runs_prepare(runs))
        return -ENOMEM;
    struct slab *slab = runs->closed;
    if (slab) {
        runs->closed = slab->next;
    } else {
        slab = (struct slab *)runs->fresh;
        runs->fresh += SLAB_STRIDE;
        runs->fresh_count--;
        slab->pool = runs->pool;
    }
    slab->resident = true;
    atomic_fetch_add_explicit(&slab->opened, 1, memory_order_release);
    slab->address = range->block.address;
    slab->range = range;
    range->slab = slab;
    slab->used_units = 0;
    bool visible = range->segment->externally_visible;
    atomic_store(&slab->externally_visible, visible);
    insert_run(runs, &slab->blocks[0], SLAB_UNITS);
    page_map_set(slab->address, PAGE_BYTES, page_map_of_slab(slab, visible));
    return 0;
}

void runs_forget_slab(struct runs *runs, struct slab *slab) {
    for (unsigned i = 0; i < SLAB_UNITS; i++)
        if (block_state(&slab->blocks[i]) != BLOCK_INSIDE)
            become(&slab->blocks[i], BLOCK_INSIDE, 0);
    for (unsigned i = 0; i < SLAB_HEAD_WORDS; i++)
        atomic_store_explicit(&slab_heads(slab)[i], 0, memory_order_relaxed);
    atomic_store_explicit(&slab->head_words, 0, memory_order_relaxed);
    close_slab(runs, slab);
}

void runs_forget(struct runs *runs) {
    memset(runs->lists, 0, sizeof runs->lists);
    memset(runs->lengths, 0, sizeof runs->lengths);
    memset(runs->words, 0, sizeof runs->words);
    runs->free_units = runs->count = 0;
}
