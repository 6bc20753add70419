/*
 * The holders on the live page.
 */
#ifndef GPUCACHE_LIVE_HOLDERS_H
#define GPUCACHE_LIVE_HOLDERS_H

#include "live/page.h"

/** Copies the call stacks that hold most live memory of a device. Takes no lock and allocates
 * nothing. Takes time in proportion to the number of call stacks. */
void live_copy_holders(struct live_holders *to, int device);

#endif
