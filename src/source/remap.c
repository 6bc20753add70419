/*
 * The mapper: whoever has the driver map or unmap the segments of a line, one thread at a time.
 *
 * Its lock is taken before the pool's, and that is dropped around every call of the driver. What the calls are
 * about is nobody else's meanwhile: addresses where nothing is yet, or nothing any more, and the free ranges beside
 * them, which are held.
 */
#include "source/internal.h"

#include "memory/page_map.h"
#include "memory/va_range.h"
#include "source/handles.h"

#include <errno.h>

/* What has moved away, and is free of work by now, is unmapped where it was: before anything is made of those addresses, and before
 * any of it is given back. */
static void drop_stale(struct source *source) {
    if (source->large.stale_mappings.count + source->small.stale_mappings.count > 0) {
        uint64_t since = backend_clock(source->backend);
        handles_drop_stale(source, &source->large);
        handles_drop_stale(source, &source->small);
        source->remap.remap_ns += backend_clock(source->backend) - since;
    }
}

static void enter(struct source *source) {
    lock_release(&source->lock);
    lock_acquire(&source->remap.lock);
    lock_acquire(&source->lock);
    drop_stale(source);
}

/* What the driver has not taken may go the next time. */
static void forgive(struct arena *arena) {
    for (struct segment *s = arena->segments; s; s = s->next) {
        s->refused = false;
    }
}

static void leave(struct source *source) {
    if (source->remap.any_refused) {
        forgive(&source->large);
        forgive(&source->small);
        source->remap.any_refused = false;
    }
    lock_release(&source->remap.lock);
}

/* --- giving back --- */

/* Where a segment was that has gone back. */
struct vacated {
    struct arena *arena;
    uint64_t base;
};

/* Gives one segment back. Where the driver does not take it the next one is tried. */
static uint64_t release_one(struct source *source, uint64_t bytes, struct vacated *left) {
    struct arena *const arenas[] = {&source->large, &source->small};
    uint64_t released = 0;
    for (unsigned i = 0; i < 2 && released == 0; i++) {
        struct segment *segment;
        int r = -EBUSY;
        while (r == -EBUSY && arenas[i]->idle_bytes > 0 &&
               (segment = idle_segment(arenas[i], bytes, source->epochs.finished)) != NULL) {
            *left = (struct vacated){arenas[i], segment->base};
            r = handles_release(source, arenas[i], segment, &released);
        }
    }
    return released;
}

uint64_t remap_release(struct source *source, uint64_t bytes) {
    uint64_t released = 0, some = 1;
    struct vacated left = {0};
    enter(source);
    while (released < bytes && some > 0) {
        some = release_one(source, bytes - released, &left);
        released += some;
    }
    drop_stale(source); /* of what has finished meanwhile, and is the driver's only then */
    leave(source);
    return released;
}

uint64_t remap_decay(struct source *source) {
    struct arena *arena;
    uint64_t released = 0;
    bool waits;
    enter(source);
    struct segment *aged = source_aged(source, &arena, &waits);
    if (aged) {
        handles_release(source, arena, aged, &released);
        drop_stale(source); /* as in remap_release() */
    }
    leave(source);
    return released;
}

/* --- splitting --- */

bool remap_split(struct source *source, struct arena *arena, uint64_t bytes) {
    uint64_t released = 0;
    enter(source);
    struct segment *idle = arena_pinned_by(arena, bytes, source->epochs.finished);
    uint64_t base = idle ? idle->base : 0;
    int r = idle ? handles_release(source, arena, idle, &released) : 0;
    if (released > 0) {
        r = handles_make_short(source, arena, base, released, bytes);
    }
    leave(source);
    return r == 0;
}

/* --- growing --- */

