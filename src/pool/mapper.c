/*
 * The mapper: whoever has the driver map or unmap the segments of a line, one thread at a time.
 *
 * Its lock is taken before the pool's, and that is dropped around every call of the driver. What the calls are
 * about is nobody else's meanwhile: addresses where nothing is yet, or nothing any more, and the free ranges beside
 * them, which are held.
 */
#include "pool/internal.h"

#include "pool/line.h"
#include "pool/page_map.h"

#include <errno.h>

static void enter(struct pool *pool) {
    lock_release(&pool->lock);
    lock_acquire(&pool->mapper);
    lock_acquire(&pool->lock);
}

/* What the driver has not taken may go the next time. */
static void forgive(struct arena *arena) {
    for (struct segment *s = arena->segments; s; s = s->next) {
        s->refused = false;
    }
}

static void leave(struct pool *pool) {
    if (pool->any_refused) {
        forgive(&pool->large);
        forgive(&pool->small);
        pool->any_refused = false;
    }
    lock_release(&pool->mapper);
}

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) & ~(unit - 1);
}

static uint32_t pages_of(uint64_t bytes) {
    return (uint32_t)(bytes >> PAGE_SHIFT);
}

/* --- what goes from one place to another --- */

/* Memory that is mapped nowhere, and is the driver's if it is not mapped again at once: to give it back and to take as much
 * would be a third of what mapping takes. */
struct moving {
    uint64_t each;
    unsigned count;
    uint64_t handles[MAP_BATCH];
};

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

