/*
 * Calls the driver for handles and keeps segments, stale mappings and counters in step with it.
 * handles.h has the locks. The remap lock stays held throughout. Only its holder adds or removes
 * segments, so pointers to segments stay valid while the pool's lock is released.
 *
 * Invariant: a handle belongs to a segment, to remap.transit, or to a call in progress. Bytes that
 * left the reserve stay in remap.unmapping_bytes until their handle is released or mapped again.
 * Exception: a handle is lost if the driver does not unmap it, and there is no host memory for its
 * segment or the context has ended.
 */
#include "vmm/handles.h"

#include "heap/page_map.h"
#include "heap/va_range.h"
#include "policy/budget.h"
#include "sync/sync.h"

#include <errno.h>

static uint32_t pages_of(uint64_t bytes) {
    return (uint32_t)(bytes >> PAGE_SHIFT);
}

/* Keeps the segment from being selected again before the remap lock is released. */
static void mark_refused(struct source *source, struct segment *segment) {
    segment->refused = true;
    source->remap.any_refused = true;
}

/* Adds a segment for a handle that is mapped at `base`, behind `after` (NULL: in front of all).
 * Returns NULL without host memory. */
static struct segment *add_segment(struct source *source, struct arena *arena, uint64_t base,
                                   const struct detached *moved, struct segment *after) {
    if (arena_add(arena, base, moved->bytes, after) != 0)
        return NULL;
    struct segment *segment = after ? after->next : arena->segments;
    segment->handle = moved->handle;
    segment->stamp = moved->stamp;
    segment->since = source->decay.tick;
    return segment;
}

/* --- handles in transit --- */

bool handles_detach(struct source *source, struct arena *arena, struct segment *segment) {
    struct backend *backend = source->backend;
    struct transit *transit = &source->remap.transit;
    const struct stale_mapping stale_mapping = {segment->base, segment->bytes, segment->stamp};
    const struct detached moved = {segment->handle, segment->bytes, segment->stamp, arena,
                                   segment->base};
    if (!arena_remove(arena, segment)) {
        mark_refused(source, segment);
        return false;
    }
    stale_add(&arena->stale_mappings, &stale_mapping);
    /* arena_remove() cleared the owner. A second free of an address there must still find the pool,
     * so that the library refuses it (find_live() in pool/lookup.c). */
    page_map_set_owner(stale_mapping.base, stale_mapping.bytes, arena->pool);
    unsigned i = transit->count++;
    for (; i > 0 && transit->handles[i - 1].bytes < moved.bytes; i--)
        transit->handles[i] = transit->handles[i - 1];
    transit->handles[i] = moved;
    transit->bytes += moved.bytes;
    atomic_fetch_add(&source->remap.unmapping_bytes, moved.bytes);
    if (backend->ops->mark_stale)
        backend->ops->mark_stale(backend, stale_mapping.base, pages_of(stale_mapping.bytes), false);
    return true;
}

/* Keeps a mapping in the table if the driver refuses to unmap it. The table does not change while
 * the pool's lock is released: only a thread with the remap lock changes it. */
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
            page_map_remove(stale_mapping.base, stale_mapping.bytes, arena->pool);
            stale_remove(&arena->stale_mappings, stale_mapping.base);
        } else {
            i++;
        }
    }
}

/* Releases a handle that is in remap.unmapping_bytes. Called without the pool's lock. */
static void release_handle(struct source *source, const struct detached *moved) {
    source->backend->ops->release_handles(source->backend, 1, pages_of(moved->bytes),
                                          &moved->handle);
    atomic_fetch_sub(&source->remap.unmapping_bytes, moved->bytes);
}

/* The stale mapping of a released handle stays. The driver has the memory once that is unmapped. */
void handles_reattach(struct source *source) {
    struct transit *transit = &source->remap.transit;
    struct backend *backend = source->backend;
    for (unsigned i = 0; i < transit->count; i++) {
        const struct detached *moved = &transit->handles[i];
        struct segment *after = arena_before(moved->arena, moved->base);
        if (add_segment(source, moved->arena, moved->base, moved, after)) {
            stale_remove(&moved->arena->stale_mappings, moved->base);
            atomic_fetch_sub(&source->remap.unmapping_bytes, moved->bytes);
            if (backend->ops->mark_stale)
                backend->ops->mark_stale(backend, moved->base, pages_of(moved->bytes), true);
        } else {
            lock_release(&source->lock);
            release_handle(source, moved);
            lock_acquire(&source->lock);
            counter_add(&source->counters.driver_frees, 1);
        }
    }
    transit->count = 0;
    transit->bytes = 0;
}

/* --- release --- */

