/*
 * A part is a hash table with chains: slots link to rows, and rows link to rows. A part's lock
 * protects its links and writes to its rows. Rows are atomic, because live_blocks_each() reads them
 * without a lock. Invariant: a row with a site is in exactly one chain.
 */
#include "stacks/live_blocks.h"

#include "base/lock.h"
#include "heap/host.h"

#include <stdatomic.h>

#define PARTS 64
#define SLOTS 4096 /* hash slots of each part */
#define REQUESTER_SHIFT 56

/* A row of a part's table. Row 0 stands for "no row". A free row has site 0. */
struct row {
    _Atomic uint64_t address;
    _Atomic uint64_t bytes; /* 63 requester 56 | 55 bytes 0 */
    _Atomic uint32_t site;
    uint32_t next; /* the next row of the same slot, or of the free list */
};

static struct part {
    _Alignas(64) struct lock lock;
    _Atomic(struct row *) rows; /* NULL until the part's first block */
    uint32_t *slots;
    _Atomic uint32_t used; /* rows 1 to `used` have been in use */
    uint32_t free;         /* first row of the free list */
} parts[PARTS];

static uint32_t rows_per_part;
static _Atomic uint64_t lost;

void live_blocks_start(uint32_t most_of_part) {
    rows_per_part = most_of_part;
    for (unsigned i = 0; i < PARTS; i++)
        lock_start(&parts[i].lock, LOCK_LIVE_BLOCKS);
}

uint64_t live_blocks_lost(void) {
    return atomic_load_explicit(&lost, memory_order_relaxed);
}

/* Part and slot come from different bits of the hash: 6 at the top, then 12 from bit 46 on. */
static uint64_t hash_of(uint64_t address) {
    return (address >> 9) * UINT64_C(0x9e3779b97f4a7c15);
}

static struct part *part_of(uint64_t address) {
    return &parts[hash_of(address) >> 58];
}

static struct row *rows_of(struct part *part) {
    return atomic_load_explicit(&part->rows, memory_order_relaxed);
}

/*
 * Returns the link that leads to the row of an address, or the link at the end of the address's
 * chain. The part's lock is held and its rows exist.
 */
static uint32_t *find(struct part *part, uint64_t address) {
    struct row *rows = rows_of(part);
    uint32_t *at = &part->slots[hash_of(address) >> 46 & (SLOTS - 1)];
    while (*at != 0 && atomic_load_explicit(&rows[*at].address, memory_order_relaxed) != address)
        at = &rows[*at].next;
    return at;
}

static struct stacks_block read_row(struct row *row) {
    uint64_t bytes = atomic_load_explicit(&row->bytes, memory_order_relaxed);
    return (struct stacks_block){.address =
                                     atomic_load_explicit(&row->address, memory_order_relaxed),
                                 .bytes = bytes & (((uint64_t)1 << REQUESTER_SHIFT) - 1),
                                 .site = atomic_load_explicit(&row->site, memory_order_acquire),
                                 .requester = (uint8_t)(bytes >> REQUESTER_SHIFT)};
}

static void write_row(struct row *row, const struct stacks_block *block) {
    atomic_store_explicit(&row->address, block->address, memory_order_relaxed);
    atomic_store_explicit(&row->bytes, block->bytes | (uint64_t)block->requester << REQUESTER_SHIFT,
                          memory_order_relaxed);
    atomic_store_explicit(&row->site, block->site, memory_order_release);
}

/* Maps the memory of a part at its first block. Returns false without host memory. */
static bool prepare(struct part *part) {
    if (!rows_of(part)) {
        part->slots = host_map(SLOTS * sizeof *part->slots, 4096);
        struct row *rows =
            part->slots ? host_map(((size_t)rows_per_part + 1) * sizeof *rows, 4096) : NULL;
        atomic_store_explicit(&part->rows, rows, memory_order_release);
        if (!rows)
            host_unmap(part->slots, SLOTS * sizeof *part->slots);
    }
    return rows_of(part) != NULL;
}

static uint32_t take_row(struct part *part) {
    uint32_t number = part->free, used = atomic_load_explicit(&part->used, memory_order_relaxed);
    if (number != 0) {
        part->free = rows_of(part)[number].next;
    } else if (used < rows_per_part) {
        number = used + 1;
        atomic_store_explicit(&part->used, number, memory_order_release);
    }
    return number;
}

bool live_blocks_add(const struct stacks_block *block, struct stacks_block *replaced) {
    struct part *part = part_of(block->address);
    bool added = false;
    replaced->site = 0;
    lock_acquire(&part->lock);
    if (prepare(part)) {
        struct row *rows = rows_of(part);
        uint32_t *at = find(part, block->address), number = *at;
        if (number != 0) {
            *replaced = read_row(&rows[number]);
        } else if ((number = take_row(part)) != 0) {
            rows[number].next = 0;
            *at = number;
        }
        added = number != 0;
        if (added)
            write_row(&rows[number], block);
    }
    lock_release(&part->lock);
    if (!added)
        atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed);
    return added;
}

/* Removes the row that `at` links to. The part's lock is held. */
static void unlink_row(struct part *part, uint32_t *at) {
    struct row *rows = rows_of(part);
    uint32_t number = *at;
    *at = rows[number].next;
    atomic_store_explicit(&rows[number].site, 0, memory_order_release);
    atomic_store_explicit(&rows[number].address, 0, memory_order_relaxed);
    rows[number].next = part->free;
    part->free = number;
}

bool live_blocks_remove(uint64_t address, struct stacks_block *block) {
    struct part *part = part_of(address);
    lock_acquire(&part->lock);
    uint32_t *at = rows_of(part) ? find(part, address) : NULL;
    bool found = at && *at != 0;
    if (found) {
        *block = read_row(&rows_of(part)[*at]);
        unlink_row(part, at);
    }
    lock_release(&part->lock);
    return found;
}

bool live_blocks_find(uint64_t address, struct stacks_block *block) {
    struct part *part = part_of(address);
    lock_acquire(&part->lock);
    const uint32_t *at = rows_of(part) ? find(part, address) : NULL;
    bool found = at && *at != 0;
    if (found)
        *block = read_row(&rows_of(part)[*at]);
    lock_release(&part->lock);
    return found;
}

bool live_blocks_remove_if(bool (*gone)(uint64_t address, const void *with), const void *with,
                           uint64_t *at, struct stacks_block *block) {
    for (; *at >> 32 < PARTS; *at = ((*at >> 32) + 1) << 32) {
        struct part *part = &parts[*at >> 32];
        uint32_t used = atomic_load_explicit(&part->used, memory_order_acquire);
        struct row *rows = atomic_load_explicit(&part->rows, memory_order_acquire);
        while ((uint32_t)*at < used) {
            *block = read_row(&rows[(uint32_t)++ * at]);
            if (block->site != 0 && gone(block->address, with) &&
                live_blocks_remove(block->address, block))
                return true;
        }
    }
    return false;
}

void live_blocks_each(void (*see)(const struct stacks_block *block, void *with), void *with) {
    for (unsigned i = 0; i < PARTS; i++) {
        uint32_t used = atomic_load_explicit(&parts[i].used, memory_order_acquire);
        struct row *rows = atomic_load_explicit(&parts[i].rows, memory_order_acquire);
        for (uint32_t k = 1; rows && k <= used; k++) {
            struct stacks_block block = read_row(&rows[k]);
            if (block.site != 0)
                see(&block, with);
        }
    }
}
