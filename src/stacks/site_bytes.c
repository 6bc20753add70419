/*
 * The bytes of each call site: live now, live at the peak of its device, and bytes x time.
 *
 * The peak of each site is exact, and no new peak copies all sites. Every peak of a device has a
 * number. A site that changes for the first time since peak N saves its live bytes for N. A site
 * that has not changed since peak N still has the same live bytes:
 *
 *      peak 7 (site a 5, site b 3)   a frees 2: a saves 5 for peak 7
 *      read peak 7: a 5 (saved), b 3 (its live bytes)
 *
 * At every change of a site, bytes x time grows by the live bytes times the time since the last
 * change. Each device has one lock. Readers take no lock: they read again if a writer interfered.
 * Invariant: the live bytes of a device are the sum of those of its sites.
 */
#include "stacks/site.h"

#include "base/clock.h"
#include "base/lock.h"

#include <time.h>

/* Attempts of a reader. A signal handler that interrupted the writer fails in all of them, and then
 * returns values that may not belong together. */
#define ATTEMPTS 64

static struct holding {
    _Alignas(64) struct lock lock;
    _Atomic uint32_t version; /* sequence lock: odd while a writer changes the counts */
    _Atomic uint64_t live_bytes, live_count, peak_bytes, peak_count;
    _Atomic uint64_t peak_number; /* number of peaks so far; site->saved_at is such a number */
} holdings[STATS_MAX_DEVICES];

static uint64_t get(const _Atomic uint64_t *value) {
    return atomic_load_explicit(value, memory_order_relaxed);
}

static void set(_Atomic uint64_t *value, uint64_t to) {
    atomic_store_explicit(value, to, memory_order_relaxed);
}

void site_bytes_start(void) {
    for (unsigned i = 0; i < STATS_MAX_DEVICES; i++)
        lock_start(&holdings[i].lock, LOCK_SITE_BYTES);
}

/* Takes the device's lock and makes its version odd. */
static struct holding *begin_writing(int device) {
    struct holding *holding = &holdings[device];
    lock_acquire(&holding->lock);
    atomic_fetch_add_explicit(&holding->version, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    return holding;
}

static void end_writing(struct holding *holding) {
    atomic_fetch_add_explicit(&holding->version, 1, memory_order_release);
    lock_release(&holding->lock);
}

/*
 * Adds the site's bytes x time up to `now`. If the device reached a new peak since the site's last
 * change, saves the live bytes: they are those at the peak. Call with the device's lock, before the
 * site's live bytes change.
 */
static void update_site(struct site *site, const struct holding *holding, uint64_t now) {
    uint64_t since = get(&site->since_ns), low = get(&site->byte_ns_low);
    if (now > since) { /* another thread may have read its clock later and taken the lock earlier */
        unsigned __int128 more = (unsigned __int128)get(&site->live_bytes) * (now - since) + low;
        set(&site->byte_ns_low, (uint64_t)more);
        set(&site->byte_ns_high, get(&site->byte_ns_high) + (uint64_t)(more >> 64));
        set(&site->since_ns, now);
    }
    uint64_t peak = get(&holding->peak_number);
    if (get(&site->saved_at) != peak) {
        set(&site->saved_bytes, get(&site->live_bytes));
        set(&site->saved_count, get(&site->live_count));
        set(&site->saved_at, peak);
    }
}

/* Makes the present live bytes the peak of the device. */
static void new_peak(struct holding *holding) {
    set(&holding->peak_bytes, get(&holding->live_bytes));
    set(&holding->peak_count, get(&holding->live_count));
    set(&holding->peak_number, get(&holding->peak_number) + 1);
}

void site_bytes_add(uint32_t number, uint64_t bytes, bool again) {
    struct site *site = site_at(number);
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    struct holding *holding = begin_writing(site->device);
    update_site(site, holding, now);
    set(&site->live_bytes, get(&site->live_bytes) + bytes);
    set(&site->live_count, get(&site->live_count) + 1);
    set(&site->total_bytes, get(&site->total_bytes) + (again ? 0 : bytes));
    set(&site->total_count, get(&site->total_count) + !again);
    set(&holding->live_bytes, get(&holding->live_bytes) + bytes);
    set(&holding->live_count, get(&holding->live_count) + 1);
    if (get(&holding->live_bytes) > get(&holding->peak_bytes))
        new_peak(holding);
    end_writing(holding);
}

void site_bytes_remove(uint32_t number, uint64_t bytes) {
    struct site *site = site_at(number);
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    struct holding *holding = begin_writing(site->device);
    update_site(site, holding, now);
    set(&site->live_bytes, get(&site->live_bytes) - bytes);
    set(&site->live_count, get(&site->live_count) - 1);
    set(&holding->live_bytes, get(&holding->live_bytes) - bytes);
    set(&holding->live_count, get(&holding->live_count) - 1);
    end_writing(holding);
}

void site_bytes_reset_peak(int device) {
    struct holding *holding = begin_writing(device);
    new_peak(holding);
    end_writing(holding);
}

/* --- reading --- */

static uint32_t begin_reading(const struct holding *holding) {
    uint32_t version = atomic_load_explicit(&holding->version, memory_order_acquire);
    for (unsigned i = 0; version % 2 != 0 && i < ATTEMPTS; i++)
        version = atomic_load_explicit(&holding->version, memory_order_acquire);
    return version;
}

static bool changed(const struct holding *holding, uint32_t version) {
    atomic_thread_fence(memory_order_acquire);
    return version % 2 != 0 ||
           atomic_load_explicit(&holding->version, memory_order_relaxed) != version;
}

struct stats_held site_bytes_of_device(int device) {
    const struct holding *holding = &holdings[device];
    struct stats_held held;
    for (unsigned i = 0; i < ATTEMPTS; i++) {
        uint32_t version = begin_reading(holding);
        held = (struct stats_held){{get(&holding->live_bytes), get(&holding->live_count)},
                                   {get(&holding->peak_bytes), get(&holding->peak_count)}};
        if (!changed(holding, version))
            break;
    }
    return held;
}

static void read_site(const struct site *site, const struct holding *holding,
                      struct stats_holder *out) {
    uint64_t since = get(&site->since_ns), now = clock_ns(CLOCK_MONOTONIC);
    unsigned __int128 byte_ns =
        (unsigned __int128)get(&site->byte_ns_high) << 64 | get(&site->byte_ns_low);
    out->held.live = (struct stats_share){get(&site->live_bytes), get(&site->live_count)};
    out->total = (struct stats_share){get(&site->total_bytes), get(&site->total_count)};
    byte_ns += (unsigned __int128)out->held.live.bytes * (now > since ? now - since : 0);
    bool saved = get(&site->saved_at) == get(&holding->peak_number);
    out->held.peak = saved ? (struct stats_share){get(&site->saved_bytes), get(&site->saved_count)}
                           : out->held.live;
    out->byte_seconds = (uint64_t)(byte_ns / SECOND_NS);
    out->byte_seconds_ns = (uint32_t)(byte_ns % SECOND_NS);
}

void site_bytes_read(uint32_t number, struct stats_holder *out) {
    const struct site *site = site_at(number);
    const struct holding *holding = &holdings[site->device];
    for (unsigned i = 0; i < ATTEMPTS; i++) {
        uint32_t version = begin_reading(holding);
        read_site(site, holding, out);
        if (!changed(holding, version))
            break;
    }
    out->stack = number;
}
