#include "fake.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define REGION_BYTES ((uint64_t)64 << 30)
#define ADDRESSES_AT_A_TIME ((uint64_t)16 << 30) /* bytes per call; other arenas need some too */

static _Thread_local bool inside_free;

static struct fake *of(struct backend *backend) {
    return (struct fake *)backend;
}

static void break_law(struct fake *fake, const char *what) {
    if (fake->broken_laws++ == 0)
        fake->broken = what;
}

static bool is_done(const struct fake *fake, const uint64_t *captured) {
    for (unsigned s = 0; s < FAKE_STREAMS; s++)
        if (captured[s] > fake->completed[s])
            return false;
    return true;
}

static void finish(struct fake *fake, const uint64_t *captured) {
    for (unsigned s = 0; s < FAKE_STREAMS; s++)
        if (captured[s] > fake->completed[s])
            fake->completed[s] = captured[s];
}

/* --- memory --- */

static struct fake_segment *free_segment(struct fake *fake, uint64_t bytes) {
    for (unsigned i = 0; i < fake->segment_count; i++)
        if (!fake->segments[i].taken && fake->segments[i].bytes == bytes)
            return &fake->segments[i];
    if (fake->segment_count == FAKE_SEGMENTS || fake->next + bytes > fake->base + REGION_BYTES)
        return NULL;
    struct fake_segment *segment = &fake->segments[fake->segment_count++];
    *segment = (struct fake_segment){.address = fake->next, .bytes = bytes};
    fake->next += bytes + 4 * MIB; /* segments are never adjacent, as the driver's are not */
    return segment;
}

static int reserve_locked(struct fake *fake, uint64_t bytes, uint64_t *address) {
    fake->reserves++;
    if (fake->refusals > 0) {
        fake->refusals--;
        return fake->refusal;
    }
    if (bytes == 0 || bytes % (2 * MIB) != 0)
        break_law(fake, "a reservation that is no multiple of 2 MiB");
    if (fake->limit && (bytes > fake->limit || fake->reserved > fake->limit - bytes))
        return -EDQUOT;
    if (bytes > fake->memory || fake->reserved > fake->memory - bytes)
        return -ENOMEM;
    struct fake_segment *segment = free_segment(fake, bytes);
    if (!segment)
        return -ENOMEM;
    segment->taken = true;
    fake->reserved += bytes;
    if (fake->reserved > fake->reserved_peak)
        fake->reserved_peak = fake->reserved;
    *address = segment->address + fake->misalign;
    return 0;
}

static int reserve(struct backend *backend, uint64_t bytes, uint64_t *address) {
    struct fake *fake = of(backend);
    pthread_mutex_lock(&fake->lock);
    int r = reserve_locked(fake, bytes, address);
    pthread_mutex_unlock(&fake->lock);
    return r;
}

/* Completes the releases unless a barrier holds up their stream. Returns whether no release is
 * pending. */
static bool complete_returns(struct fake *fake) {
    if (is_done(fake, fake->returns_behind)) {
        fake->reserved -= fake->on_its_way;
        fake->on_its_way = 0;
    }
    return fake->on_its_way == 0;
}

static struct fake_mapping *mapping_at(struct fake *fake, uint64_t address);

/* Checks that no work recorded by fake_reach() uses the memory, and removes these records. */
static void check_no_work(struct fake *fake, uint64_t address, uint64_t bytes) {
    uint64_t end = fake->base + FAKE_MAPPED * 2 * MIB;
    for (uint64_t a = address & ~(2 * MIB - 1); a < address + bytes && a < end; a += 2 * MIB) {
        struct fake_mapping *at = mapping_at(fake, a);
        if (!is_done(fake, at->last))
            break_law(fake, "released under work that uses it");
        *at = (struct fake_mapping){0};
    }
}

/* Takes the lock. Returns false, without the lock, if the backend is suspended. */
static bool lock_unless_suspended(struct fake *fake) {
    pthread_mutex_lock(&fake->lock);
    if (fake->backend.suspended) {
        pthread_mutex_unlock(&fake->lock);
        return false;
    }
    return true;
}