/* Addresses for an arena: several times what the device has, if there are as many. */
static bool reserve_addresses(struct source *source, struct arena *arena, uint64_t least) {
    struct backend *backend = source->backend;
    uint64_t bytes = (backend->capacity & ~(PAGE_BYTES - 1)) * VMM_ADDRESS_TIMES, base;
    int r;
    if (!va_range_prepare(arena)) {
        return false;
    }
    lock_release(&source->lock);
    least = round_up(least, PAGE_BYTES);
    bytes = max_u64(bytes, least);
    while ((r = backend->ops->reserve_addresses(backend, bytes, &base)) != 0 && bytes > least) {
        bytes = max_u64(bytes / 2 & ~(PAGE_BYTES - 1), least);
    }
    lock_acquire(&source->lock);
    if (r == 0) {
        va_range_add(arena, base, bytes);
    }
    return r == 0;
}

/* One whose stamp is at least `from`. */
static bool move_one(struct source *source, uint64_t most, uint64_t from, struct transit *transit) {
    struct arena *const arenas[] = {&source->large, &source->small};
    for (unsigned i = 0; i < 2 && transit->count < TRANSIT_MOST; i++) {
        struct segment *segment = idle_movable(arenas[i], most, from);
        if (segment && handles_detach(source, arenas[i], segment, transit)) {
            return true;
        }
    }
    return false;
}

/* As long as the pool makes the longest of them now. */
static uint64_t unit_of(const struct source *source) {
    return VMM_HANDLE >> source->remap.size_shift;
}

/* What lies idle and can go back, not beside the place. */
static uint64_t finished_bytes(const struct source *source, const struct gap *gap) {
    struct idle_room none = {0};
    uint64_t finished = source->epochs.finished;
    return idle_available_bytes(&source->large, finished, gap, UINT64_MAX, &none) +
           idle_available_bytes(&source->small, finished, gap, UINT64_MAX, &none);
}

/* Moves idle segments to the place until the growth is within the budget. The place becomes longer than it need be if there is room, so
 * that whole units can move, and move on. Those whose work has not finished are first where the others are needed too: these could
 * also go back, and only so many can move. */
static void move_to_gap(struct source *source, uint64_t budget, struct gap *gap,
                        struct transit *transit) {
    uint64_t least = gap->bytes, from = source->epochs.finished + 1;
    uint64_t available = finished_bytes(source, gap);
    gap_become(gap, round_up(least, unit_of(source)));
    while (budget_would_exceed(source, gap->bytes, budget)) {
        from = budget_would_exceed(source, gap->bytes, budget + available) ? from : 0;
        if (!move_one(source, gap->bytes - transit->bytes, from, transit)) {
            if (from == 0) {
                break;
            }
            from = available = 0; /* there are no others */
        }
    }
    if (budget_would_exceed(source, gap->bytes, budget)) {
        gap_become(gap, max_u64(transit->bytes, least));
    }
}

/* Where that was not enough: gives idle segments back until the growth is within the budget. */
static void make_room(struct source *source, uint64_t bytes, uint64_t budget) {
    uint64_t some = 1;
    while (some > 0 && budget_would_exceed(source, bytes, budget)) {
        uint64_t over = budget_expected(source) + bytes - budget;
        struct vacated left = {0};
        over = round_up(over, VMM_HANDLE);
        some = release_one(source, over, &left);
        if (some > over) {
            handles_make_short(source, left.arena, left.base, some - over, bytes);
        }
    }
}

/* Too much of what is free lies beside live blocks in the same segments: new ones are half as long from now on. Not once more before as
 * much has been made of those as there is; nor where idle segments, or what has not finished, are what is lacking. */
static void shorten_if_pinned(struct source *source, uint64_t bytes, uint64_t budget) {
    uint64_t by =
        budget_would_exceed(source, bytes, budget) ? budget_expected(source) + bytes - budget : 0;
    bool pinned = by > budget / VMM_PINNED_SHARE && by > source_idle(source) &&
                  by <= budget_free(source) - source->remap.held_bytes;
    if (pinned && source->remap.made_bytes >= budget_used(source) &&
        VMM_HANDLE >> source->remap.size_shift > VMM_HANDLE_LEAST) {
        source->remap.size_shift++;
        source->remap.made_bytes = 0;
    }
}

