/*
 * The simulated device: a backend whose operations count on the account (rerun.h). `device` has no
 * lock, because lockstep.c runs one thread at a time.
 */
#include "replay/rerun.h"

#include "heap/page.h"
#include "replay/memory.h"
#include "stats/stats.h"
#include "tuning/tuning.h"

#include <errno.h>
#include <stdlib.h>

static struct device {
    struct backend backend;
    struct account *account;
    uint64_t now_us, delay_us, limit;
    uint64_t next_address, next_page, recorded_at[BACKEND_SLOTS];
    uint64_t barrier_until_us, waited_until_us; /* ends of the newest barrier and of all waits */
    uint64_t returning, returns_at_us;          /* bytes the driver lacks yet; when it has them */
    unsigned asked;      /* queries of unfinished events since the last tick or history event */
    unsigned asked_back; /* queries of `returning` before its return, since the same moment */
    uint64_t ticked_us;  /* time of the last tick */
    bool ticking;        /* some memory is idle */
} device;

/* A pool that queries so often at one moment is polling. Polling would not end by itself, because
 * the time of the history stands still during an event of the history. */
#define ASKED_MOST 256 /* queries of an event */
#define ASKED_US 50    /* the advance, for each further query */
#define ASKED_BACK 16  /* queries of released memory; further ones wait for its return */
#define TICK_US 1000   /* between two ticks, at least */

static int take(uint64_t bytes) {
    uint64_t held = device.account->reserved;
    if (device.limit && (bytes > device.limit || held > device.limit - bytes))
        return -EDQUOT;
    uint64_t capacity = atomic_load(&device.backend.capacity);
    if (bytes > capacity || held > capacity - bytes)
        return -ENOMEM;
    account_take(device.account, bytes);
    return 0;
}

static int reserve_addresses(struct backend *backend, uint64_t bytes, uint64_t *address) {
    (void)backend;
    *address = device.next_address;
    device.next_address += bytes + PAGE_BYTES; /* not adjacent, so that segments do not merge */
    return 0;
}

static void free_addresses(struct backend *backend, uint64_t address, uint64_t bytes) {
    (void)backend, (void)address, (void)bytes;
}

static int reserve(struct backend *backend, uint64_t bytes, uint64_t *address) {
    int taken = take(bytes);
    if (taken != 0)
        return taken;
    account_call_for(device.account, bytes);
    return reserve_addresses(backend, bytes, address);
}

static bool is_reached(uint64_t us) {
    return device.now_us >= us || device.waited_until_us >= us;
}

/** Counts a wait. The time of the history does not change: later events of the history would have
 * waited for the same work. */
static void wait_until(uint64_t us) {
    device.account->waited_us += us > device.now_us ? us - device.now_us : 0;
    device.waited_until_us = us > device.waited_until_us ? us : device.waited_until_us;
}

static void finish_return(void) {
    if (is_reached(device.returns_at_us)) {
        account_give(device.account, device.returning);
        device.returning = 0;
    }
}

static int returned(struct backend *backend) {
    (void)backend;
    if (!is_reached(device.returns_at_us) && ++device.asked_back > ASKED_BACK)
        wait_until(device.returns_at_us);
    finish_return();
    return device.returning > 0 ? -EAGAIN : 0;
}

static int release(struct backend *backend, uint64_t address, uint64_t bytes) {
    (void)backend, (void)address;
    device.returning += bytes;
    /* A release is work of the device (backend/segments.c): the newest barrier holds it back. */
    device.returns_at_us = device.barrier_until_us;
    account_call_for(device.account, bytes);
    finish_return();
    return 0;
}

static int create_handles(struct backend *backend, unsigned count, unsigned length,
                          uint64_t *handles) {
    (void)backend;
    int taken = take(count * length * PAGE_BYTES);
    for (unsigned i = 0; taken == 0 && i < count; i++)
        handles[i] = ++device.next_page;
    if (taken == 0)
        account_call(device.account, count, COST_CREATE_NS);
    return taken;
}

static void release_handles(struct backend *backend, unsigned count, unsigned length,
                            const uint64_t *handles) {
    (void)backend, (void)handles;
    account_give(device.account, count * length * PAGE_BYTES);
    account_call(device.account, count, COST_RELEASE_NS);
}

static int map(struct backend *backend, uint64_t address, unsigned count, unsigned length,
               const uint64_t *handles) {
    (void)backend, (void)address, (void)handles;
    account_map(device.account, count * length);
    account_call(device.account, count, COST_MAP_NS);
    return 0;
}

static int unmap(struct backend *backend, uint64_t address, unsigned count, bool stale) {
    (void)backend, (void)address, (void)count, (void)stale;
    account_call(device.account, 1, COST_UNMAP_NS);
    return 0;
}

static int record(struct backend *backend, unsigned slot) {
    (void)backend;
    device.recorded_at[slot] = device.now_us;
    return 0;
}

static uint64_t finished_at(unsigned slot) {
    return device.recorded_at[slot] + device.delay_us;
}

static int query(struct backend *backend, unsigned slot) {
    (void)backend;
    if (device.now_us < finished_at(slot) && ++device.asked > ASKED_MOST) {
        device.now_us += ASKED_US;
        device.account->waited_us += ASKED_US;
    }
    return device.now_us >= finished_at(slot) ? 0 : -EAGAIN;
}