int handles_release(struct source *source, struct arena *arena, struct segment *segment,
                    uint64_t *released) {
    struct backend *backend = source->backend;
    struct segment was = *segment, *after = segment->previous;
    const struct detached moved = {.handle = was.handle, .bytes = was.bytes, .stamp = was.stamp};
    if (!arena_remove(arena, segment)) {
        mark_refused(source, segment);
        return -EBUSY;
    }
    atomic_fetch_add(&source->remap.unmapping_bytes, was.bytes);
    budget_count_reserve(source);
    lock_release(&source->lock);
    int r = backend->ops->unmap(backend, was.base, pages_of(was.bytes), false);
    if (r == 0)
        release_handle(source, &moved);
    lock_acquire(&source->lock);
    if (r == 0) {
        counter_add(&source->counters.driver_frees, 1);
        *released = was.bytes;
    } else {
        atomic_fetch_sub(&source->remap.unmapping_bytes, was.bytes);
        struct segment *kept = add_segment(source, arena, was.base, &moved, after);
        if (kept) {
            kept->since = was.since;
            kept->externally_visible = was.externally_visible;
            mark_refused(source, kept);
        }
    }
    return r;
}

/* --- create and map --- */

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
    for (; last != in_front; last = last->previous)
        handles_unhold(source, arena, last->first);
}

/* Unmaps and releases `count` mapped handles that have no segment: there was no host memory for
 * one. If the driver refuses to unmap them, they stay with it, and are not counted as freed. */
static void undo_map(struct source *source, uint64_t base, uint64_t each, const uint64_t *handles,
                     unsigned count) {
    struct backend *backend = source->backend;
    lock_release(&source->lock);
    bool unmapped = backend->ops->unmap(backend, base, count * pages_of(each), false) == 0;
    if (unmapped)
        backend->ops->release_handles(backend, count, pages_of(each), handles);
    lock_acquire(&source->lock);
    counter_add(&source->counters.driver_frees, unmapped ? count : 0);
}

/* Maps `count` handles of `each` bytes at consecutive addresses, and holds their segments. `moved`:
 * the same handles in transit, or NULL for new ones. Clears *mapped if the driver refused: the
 * handles then still belong to the caller. Otherwise they have segments, or are released again.
 * Returns 0, -ENOMEM or -ERANGE. Releases the pool's lock for the driver. */
static int map_batch(struct source *source, struct arena *arena, uint64_t base, uint64_t each,
                     const uint64_t *handles, const struct detached *moved, unsigned count,
                     struct segment **last, bool *mapped) {
    struct backend *backend = source->backend;
    lock_release(&source->lock);
    int r = backend->ops->map(backend, base, count, pages_of(each), handles);
    lock_acquire(&source->lock);
    *mapped = r == 0;
    if (r != 0)
        return r == -ENOMEM ? -ENOMEM : -ERANGE;
    source->remap.made_bytes += count * each;
    for (unsigned i = 0; i < count; i++) {
        const struct detached one = {
            .handle = handles[i], .bytes = each, .stamp = moved ? moved[i].stamp : 0};
        struct segment *added = add_segment(source, arena, base + i * each, &one, *last);
        if (!added) {
            undo_map(source, base + i * each, each, handles + i, count - i);
            return -ERANGE;
        }
        *last = added;
        handles_hold(source, arena, added->first);
    }
    return 0;
}

/* Maps all handles in transit, in batches of one length. A handle that the driver does not map
 * remains in transit. Returns as map_batch(). */
static int map_transit(struct source *source, struct arena *arena, uint64_t base,
                       struct transit *transit, struct segment **last) {
    int r = 0;
    unsigned done = 0;
    bool mapped = true;
    while (r == 0 && done < transit->count) {
        const struct detached *batch = transit->handles + done;
        uint64_t handles[MAP_BATCH];
        unsigned count = 0;
        for (; count < MAP_BATCH && done + count < transit->count &&
               batch[count].bytes == batch->bytes;
             count++)
            handles[count] = batch[count].handle;
        uint64_t bytes = count * batch->bytes;
        source->growing.bytes += bytes;
        r = map_batch(source, arena, base, batch->bytes, handles, batch, count, last, &mapped);
        source->growing.bytes -= bytes;
        if (mapped) {
            atomic_fetch_sub(&source->remap.unmapping_bytes, bytes);
            transit->bytes -= bytes;
            done += count;
        }
        base += bytes;
    }
    transit->count -= done;
    for (unsigned i = 0; i < transit->count; i++)
        transit->handles[i] = transit->handles[done + i];
    return r;
}

/* Creates and maps `count` new handles of `each` bytes, at most MAP_BATCH. Returns as
 * handles_make(). Releases the pool's lock for the driver. */