/*
 * A program that asks for the same again and again may find another place for it each time. What it takes to map memory
 * there may be a share of the time, and something more. Where it takes longer the goal is raised by a part of the peak;
 * by another one where it then goes on to take much of the time, and so on: but what it has not taken of that is kept for
 * a while, or a burst now and then would raise it for ever.
 */
struct rule {
    uint64_t share, more, kept;
};

static const struct rule first_part = {REMAP_TIME_SHARE, REMAP_TIME_MOST_NS, 0};
static const struct rule further_parts = {REMAP_TIME_MUCH_SHARE, REMAP_TIME_AGAIN_NS,
                                          REMAP_TIME_KEPT_NS};

static bool remap_takes_too_long(struct source *source, uint64_t peak) {
    const struct rule *rule = source->remap.slack_steps == 0 ? &first_part : &further_parts;
    uint64_t now = backend_clock(source->backend);
    uint64_t allowed = (now - source->remap.since_ns) / rule->share;
    bool risen = peak > source->remap.peak + source->remap.peak / REMAP_PEAK_SHARE;
    bool too_long = source->remap.remap_ns > allowed + rule->more && !risen;
    if (risen) { /* what was needed beside less is not needed so many times over */
        source->remap.slack_steps =
            (unsigned)(source->remap.slack_steps * source->remap.peak / peak);
    }
    if (risen || peak < source->remap.peak) { /* which a program can reset */
        source->remap.peak = peak;
    }
    if (risen || too_long) {
        source->remap.since_ns = now;
        source->remap.remap_ns = 0;
    } else if (allowed > source->remap.remap_ns + rule->kept) {
        source->remap.since_ns = now - (source->remap.remap_ns + rule->kept) * rule->share;
    }
    return too_long;
}

/* Raises the goal by what the growth is beyond the budget, as far as the rules above let it. Returns by how much. */
static uint64_t more_slack(struct source *source, uint64_t bytes, uint64_t budget) {
    uint64_t capacity = source->backend->capacity; /* nor above what the device has */
    bool may_be_raised = source->refused_at == 0 && source->config.budget == 0 && budget < capacity;
    if (remap_takes_too_long(source, counter_get(&source->counters.allocated.peak)) &&
        may_be_raised) {
        source->remap.slack_steps += source->remap.slack_steps < REMAP_SLACK_STEPS;
    }
    uint64_t most = budget_remap_slack_most(source);
    if (source->remap.slack >= most || !may_be_raised) {
        return 0;
    }
    uint64_t lacking = budget_expected(source) + bytes - budget, left = most - source->remap.slack;
    uint64_t more = min_u64(min_u64(lacking, left), capacity - budget);
    source->remap.slack += more;
    source->budget_stale = true;
    return more;
}

/* Below the budget few, however long they are; beyond it short ones, but whatever the growth no more than so many. */
static uint64_t length_of_segments(const struct source *source, uint64_t bytes, uint64_t like,
                                   bool anew) {
    uint64_t each = handles_length(source, like);
    uint64_t least = round_up(bytes / VMM_HANDLES_MOST, PAGE_BYTES);
    if (!anew && source->remap.size_shift == 0) {
        least = round_up(bytes / VMM_HANDLES_FEW, VMM_HANDLE);
    }
    each = max_u64(each, least);
    return bytes > 0 ? min_u64(each, bytes) : each;
}

