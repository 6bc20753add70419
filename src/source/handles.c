#include "source/handles.h"

#include "memory/page_map.h"
#include "memory/va_range.h"
#include "source/internal.h"

#include <errno.h>

static uint32_t pages_of(uint64_t bytes) {
    return (uint32_t)(bytes >> PAGE_SHIFT);
}

static void refuse(struct source *source, struct segment *segment) {
    segment->refused = true;
    source->remap.any_refused = true;
}

/* What is mapped there becomes a segment behind `after`. NULL without host memory. */
static struct segment *add(struct source *source, struct arena *arena, uint64_t base,
                           const struct piece *what, struct segment *after) {
    if (arena_add(arena, base, what->bytes, after) != 0) {
        return NULL;
    }
    struct segment *segment = after ? after->next : arena->segments;
    segment->handle = what->handle;
    segment->stamp = what->stamp;
    segment->since = source->decay.tick;
    return segment;
}

/* --- moving --- */

bool handles_detach(struct source *source, struct arena *arena, struct segment *segment,
                    struct transit *transit) {
    struct backend *backend = source->backend;
    const struct stale_mapping stale_mapping = {segment->base, segment->bytes, segment->stamp};
    const struct piece moved = {segment->handle, segment->bytes, segment->stamp, arena,
                                segment->base};
    if (!arena_remove(arena, segment)) {
        refuse(source, segment);
        return false;
    }
    stale_add(&arena->stale_mappings, &stale_mapping);
    page_map_set_owner(stale_mapping.base, stale_mapping.bytes,
                       arena->pool); /* it answers for what was freed there */
    unsigned i = transit->count++;
    for (; i > 0 && transit->of[i - 1].bytes < moved.bytes; i--) {
        transit->of[i] = transit->of[i - 1];
    }
    transit->of[i] = moved;
    transit->bytes += moved.bytes;
    atomic_fetch_add(&source->remap.unmapping_bytes, moved.bytes);
    if (backend->ops->mark_stale) {
        backend->ops->mark_stale(backend, stale_mapping.base, pages_of(stale_mapping.bytes), false);
    }
    return true;
}

/* Of one that the driver does not take nothing is changed. Nobody else adds or removes any meanwhile: that takes the mapper's lock. */
void handles_drop_stale(struct source *source, struct arena *arena) {
    struct backend *backend = source->backend;
    for (unsigned i = 0; i < arena->stale_mappings.count;) {
        const struct stale_mapping stale_mapping = arena->stale_mappings.at[i];
        int r = -EBUSY;
        if (stale_mapping.stamp <= source->epochs.finished) {
            lock_release(&source->lock);
            r = backend->ops->unmap(backend, stale_mapping.base, pages_of(stale_mapping.bytes),
                                    true);
            lock_acquire(&source->lock);
        }
        if (r == 0) {
            page_map_leave(stale_mapping.base, stale_mapping.bytes, arena->pool);
            stale_remove(&arena->stale_mappings, stale_mapping.base);
        } else {
            i++;
        }
    }
}

/* Without the pool's lock. */
static void give(struct source *source, const struct piece *moved) {
    source->backend->ops->release_handles(source->backend, 1, pages_of(moved->bytes),
                                          &moved->handle);
    atomic_fetch_sub(&source->remap.unmapping_bytes, moved->bytes);
}

/* False without host memory: then it is the driver's, when its alias has gone. */
static bool move_back(struct source *source, const struct piece *moved) {
    struct backend *backend = source->backend;
    struct segment *after = arena_before(moved->arena, moved->base);
    if (!add(source, moved->arena, moved->base, moved, after)) {
        return false;
    }
    stale_remove(&moved->arena->stale_mappings, moved->base);
    atomic_fetch_sub(&source->remap.unmapping_bytes, moved->bytes);
    if (backend->ops->mark_stale) {
        backend->ops->mark_stale(backend, moved->base, pages_of(moved->bytes), true);
    }
    return true;
}

void handles_reattach(struct source *source, struct transit *transit) {
    for (unsigned i = 0; i < transit->count; i++) {
        if (!move_back(source, &transit->of[i])) {
            lock_release(&source->lock);
            give(source, &transit->of[i]);
            lock_acquire(&source->lock);
            counter_add(&source->counters.driver_frees, 1);
        }
    }
    transit->count = 0;
    transit->bytes = 0;
}

/* --- giving back --- */

