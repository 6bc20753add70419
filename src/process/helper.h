/*
 * Helper threads: they do the work that is due while the program makes no call.
 *
 * Helper threads block the program's signals. They are made when they are first needed, and do not
 * exist in the child of a fork. The end of the process does not wait for a thread to end. It waits
 * until the thread's piece of work is done, and allows no other piece. Each thread has an atomic
 * state for that, its turn; there is no lock.
 */
#ifndef GPUCACHE_PROCESS_HELPER_H
#define GPUCACHE_PROCESS_HELPER_H

#include "base/likely.h"
#include "base/log.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* HELPER_AT_WORK: a piece of work is in progress. HELPER_HELD: none may begin. */
enum helper_turn { HELPER_IDLE, HELPER_AT_WORK, HELPER_HELD };

/**
 * Makes a thread. Returns 0 or an error number. No lock may be held: the program's own malloc may
 * run.
 */
int helper_start(void *(*run)(void *));

/**
 * Unblocks SIGBUS in the calling helper thread, if the library handles it. A blocked SIGBUS, raised
 * by the thread's own access to a truncated file, would end the process (guard.h). Does nothing in
 * a thread of the program.
 */
void helper_admit_sigbus(void);

/**
 * Passes a signal that was sent to the process on from a helper thread. Returns whether it did so.
 * The signal is sent again and blocked here until helper_admit_sigbus(): the program's threads may
 * block it, and read it by sigwait() or from a signalfd. The signal handler calls it in any thread,
 * for any signal.
 */
bool helper_passes_on(int number, siginfo_t *info, void *context);

/** A thread that is requested while locks are held. The next helper_start_requested() makes it. */
struct helper {
    void *(*run)(void *);
    enum log_level level; /* of the message if the thread cannot be made */
    const char *lacking;  /* what does not work without the thread */
    atomic_bool requested;
    atomic_bool started;
    struct helper *next; /* in the list of requested threads */
};

extern _Atomic(struct helper *) helper_requested;

/** Requests the thread, once in the life of the process. Locks may be held. */
void helper_request(struct helper *helper);

void helper_start_all_requested(void);

/** Makes the threads that were requested. No lock may be held. */
static inline void helper_start_requested(void) {
    if (unlikely(atomic_load_explicit(&helper_requested, memory_order_relaxed) != NULL))
        helper_start_all_requested();
}

/**
 * Begin and end one piece of a helper's work. helper_begin() returns false, and no work may be
 * done, if the turn is held or another thread is at work.
 */
bool helper_begin(_Atomic int *turn);
void helper_done(_Atomic int *turn);

/**
 * Waits for the piece in progress, at most `ms` milliseconds, and sets HELPER_HELD: no other piece
 * begins. After a longer wait, returns without HELPER_HELD, and work goes on.
 */
void helper_hold(_Atomic int *turn, unsigned ms);

/** Allows work again after helper_hold(). */
void helper_release(_Atomic int *turn);

#endif