static int release(struct backend *backend, uint64_t address, uint64_t bytes) {
    struct fake *fake = of(backend);
    if (!lock_unless_suspended(fake))
        return -EBUSY;
    fake->releases++;
    bool found = false;
    for (unsigned i = 0; i < fake->segment_count && !found; i++) {
        struct fake_segment *segment = &fake->segments[i];
        if (segment->taken && segment->address + fake->misalign == address &&
            segment->bytes == bytes) {
            segment->taken = false;
            fake->on_its_way += bytes;
            found = true;
        }
    }
    if (!found)
        break_law(fake, "a release of what was never reserved");
    check_no_work(fake, address, bytes);
    memcpy(fake->returns_behind, fake->ordered, sizeof fake->ordered);
    complete_returns(fake);
    pthread_mutex_unlock(&fake->lock);
    return 0;
}

static bool is_sticky(int code) {
    return code >= 700 && code < 800;
}

static int returned(struct backend *backend) {
    struct fake *fake = of(backend);
    pthread_mutex_lock(&fake->lock);
    bool all = complete_returns(fake);
    pthread_mutex_unlock(&fake->lock);
    return fake->return_code ? fake->return_code : all ? 0 : -EAGAIN;
}

/* The context has ended, and the memory with it. */
static void forget_reserve(struct backend *backend, uint64_t bytes) {
    struct fake *fake = of(backend);
    pthread_mutex_lock(&fake->lock);
    fake->reserved -= bytes;
    pthread_mutex_unlock(&fake->lock);
}

/* --- events --- */

static int record(struct backend *backend, unsigned slot) {
    struct fake *fake = of(backend);
    if (!lock_unless_suspended(fake))
        return -EBUSY;
    fake->records++;
    int r = !fake->backend.has_events ? -ENOSYS : fake->record_code;
    if (fake->record_refusals > 0 && --fake->record_refusals == 0)
        fake->record_code = 0;
    if (slot >= BACKEND_SLOTS) {
        break_law(fake, "a slot that does not exist");
    } else if (r == 0) {
        struct fake_event *event = &fake->events[slot];
        event->recorded = true;
        event->in_free = inside_free;
        memcpy(event->captured, fake->submitted, sizeof event->captured);
        fake->latest = *event;
    }
    pthread_mutex_unlock(&fake->lock);
    return r;
}

static int query(struct backend *backend, unsigned slot) {
    struct fake *fake = of(backend);
    if (!lock_unless_suspended(fake))
        return -EBUSY;
    fake->queries++;
    if ((fake->done_after > 0 && --fake->done_after == 0) ||
        (fake->done_every > 0 && fake->queries % fake->done_every == 0))
        finish(fake, fake->submitted);
    if (!fake->events[slot].recorded)
        break_law(fake, "a query of an event that was never recorded");
    int r = fake->query_code                             ? fake->query_code
            : is_done(fake, fake->events[slot].captured) ? 0
                                                         : -EAGAIN;
    pthread_mutex_unlock(&fake->lock);
    return r;
}

static int barrier(struct backend *backend, unsigned slot) {
    struct fake *fake = of(backend);
    if (!lock_unless_suspended(fake))
        return -EBUSY;
    fake->orders++;
    struct fake_event *event = &fake->events[slot];
    if (!event->recorded || !event->in_free)
        break_law(fake, "a barrier on an event that was not recorded in a free");
    if (!fake->latest.in_free && !is_done(fake, fake->latest.captured))
        break_law(fake, "a barrier behind a record outside a free");
    int r = fake->order_code;
    for (unsigned s = 0; r == 0 && s < FAKE_STREAMS; s++)
        if (event->captured[s] > fake->ordered[s])
            fake->ordered[s] = event->captured[s];
    pthread_mutex_unlock(&fake->lock);
    return r;
}

static int wait(struct backend *backend, unsigned slot) {
    struct fake *fake = of(backend);
    pthread_mutex_lock(&fake->lock);
    fake->waits++;
    const struct fake_event *event = &fake->events[slot];
    if (!event->recorded || (!event->in_free && !is_done(fake, event->captured)))
        break_law(fake, "a wait for an event that was not recorded in a free");
    if (fake->busy_for_ever && !is_done(fake, event->captured))
        break_law(fake, "a wait for work that does not end");
    int r = fake->wait_code;
    if (r == 0)
        finish(fake, event->captured);
    pthread_mutex_unlock(&fake->lock);
    return r;
}

