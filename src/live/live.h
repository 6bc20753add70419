/*
 * Makes, updates and removes the process's own live page (page.h).
 *
 * A helper thread (driver/control/page_helper.c) updates the statistics in the page twice a second,
 * and at once when a reader asks. A thread of the program updates them only when it makes the page,
 * at an out of memory, and when a signal ends the process.
 *
 * If a page cannot be made (no folder, no memory, no rights), the process has none, without a
 * warning. All functions keep errno and make no CUDA call. Only live_wait() waits. Invariant: one
 * thread at a time updates the statistics, guarded by an atomic flag instead of a lock.
 */
#ifndef GPUCACHE_LIVE_LIVE_H
#define GPUCACHE_LIVE_LIVE_H

#include "live/flight.h"
#include "live/page.h"
#include "process/process.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/** Makes the page, with slots for `devices` devices. Called once, when a device is first used. */
void live_start(unsigned devices);

/** Sets the driver's version in the page, now or when the page is made. */
void live_set_driver_version(int version);

/**
 * Updates the statistics in the page, unless another thread is doing so. `sizes`: counts the sizes
 * of live blocks again; else the last count is kept, unless a new one is due.
 */
void live_refresh(bool sizes);

/**
 * Waits until a reader asks for an update, or for `ns` nanoseconds. Returns at once if a reader has
 * asked since the last update. Without a page, sleeps for `ns`.
 */
void live_wait(uint64_t ns);

/** Returns the order in the page that nobody has taken yet; 0: none. */
enum live_order live_next_order(void);

/** Writes into the page why the next order is not begun yet, for the reader that gave it. */
void live_hold_up(enum live_hold why);

/**
 * An order of a reader. live_take_order() takes the next one from the page and returns false if
 * there is none. The caller then carries the order out, and reports the result by
 * live_order_done(): 0 or a negative errno.
 */
struct live_request {
    uint64_t number, value;
    enum live_order order;
    int device; /* -1: all */
};
bool live_take_order(struct live_request *wish);
void live_order_done(const struct live_request *wish, int result);

/**
 * Runs in the child of a fork, which has no page. A child in a PID namespace of its own needs this:
 * it may have the process number of its parent.
 */
void live_forked(void);

/**
 * Records in the page how the process ends. Does nothing in a child.
 *
 *  PROCESS_EXITS     removes the page: nobody will ask for it
 *  PROCESS_EXECS     records it in the page
 *  PROCESS_GOES_ON   exec has failed: clears that record
 *  PROCESS_DIES      records the signal, and updates the statistics a last time
 */
void live_end(enum process_end how, int signal);

#endif