/* What is new is held like what it is added to, so that who asked for it gets it, and not whoever finds a part first. */
static int grow_at(struct source *source, struct arena *arena, struct gap *gap, uint64_t bytes) {
    uint64_t before = budget_used(source), budget = budget_with(source, bytes), some = 1;
    struct vacated left = {0};
    struct transit transit;
    struct range *const beside[] = {gap->left, gap->right};
    transit.count = 0;
    transit.bytes = 0;
    for (unsigned i = 0; i < 2; i++) {
        if (beside[i]) {
            handles_hold(source, arena, beside[i]);
        }
    }
    bool anew = budget_would_exceed(source, gap->bytes, budget);
    uint64_t since = anew ? backend_clock(source->backend) : 0;
    if (anew) {
        budget += more_slack(source, gap->bytes, budget);
        move_to_gap(source, budget, gap, &transit);
        budget_count_reserve(source);
        make_room(source, gap->bytes, budget);
        shorten_if_pinned(source, gap->bytes, budget);
    }
    struct segment *in_front = arena_before(arena, gap->base), *last = in_front;
    uint64_t each = length_of_segments(source, gap->bytes - transit.bytes, bytes, anew);
    int r = handles_make(source, arena, gap, each, &transit, &last);
    source->remap.remap_ns += anew ? backend_clock(source->backend) - since : 0;
    handles_unhold_all(source, arena, in_front, last);
    handles_reattach(source, &transit); /* it may have been in front of what has come */
    for (unsigned i = 0; i < 2; i++) {
        if (beside[i]) {
            handles_unhold(source, arena, beside[i]);
        }
    }
    while (r != 0 && budget_used(source) > before && some > 0) { /* others may have use for that */
        some = release_one(source, 0, &left);
    }
    return r;
}

struct growth remap_growth(const struct source *source, const struct arena *arena, uint64_t bytes,
                           uint64_t budget) {
    struct gap gap;
    const struct arena *const arenas[] = {&source->large, &source->small};
    if (!va_range_find(arena, bytes, &gap)) {
        gap = (struct gap){.bytes = bytes, .room = UINT64_MAX}; /* in addresses to be taken */
    }
    struct growth growth = {gap.bytes, source_idle(source), 0};
    uint64_t then = budget_expected(source) + gap.bytes, over = then > budget ? then - budget : 0;
    gap_become(&gap, round_up(gap.bytes, unit_of(source)));
    struct idle_room room = {gap.bytes, TRANSIT_MOST};
    for (unsigned i = 0; i < 2 && growth.available < over; i++) {
        growth.available += idle_available_bytes(arenas[i], source->epochs.finished, &gap,
                                                 over - growth.available, &room);
    }
    const struct range *const beside[] = {gap.left, gap.right};
    for (unsigned i = 0; i < 2 && over > 0; i++) {
        growth.idle -= beside[i] ? range_idle_bytes(beside[i]) : 0;
    }
    return growth;
}

int remap_grow(struct source *source, struct arena *arena, uint64_t bytes) {
    struct gap gap;
    int r = -ERANGE;
    budget_begin_growth(source);
    enter(source); /* from here on no context ends, and nothing from before is relied on */
    if (arena_largest_free(arena) >= bytes) { /* another thread has brought it */
        r = 0;
    } else if (va_range_find(arena, bytes, &gap)) {
        r = grow_at(source, arena, &gap, bytes);
    } else if (reserve_addresses(source, arena, bytes)) {
        bool freed = arena_largest_free(arena) >= bytes; /* meanwhile */
        r = freed                               ? 0
            : va_range_find(arena, bytes, &gap) ? grow_at(source, arena, &gap, bytes)
                                                : -ERANGE;
    }
    leave(source);
    budget_end_growth(source, r != 0 && bytes > PAGE_BYTES); /* it may have had some of them */
    return r;
}

/* --- the end --- */

/* Addresses where the driver has kept something are kept as well. What the next context's memory takes is not known. */
void remap_end(struct source *source, struct arena *arena) {
    uint64_t base, bytes;
    source->remap.size_shift = source->remap.slack_steps = 0;
    source->remap.made_bytes = source->remap.slack = 0;
    bool all = handles_end(source, arena);
    while (va_range_remove(arena, &base, &bytes)) {
        if (all) {
            source->backend->ops->free_addresses(source->backend, base, bytes);
        }
    }
}
