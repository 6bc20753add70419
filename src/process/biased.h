/*
 * A biased lock: its owner enters and leaves with plain stores. Whoever else needs it, because memory
 * is short, says so, makes every running thread of the process pass a memory barrier (membarrier(2)),
 * and then waits for the owner to leave: the price of the exclusion lies with the rare side. Where the
 * kernel does not do that, or no longer, and where there is no one owner, an ordinary spin lock takes
 * its place.
 */
#ifndef GPUCACHE_PROCESS_BIASED_H
#define GPUCACHE_PROCESS_BIASED_H

#include "process/lock.h"

#include <stdatomic.h>
#include <stdbool.h>

struct biased {
    atomic_bool inside; /* the owner is */
    atomic_bool
        wanted;     /* somebody else waits for the owner to stay out; for ever, once not biased */
    atomic_bool on; /* biased; never again, once not: then `locked` is a lock */
    atomic_bool locked;
    struct biased *next_seized;
};

static inline void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/** Turns bias on for locks made from now on, if the kernel can do it. Called once. */
void biased_start(void);

bool biased_can_start(void);

/** A lock that is free: biased if that can be had and `owned`. */
void biased_init(struct biased *lock, bool owned);

static inline bool biased_is_on(const struct biased *lock) {
    return atomic_load_explicit(&lock->on, memory_order_acquire);
}

/* For the owner, or any user of one that is not biased. */
void biased_enter_slowly(struct biased *lock);

/** False: not biased, or somebody else wants it; then it has not been entered. */
static inline bool biased_try_enter(struct biased *lock) {
    atomic_store_explicit(&lock->inside, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* the other side's membarrier makes a fence of it */
    if (__builtin_expect(!atomic_load_explicit(&lock->wanted, memory_order_acquire), 1)) {
        lock_note(LOCK_CACHE);
        return true;
    }
    atomic_store_explicit(&lock->inside, false, memory_order_release);
    return false;
}

static inline void biased_enter(struct biased *lock) {
    lock_check(LOCK_CACHE);
    if (!biased_try_enter(lock)) {
        biased_enter_slowly(lock);
    }
}

/** After biased_try_enter(). */
static inline void biased_leave_owned(struct biased *lock) {
    lock_forget(LOCK_CACHE);
    atomic_store_explicit(&lock->inside, false, memory_order_release);
}

static inline void biased_leave(struct biased *lock) {
    lock_forget(LOCK_CACHE);
    bool on = atomic_load_explicit(&lock->on, memory_order_relaxed);
    atomic_store_explicit(on ? &lock->inside : &lock->locked, false, memory_order_release);
}

/**
 * For everybody else, one at a time: several locks, linked by `next_seized`. `end_bias` is called once
 * where the kernel refuses what it did before: it has to end the bias of every lock there is that the
 * caller may seize (biased_end()).
 */
void biased_seize(struct biased *first, void (*end_bias)(void *), void *with);
void biased_return(struct biased *first);

/* In `end_bias`: the first for all locks, then a wait, then the second for all. */
void biased_ask(struct biased *lock);
void biased_wait_for_stores(void);
void biased_end(struct biased *lock);

#endif
