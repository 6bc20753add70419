/*
 * The helper thread of the live page (live/live.h). It updates the metrics on the page twice a
 * second, and at once when a reader asks. The update waits for no lock and makes no driver call, so
 * threads of the program cannot delay it.
 *
 * A second thread executes orders of gpucache ctl, because the driver may make an order wait for
 * work of the program. The second thread ends when no order is left. If the second thread cannot be
 * created, the helper thread executes the orders. The helper thread then takes locks, makes driver
 * calls, and stays in relaxed capture mode. Invariant: at most one order is in progress. The end of
 * the process waits up to a second for that order.
 *
 * The helper thread starts when a device is first used, unless GPUCACHE_LIVE=off. The child of a
 * fork has neither thread.
 */
#ifndef GPUCACHE_DRIVER_CONTROL_PAGE_HELPER_H
#define GPUCACHE_DRIVER_CONTROL_PAGE_HELPER_H

#include "process/process.h"

/**
 * Requests the helper thread. Locks may be held: helper_start_requested() creates the thread later.
 */
void page_helper_start(void);

/** Waits until no order is in progress, at most one second. No order begins after that. Keeps
 * errno. */
void page_helper_stop(void);

/** Hooks of fork and of the end of the process (lifecycle_hooks.c). */
void page_helper_forked(void);
void page_helper_end(enum process_end how, int signal);

#endif
