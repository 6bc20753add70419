/*
 * The process's own live page (page.h): its making, its figures, its end.
 *
 * A helper thread (driver/control/page_helper.c) reads the figures twice a second, and at once when a
 * reader asks. A thread of the program reads them only when memory runs out and when the process
 * dies of a signal.
 *
 * Whatever stands in the way of a page (no folder, no room, no rights) is no warning: there is none
 * then. Functions keep errno, make no CUDA call and, but for live_wait(), wait for nothing.
 */
#ifndef GPUCACHE_LIVE_LIVE_H
#define GPUCACHE_LIVE_LIVE_H

#include "live/flight.h"
#include "live/page.h"
#include "process/process.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/** Makes the page, with room for so many devices. Once, when a device is first used. */
void live_start(unsigned devices);

void live_set_driver_version(int version);

/** Reads the figures, unless another thread is at it; with the sizes of what is live, or as these were. */
void live_refresh(bool sizes);

/**
 * Returns when a reader has asked since the last live_refresh(), or after `ns` nanoseconds;
 * without a page after a second at most.
 */
void live_wait(uint64_t ns);

/** The order that nobody has taken yet; 0: there is none. */
enum live_order live_next_order(void);

/** Tells the giver of the next order why it is not begun. */
void live_hold_up(enum live_hold why);

/** What somebody wants done; false: nothing. It is the caller's then, who has to say when it is done. */
struct live_wish {
    uint64_t number, value;
    enum live_order order;
    int device; /* -1: all */
};
bool live_take_order(struct live_wish *wish);
void live_order_done(const struct live_wish *wish, int result);

/** In the child of a fork: it has no page. Also where it has the number of its parent, in a namespace of its own. */
void live_forked(void);

/**
 * The process ends. After exit nobody will ask for its page, which goes; after exec, and until it has failed, it says
 * so; after a signal it stays, with the last figures. Nothing in a child.
 */
void live_end(enum process_end how, int signal);

#endif
