/*
 * Runs the helper thread of decay: it advances the clock of all pools (pool/decay.c), and gives
 * memory back to the driver that was idle for GPUCACHE_DECAY_MS. Idle memory that takes the space
 * of managed memory goes back earlier.
 *
 * The thread works even if the program makes no call. It sleeps without a time limit while no pool
 * has idle memory. Atomic variables replace a lock. Invariant: after decay_stop() the thread begins
 * no driver call, unless a call of a pool took more than 1 s, or an exec has failed. device_pool.c
 * starts the thread, backends and allocations of managed memory wake it, and exit handlers and the
 * end of the process stop it.
 *
 * The thread has one last piece of work when the process exits: to wait for the work before the
 * frees of the program (decay_last_wait()). So every process with a pool has the thread.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_DECAY_H
#define GPUCACHE_DRIVER_CONTEXT_DECAY_H

#include "process/process.h"

/** Requests the thread, which helper_start_requested() creates later. The caller may hold locks. */
void decay_start(void);

/** Wakes the thread because a pool has idle memory. The caller may hold the pool's lock. Takes no
 * lock, does not wait, keeps errno. */
void decay_wake(void);

/** Cuts the thread's sleep between two ticks short, after an allocation of managed memory: the
 * thread then checks often whether idle memory takes the space of managed memory. Takes no lock,
 * keeps errno. */
void decay_check_managed(void);

/** Stops the thread's driver calls, because the driver is about to shut down. Waits at most 1 s for
 * a call in progress. */
void decay_stop(void);

/**
 * Lets the thread wait for the work of all contexts in which the program has freed memory. Waits
 * for the thread, at most 2 s. The driver's free waits for that work, prints what its kernels wrote
 * by printf(), and lets its host functions run; the library's free does not wait.
 *
 * For the exit handler, before decay_stop(), and for ends without exit handlers, by decay_end(). A
 * signal handler of the program may have called exit() while its thread was inside malloc or held a
 * lock: the call takes no lock and makes no thread. Returns at once if the thread does not exist,
 * or if a wait has begun before, also in another thread.
 */
void decay_last_wait(void);

/** Lifecycle hooks (process.h): the child of a fork has no thread. The end of the process by exit,
 * _exit, quick_exit or exec waits as decay_last_wait() does, and stops the thread. */
void decay_forked(void);
void decay_end(enum process_end how, int signal);

#endif
