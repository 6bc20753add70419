/* Copies the call stacks that hold most memory into a live page (struct live_holders). */
#ifndef GPUCACHE_LIVE_HOLDERS_H
#define GPUCACHE_LIVE_HOLDERS_H

#include "live/page.h"

/** Copies the call stacks that hold most live memory of a device. Clears *to if stacks are not
 * recorded. Takes no lock and allocates nothing. Takes time in proportion to all call stacks. */
void live_copy_holders(struct live_holders *to, int device);

#endif
