/*
 * The process's own live page (page.h): it is made, updated and removed here.
 *
 * A helper thread (driver/control/page_helper.c) updates the statistics in the page twice a second,
 * and at once when a reader asks. A thread of the program updates them only at an out of memory,
 * and when a signal ends the process.
 *
 * If a page cannot be made (no folder, no memory, no rights), the process has none, without a
 * warning. All functions keep errno and make no CUDA call. Only live_wait() waits. An atomic flag
 * admits one thread at a time to an update.
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

void live_set_driver_version(int version);

/**
 * Updates the statistics in the page, unless another thread is doing so. `sizes`: counts the sizes
 * of live blocks again; else the last count is kept, unless a new one is due.
 */
void live_refresh(bool sizes);

/**
 * Waits until a reader asks for an update, or for `ns` nanoseconds. Returns at once if a reader has
 * asked since the last update. Without a page it returns after one second at most.
 */
void live_wait(uint64_t ns);

/** Returns the order that stands in the page and that nobody has taken yet; 0: none. */
enum live_order live_next_order(void);

/** Writes into the page why the next order is not begun yet, for the reader that gave it. */
void live_hold_up(enum live_hold why);

/**
 * An order of a reader. live_take_order() takes the next one from the page and returns false if
 * there is none. The caller then carries the order out, and reports the result by
 * live_order_done(): 0 or a negative errno.
 */
struct live_wish {
    uint64_t number, value;
    enum live_order order;
    int device; /* -1: all */
};
bool live_take_order(struct live_wish *wish);
void live_order_done(const struct live_wish *wish, int result);

/**
 * Runs in the child of a fork, which has no page. A child in a PID namespace of its own needs this:
 * it may have the process number of its parent.
 */
void live_forked(void);

/**
 * Records in the page how the process ends. Does nothing in a child.
 *
 *  exit     removes the page, since nobody will ask for it
 *  exec     says so in the page, until exec has failed
 *  signal   keeps the page, with the last statistics
 */
void live_end(enum process_end how, int signal);

#endif
