/*
 * The process's own live page (page.h): its making, its figures, its end.
 *
 * There is no thread that keeps the figures fresh, and no signal: a program that counts its threads
 * or its interrupted calls would notice. They are read, as a report reads them, by a thread of the
 * program that is about to wait for the device anyway, gets a large block or has memory grow, as often as
 * takes no more than a thousandth of the time; when memory runs out; and when a reader has asked, at the next wait, query or copy of the program.
 * The short ways through an allocation and a free know nothing of it. So what a program does between
 * two of these moments shows at the second one; each figure says how old it is.
 *
 * Whatever stands in the way of a page (no folder, no room, no rights) is no warning: there is none
 * then. Functions keep errno, make no CUDA call and wait for nothing.
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

#define LIVE_WINDOW_NS 1000000000

extern _Atomic uint64_t live_due_ns;   /* when the figures are old */
extern _Atomic uint64_t live_answered; /* the last question that was answered */

/** Whether a reader wants something. */
static inline bool live_is_asked(void) {
    struct live_page *page = atomic_load_explicit(&live_page, memory_order_acquire);
    return __builtin_expect(page && atomic_load_explicit(&page->asked, memory_order_relaxed) !=
                                        atomic_load_explicit(&live_answered, memory_order_relaxed),
                            0);
}

/** Whether it is time; `now` 0: there is no page. */
static inline bool live_is_due(uint64_t now) {
    return __builtin_expect(
        now != 0 && now >= atomic_load_explicit(&live_due_ns, memory_order_relaxed), 0);
}

/** Now, or some milliseconds ago, which costs less; 0: there is no page. */
static inline uint64_t live_now(void) {
    return atomic_load_explicit(&live_page, memory_order_relaxed)
               ? flight_clock(CLOCK_MONOTONIC_COARSE)
               : 0;
}

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