int handles_release(struct source *source, struct arena *arena, struct segment *segment,
                    uint64_t *released) {
    struct backend *backend = source->backend;
    struct segment was = *segment, *after = segment->previous;
    const struct piece moved = {.handle = was.handle, .bytes = was.bytes, .stamp = was.stamp};
    if (!arena_remove(arena, segment)) {
        refuse(source, segment);
        return -EBUSY;
    }
    atomic_fetch_add(&source->remap.unmapping_bytes, was.bytes);
    budget_count_reserve(source);
    lock_release(&source->lock);
    int r = backend->ops->unmap(backend, was.base, pages_of(was.bytes), false);
    if (r == 0) {
        give(source, &moved);
    }
    lock_acquire(&source->lock);
    if (r == 0) {
        counter_add(&source->counters.driver_frees, 1);
        *released = was.bytes;
    } else {
        atomic_fetch_sub(&source->remap.unmapping_bytes, was.bytes);
        struct segment *kept = add(source, arena, was.base, &moved, after); /* where it was */
        if (kept) {
            kept->since = was.since;
            kept->externally_visible = was.externally_visible;
            refuse(source, kept);
        }
    }
    return r;
}

/* --- making --- */

void handles_hold(struct source *source, struct arena *arena, struct range *range) {
    arena_hold(arena, range);
    source->remap.held_bytes += range->bytes;
}

void handles_unhold(struct source *source, struct arena *arena, struct range *range) {
    source->remap.held_bytes -= range->bytes;
    arena_give(arena, range);
}

void handles_unhold_all(struct source *source, struct arena *arena, const struct segment *in_front,
                        const struct segment *last) {
    for (; last != in_front; last = last->previous) {
        handles_unhold(source, arena, last->first);
    }
}

/* What the driver mapped, and there is no descriptor for. */
static void unmake(struct source *source, uint64_t base, uint64_t each, const struct piece *moved,
                   unsigned count) {
    struct backend *backend = source->backend;
    lock_release(&source->lock);
    if (backend->ops->unmap(backend, base, count * pages_of(each), false) == 0) {
        for (unsigned i = 0; i < count; i++) {
            backend->ops->release_handles(backend, 1, pages_of(each), &moved[i].handle);
        }
    }
    lock_acquire(&source->lock);
    counter_add(&source->counters.driver_frees, count);
}

/* Maps so many of a length, MAP_BATCH at most, side by side. *mapped: the driver has; else they are whose they were. */
static int map_some(struct source *source, struct arena *arena, uint64_t base, uint64_t each,
                    const struct piece *moved, unsigned count, struct segment **last,
                    bool *mapped) {
    struct backend *backend = source->backend;
    uint64_t handles[MAP_BATCH];
    for (unsigned i = 0; i < count; i++) {
        handles[i] = moved[i].handle;
    }
    lock_release(&source->lock);
    int r = backend->ops->map(backend, base, count, pages_of(each), handles);
    lock_acquire(&source->lock);
    *mapped = r == 0;
    if (r != 0) {
        return r == -ENOMEM ? -ENOMEM : -ERANGE;
    }
    source->remap.made_bytes += count * each;
    for (unsigned i = 0; i < count; i++) {
        struct segment *added = add(source, arena, base + i * each, &moved[i], *last);
        if (!added) {
            unmake(source, base + i * each, each, moved + i, count - i);
            return -ERANGE;
        }
        *last = added;
        handles_hold(source, arena, added->first);
    }
    return 0;
}

/* All that is moving; what the driver has not mapped is moving still. */
static int map_transit(struct source *source, struct arena *arena, uint64_t base,
                       struct transit *transit, struct segment **last) {
    int r = 0;
    unsigned done = 0;
    bool mapped = true;
    while (r == 0 && done < transit->count) {
        const struct piece *some = transit->of + done;
        unsigned count = 1;
        while (count < MAP_BATCH && done + count < transit->count &&
               some[count].bytes == some->bytes) {
            count++;
        }
        uint64_t bytes = count * some->bytes;
        source->growing.bytes += bytes;
        r = map_some(source, arena, base, some->bytes, some, count, last, &mapped);
        source->growing.bytes -= bytes;
        if (mapped) {
            atomic_fetch_sub(&source->remap.unmapping_bytes, bytes);
            transit->bytes -= bytes;
            done += count;
        }
        base += bytes;
    }
    transit->count -= done;
    for (unsigned i = 0; i < transit->count; i++) {
        transit->of[i] = transit->of[done + i];
    }
    return r;
}

/* So many new ones of a size. */
static int make_some(struct source *source, struct arena *arena, uint64_t base, unsigned count,
                     uint64_t each, struct segment **last) {
    struct backend *backend = source->backend;
    struct piece taken[MAP_BATCH];
    uint64_t handles[MAP_BATCH], bytes = count * each;
    bool mapped;
    source->growing.bytes += bytes;
    lock_release(&source->lock);
    int r = backend->ops->create_handles(backend, count, pages_of(each), handles);
    lock_acquire(&source->lock);
    if (r == 0) {
        counter_add(&source->counters.driver_allocs, count);
        for (unsigned i = 0; i < count; i++) {
            taken[i] = (struct piece){.handle = handles[i], .bytes = each};
        }
        r = map_some(source, arena, base, each, taken, count, last, &mapped);
        if (!mapped) {
            lock_release(&source->lock);
            backend->ops->release_handles(backend, count, pages_of(each), handles);
            lock_acquire(&source->lock);
            counter_add(&source->counters.driver_frees, count);
        }
    }
    source->growing.bytes -= bytes;
    return r;
}

