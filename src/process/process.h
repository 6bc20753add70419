/*
 * The life of the process, as far as this library takes part in it.
 *
 *      no CUDA       nothing of ours has run but dlsym's two byte compares, and a look at stderr
 *      starting
 *      started       by the first driver call that matters: options read, stderr kept, fork handled, signals at their default action
 *                    taken (signals.h)
 *      forked        a child of a started process: everything passes through, nothing is reported
 *      ending        the last report, without a CUDA call (ending.h)
 */
#ifndef GPUCACHE_PROCESS_PROCESS_H
#define GPUCACHE_PROCESS_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>

enum process_state { PROCESS_IDLE, PROCESS_STARTING, PROCESS_STARTED, PROCESS_FORKED };

/* How it ends; or does not, after all: the exec failed. */
enum process_end { PROCESS_EXITS, PROCESS_EXECS, PROCESS_GOES_ON, PROCESS_DIES };

/* What starts, forks, reports and ends with the process, and stands above this room, which names none of it:
 * driver/control/process_hook_table.c has the table. */
struct process_hooks {
    void (*start)(void);  /* options are known, and there are no reports yet */
    void (*forked)(void); /* in the child of a fork, where any lock may be held for ever */
    void (*report)(const char *reason);
    void (*end)(enum process_end how, int signal); /* after the last report; 0: no signal */
};

extern const struct process_hooks process_hook_table[];
extern const unsigned process_hook_count;

/** Reports; also from a signal handler. */
void process_report(const char *reason);

/** Tells all parts of the end; also from a signal handler. */
void process_end(enum process_end how, int signal);

extern _Atomic int process_state; /* enum process_state */

/** Starts what has to be started, once; from any thread, and from inside itself. True unless
 * everything has to pass through. */
bool process_start(void);

static inline bool process_ready(void) {
    return __builtin_expect(
               atomic_load_explicit(&process_state, memory_order_acquire) == PROCESS_STARTED, 1) ||
           process_start();
}

#endif
