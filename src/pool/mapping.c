#include "pool/mapping.h"

#include "pool/internal.h"
#include "pool/line.h"
#include "pool/page_map.h"

#include <errno.h>

static uint32_t pages_of(uint64_t bytes) {
    return (uint32_t)(bytes >> PAGE_SHIFT);
}

/* --- what goes from one place to another --- */

/* What others can reach is theirs as well until they let go of it. */
static bool move(struct moving *moving, const struct segment *was) {
    bool moves = moving && was->bytes == moving->each && moving->count < MAP_BATCH &&
                 !was->reached_from_outside;
    if (moves) {
        moving->handles[moving->count++] = was->handle;
    }
    return moves;
}

/* Without the pool's lock. */
static void give(struct pool *pool, uint64_t each, unsigned count, const uint64_t *handles) {
    pool->backend->ops->give_pages(pool->backend, count, pages_of(each), handles);
    atomic_fetch_sub(&pool->leaving_bytes, count * each);
}

/* --- giving back --- */

static void refuse(struct pool *pool, struct segment *segment) {
    segment->refused = true;
    pool->any_refused = true;
}

/* Where it was, as it was. */
static void put_back(struct pool *pool, struct arena *arena, const struct segment *was,
                     struct segment *after) {
    if (arena_add(arena, was->base, was->bytes, after) == 0) {
        struct segment *kept = after ? after->next : arena->segments;
        kept->handle = was->handle;
        kept->stamp = was->stamp;
        kept->since = was->since;
        kept->reached_from_outside = was->reached_from_outside;
        refuse(pool, kept);
    }
}

int mapping_release(struct pool *pool, struct arena *arena, struct segment *segment,
                    struct moving *moving, uint64_t *released) {
    struct backend *backend = pool->backend;
    struct segment was = *segment, *after = segment->previous;
    if (!arena_remove(arena, segment)) {
        refuse(pool, segment);
        return -EBUSY;
    }
    atomic_fetch_add(&pool->leaving_bytes, was.bytes);
    budget_book_reserve(pool);
    lock_release(&pool->lock);
    int r = backend->ops->unmap(backend, was.base, pages_of(was.bytes));
    bool moves = r == 0 && move(moving, &was);
    if (r == 0 && !moves) {
        give(pool, was.bytes, 1, &was.handle);
    }
    lock_acquire(&pool->lock);
    if (r == 0) {
        books_add(&pool->books.driver_frees, !moves);
        *released = was.bytes;
    } else {
        atomic_fetch_sub(&pool->leaving_bytes, was.bytes);
        put_back(pool, arena, &was, after);
    }
    return r;
}

void mapping_give_all_but(struct pool *pool, struct moving *moving, uint64_t most) {
    if (moving->count > most) {
        unsigned surplus = moving->count - (unsigned)most;
        moving->count = (unsigned)most;
        lock_release(&pool->lock);
        give(pool, moving->each, surplus, moving->handles + most);
        lock_acquire(&pool->lock);
        books_add(&pool->books.driver_frees, surplus);
    }
}

/* --- making --- */

/* What the driver made and mapped, and there is no descriptor for. */
static void unmake(struct pool *pool, uint64_t base, unsigned count, uint64_t each,
                   const uint64_t *pages) {
    struct backend *backend = pool->backend;
    lock_release(&pool->lock);
    if (backend->ops->unmap(backend, base, count * pages_of(each)) == 0) {
        backend->ops->give_pages(backend, count, pages_of(each), pages);
    }
    lock_acquire(&pool->lock);
}

/* The driver's part of make_some(), without the pool's lock. *taken: so many were not ours before. */
static int map_some(struct pool *pool, uint64_t base, unsigned count, uint64_t each,
                    struct moving *moving, uint64_t *pages, unsigned *taken) {
    struct backend *backend = pool->backend;
    unsigned moved = 0;
    while (each == moving->each && moved < count && moving->count > 0) {
        pages[moved++] = moving->handles[--moving->count];
    }
    atomic_fetch_sub(&pool->leaving_bytes, moved * each);
    *taken = count - moved;
    int r =
        *taken > 0 ? backend->ops->take_pages(backend, *taken, pages_of(each), pages + moved) : 0;
    unsigned had = r == 0 ? count : moved;
    int mapped = r == 0 ? backend->ops->map(backend, base, count, pages_of(each), pages) : 0;
    if ((r != 0 || mapped != 0) && had > 0) {
        backend->ops->give_pages(backend, had, pages_of(each), pages);
    }
    return mapped == 0 ? r : mapped == -ENOMEM ? -ENOMEM : -ERANGE;
}

void mapping_hold(struct pool *pool, struct arena *arena, struct range *range) {
    arena_hold(arena, range);
    pool->held_bytes += range->bytes;
}