static int synchronize(struct backend *backend) {
    struct fake *fake = of(backend);
    pthread_mutex_lock(&fake->lock);
    fake->synchronizes++;
    if (!inside_free)
        break_law(fake, "a synchronise outside a free");
    int r = fake->wait_code;
    if (r == 0)
        finish(fake, fake->submitted);
    pthread_mutex_unlock(&fake->lock);
    return r;
}

static void watch_idle(struct backend *backend) {
    of(backend)->idles++;
}

static void begin_growth(struct backend *backend) {
    of(backend)->growing++;
}

static void end_growth(struct backend *backend, bool gave_back) {
    of(backend)->growing--;
    of(backend)->in_vain += gave_back;
}

/* Other threads give back what they charged after `answers` calls. */
static uint64_t wait_for_in_flight(struct backend *backend) {
    struct fake *fake = of(backend);
    pthread_mutex_lock(&fake->lock);
    if (fake->answers > 0 && --fake->answers == 0) {
        fake->limit += fake->others;
        fake->others = 0;
        fake->came_back++;
    }
    uint64_t came_back = fake->came_back;
    pthread_mutex_unlock(&fake->lock);
    return came_back;
}

static const struct backend_ops ops = {
    .name = "fake",
    .reserve = reserve,
    .release = release,
    .returned = returned,
    .is_sticky = is_sticky,
    .forget_reserve = forget_reserve,
    .begin_growth = begin_growth,
    .end_growth = end_growth,
    .wait_for_in_flight = wait_for_in_flight,
    .record = record,
    .query = query,
    .barrier = barrier,
    .wait = wait,
    .synchronize = synchronize,
    .watch_idle = watch_idle,
};

/* --- mapped memory --- */

static struct fake_mapping *mapping_at(struct fake *fake, uint64_t address) {
    uint64_t at = (address - fake->base) / (2 * MIB);
    if (at >= FAKE_MAPPED)
        abort();
    return &fake->mappings[at];
}

static int reserve_addresses(struct backend *backend, uint64_t bytes, uint64_t *address) {
    struct fake *fake = of(backend);
    void (*in_reserve)(void) = fake->in_reserve;
    fake->in_reserve = NULL;
    if (in_reserve)
        in_reserve();
    pthread_mutex_lock(&fake->lock);
    if (bytes == 0 || bytes % (2 * MIB) != 0)
        break_law(fake, "addresses for no multiple of 2 MiB");
    bool fits = bytes <= ADDRESSES_AT_A_TIME && fake->next + bytes <= fake->base + REGION_BYTES;
    if (fits) {
        *address = fake->next;
        fake->next += bytes;
        fake->addresses += bytes;
    }
    pthread_mutex_unlock(&fake->lock);
    return fits ? 0 : -ENOMEM;
}

static void free_addresses(struct backend *backend, uint64_t address, uint64_t bytes) {
    struct fake *fake = of(backend);
    pthread_mutex_lock(&fake->lock);
    for (uint64_t a = address; a < address + bytes; a += 2 * MIB)
        if (mapping_at(fake, a)->page)
            break_law(fake, "addresses freed where something is mapped");
    fake->addresses -= bytes;
    fake->next = address + bytes == fake->next ? address : fake->next;
    pthread_mutex_unlock(&fake->lock);
}

/* Returns the first of `length` adjacent free pages: the value of a new handle. */
static unsigned find_pages(const struct fake *fake, unsigned from, unsigned length) {
    for (unsigned n = from, free = 0; n < FAKE_PAGES; n++) {
        free = fake->pages[n].taken ? 0 : free + 1;
        if (free == length)
            return n + 1 - length;
    }
    abort();
}

static int create_handles(struct backend *backend, unsigned count, unsigned length,
                          uint64_t *handles) {
    struct fake *fake = of(backend);
    uint64_t bytes = count * length * 2 * MIB;
    int r = 0;
    pthread_mutex_lock(&fake->lock);
    fake->reserves++;
    if (fake->refusals > 0) {
        fake->refusals--;
        r = fake->refusal;
    } else if (fake->limit && (bytes > fake->limit || fake->reserved > fake->limit - bytes)) {
        r = -EDQUOT;
    } else if (bytes > fake->memory || fake->reserved > fake->memory - bytes) {
        r = -ENOMEM;
    }
    for (unsigned i = 0, n = 1; r == 0 && i < count; i++, n += length) {
        n = find_pages(fake, n, length);
        for (unsigned k = 0; k < length; k++) {
            fake->pages[n + k].taken = true;
            fake->pages[n + k].length = k == 0 ? length : 0;
        }
        handles[i] = n;
    }
    fake->reserved += r == 0 ? bytes : 0;
    fake->reserved_peak =
        fake->reserved > fake->reserved_peak ? fake->reserved : fake->reserved_peak;
    pthread_mutex_unlock(&fake->lock);
    return r;
}

