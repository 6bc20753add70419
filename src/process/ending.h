/*
 * The last report of a process, however the process ends. ending.c also hooks the ends that run no
 * destructor: _exit, _Exit, quick_exit and exec. No lock (ending.c).
 */
#ifndef GPUCACHE_PROCESS_ENDING_H
#define GPUCACHE_PROCESS_ENDING_H

#include "process/helper.h"
#include "process/process.h"

#include <stdbool.h>

/** Enables the last report for this process. Called once, when the library starts. */
void ending_start(void);

/**
 * Returns whether this is the process that the library was started in: not a child by fork, vfork
 * or clone.
 */
bool ending_is_own_process(void);

/**
 * Writes the last report, unless it has been written. If another thread is writing it, waits for
 * that thread for a limited time. A signal that interrupts the report in its own thread may write a
 * second one. Keeps errno.
 */
void ending_report(const char *reason);

/**
 * Waits, for a limited time, until another thread has written the last report. For a caller that is
 * about to end the process.
 */
void ending_wait(void);

/**
 * Stops the work of a helper thread, after waiting at most one second for the piece in progress.
 * Does nothing in a child, or if the thread was never made. Keeps errno.
 */
void ending_stop_helper(const struct helper *helper, _Atomic int *turn);

/** Stops the work at an exit or exec, and allows it again after a failed exec. Does nothing if a
 * signal ends the process. */
void ending_of_helper(const struct helper *helper, _Atomic int *turn, enum process_end how);

#endif
