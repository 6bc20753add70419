/*
 * Waits on the CPU that sync.c uses. The pool's lock is held on entry and on return.
 */
#ifndef GPUCACHE_SYNC_WAIT_H
#define GPUCACHE_SYNC_WAIT_H

#include "source/source.h"

/** Counts a wait on the CPU that began at `since` (ns). */
void count_wait(struct source *source, uint64_t since);

/**
 * Waits on the CPU for the oldest event recorded in a free that covers `stamp`; 0: the oldest of
 * all. Waits without a limit if the caller is a free (`freeing`) or a free of the calling thread
 * recorded the event: the native free waits for the same work. Otherwise waits at most
 * LATE_WAIT_NS, but without a limit if queries fail. Releases the lock during the wait. Returns 0;
 * -ENOENT if there is no such event; -EBUSY if the context is suspended, the backend cannot wait
 * now or the time is over; or the driver's code.
 */
int wait_for_event_in_free(struct source *source, uint64_t stamp, bool freeing);

#endif
