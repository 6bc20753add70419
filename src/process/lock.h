/*
 * Locks, and the order in which a thread may take them: lock.def has their ranks.
 *
 * With GPUCACHE_LOCK_RANKS (debug builds, the unit tests, and a second build of the library that some programs are
 * tested under) a thread that takes one out of order aborts, and names both: a deadlock needs two threads at
 * the wrong moment, its cause only one at any. Otherwise nothing of this is left.
 */
#ifndef GPUCACHE_PROCESS_LOCK_H
#define GPUCACHE_PROCESS_LOCK_H

#include <pthread.h>
#include <stdbool.h>

enum lock_rank {
#define LOCK(name, protects) LOCK_##name,
#include "process/lock.def"
#undef LOCK
    LOCK_RANKS
};

struct lock {
    pthread_mutex_t mutex;
#ifdef GPUCACHE_LOCK_RANKS
    enum lock_rank rank;
#endif
};

#ifdef GPUCACHE_LOCK_RANKS
#define LOCK_INITIALIZER(name)                                                                     \
    { PTHREAD_MUTEX_INITIALIZER, LOCK_##name }

/** Aborts if this thread holds a lock that may not be held when one of this rank is waited for. */
void lock_check(enum lock_rank rank);

/** From now on the thread holds one more, or one less. */
void lock_note(enum lock_rank rank);
void lock_forget(enum lock_rank rank);
#else
#define LOCK_INITIALIZER(name)                                                                     \
    { PTHREAD_MUTEX_INITIALIZER }
#define lock_check(rank) ((void)0)
#define lock_note(rank) ((void)0)
#define lock_forget(rank) ((void)0)
#endif

/** Makes a lock that spins for a moment before it sleeps. */
void lock_start(struct lock *lock, enum lock_rank rank);

static inline void lock_acquire(struct lock *lock) {
    lock_check(lock->rank);
    pthread_mutex_lock(&lock->mutex);
    lock_note(lock->rank);
}

/** False: somebody has it. In any order, because nothing is waited for. */
static inline bool lock_try(struct lock *lock) {
    bool taken = pthread_mutex_trylock(&lock->mutex) == 0;
    if (taken) {
        lock_note(lock->rank);
    }
    return taken;
}

static inline void lock_release(struct lock *lock) {
    lock_forget(lock->rank);
    pthread_mutex_unlock(&lock->mutex);
}

#endif
