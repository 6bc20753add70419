/*
 * The moments at which a thread of the program looks after the live page (live/live.h): where it is
 * about to wait for the device, where it asks the driver something, where memory has grown.
 *
 * What gpucache ctl orders is done only where the program waits: it may itself wait, for a second.
 * No lock is held at any of these places.
 */
#ifndef GPUCACHE_DRIVER_ATTEND_H
#define GPUCACHE_DRIVER_ATTEND_H

#include "live/live.h"

/** Carries out what has been ordered, and reads the figures. */
void attend_slowly(void);

/** Before a wait of the program's. */
static inline void attend_wait(void) {
    if (live_is_asked() || live_is_due(live_now())) {
        attend_slowly();
    }
}

/** Beside a call that is made often and takes little. */
static inline void attend_question(void) {
    if (live_is_asked()) {
        live_refresh(false);
    }
}

/** Where the driver has been asked for memory, which takes longer than this. */
static inline void attend_growth(void) {
    if (live_is_due(live_now())) {
        live_refresh(false);
    }
}

/** Where a large block came at `now` (flight_block(); 0: there is no page). */
static inline void attend_block(uint64_t now) {
    if (live_is_due(now)) {
        live_refresh(false);
    }
}

#endif
