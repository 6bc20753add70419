#include "driver/context/decay.h"

#include "driver/context/device_pool.h"
#include "driver/state/device.h"
#include "options/options.h"
#include "pool/pool.h"
#include "process/ending.h"
#include "process/helper.h"
#include "stats/stats.h"
#include "tuning/tuning.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LEAST_TICK_NS 1000000

static _Atomic uint32_t has_idle; /* 1: a pool has idle memory; the thread's futex */
static _Atomic int turn;          /* enum helper_turn: one pool_tick() or one pool_decay() */

static uint64_t tick_ns(void) {
    uint64_t ns = options()->decay_ms * 1000000 / DECAY_TICKS;
    return ns > LEAST_TICK_NS ? ns : LEAST_TICK_NS;
}

/* Calls `work` for a pool in a turn, and returns its result. While the process ends: sets *refused
 * and returns false. */
static bool take_turn(bool (*work)(struct pool *pool), struct pool *pool, bool *refused) {
    if (!helper_begin(&turn)) {
        *refused = true;
        return false;
    }
    bool result = work(pool);
    helper_done(&turn);
    return result;
}

/* Advances the clock of each pool, and gives back memory that was idle for the decay time. Includes
 * pools whose context has ended, so that their caches become inactive. Returns whether the next
 * tick may have work. */
static bool tick_all(void) {
    bool later = false, refused = false;
    for (int i = 0; i < STATS_MAX_DEVICES; i++) {
        const struct device *device = device_used(i);
        struct device_pool *p = device ? atomic_load(&device->pools) : NULL;
        for (; p; p = p->next) {
            later |= take_turn(pool_tick, p->pool, &refused);
            while (take_turn(pool_decay, p->pool, &refused)) {
            }
        }
    }
    return later || refused; /* if an exec fails, the process goes on: refused turns are due */
}

/* The helper thread: waits for idle memory, then ticks until no pool has work. */
static void *give_back_idle(void *unused) {
    for (;;) {
        while (atomic_exchange(&has_idle, 0) == 0) {
            syscall(SYS_futex, &has_idle, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        }
        do {
            helper_sleep(tick_ns());
        } while (tick_all());
    }
    return unused;
}

static struct helper thread = {
    .run = give_back_idle,
    .level = LOG_LEVEL_WARN,
    .lacking = "idle memory does not go back by itself",
};

void decay_start(void) {
    helper_want(&thread);
}

void decay_wake(void) {
    if (atomic_exchange(&has_idle, 1) == 0) {
        int saved = errno;
        syscall(SYS_futex, &has_idle, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        errno = saved;
    }
}

/* --- fork, and end of the process --- */

void decay_stop(void) {
    ending_stop_helper(&thread, &turn);
}

void decay_forked(void) {
    atomic_store(&thread.started, false);
}

void decay_end(enum process_end how, int signal) {
    (void)signal;
    ending_of_helper(&thread, &turn, how);
}
