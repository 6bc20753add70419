#include "driver/context/decay.h"

#include "base/clock.h"
#include "driver/context/device_pool.h"
#include "driver/state/device.h"
#include "options/options.h"
#include "pool/pool.h"
#include "process/ending.h"
#include "process/helper.h"
#include "stats/stats.h"
#include "tuning/tuning.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LEAST_TICK_NS 1000000 /* shortest tick: 1 ms, however short the decay time is */
/* While a device has managed memory, the thread checks after this time whether idle memory takes
 * the space of managed memory. After a check that was in vain, as during a kernel that uses the
 * freed memory, it sleeps twice as long. */
#define MANAGED_CHECK_NS 10000000
/* The longest wait of decay_last_wait(). The wait is short, because the program may have submitted
 * work after its last free, for example a kernel that never ends. No native free waits for such
 * work. */
#define LAST_WAIT_NS (2 * (uint64_t)SECOND_NS)

/* LAST_WAIT_DUE: the helper thread has to wait, or waits. LAST_WAIT_OVER: no other wait begins. */
enum last_wait { LAST_WAIT_NONE, LAST_WAIT_DUE, LAST_WAIT_OVER };

/* The futex on which the thread sleeps while no pool has idle memory. 1: the thread has to wake. */
static _Atomic uint32_t wake_due;
static _Atomic int turn; /* enum helper_turn: whether the thread is inside a call of a pool */
/* enum last_wait, and the futex on which decay_last_wait() sleeps. */
static _Atomic uint32_t last_wait;
/* The futex on which the thread sleeps between two ticks: it counts the reasons to wake early. */
static _Atomic uint32_t early_wakes;

/* Sleeps while *word is `value`, for at most `ns`, or without a limit if `ns` is 0. May return
 * early. */