static int barrier(struct backend *backend, unsigned slot) {
    (void)backend;
    device.barrier_until_us = finished_at(slot);
    return 0;
}

static int wait(struct backend *backend, unsigned slot) {
    (void)backend;
    wait_until(finished_at(slot));
    return 0;
}

static int succeed(struct backend *backend) {
    (void)backend;
    return 0;
}

static void start_ticks(struct backend *backend) {
    (void)backend;
    device.ticking = true;
}

/**
 * Returns the time of the program in nanoseconds: the time of the history plus all driver calls.
 */
static uint64_t clock_of_history(struct backend *backend) {
    (void)backend;
    return device.now_us * 1000 + device.account->calls_ns;
}

/* The operations of both backends. The pool calls the first three only with segments. */
#define COMMON_OPS                                                                                 \
    .reserve = reserve, .release = release, .returned = returned, .record = record,                \
    .query = query, .barrier = barrier, .wait = wait, .health = succeed, .synchronize = succeed,   \
    .watch_idle = start_ticks, .clock = clock_of_history

static const struct backend_ops segments = {
    .name = "segments",
    COMMON_OPS,
};

static const struct backend_ops pages = {
    .name = "pages",
    .reserve_addresses = reserve_addresses,
    .free_addresses = free_addresses,
    .create_handles = create_handles,
    .release_handles = release_handles,
    .map = map,
    .unmap = unmap,
    COMMON_OPS,
};

/** Runs the ticks that the library's helper thread would run until `us`. Waits in a tick do not
 * count, because the program does not wait for the helper thread. */
static void decay_until(struct pool *pool, uint64_t us, uint64_t decay_us) {
    uint64_t tick_us = decay_us / DECAY_TICKS > TICK_US ? decay_us / DECAY_TICKS : TICK_US;
    uint64_t waited_us = device.account->waited_us;
    while (device.ticking && device.ticked_us + tick_us <= us) {
        device.ticked_us += tick_us;
        device.asked = device.asked_back = 0;
        device.now_us = device.ticked_us > device.now_us ? device.ticked_us : device.now_us;
        device.ticking = pool_tick(pool);
        while (pool_decay(pool)) {
        }
    }
    device.ticked_us = device.ticking ? device.ticked_us : us;
    device.account->waited_us = waited_us;
}

struct run {
    struct pool *pool;
    uint64_t *addresses; /* by number of the allocation */
    uint64_t decay_us;
    size_t at; /* index of the next event */
};

/** Runs the events of one thread up to the next event of another. Returns that other thread, or
 * LOCKSTEP_OVER at the end of the history and after an error. */
static int run_turn(void *with) {
    struct run *run = with;
    struct account *account = device.account;
    const struct history *history = account->history;
    unsigned thread = history->events[run->at].thread;
    while (run->at < history->count && history->events[run->at].thread == thread) {
        const struct history_event *event = &history->events[run->at];
        account_begin_event(account, run->at++);
        if (run->decay_us > 0)
            decay_until(run->pool, event->time_us, run->decay_us);
        device.now_us = event->time_us > device.now_us ? event->time_us : device.now_us;
        device.asked = device.asked_back = 0;
        uint64_t *address = &run->addresses[event->block];
        account->error =
            event->frees ? pool_free(*address) : pool_alloc(run->pool, event->bytes, address);
        account->out_of_memory = account->error == -ENOMEM || account->error == -EDQUOT;
        account->error = account->out_of_memory ? 0 : account->error;
        if (account->out_of_memory || account->error != 0)
            return LOCKSTEP_OVER;
        account_end_event(account);
    }
    return run->at < history->count ? (int)history->events[run->at].thread : LOCKSTEP_OVER;
}

static void finish(struct pool *pool, struct account *account) {
    struct stats_device stats = {.peaks_exact = true};
    pool_read(pool, &stats);
    account->barriers = stats.barriers;
    account->waits = stats.cpu_waits;
    if (account->error == 0 && pool_check(pool))
        account->error = -EUCLEAN;
}

void rerun(const struct rerun_setting *setting, struct account *account) {
    const struct history *history = account->history;
    const struct pool_config config = {
        .reuse = setting->reuse, .budget = setting->budget, .decays = setting->decay_us > 0};
    device = (struct device){
        .account = account,
        .delay_us = setting->delay_us,
        .limit = setting->limit,
        .next_address = (uint64_t)1 << 40,
        .backend = {.ops = setting->pages ? &pages : &segments,
                    .capacity = setting->capacity,
                    .has_events = true},
    };
    struct run run = {
        .pool = checked(pool_create(&device.backend, &config)),
        .addresses = checked(calloc(history->blocks + 1, sizeof *run.addresses)),
        .decay_us = setting->decay_us,
    };
    if (history->count > 0) {
        unsigned threads =
            history->threads < HISTORY_THREADS_MOST ? history->threads : HISTORY_THREADS_MOST;
        int r =
            lockstep_run(threads > 1 ? threads : 1, (int)history->events[0].thread, run_turn, &run);
        account->error = r != 0 ? r : account->error;
    }
    finish(run.pool, account);
    free(run.addresses);
}
