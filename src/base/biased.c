/*
 * The slow paths of biased locks: waiting, seizing, and the end of bias. biased.h has the fast
 * path.
 */
#include "base/biased.h"

#include "base/clock.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SPINS 100 /* of a waiting thread before it lets others run */

/* biased_wait_for_stores() */
#define STORES_ARRIVE_NS 10000000
#define STORES_ARRIVE_SPINS (1u << 18) /* takes a few milliseconds */

static atomic_bool can_bias;

static int membarrier(int command) {
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

void biased_start(void) {
#if !defined(__SANITIZE_THREAD__) /* ThreadSanitizer does not understand membarrier */
    can_bias = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
#endif
}

bool biased_can_start(void) {
    return can_bias;
}

void biased_init(struct biased *lock, bool owned) {
    bool on = owned && can_bias;
    atomic_store(&lock->on, on);
    atomic_store(&lock->wanted, !on);
}

/* Spins first, then lets other threads run: the one that is waited for may have been preempted. */
static void spin_or_let_others_run(unsigned spins) {
    if (spins < SPINS)
        cpu_relax();
    else
        let_others_run(spins - SPINS);
}

void biased_enter_slowly(struct biased *lock) {
    for (unsigned spins = 0; biased_is_on(lock); spins++) {
        if (!atomic_load_explicit(&lock->wanted, memory_order_acquire) && biased_try_enter(lock))
            return;
        spin_or_let_others_run(spins);
    }
    for (unsigned spins = 0; atomic_exchange_explicit(&lock->locked, true, memory_order_acquire);
         spins++)
        spin_or_let_others_run(spins);
    lock_note(LOCK_CACHE);
    holder_set(&lock->holder);
}

void biased_ask(struct biased *lock) {
    if (biased_is_on(lock))
        atomic_store(&lock->wanted, true);
}

static void wait_for_owner(struct biased *lock) {
    for (unsigned spins = 0; atomic_load_explicit(&lock->inside, memory_order_acquire); spins++)
        spin_or_let_others_run(spins);
}

/*
 * Waits until a store by another processor has reached memory without that processor's help. The
 * time is nanoseconds, or microseconds for contended cache lines. The loop spins as well as sleeps,
 * because a sandbox may refuse to sleep.
 */
void biased_wait_for_stores(void) {
    sleep_ns(STORES_ARRIVE_NS);
    for (unsigned spins = 0; spins < STORES_ARRIVE_SPINS; spins++)
        cpu_relax();
}

void biased_end(struct biased *lock) {
    if (biased_is_on(lock)) {
        wait_for_owner(lock);
        atomic_store_explicit(&lock->on, false, memory_order_release);
    }
}

/*
 * membarrier succeeded in biased_start() but may fail now: the process set up a sandbox, or was
 * restored from a checkpoint. membarrier is needed for one effect: an owner's earlier store to
 * `inside` arrives before this thread reads `inside`. After a failure, biased_wait_for_stores() in
 * `end_bias` has that effect once, and the locks that `end_bias` knows (those of one pool) become
 * spin locks for good. Later locks get no bias.
 */
void biased_seize(struct biased *first, void (*end_bias)(void *), void *argument) {
    bool any = false;
    for (struct biased *lock = first; lock; lock = lock->next_seized) {
        any |= biased_is_on(lock);
        biased_ask(lock);
    }
    if (any && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
        can_bias = false;
        end_bias(argument);
    }
    for (struct biased *lock = first; lock; lock = lock->next_seized) {
        if (biased_is_on(lock)) {
            lock_check(LOCK_CACHE);
            wait_for_owner(lock);
            lock_note(LOCK_CACHE);
            holder_set(&lock->holder);
        } else {
            biased_enter(lock);
        }
    }
}

void biased_return(struct biased *first) {
    for (struct biased *lock = first; lock; lock = lock->next_seized) {
        if (biased_is_on(lock)) {
            holder_clear(&lock->holder);
            lock_forget(LOCK_CACHE);
            atomic_store_explicit(&lock->wanted, false, memory_order_release);
        } else {
            biased_leave(lock);
        }
    }
}
