/*
 * A biased lock: one thread, the owner, enters and leaves with plain stores. Thread caches use it
 * (tcache/cache.h).
 *
 *   owner           sets `inside`, then reads `wanted`; without a fence between the two
 *   another thread  sets `wanted`; makes every running thread of the process execute a memory
 *                   barrier (membarrier(2)); then waits until `inside` is false
 *
 * The lock is an ordinary spin lock in three cases: the kernel lacks membarrier, the kernel begins
 * to refuse membarrier, or the lock has no single owner.
 */
#ifndef GPUCACHE_BASE_BIASED_H
#define GPUCACHE_BASE_BIASED_H

#include "base/likely.h"
#include "base/lock.h"

#include <stdatomic.h>
#include <stdbool.h>

struct biased {
    atomic_bool inside; /* true while the owner is inside */
    atomic_bool wanted; /* another thread seizes the lock; always true without bias */
    atomic_bool on;     /* biased; once false, stays false, and `locked` is the lock */
    atomic_bool locked; /* the spin lock of a lock without bias */
    struct biased *next_seized;
#ifdef GPUCACHE_ASSERTIONS
    struct holder holder;
#endif
};

static inline void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/**
 * Enables bias for locks that are initialised later, if the kernel supports membarrier. Called
 * once.
 */
void biased_start(void);

/** Returns whether bias is enabled. */
bool biased_can_start(void);

/** Initialises a lock that is not held. It is biased if it is `owned` and bias is enabled. */
void biased_init(struct biased *lock, bool owned);

static inline bool biased_is_on(const struct biased *lock) {
    return atomic_load_explicit(&lock->on, memory_order_acquire);
}

/*
 * Enters after biased_try_enter() failed. Called by the owner, or by any thread if the lock is not
 * biased.
 */
void biased_enter_slowly(struct biased *lock);

/**
 * Tries to enter as the owner. Returns false, without entering, if the lock is not biased or
 * another thread wants it.
 */
static inline bool biased_try_enter(struct biased *lock) {
    atomic_store_explicit(&lock->inside, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* the seizer's membarrier makes it a full fence */
    if (likely(!atomic_load_explicit(&lock->wanted, memory_order_acquire))) {
        lock_note(LOCK_CACHE);
        holder_set(&lock->holder);
        return true;
    }
    atomic_store_explicit(&lock->inside, false, memory_order_release);
    return false;
}

/** Enters, and waits for a thread that has the lock. Callers as for biased_enter_slowly(). */
static inline void biased_enter(struct biased *lock) {
    lock_check(LOCK_CACHE);
    if (!biased_try_enter(lock))
        biased_enter_slowly(lock);
}

/** Leaves a lock that biased_try_enter() entered. */
static inline void biased_leave_owned(struct biased *lock) {
    holder_clear(&lock->holder);
    lock_forget(LOCK_CACHE);
    atomic_store_explicit(&lock->inside, false, memory_order_release);
}

static inline void biased_leave(struct biased *lock) {
    holder_clear(&lock->holder);
    lock_forget(LOCK_CACHE);
    bool on = atomic_load_explicit(&lock->on, memory_order_relaxed);
    atomic_store_explicit(on ? &lock->inside : &lock->locked, false, memory_order_release);
}

/**
 * Seizes several locks, linked by `next_seized`, in a thread that does not own them;
 * biased_return() releases them. The callers' own lock keeps two threads from seizing the same
 * biased lock at a time. If membarrier fails while one of the locks is biased, first calls
 * `end_bias(argument)`, which must end the bias of every lock that the caller may ever seize.
 */
void biased_seize(struct biased *first, void (*end_bias)(void *), void *argument);
void biased_return(struct biased *first);

/*
 * Steps of `end_bias`: biased_ask() for all locks, then biased_wait_for_stores(), then biased_end()
 * for all locks.
 */
void biased_ask(struct biased *lock);
void biased_wait_for_stores(void);
void biased_end(struct biased *lock);

/** Asserts that the calling thread is inside, or has seized the lock. */
#define ASSERT_INSIDE(lock) ASSERT(holder_is_me(&(lock)->holder))

#endif