static void futex_sleep(_Atomic uint32_t *word, uint32_t value, uint64_t ns) {
    struct timespec limit = clock_from_ns(ns);
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, ns > 0 ? &limit : NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Ends the thread's sleep between two ticks, also one that is about to begin. */
static void wake_early(void) {
    atomic_fetch_add(&early_wakes, 1);
    futex_wake(&early_wakes);
}

static uint64_t tick_ns(void) {
    uint64_t ns = options()->decay_ms * 1000000 / DECAY_TICKS;
    return ns > LEAST_TICK_NS ? ns : LEAST_TICK_NS;
}

/* Calls `work` for a pool as one piece of work (helper_begin()), and returns its result. While the
 * process ends, calls nothing, sets *refused and returns false. */
static bool take_turn(bool (*work)(struct pool *pool), struct pool *pool, bool *refused) {
    if (atomic_load(&last_wait) != LAST_WAIT_NONE || !helper_begin(&turn)) {
        *refused = true;
        return false;
    }
    bool result = work(pool);
    helper_done(&turn);
    return result;
}

/*
 * Advances the clock of the pools, and gives back memory that was idle for the decay time. Includes
 * pools whose context has ended, so that their caches become inactive.
 *
 *      a tick is `due`    ticks all pools. One tick counts as the whole decay time on an
 *                         overcommitted device.
 *      no tick is due     ticks only devices whose idle memory takes the space of managed memory,
 *                         until it no longer does. With the segments backend all idle memory goes:
 *                         the driver has a segment only some time after its release.
 *
 * Sets *in_vain if such a device still has too much idle memory. Returns whether the thread has to
 * go on: a pool may have work at the next tick, or no tick was due.
 */
static bool tick_all(bool due, bool *in_vain) {
    bool later = false, refused = false;
    *in_vain = false;
    for (int i = 0; i < STATS_MAX_DEVICES; i++) {
        const struct device *device = device_used(i);
        struct device_pool *p = device ? atomic_load(&device->pools) : NULL;
        for (; p && (due || device_pool_displaces_managed(device)); p = p->next) {
            unsigned ticks = device_is_overcommitted(device) ? DECAY_TICKS + 1 : 1;
            while (ticks-- > 0)
                later |= take_turn(pool_tick, p->pool, &refused);
            while (take_turn(pool_decay, p->pool, &refused) &&
                   (due || device_pool_displaces_managed(device))) {
            }
        }
        *in_vain |= device && !due && device_pool_displaces_managed(device);
    }
    /* After a refused turn, too: if the exec fails, this thread still has to do that work. */
    return later || refused || !due;
}

/* Waits in the helper thread for the work before the program's frees, for decay_last_wait(). Begins
 * no further wait once the thread in decay_last_wait() has given up. */
static void wait_for_frees(void) {
    uint64_t end = clock_kernel_ns() + LAST_WAIT_NS;
    for (int i = 0; i < STATS_MAX_DEVICES; i++) {
        const struct device *device = device_used(i);
        struct device_pool *p = device ? atomic_load(&device->pools) : NULL;
        for (; p; p = p->next) {
            uint64_t now = clock_kernel_ns();
            if (now < end && atomic_load(&last_wait) == LAST_WAIT_DUE && helper_begin(&turn)) {
                pool_wait_for_work(p->pool, end - now);
                helper_done(&turn);
            }
        }
    }
    uint32_t due = LAST_WAIT_DUE; /* else the wait took too long: the process ends or goes on */
    atomic_compare_exchange_strong(&last_wait, &due, LAST_WAIT_OVER);
    futex_wake(&last_wait);
}

/* Returns whether any device has managed memory. Takes no lock. */
static bool any_managed_memory(void) {
    bool any = false;
    for (int i = 0; i < STATS_MAX_DEVICES; i++) {
        const struct device *device = device_used(i);
        any |= device && counter_get(&device->unpooled.managed.current) > 0;
    }
    return any;
}

/* Sleeps until the tick at `next` is due, and at most `check_ns` while there is managed memory.
 * Returns whether the tick is due. */
static bool sleep_until(uint64_t next, uint64_t check_ns) {
    uint32_t seen = atomic_load(&early_wakes); /* before the two reasons are looked at */
    uint64_t now = clock_kernel_ns(), ns = next > now ? next - now : 1;
    if (any_managed_memory() && ns > check_ns)
        ns = check_ns;
    if (atomic_load(&last_wait) != LAST_WAIT_DUE)
        futex_sleep(&early_wakes, seen, ns);
    return clock_kernel_ns() >= next;
}

/* The helper thread: waits for idle memory, then ticks until no pool has work. Does not tick while
 * the process exits: the ticks would use up the time of the last wait. Never ticks if
 * GPUCACHE_DECAY_MS is `never`: then only the last wait, or an exec that failed, wakes it. */
static void *give_back_idle(void *unused) {
    bool due, in_vain;
    for (;;) {
        while (atomic_exchange(&wake_due, 0) == 0)
            futex_sleep(&wake_due, 0, 0);
        uint64_t next = clock_kernel_ns() + tick_ns(), check_ns = MANAGED_CHECK_NS;
        bool goes_on;
        do {
            due = sleep_until(next, check_ns);
            if (atomic_load(&last_wait) == LAST_WAIT_DUE)
                wait_for_frees();
            if (due)
                next = clock_kernel_ns() + tick_ns();
            goes_on = options()->decay_ms != OPTIONS_NEVER &&
                      atomic_load(&last_wait) == LAST_WAIT_NONE && tick_all(due, &in_vain);
            check_ns = goes_on && in_vain ? 2 * check_ns : MANAGED_CHECK_NS;
        } while (goes_on);
    }
    return unused;
}

static struct helper thread = {
    .run = give_back_idle,
    .level = LOG_LEVEL_WARN,
    .lacking = "idle memory does not go back by itself",
};

void decay_start(void) {
    helper_request(&thread);
}

void decay_wake(void) {
    if (atomic_exchange(&wake_due, 1) == 0) {
        int saved = errno;
        futex_wake(&wake_due);
        errno = saved;
    }
}

void decay_check_managed(void) {
    int saved = errno;
    wake_early();
    errno = saved;
}

/* --- end of the process, and fork --- */

void decay_last_wait(void) {
    uint32_t none = LAST_WAIT_NONE;
    if (!ending_is_own_process() || !atomic_load(&thread.started) ||
        !atomic_compare_exchange_strong(&last_wait, &none, LAST_WAIT_DUE))
        return;
    int saved = errno;
    uint64_t now = clock_kernel_ns(), end = now + LAST_WAIT_NS;
    wake_early();
    decay_wake();
    for (; now < end && atomic_load(&last_wait) == LAST_WAIT_DUE; now = clock_kernel_ns())
        futex_sleep(&last_wait, LAST_WAIT_DUE, end - now);
    atomic_store(&last_wait, LAST_WAIT_OVER);
    errno = saved;
}

void decay_stop(void) {
    ending_stop_helper(&thread, &turn);
}

void decay_forked(void) {
    atomic_store(&thread.started, false);
}

void decay_end(enum process_end how, int signal) {
    (void)signal;
    if (how == PROCESS_EXITS || how == PROCESS_EXECS) {
        decay_last_wait();
    } else if (how == PROCESS_GOES_ON && ending_is_own_process()) {
        atomic_store(&last_wait, LAST_WAIT_NONE);
        decay_wake(); /* the thread may have ended its ticks during the wait */
    }
    ending_of_helper(&thread, &turn, how);
}
