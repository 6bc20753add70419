/*
 * Builds and clears the page map. page_map.h has its layout, and the look-ups, which take no lock.
 */
#include "heap/page_map.h"

#include "heap/host.h"

#include <errno.h>

_Atomic(struct page_map_leaf *) page_map_root[1 << PAGE_MAP_ROOT_BITS];

static _Atomic(struct page_map_leaf *) spare;

/* Keeps a leaf that no other thread has seen as the spare, or unmaps it if there is a spare. */
static void keep_leaf(struct page_map_leaf *leaf) {
    struct page_map_leaf *none = NULL;
    if (!atomic_compare_exchange_strong(&spare, &none, leaf))
        host_unmap(leaf, sizeof *leaf);
}

bool page_map_spare(void) {
    if (!atomic_load_explicit(&spare, memory_order_acquire)) {
        struct page_map_leaf *leaf = host_map(sizeof *leaf, 4096);
        if (!leaf)
            return false;
        keep_leaf(leaf);
    }
    return true;
}

int page_map_prepare(uint64_t address, uint64_t bytes) {
    uint64_t last = address + bytes - 1;
    if (last < address || last >> PAGE_MAP_ADDRESS_BITS)
        return -ERANGE;
    const unsigned shift = PAGE_SHIFT + PAGE_MAP_LEAF_BITS;
    for (uint64_t i = address >> shift; i <= last >> shift; i++) {
        if (atomic_load_explicit(&page_map_root[i], memory_order_acquire))
            continue;
        struct page_map_leaf *fresh = atomic_exchange(&spare, NULL), *expected = NULL;
        fresh = fresh ? fresh : host_map(sizeof *fresh, 4096);
        if (!fresh)
            return -ENOMEM;
        if (!atomic_compare_exchange_strong(&page_map_root[i], &expected, fresh))
            keep_leaf(fresh); /* another pool was first */
    }
    return 0;
}

/* Reads the owner before the entry: page_map_remove() clears them in that order. */
bool page_map_any(uint64_t address, uint64_t bytes) {
    const uint64_t leaf_bytes = PAGE_BYTES << PAGE_MAP_LEAF_BITS;
    uint64_t end = address + bytes, next;
    bool any = false;
    for (uint64_t a = address; a < end && !any; a = next) {
        struct page_map_leaf *leaf = page_map_leaf_of(a);
        next = (a & ~(leaf_bytes - 1)) + leaf_bytes;
        next = next < end ? next : end;
        for (uint64_t i = PAGE_MAP_INDEX(a); leaf && !any && i <= PAGE_MAP_INDEX(next - 1); i++) {
            any = atomic_load_explicit(&leaf->owners[i], memory_order_acquire) ||
                  atomic_load_explicit(&leaf->entries[i], memory_order_acquire) != 0;
        }
    }
    return any;
}

void page_map_set(uint64_t address, uint64_t bytes, page_map_entry entry) {
    uint64_t end = address + bytes;
    for (uint64_t a = (address + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1); a < end; a += PAGE_BYTES) {
        atomic_store_explicit(&page_map_leaf_of(a)->entries[PAGE_MAP_INDEX(a)], entry,
                              memory_order_release);
    }
}

void page_map_set_owner(uint64_t address, uint64_t bytes, struct pool *owner) {
    for (uint64_t a = address; a < address + bytes; a += PAGE_BYTES) {
        atomic_store_explicit(&page_map_leaf_of(a)->owners[PAGE_MAP_INDEX(a)], owner,
                              memory_order_release);
    }
}

void page_map_each(const struct pool *owner,
                   void (*on_page)(uint64_t address, page_map_entry entry, void *argument),
                   void *argument) {
    for (uint64_t root = 0; root < 1 << PAGE_MAP_ROOT_BITS; root++) {
        struct page_map_leaf *leaf =
            atomic_load_explicit(&page_map_root[root], memory_order_acquire);
        for (uint64_t i = 0; leaf && i < 1 << PAGE_MAP_LEAF_BITS; i++) {
            page_map_entry entry =
                atomic_load_explicit(&leaf->owners[i], memory_order_relaxed) == owner
                    ? atomic_load_explicit(&leaf->entries[i], memory_order_acquire)
                    : 0;
            if (entry)
                on_page((root << PAGE_MAP_LEAF_BITS | i) << PAGE_SHIFT, entry, argument);
        }
    }
}

/*
 * Clears the owner first: a reader that finds no entry then finds no owner either. Clears the entry
 * last: while a page has an entry, the driver may have given its address to another pool, but that
 * pool does not enter it yet (context_address_given()).
 */
void page_map_remove(uint64_t address, uint64_t bytes, struct pool *owner) {
    for (uint64_t a = address; a < address + bytes; a += PAGE_BYTES) {
        struct page_map_leaf *leaf = page_map_leaf_of(a);
        struct pool *expected = owner;
        if (atomic_compare_exchange_strong(&leaf->owners[PAGE_MAP_INDEX(a)], &expected, NULL)) {
            page_map_set_start(a, NULL);
            page_map_set_start(a + PAGE_BYTES / 2, NULL);
            atomic_store_explicit(&leaf->entries[PAGE_MAP_INDEX(a)], 0, memory_order_release);
        }
    }
}
