/*
 * Sets up the source of a pool, lets it grow and shrink by its memory policy, and forgets a context
 * that has ended. source.h says which locks are held.
 */
#include "source/source.h"

#include "heap/page_map.h"

void source_start(struct source *source, struct pool *pool, struct backend *backend,
                  const struct memory_policy *policy, const struct pool_config *config) {
    lock_start(&source->lock, LOCK_POOL);
    lock_start(&source->remap.lock, LOCK_REMAP);
    source->backend = backend;
    source->config = *config;
    atomic_init(&source->epochs.open, 1); /* a stamp of 0 is always safe */
    source->policy = policy;
    arena_start(&source->large, pool, source->policy->has_handles);
    arena_start(&source->small, pool, source->policy->has_handles);
    source->runs.pool = pool;
}

/* Forgets all slabs and free runs. remap.lock and the pool's lock are held. */
static void forget_slabs(struct source *source) {
    for (struct segment *segment = source->small.segments; segment; segment = segment->next) {
        for (struct range *range = segment_first(segment); segment_has(segment, range);
             range = range->next)
            if (range_state(range) == BLOCK_SLAB)
                runs_forget_slab(&source->runs, range->slab);
    }
    runs_forget(&source->runs);
    runs_trim(&source->runs);
}

uint64_t source_forget(struct source *source) {
    ASSERT_HELD(&source->remap.lock);
    ASSERT_HELD(&source->lock);
    atomic_fetch_add(&source->generation, 1);
    forget_slabs(source);
    uint64_t bytes = source->policy->end(source);
    arena_forget(&source->small);
    arena_forget(&source->large);
    for (enum reach reach = 0; reach < REACHES; reach++)
        source->pending[reach] = (struct pending){0};
    source->pending_bytes = 0;
    source->returning_bytes = 0;
    epochs_forget(&source->epochs);
    return bytes;
}

/* --- growth and release --- */

bool source_begin_growth(struct source *source) {
    ASSERT_HELD(&source->lock);
    if (source->backend->ended)
        return false;
    source->growing.threads++;
    if (source->backend->ops->begin_growth)
        source->backend->ops->begin_growth(source->backend);
    return true;
}

void source_end_growth(struct source *source, bool gave_back) {
    ASSERT_HELD(&source->lock);
    if (source->backend->ops->end_growth)
        source->backend->ops->end_growth(source->backend, gave_back);
    source->growing.threads--;
    source->growing.done++;
}

bool source_can_grow(struct source *source, const struct alloc_request *request) {
    ASSERT_HELD(&source->lock);
    return !source->unmanageable && arena_prepare(source_arena(source, request), 1) &&
           page_map_spare() && (request->large || runs_prepare(&source->runs));
}

int source_release_idle(struct source *source, uint64_t bytes) {
    ASSERT_HELD(&source->lock);
    uint64_t released = source->policy->release_idle(source, bytes);
    return released > 0 ? 0 : source_idle(source) > 0 ? -EBUSY : -ENOENT;
}