void mapping_let_go(struct pool *pool, struct arena *arena, struct range *range) {
    pool->held_bytes -= range->bytes;
    arena_give(arena, range);
}

void mapping_let_go_of_all(struct pool *pool, struct arena *arena, const struct segment *in_front,
                           const struct segment *last) {
    for (; last != in_front; last = last->previous) {
        mapping_let_go(pool, arena, last->first);
    }
}

/* So many segments of a size, behind *last, which is then the last of them. They are held. */
static int make_some(struct pool *pool, struct arena *arena, uint64_t base, unsigned count,
                     uint64_t each, struct moving *moving, struct segment **last) {
    uint64_t pages[MAP_BATCH], bytes = count * each;
    unsigned taken;
    pool->growing += bytes;
    lock_release(&pool->lock);
    int r = map_some(pool, base, count, each, moving, pages, &taken);
    lock_acquire(&pool->lock);
    pool->growing -= bytes;
    books_add(&pool->books.driver_allocs, r == 0 ? taken : 0);
    books_add(&pool->books.driver_frees, r == 0 ? 0 : count - taken);
    pool->made_bytes += r == 0 ? bytes : 0;
    for (unsigned i = 0; i < count && r == 0; i++) {
        r = arena_add(arena, base + i * each, each, *last);
        if (r != 0) {
            unmake(pool, base + i * each, count - i, each, pages + i);
            books_add(&pool->books.driver_frees, count - i);
            return -ERANGE;
        }
        *last = *last ? (*last)->next : arena->segments;
        (*last)->handle = pages[i];
        mapping_hold(pool, arena, (*last)->first);
    }
    return r;
}

static int look_for_pages(struct pool *pool, uint64_t bytes) {
    struct backend *backend = pool->backend;
    int r = 0;
    if (bytes > PAGE_BYTES && backend->ops->look_for_pages) {
        lock_release(&pool->lock);
        r = backend->ops->look_for_pages(backend, pages_of(bytes));
        lock_acquire(&pool->lock);
    }
    return r;
}

/* The end of what comes in long ones is short: the block need not fill it, and others may begin there. */
static uint64_t short_of_end(uint64_t each, uint64_t rest) {
    uint64_t part = (rest - 1) / LINE_SEGMENT * LINE_SEGMENT;
    return each > LINE_SEGMENT && part > 0 ? part : rest;
}

/* Descriptors for all of them first: nothing is made to go back for want of host memory. */
int mapping_make(struct pool *pool, struct arena *arena, const struct line_place *place,
                 struct moving *moving, struct segment **last) {
    uint64_t each = moving->each, base = place->base, there = moving->count * each;
    unsigned all = (unsigned)((place->bytes + each - 1) / each);
    if (!arena_prepare(arena, all + 1) || page_map_prepare(base, place->bytes) != 0) {
        return -ERANGE;
    }
    int r = place->bytes > each + there ? look_for_pages(pool, place->bytes - there) : 0;
    for (uint64_t rest = place->bytes, some; rest > 0 && r == 0; rest -= some, base += some) {
        uint64_t part = short_of_end(each, rest);
        each = each < part ? each : part;
        uint64_t count = part / each < MAP_BATCH ? part / each : MAP_BATCH;
        some = count * each;
        r = make_some(pool, arena, base, (unsigned)count, each, moving, last);
    }
    return r;
}

/* --- splitting --- */

/*
 * A handle costs about the same to make and to map whatever its length, so what the pool grows by below its budget comes in few.
 * But they go back whole or not at all. So a long one that is idle gives way to short ones at the same place, once, as soon as a
 * block would be put into a part of it, or a part of it has to go.
 */
int mapping_make_short(struct pool *pool, struct arena *arena, uint64_t base, uint64_t bytes) {
    uint64_t each = LINE_SEGMENT >> pool->halvings;
    struct moving none = {.each = each < bytes ? each : bytes};
    const struct line_place place = {.base = base, .bytes = bytes};
    struct segment *in_front = arena_before(arena, base), *last = in_front;
    int r = mapping_make(pool, arena, &place, &none, &last);
    mapping_let_go_of_all(pool, arena, in_front, last);
    return r;
}

/* --- the end --- */

bool mapping_end(struct pool *pool, const struct arena *arena) {
    struct backend *backend = pool->backend;
    bool all = true;
    for (const struct segment *s = arena->segments; s; s = s->next) {
        bool refused = backend->ops->unmap(backend, s->base, pages_of(s->bytes)) != 0;
        if (!refused) {
            backend->ops->give_pages(backend, 1, pages_of(s->bytes), &s->handle);
        }
        all &= !refused;
    }
    return all;
}