static void return_page(struct fake *fake, struct fake_page *page) {
    if (page->released && page->stale == 0) {
        page->taken = page->released = false;
        fake->reserved -= 2 * MIB;
        fake->releases++;
    }
}

static void release_handles(struct backend *backend, unsigned count, unsigned length,
                            const uint64_t *handles) {
    struct fake *fake = of(backend);
    pthread_mutex_lock(&fake->lock);
    for (unsigned i = 0; i < count * length; i++) {
        struct fake_page *page = &fake->pages[handles[i / length] + i % length];
        if (!page->taken || page->mappings > 0 || page->length != (i % length ? 0 : length))
            break_law(fake, "a handle released that is mapped, in part, or not created");
        page->released = true;
        return_page(fake, page);
    }
    pthread_mutex_unlock(&fake->lock);
}

static int map(struct backend *backend, uint64_t address, unsigned count, unsigned length,
               const uint64_t *handles) {
    struct fake *fake = of(backend);
    pthread_mutex_lock(&fake->lock);
    int r = fake->map_code;
    fake->maps += r == 0 ? count * length : 0;
    for (unsigned i = 0; i < count * length && r == 0; i++) {
        struct fake_mapping *at = mapping_at(fake, address + i * 2 * MIB);
        uint64_t page = handles[i / length] + i % length;
        if (at->page || !fake->pages[page].taken ||
            fake->pages[page].length != (i % length ? 0 : length))
            break_law(fake, "a handle mapped where one is, in part, or not created");
        if (fake->pages[page].mappings > 0)
            break_law(fake, "a handle mapped at two addresses");
        at->page = (uint32_t)page;
        fake->pages[page].mappings++;
    }
    pthread_mutex_unlock(&fake->lock);
    return r;
}

static void mark_stale(struct backend *backend, uint64_t address, unsigned count, bool back) {
    struct fake *fake = of(backend);
    pthread_mutex_lock(&fake->lock);
    for (unsigned i = 0; i < count; i++) {
        struct fake_mapping *at = mapping_at(fake, address + i * 2 * MIB);
        struct fake_page *page = &fake->pages[at->page];
        if (!at->page || at->stale != back)
            break_law(fake, "marked stale where nothing is, or twice");
        at->stale = !back;
        page->mappings += back ? 1 : -1;
        page->stale += back ? -1 : 1;
    }
    pthread_mutex_unlock(&fake->lock);
}

static int unmap(struct backend *backend, uint64_t address, unsigned count, bool stale) {
    struct fake *fake = of(backend);
    pthread_mutex_lock(&fake->lock);
    int r = address == fake->kept_address ? -EBUSY : fake->unmap_code;
    fake->unmaps += r == 0 ? count : 0;
    for (unsigned i = 0; i < count && r == 0; i++) {
        struct fake_mapping *at = mapping_at(fake, address + i * 2 * MIB);
        struct fake_page *page = &fake->pages[at->page];
        if (!at->page)
            break_law(fake, "unmapped where nothing is");
        else if ((i == 0 && page->length == 0) || i + page->length > count)
            break_law(fake, "a part of a handle unmapped");
        else if (!is_done(fake, at->last))
            break_law(fake, "unmapped under work that uses it");
        else if (at->stale != stale)
            break_law(fake, "unmapped as stale when it is not, or the reverse");
        page->mappings -= at->page > 0 && !at->stale;
        page->stale -= at->stale;
        return_page(fake, page);
        *at = (struct fake_mapping){0};
    }
    pthread_mutex_unlock(&fake->lock);
    return r;
}

/* Counts calls instead of measuring: on a busy machine, mapping would take long and raise the
 * goal. */
