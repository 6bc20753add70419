/*
 * The helper thread of the live page (live/live.h). It reads the figures twice a second, and at
 * once when a reader asks, whatever the threads of the program do: it takes no lock and makes no
 * call of the driver.
 *
 * An order of gpucache ctl is carried out by a thread of its own, which ends with it, because the
 * driver may let it wait for the program's work. The end of the process waits for the order under
 * way.
 *
 * The thread is made when a device is first used, unless GPUCACHE_LIVE=off. The child of a fork
 * has none.
 */
#ifndef GPUCACHE_DRIVER_CONTROL_PAGE_HELPER_H
#define GPUCACHE_DRIVER_CONTROL_PAGE_HELPER_H

#include "process/process.h"

/** Asks for the thread. Locks may be held: helper_start_wanted() makes it. */
void page_helper_start(void);

/** Returns when no order is under way, after a second at most. Begins none from then on. */
void page_helper_stop(void);

/** As parts of the process (process.h). */
void page_helper_forked(void);
void page_helper_end(enum process_end how, int signal);

#endif