static int probe_handles(struct source *source, uint64_t bytes) {
    struct backend *backend = source->backend;
    int r = 0;
    if (bytes > PAGE_BYTES && backend->ops->probe_handles) {
        lock_release(&source->lock);
        r = backend->ops->probe_handles(backend, pages_of(bytes));
        lock_acquire(&source->lock);
    }
    return r;
}

/* The end of what comes in long ones is short: the block need not fill it, and others may begin there. */
static uint64_t short_of_end(uint64_t each, uint64_t rest) {
    uint64_t part = (rest - 1) / VMM_HANDLE * VMM_HANDLE;
    return each > VMM_HANDLE && part > 0 ? part : rest;
}

/* What lives on in a segment keeps all of it. So one that is made for little is short, since others like that will have most of
 * it; but a call of the driver takes as long for a short one as for a long one, so one that is made for much is long. */
uint64_t handles_length(const struct source *source, uint64_t like) {
    uint64_t each = VMM_HANDLE;
    while (each / 2 >= like && each > VMM_HANDLE_SHORT) {
        each /= 2;
    }
    return max_u64(each >> source->remap.size_shift, VMM_HANDLE_LEAST);
}

/* Descriptors for all of them first: nothing is made to go back for want of host memory. */
int handles_make(struct source *source, struct arena *arena, const struct gap *gap, uint64_t each,
                 struct transit *transit, struct segment **last) {
    uint64_t there = transit->bytes, base = gap->base + there, rest = gap->bytes - there;
    unsigned all = transit->count + (unsigned)((rest + each - 1) / each);
    if (!arena_prepare(arena, all + 1) || page_map_prepare(gap->base, gap->bytes) != 0) {
        return -ERANGE;
    }
    int r = map_transit(source, arena, gap->base, transit, last);
    r = r == 0 && rest > each ? probe_handles(source, rest) : r;
    for (uint64_t some; rest > 0 && r == 0; rest -= some, base += some) {
        uint64_t part = short_of_end(each, rest);
        each = each < part ? each : part;
        uint64_t count = part / each < MAP_BATCH ? part / each : MAP_BATCH;
        some = count * each;
        r = make_some(source, arena, base, (unsigned)count, each, last);
    }
    return r;
}

/* --- splitting --- */

/*
 * A handle costs about the same to make and to map whatever its length, so what the pool grows by below its budget comes in few.
 * But they go back whole or not at all. So a long one that is idle gives way to short ones at the same place, once, as soon as a
 * block would be put into a part of it, or a part of it has to go. Of a very long one the rest is long once more, or whoever
 * needs a little of it would have to wait for all of them.
 */
int handles_make_short(struct source *source, struct arena *arena, uint64_t base, uint64_t bytes,
                       uint64_t like) {
    uint64_t each = handles_length(source, like);
    uint64_t some = max_u64(round_up(like, each), MAP_BATCH * each);
    some = bytes > some + VMM_HANDLE ? some : bytes;
    const struct gap front = {.base = base, .bytes = some};
    const struct gap rest = {.base = base + some, .bytes = bytes - some};
    struct segment *in_front = arena_before(arena, base), *last = in_front;
    struct transit none;
    none.count = 0;
    none.bytes = 0;
    int r = handles_make(source, arena, &front, min_u64(each, some), &none, &last);
    if (r == 0 && rest.bytes > 0) {
        r = handles_make(source, arena, &rest, rest.bytes, &none, &last);
    }
    handles_unhold_all(source, arena, in_front, last);
    return r;
}

/* --- the end --- */

bool handles_end(struct source *source, struct arena *arena) {
    struct backend *backend = source->backend;
    bool all = true;
    for (unsigned i = 0; i < arena->stale_mappings.count; i++) {
        const struct stale_mapping *stale_mapping = &arena->stale_mappings.at[i];
        all &= backend->ops->unmap(backend, stale_mapping->base, pages_of(stale_mapping->bytes),
                                   true) == 0;
    }
    arena->stale_mappings.count = 0;
    for (const struct segment *s = arena->segments; s; s = s->next) {
        bool refused = backend->ops->unmap(backend, s->base, pages_of(s->bytes), false) != 0;
        if (!refused) {
            backend->ops->release_handles(backend, 1, pages_of(s->bytes), &s->handle);
        }
        all &= !refused;
    }
    return all;
}