static uint64_t counting_clock(struct backend *backend) {
    (void)backend;
    static _Atomic uint64_t questions;
    return atomic_fetch_add(&questions, 1) * 1000;
}

void fake_map_pages(struct fake *fake) {
    static const struct backend_ops vmm_ops = {
        .name = "fake pages",
        .reserve_addresses = reserve_addresses,
        .free_addresses = free_addresses,
        .create_handles = create_handles,
        .release_handles = release_handles,
        .map = map,
        .mark_stale = mark_stale,
        .unmap = unmap,
        .begin_growth = begin_growth,
        .end_growth = end_growth,
        .wait_for_in_flight = wait_for_in_flight,
        .returned = returned,
        .is_sticky = is_sticky,
        .record = record,
        .query = query,
        .barrier = barrier,
        .wait = wait,
        .synchronize = synchronize,
        .watch_idle = watch_idle,
        .clock = counting_clock,
    };
    fake->backend.ops = &vmm_ops;
}

uint64_t fake_physical(struct fake *fake, uint64_t address) {
    if (!backend_maps(&fake->backend))
        return address;
    pthread_mutex_lock(&fake->lock);
    uint64_t page = mapping_at(fake, address)->page;
    if (page == 0)
        break_law(fake, "memory used where nothing is mapped");
    pthread_mutex_unlock(&fake->lock);
    return fake->base + page * 2 * MIB + address % (2 * MIB);
}

void fake_reach(struct fake *fake, uint64_t address, uint64_t bytes, unsigned stream,
                uint64_t number) {
    pthread_mutex_lock(&fake->lock);
    for (uint64_t a = address & ~(2 * MIB - 1); a < address + bytes; a += 2 * MIB) {
        struct fake_mapping *at = mapping_at(fake, a);
        at->last[stream] = number > at->last[stream] ? number : at->last[stream];
    }
    pthread_mutex_unlock(&fake->lock);
}

/* --- for the tests --- */

struct fake *fake_new(uint64_t memory) {
    static atomic_ulong regions = 1;
    struct fake *fake = calloc(1, sizeof *fake);
    if (!fake)
        abort();
    pthread_mutex_init(&fake->lock, NULL);
    fake->backend = (struct backend){.ops = &ops, .capacity = memory, .has_events = true};
    fake->memory = memory;
    fake->base = fake->next = atomic_fetch_add(&regions, 1) * REGION_BYTES;
    return fake;
}

uint64_t fake_new_context(struct fake *fake) {
    pthread_mutex_lock(&fake->lock);
    fake->segment_count = 0;
    fake->reserved = backend_maps(&fake->backend) ? fake->reserved : 0; /* handles outlive it */
    finish(fake, fake->submitted);
    uint64_t next = fake->next;
    pthread_mutex_unlock(&fake->lock);
    return next;
}

void fake_free(struct fake *fake) {
    pthread_mutex_destroy(&fake->lock);
    free(fake);
}

uint64_t fake_submit(struct fake *fake, unsigned stream) {
    pthread_mutex_lock(&fake->lock);
    uint64_t number = ++fake->submitted[stream];
    pthread_mutex_unlock(&fake->lock);
    return number;
}

void fake_finish_all(struct fake *fake) {
    pthread_mutex_lock(&fake->lock);
    finish(fake, fake->submitted);
    pthread_mutex_unlock(&fake->lock);
}

void fake_finish_one(struct fake *fake, unsigned stream) {
    pthread_mutex_lock(&fake->lock);
    if (fake->completed[stream] < fake->submitted[stream])
        fake->completed[stream]++;
    pthread_mutex_unlock(&fake->lock);
}

bool fake_is_past(struct fake *fake, unsigned stream, uint64_t number, bool outside) {
    pthread_mutex_lock(&fake->lock);
    bool past = number <= fake->completed[stream] || (!outside && number <= fake->ordered[stream]);
    pthread_mutex_unlock(&fake->lock);
    return past;
}

void fake_inside_free(bool inside) {
    inside_free = inside;
}

int fake_pool_free(uint64_t address) {
    inside_free = true;
    int r = pool_free(address);
    inside_free = false;
    return r;
}

struct stats_device fake_books(struct pool *pool) {
    struct stats_device counters = {.peaks_exact = true};
    pool_read(pool, &counters);
    return counters;
}
