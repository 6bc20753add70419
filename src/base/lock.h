/*
 * Locks, and the order in which a thread may take them: lock.def has their ranks. A thread that
 * waits for a lock spins for a short time before it sleeps.
 *
 * Builds with GPUCACHE_ASSERTIONS (assert.h) check each use. A thread that takes a lock out of
 * order aborts and names both locks. A deadlock needs two threads at the wrong moment; this check
 * finds its cause with one thread at any moment. Other builds contain no check.
 */
#ifndef GPUCACHE_BASE_LOCK_H
#define GPUCACHE_BASE_LOCK_H

#include "base/assert.h"

#include <pthread.h>
#include <stdbool.h>

enum lock_rank {
#define LOCK(name, protects) LOCK_##name,
#include "base/lock.def"
#undef LOCK
    LOCK_RANKS
};

struct lock {
    pthread_mutex_t mutex;
#ifdef GPUCACHE_ASSERTIONS
    enum lock_rank rank;
    struct holder holder;
#endif
};

#ifdef GPUCACHE_ASSERTIONS
#define LOCK_INITIALIZER(name)                                                                     \
    {                                                                                              \
        PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP, LOCK_##name, {                                      \
            NULL                                                                                   \
        }                                                                                          \
    }

/** Aborts if this thread holds a lock of this rank or of a row further down in lock.def. A thread
 * may hold several locks of rank CACHE. */
void lock_check(enum lock_rank rank);

/** Records that the thread holds one more lock of the rank, or one less. */
void lock_note(enum lock_rank rank);
void lock_forget(enum lock_rank rank);
#else
#define LOCK_INITIALIZER(name)                                                                     \
    { PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP }
#define lock_check(rank) ((void)0)
#define lock_note(rank) ((void)0)
#define lock_forget(rank) ((void)0)
#endif

/** Initialises a lock, as LOCK_INITIALIZER does for a static one. */
void lock_start(struct lock *lock, enum lock_rank rank);

static inline void lock_acquire(struct lock *lock) {
    lock_check(lock->rank);
    pthread_mutex_lock(&lock->mutex);
    lock_note(lock->rank);
    holder_set(&lock->holder);
}

/**
 * Takes the lock if no thread has it. Returns false otherwise. Allowed in any order, because it
 * does not wait. The lock then counts as held in the checks of later lock_acquire() calls.
 */
static inline bool lock_try(struct lock *lock) {
    bool taken = pthread_mutex_trylock(&lock->mutex) == 0;
    if (taken) {
        lock_note(lock->rank);
        holder_set(&lock->holder);
    }
    return taken;
}

static inline void lock_release(struct lock *lock) {
    holder_clear(&lock->holder);
    lock_forget(lock->rank);
    pthread_mutex_unlock(&lock->mutex);
}

/** Asserts that the calling thread holds the lock, or that it does not. */
#define ASSERT_HELD(lock) ASSERT(holder_is_me(&(lock)->holder))
#define ASSERT_NOT_HELD(lock) ASSERT(!holder_is_me(&(lock)->holder))

#endif
