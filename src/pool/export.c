/*
 * Exports the handles under a live block, for IPC.
 *
 * If the program frees the block during the export, its handles may go back to the backend. Only
 * remapping code gives handles back, under remap.lock. Therefore pool_export() keeps remap.lock
 * until pool_export_end(). Invariant: a returned handle exists until then.
 */
#include "pool/internal.h"

#include "pool/lookup.h"

#include <errno.h>

/*
 * Collects the handle that begins `first` VMM pages after the block's first handle, and the
 * following ones of the same length. Needs remap.lock and source.lock. Returns as pool_export().
 */
static int collect(struct pool *pool, uint64_t address, uint32_t first,
                   struct pool_exported *exported) {
    struct pool_block block;
    struct range *range = find_range(address, &block);
    if (!range || block.pool != pool || block.address != address ||
        !range_is_externally_visible(range))
        return -ENOENT;
    const struct segment *segment = range->segment, *last = segment;
    uint64_t base = segment->base, from = base + first * PAGE_BYTES;
    while (last->base + last->bytes < address + block.requested)
        last = last->next;
    *exported = (struct pool_exported){.offset = address - base, .bytes = block.requested};
    exported->pages = (uint32_t)((last->base + last->bytes - base) >> PAGE_SHIFT);
    while (segment && segment->base != from)
        segment = segment != last ? segment->next : NULL;
    if (!segment)
        return -EINVAL;
    exported->length = (uint32_t)(segment->bytes >> PAGE_SHIFT);
    for (uint64_t length = segment->bytes;
         segment && segment->bytes == length && exported->count < POOL_EXPORT_HANDLES;
         segment = segment != last ? segment->next : NULL)
        exported->handle[exported->count++] = segment->handle;
    return 0;
}

int pool_export(uint64_t address, uint64_t id, uint32_t first, struct pool_exported *exported) {
    struct pool *pool = page_map_pool(address);
    if (!pool || !pool->source.policy->has_handles)
        return -ENOENT;
    struct source *source = &pool->source;
    int r = -ENOENT;
    lock_acquire(&source->remap.lock);
    if (pool_block_id(address) == id) {
        lock_acquire(&source->lock);
        r = page_map_pool(address) == pool ? collect(pool, address, first, exported) : -ENOENT;
        lock_release(&source->lock);
    }
    exported->pool = pool;
    if (r != 0)
        lock_release(&source->remap.lock);
    return r;
}

void pool_export_end(const struct pool_exported *exported) {
    lock_release(&exported->pool->source.remap.lock);
}
