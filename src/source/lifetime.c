/* Sets up the source of a pool, and forgets a context that has ended. Locks: source.h. */
#include "source/internal.h"

void source_start(struct source *source, struct pool *pool, struct backend *backend,
                  const struct pool_config *config) {
    lock_start(&source->lock, LOCK_POOL);
    lock_start(&source->remap.lock, LOCK_REMAP);
    source->backend = backend;
    source->config = *config;
    source->started_ns = backend_clock(backend);
    epochs_start(&source->epochs);
    source->policy = backend_maps(backend) ? &vmm_policy : &segments_policy;
    arena_start(&source->large, pool, source->policy->has_handles);
    arena_start(&source->small, pool, source->policy->has_handles);
    runs_start(&source->runs, pool);
}

void source_leave_map(struct source *source) {
    ASSERT_HELD(&source->remap.lock);
    ASSERT_HELD(&source->lock);
    arena_leave_map(&source->small);
    arena_leave_map(&source->large);
}

static void forget_pages(struct source *source) {
    for (struct segment *segment = source->small.segments; segment; segment = segment->next) {
        for (struct range *range = segment_first(segment); segment_has(segment, range);
             range = range->next) {
            if (range_state(range) == BLOCK_SLAB) {
                runs_forget_slab(&source->runs, range->slab);
            }
        }
    }
    runs_forget(&source->runs);
    runs_trim(&source->runs);
}

uint64_t source_forget(struct source *source) {
    ASSERT_HELD(&source->remap.lock);
    ASSERT_HELD(&source->lock);
    atomic_fetch_add(&source->generation, 1);
    forget_pages(source);
    uint64_t bytes = source->policy->end(source);
    arena_forget(&source->small);
    arena_forget(&source->large);
    for (enum reach reach = 0; reach < REACHES; reach++) {
        source->pending[reach] = (struct pending){0};
    }
    source->pending_bytes = 0;
    source->freeing_bytes = 0;
    epochs_forget(&source->epochs);
    return bytes;
}