/* -EBUSY: the driver has not taken it, or the driver's code. Without the pool's lock in between. */
static int release_segment(struct pool *pool, struct arena *arena, struct segment *segment,
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

/* Where something was. */
struct left {
    struct arena *arena;
    uint64_t base;
};

/* Of one that the driver does not take another one takes the place. */
static uint64_t release_one(struct pool *pool, struct moving *moving, struct left *left) {
    struct arena *const arenas[] = {&pool->large, &pool->small};
    uint64_t released = 0;
    for (unsigned i = 0; i < 2 && released == 0; i++) {
        struct segment *segment;
        int r = -EBUSY;
        while (r == -EBUSY && arenas[i]->idle_bytes > 0 &&
               (segment = arena_idle_segment(arenas[i], 0, pool->epochs.finished)) != NULL) {
            *left = (struct left){arenas[i], segment->base};
            r = release_segment(pool, arenas[i], segment, moving, &released);
        }
    }
    return released;
}

uint64_t mapper_release(struct pool *pool, uint64_t bytes) {
    uint64_t released = 0, some = 1;
    struct left left = {0};
    enter(pool);
    while (released < bytes && some > 0) {
        some = release_one(pool, NULL, &left);
        released += some;
    }
    leave(pool);
    return released;
}

uint64_t mapper_decay(struct pool *pool) {
    struct arena *arena;
    uint64_t released = 0;
    bool waits;
    enter(pool);
    struct segment *aged = source_aged(pool, &arena, &waits);
    if (aged) {
        release_segment(pool, arena, aged, NULL, &released);
    }
    leave(pool);
    return released;
}

/* --- growing --- */

/* Addresses for an arena: several times what the device has, if there are as many. */
static bool take_addresses(struct pool *pool, struct arena *arena, uint64_t least) {
    struct backend *backend = pool->backend;
    uint64_t bytes = (backend->capacity & ~(PAGE_BYTES - 1)) * LINE_TIMES, base;
    int r;
    if (!line_prepare(arena)) {
        return false;
    }
    lock_release(&pool->lock);
    least = round_up(least, PAGE_BYTES);
    bytes = bytes > least ? bytes : least;
    while ((r = backend->ops->take_addresses(backend, bytes, &base)) != 0 && bytes > least) {
        bytes = bytes / 2 & ~(PAGE_BYTES - 1);
        bytes = bytes > least ? bytes : least;
    }
    lock_acquire(&pool->lock);
    if (r == 0) {
        line_add(arena, base, bytes);
    }
    return r == 0;
}

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

/* It is ready, but for nobody else. */
static void hold(struct pool *pool, struct arena *arena, struct range *range) {
    arena_hold(arena, range);
    pool->held_bytes += range->bytes;
}

static void let_go(struct pool *pool, struct arena *arena, struct range *range) {
    pool->held_bytes -= range->bytes;
    arena_give(arena, range);
}

/* Of all segments behind one, up to another. */
static void let_go_of_all(struct pool *pool, struct arena *arena, const struct segment *in_front,
                          const struct segment *last) {
    for (; last != in_front; last = last->previous) {
        let_go(pool, arena, last->first);
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
        hold(pool, arena, (*last)->first);
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

/* Behind *last, which is then the last of them. Descriptors for all of them first: nothing is made to go back for want of
 * host memory. */
static int make_segments(struct pool *pool, struct arena *arena, const struct line_place *place,
                         struct moving *moving, struct segment **last) {
    uint64_t each = moving->each, base = place->base, there = moving->count * each;
    unsigned all = (unsigned)((place->bytes + each - 1) / each);
    if (!arena_prepare(arena, all) || page_map_prepare(base, place->bytes) != 0) {
        return -ERANGE;
    }
    int r = place->bytes > each + there ? look_for_pages(pool, place->bytes - there) : 0;
    for (uint64_t rest = place->bytes, some; rest > 0 && r == 0; rest -= some, base += some) {
        each = each < rest ? each : rest;
        uint64_t count = rest / each < MAP_BATCH ? rest / each : MAP_BATCH;
        some = count * each;
        r = make_some(pool, arena, base, (unsigned)count, each, moving, last);
    }
    return r;
}

static bool would_exceed(const struct pool *pool, uint64_t bytes, uint64_t budget) {
    return budget_expected(pool) + bytes > budget;
}

/* --- splitting --- */

/*
 * A handle costs about the same to make and to map whatever its length, so what the pool grows by below its budget comes in few.
 * But they go back whole or not at all. So a long one that is idle gives way to short ones at the same place, once, as soon as a
 * much shorter block would begin in it, or a part of it has to go.
 */
static void make_short_ones(struct pool *pool, struct arena *arena, uint64_t base, uint64_t bytes) {
    uint64_t each = LINE_SEGMENT >> pool->halvings;
    struct moving none = {.each = each < bytes ? each : bytes};
    const struct line_place place = {.base = base, .bytes = bytes};
    struct segment *in_front = arena_before(arena, base), *last = in_front;
    make_segments(pool, arena, &place, &none, &last);
    let_go_of_all(pool, arena, in_front, last);
}

void mapper_split(struct pool *pool, struct arena *arena, uint64_t bytes) {
    uint64_t released = 0;
    enter(pool);
    struct segment *idle = arena_pinned_by(arena, bytes, pool->epochs.finished);
    uint64_t base = idle ? idle->base : 0;
    if (idle && release_segment(pool, arena, idle, NULL, &released) == 0) {
        make_short_ones(pool, arena, base, released);
    }
    leave(pool);
}

/* Where there is no room under the budget, what lies idle goes back for it. */
static void make_room(struct pool *pool, uint64_t bytes, uint64_t budget, struct moving *moving) {
    uint64_t some = 1;
    while (some > 0 && would_exceed(pool, bytes, budget)) {
        uint64_t over = budget_expected(pool) + bytes - budget;
        struct left left = {0};
        over = round_up(over, LINE_SEGMENT);
        some = release_one(pool, moving, &left);
        if (some > over) {
            make_short_ones(pool, left.arena, left.base, some - over);
        }
    }
}

/* What finds no place is the driver's. */
static void give_all_but(struct pool *pool, struct moving *moving, uint64_t most) {
    if (moving->count > most) {
        unsigned surplus = moving->count - (unsigned)most;
        moving->count = (unsigned)most;
        lock_release(&pool->lock);
        give(pool, moving->each, surplus, moving->handles + most);
        lock_acquire(&pool->lock);
        books_add(&pool->books.driver_frees, surplus);
    }
}

/* Of what is free too much is beside what lives in the same segments: from now on they are half as long. Not once more before as
 * much has been made of those as there is; nor where what is lacking has not finished, will not be unmapped, or is what the
 * growth adds to. */
static void look_at_pins(struct pool *pool, uint64_t bytes, uint64_t budget) {
    uint64_t by = would_exceed(pool, bytes, budget) ? budget_expected(pool) + bytes - budget : 0;
    bool pinned = by > budget / LINE_PINNED_SHARE && by > source_idle(pool) &&
                  by <= budget_ready(pool) - pool->held_bytes;
    if (pinned && pool->made_bytes >= budget_used(pool) &&
        LINE_SEGMENT >> pool->halvings > LINE_SEGMENT_LEAST) {
        pool->halvings++;
        pool->made_bytes = 0;
    }
}

/*
 * A program that asks for the same again and again may find another place for it each time. What it takes to map memory
 * there may be a share of the program's time, and something more, anew whenever the peak has risen. Where it takes longer,
 * the pool grows for it instead, up to a part of the peak.
 */
static uint64_t more_slack(struct pool *pool, uint64_t bytes, uint64_t budget) {
    uint64_t share = (backend_clock(pool->backend) - pool->started_ns) / LINE_TIME_SHARE;
    uint64_t peak = books_get(&pool->books.allocated.peak), most = peak / LINE_SLACK_MORE;
    bool risen = peak > pool->mapping_peak + pool->mapping_peak / LINE_PEAK_SHARE;
    if (risen || peak < pool->mapping_peak) { /* which a program can reset */
        pool->mapping_peak = peak;
    }
    if (risen || share > pool->mapping_ns) {
        pool->mapping_ns = share;
    }
    uint64_t capacity = pool->backend->capacity; /* nor above what the device has */
    bool may_be_raised = pool->refused_at == 0 && pool->config.budget == 0 && budget < capacity;
    if (pool->mapping_ns <= share + LINE_TIME_MOST_NS || pool->mapping_slack >= most ||
        !may_be_raised) {
        return 0;
    }
    uint64_t lacking = budget_expected(pool) + bytes - budget, left = most - pool->mapping_slack;
    uint64_t more = lacking < left ? lacking : left;
    more = more < capacity - budget ? more : capacity - budget;
    pool->mapping_slack += more;
    pool->budget_follows = true;
    return more;
}

/* Below the budget few, however long they are; beyond it short ones, but whatever the growth no more than so many. */
static uint64_t length_of_segments(const struct pool *pool, uint64_t bytes, bool anew) {
    uint64_t each = LINE_SEGMENT >> pool->halvings;
    uint64_t least = round_up(bytes / LINE_SEGMENTS_MOST, PAGE_BYTES);
    if (!anew && pool->halvings == 0) {
        least = round_up(bytes / LINE_SEGMENTS_FEW, LINE_SEGMENT);
    }
    each = each > least ? each : least;
    return each < bytes ? each : bytes;
}

/* What is new is held like what it is added to, so that who asked for it gets it, and not whoever finds a part first. */
static int grow_at(struct pool *pool, struct arena *arena, const struct line_place *place,
                   uint64_t bytes) {
    uint64_t before = budget_used(pool), budget = budget_with(pool, bytes), some = 1;
    struct left left = {0};
    struct range *const beside[] = {place->left, place->right};
    for (unsigned i = 0; i < 2; i++) {
        if (beside[i]) {
            hold(pool, arena, beside[i]);
        }
    }
    bool anew = would_exceed(pool, place->bytes, budget);
    uint64_t since = anew ? backend_clock(pool->backend) : 0;
    budget += anew ? more_slack(pool, place->bytes, budget) : 0;
    struct moving moving = {.each = length_of_segments(pool, place->bytes, anew)};
    make_room(pool, place->bytes, budget, &moving);
    look_at_pins(pool, place->bytes, budget);
    give_all_but(pool, &moving, place->bytes / moving.each);
    struct segment *in_front = arena_before(arena, place->base), *last = in_front;
    int r = make_segments(pool, arena, place, &moving, &last);
    give_all_but(pool, &moving, 0);
    pool->mapping_ns += anew ? backend_clock(pool->backend) - since : 0;
    let_go_of_all(pool, arena, in_front, last);
    for (unsigned i = 0; i < 2; i++) {
        if (beside[i]) {
            let_go(pool, arena, beside[i]);
        }
    }
    while (r != 0 && budget_used(pool) > before && some > 0) { /* others may have use for that */
        some = release_one(pool, NULL, &left);
    }
    return r;
}

struct growth mapper_growth(const struct pool *pool, const struct arena *arena, uint64_t bytes) {
    struct line_place place;
    if (!line_find(arena, bytes, &place)) {
        place = (struct line_place){.bytes = bytes};
    }
    uint64_t finished = pool->epochs.finished;
    struct growth growth = {place.bytes, source_idle(pool), source_finished(pool)};
    const struct range *const beside[] = {place.left, place.right};
    for (unsigned i = 0; i < 2; i++) {
        growth.idle -= beside[i] ? range_idle_bytes(beside[i], UINT64_MAX) : 0;
        growth.finished -= beside[i] ? range_idle_bytes(beside[i], finished) : 0;
    }
    return growth;
}

int mapper_grow(struct pool *pool, struct arena *arena, uint64_t bytes) {
    uint64_t lives = pool_lives(pool);
    struct line_place place;
    int r = -ERANGE;
    budget_begin_growth(pool);
    enter(pool);
    if (lives != pool_lives(pool)) {
        r = -ENOMEM;
    } else if (arena_largest_free(arena) >= bytes) { /* another thread has brought it */
        r = 0;
    } else if (line_find(arena, bytes, &place)) {
        r = grow_at(pool, arena, &place, bytes);
    } else if (take_addresses(pool, arena, bytes)) {
        bool freed = arena_largest_free(arena) >= bytes; /* meanwhile */
        r = freed                             ? 0
            : line_find(arena, bytes, &place) ? grow_at(pool, arena, &place, bytes)
                                              : -ERANGE;
    }
    leave(pool);
    budget_end_growth(pool, r != 0 && bytes > PAGE_BYTES); /* it may have had some of them */
    return r;
}

/* --- the end --- */

static bool unmap_all(struct pool *pool, const struct arena *arena) {
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

/* Addresses where the driver has kept something are kept as well. */
void mapper_end(struct pool *pool, struct arena *arena) {
    uint64_t base, bytes;
    bool all = unmap_all(pool, arena);
    while (line_remove(arena, &base, &bytes)) {
        if (all) {
            pool->backend->ops->give_addresses(pool->backend, base, bytes);
        }
    }
}
