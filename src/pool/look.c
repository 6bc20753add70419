/*
 * A live block by its own address, in as few steps as its free takes; and a word that is noted for it while it lives.
 */
#include "pool/internal.h"

#include "pool/page_map.h"

#include <errno.h>

/*
 * The block whose start the map names; NULL: there is none. Nobody keeps it from being freed meanwhile, or its descriptor from being
 * used for another one: then what is read of it means nothing, and whoever asks about blocks that are not its own compares the note.
 */
__attribute__((no_sanitize("thread"))) static struct block *look_up(uint64_t address,
                                                                    struct pool_look *look) {
    page_map_entry entry = page_map_get(address);
    struct page *page = page_map_page(entry);
    struct block *block = NULL;
    look->pool = page ? page->pool : page_map_owner(address);
    if (page && address % ((uint64_t)1 << UNIT_SHIFT) == 0) {
        block = page_block(page, address);
    } else if (!page && look->pool) {
        struct range *range = page_map_start(address);
        const volatile uint64_t *start = range ? &range->block.address : NULL;
        block = start && *start == address ? &range->block : NULL;
    }
    uint64_t header = block ? *(const volatile uint64_t *)&block->header : 0;
    atomic_thread_fence(memory_order_acquire);
    if (header_state(header) != BLOCK_LIVE) {
        return NULL;
    }
    const struct range *range = header_is_large(header) ? range_of(block) : NULL;
    look->requested =
        range ? *(const volatile uint64_t *)&range->requested : header_requested(header);
    look->bytes = range ? *(const volatile uint64_t *)&range->bytes : header_bytes(header);
    look->note = *(const volatile uint64_t *)&block->stamp;
    return block;
}

int pool_look(uint64_t address, struct pool_look *look) {
    return look_up(address, look) ? 0 : look->pool ? -EINVAL : -ENOENT;
}

int pool_note(uint64_t address, uint64_t note, struct pool_look *look) {
    struct block *block = look_up(address, look);
    if (block) {
        block->stamp = note;
    }
    return block ? 0 : look->pool ? -EINVAL : -ENOENT;
}