static int create_batch(struct source *source, struct arena *arena, uint64_t base, unsigned count,
                        uint64_t each, struct segment **last) {
    struct backend *backend = source->backend;
    uint64_t handles[MAP_BATCH], bytes = count * each;
    bool mapped;
    source->growing.bytes += bytes;
    lock_release(&source->lock);
    int r = backend->ops->create_handles(backend, count, pages_of(each), handles);
    lock_acquire(&source->lock);
    if (r == 0) {
        counter_add(&source->counters.driver_allocs, count);
        r = map_batch(source, arena, base, each, handles, NULL, count, last, &mapped);
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

/* A live block keeps every segment that it touches from being released. A request for few bytes
 * therefore gets a short handle, which similar requests can fill. Longer requests get long handles:
 * while the device has free memory, a driver call takes about as long for a short handle as for a
 * long one. remap.size_shift shortens all handles (shorten_if_trapped() in remap.c). */
uint64_t handles_length(const struct source *source, uint64_t like) {
    uint64_t each = VMM_HANDLE;
    while (each / 2 >= like && each > VMM_HANDLE_LEAST && !is_ablated(ABLATION_LENGTH))
        each /= 2;
    return max_u64(each >> source->remap.size_shift, VMM_HANDLE_LEAST);
}

/* Prepares all descriptors first: a mapping without a descriptor has to be undone. Other threads
 * may still use the descriptors up while the pool's lock is released: see undo_map().
 *
 * Divides the `rest` bytes that need new handles:
 *
 *      1  `each` up to VMM_HANDLE   handles of `each` bytes, the last one may be shorter
 *      2  `each` longer             handles of `each` bytes, perhaps a shorter one, and a last one
 *                                   of at most VMM_HANDLE bytes: the block need not fill the last
 *                                   one, and other blocks may begin there */
int handles_make(struct source *source, struct arena *arena, const struct gap *gap, uint64_t each,
                 struct transit *transit, struct segment **last) {
    struct backend *backend = source->backend;
    uint64_t moved_bytes = transit ? transit->bytes : 0;
    uint64_t base = gap->base + moved_bytes, rest = gap->bytes - moved_bytes;
    unsigned all = (transit ? transit->count : 0) + (unsigned)((rest + each - 1) / each);
    if (!arena_prepare(arena, all + 1) || page_map_prepare(gap->base, gap->bytes) != 0)
        return -ERANGE;
    int r = transit ? map_transit(source, arena, gap->base, transit, last) : 0;
    if (r == 0 && rest > each && backend->ops->probe_handles) {
        lock_release(&source->lock);
        r = backend->ops->probe_handles(backend, pages_of(rest));
        lock_acquire(&source->lock);
    }
    for (uint64_t size; rest > 0 && r == 0; rest -= size, base += size) {
        uint64_t whole = (rest - 1) / VMM_HANDLE * VMM_HANDLE;
        uint64_t part = each > VMM_HANDLE && whole > 0 ? whole : rest;
        each = min_u64(each, part);
        uint64_t count = min_u64(part / each, MAP_BATCH);
        size = count * each;
        r = create_batch(source, arena, base, (unsigned)count, each, last);
    }
    return r;
}

/* --- split --- */

/*
 * While the device has free memory, creating and mapping a handle takes about the same time for
 * every length. A growth within the budget therefore takes few long handles. A handle is released
 * as a whole, however. Short handles therefore replace an idle long one before a block gets a part
 * of it, or when only a part has to go.
 *
 * The start of a very long handle becomes MAP_BATCH short ones, or more if the request needs more:
 * a request for a small part then waits for few mappings. The rest becomes handles, each as long as
 * the start: the next split replaces one of them. With one handle for the rest, each split would
 * create the whole rest anew, which takes 3 to 4 ms for each GiB on a full device
 * (docs/cuda-facts.md).
 */
int handles_make_short(struct source *source, struct arena *arena, uint64_t base, uint64_t bytes,
                       uint64_t like) {
    uint64_t each = handles_length(source, like);
    uint64_t split = max_u64(round_up(like, each), MAP_BATCH * each);
    split = bytes > split + VMM_HANDLE ? split : bytes;
    const struct gap front = {.base = base, .bytes = split};
    const struct gap rest = {.base = base + split, .bytes = bytes - split};
    struct segment *in_front = arena_before(arena, base), *last = in_front;
    int r = handles_make(source, arena, &front, min_u64(each, split), NULL, &last);
    if (r == 0 && rest.bytes > 0)
        r = handles_make(source, arena, &rest, min_u64(split, rest.bytes), NULL, &last);
    handles_unhold_all(source, arena, in_front, last);
    return r;
}

/* --- end of a context --- */

bool handles_end(struct source *source, struct arena *arena) {
    struct backend *backend = source->backend;
    bool all = true;
    for (unsigned i = 0; i < arena->stale_mappings.count; i++) {
        const struct stale_mapping *stale_mapping = &arena->stale_mappings.at[i];
        all &= backend->ops->unmap(backend, stale_mapping->base, pages_of(stale_mapping->bytes),
                                   true) == 0;
    }
    for (const struct segment *s = arena->segments; s; s = s->next) {
        bool refused = backend->ops->unmap(backend, s->base, pages_of(s->bytes), false) != 0;
        if (!refused)
            backend->ops->release_handles(backend, 1, pages_of(s->bytes), &s->handle);
        all &= !refused;
    }
    return all;
}
