/*
 * The states of the process, from the library's view.
 *
 *      PROCESS_IDLE      process_start() has not run; constructors and overrides of libc may have
 *      PROCESS_STARTING  process_start() runs for the first time
 *      PROCESS_STARTED   after the first process_start(): options are read, stderr is kept if
 *                        reports go there, fork is handled, signals at their default action get a
 *                        handler
 *      PROCESS_FORKED    child of a process in which process_start() had begun: all calls pass
 *                        through, nothing is reported
 *
 * The end of the process is not a state: ending.h writes the last report, without a CUDA call.
 *
 * The state is atomic. pthread_once() runs the start; then one thread runs the hooks `load`. A hook
 * of the driver that needs the library calls process_ready(), which starts the library once
 * cuInit() has run. Before cuInit() a fork is harmless for CUDA: the child may use it, and starts
 * the library itself.
 */
#ifndef GPUCACHE_PROCESS_PROCESS_H
#define GPUCACHE_PROCESS_PROCESS_H

#include "base/likely.h"

#include <stdatomic.h>
#include <stdbool.h>

enum process_state { PROCESS_IDLE, PROCESS_STARTING, PROCESS_STARTED, PROCESS_FORKED };

/* How the process ends. PROCESS_GOES_ON: the exec failed, and the process does not end. */
enum process_end { PROCESS_EXITS, PROCESS_EXECS, PROCESS_GOES_ON, PROCESS_DIES };

/*
 * Hooks of the modules above this one, which start, fork, report and end with the process. This
 * module names none of them. driver/control/lifecycle_hooks.c has the table, defined with
 * PROCESS_HOOK_TABLE. The linker finds the table by its section: a process may start before the
 * constructors of the library run.
 */
struct process_hooks {
    bool (*is_used)(void); /* whether the process uses CUDA; until then process_ready() is false */
    void (*start)(void);   /* after options are read, before any report */
    void (*load)(void);    /* after all starts; may wait for the dynamic loader (process.c) */
    void (*forked)(void);  /* in the child of a fork; must take no lock (in_child()) */
    void (*report)(const char *reason);
    void (*end)(enum process_end how, int signal); /* after the last report; `signal` 0: none */
};

#define PROCESS_HOOK_TABLE                                                                         \
    __attribute__((section("process_hooks"), used)) const struct process_hooks
extern const struct process_hooks process_hook_table[] __asm__("__start_process_hooks")
    __attribute__((visibility("hidden")));
extern const struct process_hooks process_hook_table_end[] __asm__("__stop_process_hooks")
    __attribute__((visibility("hidden")));

/** Writes a report by all hooks. Safe in a signal handler. */
void process_report(const char *reason);

/** Tells all hooks how the process ends. Safe in a signal handler. */
void process_end(enum process_end how, int signal);

extern _Atomic int process_state; /* enum process_state */

/**
 * Starts the library, once. May be called from any thread, and by the start itself. Returns false
 * if all calls have to pass through.
 */
bool process_start(void);

/** Calls process_start() if the process uses CUDA. Returns false if it does not. */
bool process_start_if_used(void);

/** Returns whether the library serves calls now. Does not start it. */
static inline bool process_is_started(void) {
    return atomic_load_explicit(&process_state, memory_order_acquire) == PROCESS_STARTED;
}

/** Returns whether the process is the child of one in which process_start() had begun. */
static inline bool process_is_forked(void) {
    return atomic_load_explicit(&process_state, memory_order_acquire) == PROCESS_FORKED;
}

/** Returns whether the library serves calls. Starts it if no thread has, and cuInit() has run. */
static inline bool process_ready(void) {
    return likely(process_is_started()) || process_start_if_used();
}

#endif
