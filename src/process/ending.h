/*
 * The last report of a process, whatever way it ends, and the ends that run no destructor: _exit, _Exit, quick_exit and exec.
 */
#ifndef GPUCACHE_PROCESS_ENDING_H
#define GPUCACHE_PROCESS_ENDING_H

#include <stdbool.h>

/** Once, when the library starts. */
void ending_start(void);

/** Whether this is the process whose books these are: no child of it, by fork, vfork or clone. */
bool ending_is_own_process(void);

/**
 * Writes the last report, unless it has been written; waits, for a limited time, for another thread that is writing it. For a signal
 * that interrupts its own thread's report this one may be a second.
 */
void ending_report(const char *reason);

/** Only waits: the caller is about to end a process that another thread is ending. */
void ending_wait(void);

#endif
