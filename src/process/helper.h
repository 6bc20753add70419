/*
 * Helper threads: what has to be done while the program makes no call.
 *
 * They take none of the program's signals, are made no earlier than they are needed, and are not there in the child
 * of a fork. The end of the process does not wait for a thread but for its turn: one piece of work, which begins
 * only while nobody holds it up.
 */
#ifndef GPUCACHE_PROCESS_HELPER_H
#define GPUCACHE_PROCESS_HELPER_H

#include "process/log.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum helper_turn { HELPER_IDLE, HELPER_AT_WORK, HELPER_HELD };

/**
 * Makes a thread. 0, or the number of an error. With no lock held: the program's own malloc may
 * run.
 */
int helper_start(void *(*run)(void *));

/**
 * Lets SIGBUS through to the calling helper thread, where the library handles it: blocked, a SIGBUS
 * by the thread's own access to a file that was cut short would end the process (guard.h). Does
 * nothing in a thread of the program.
 */
void helper_admit_sigbus(void);

/**
 * For the handler of SIGBUS. Returns whether a helper thread got a signal that was sent to the
 * process. The signal is sent again and blocked here until helper_admit_sigbus(): the program's
 * threads may block it, and read it by sigwait() or from a signalfd.
 */
bool helper_passes_on(int number, siginfo_t *info, void *context);

/** A thread that is asked for where locks are held, and made at the next helper_start_wanted(). */
struct helper {
    void *(*run)(void *);
    enum log_level level; /* of the message where the thread cannot be made */
    const char *lacking;  /* what does not work then */
    atomic_bool wanted;
    atomic_bool started;
    struct helper *next; /* among those wanted and not made yet */
};

extern _Atomic(struct helper *) helper_wanted;

/** Asks for the thread, once in the life of the process. */
void helper_want(struct helper *helper);

void helper_start_all_wanted(void);

/** Makes the threads that were asked for. With no lock held. */
static inline void helper_start_wanted(void) {
    if (__builtin_expect(atomic_load_explicit(&helper_wanted, memory_order_relaxed) != NULL, 0)) {
        helper_start_all_wanted();
    }
}

/** Around one piece of its work. False: it is held up. */
bool helper_begin(_Atomic int *turn);
void helper_done(_Atomic int *turn);

/** Nothing of it begins any more, and none is under way: for that this waits for so long at most. */
void helper_hold(_Atomic int *turn, unsigned ms);

/** It goes on. */
void helper_release(_Atomic int *turn);

/** Sleeps for all of that time, whatever comes in between. */
void helper_sleep(uint64_t ns);

#endif
