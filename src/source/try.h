/*
 * What a request can be served with, from the source alone. The answer is in want->block. With the pool's lock held, which is let go
 * of in between.
 */
#ifndef GPUCACHE_SOURCE_TRY_H
#define GPUCACHE_SOURCE_TRY_H

#include "source/source.h"

/** What may be handed out now. Waits for nothing, and keeps the lock. */
bool try_free(struct source *source, struct alloc_request *request);

/** The same. A segment that would stay for a small part of it is split before, if the driver plays along. */
bool try_free_or_split(struct source *source, struct alloc_request *request);

/** Asks for what has finished: enough for the request, then everything. */
bool try_completed(struct source *source, struct alloc_request *request);

/** Orders just enough pending memory for the request, then all that can be by then: a wait for the former
 * may have gone to another thread, which has freed something since. */
bool try_barrier(struct source *source, struct alloc_request *request);

/** What is pending, as it can be had: try_completed(), then try_barrier(). */
bool try_pending(struct source *source, struct alloc_request *request);

/** All that was freed by now is waited for. What comes of it on the way is taken, before others come who have not waited. */
bool try_wait(struct source *source, struct alloc_request *request, uint64_t time_budget_ns);

/** Other pools of the device give back what nobody has live there; if `wait`, also what work is in front of. True if there was any. */
bool try_other_pools(struct source *source, const struct alloc_request *request, bool wait);

/** A segment from the driver. 0: served. Else why there is none, or -EAGAIN while more could be given back for it; *refusal is
 * why growing was refused. */
int try_grow(struct source *source, struct alloc_request *request, int *refusal);

/** grow.c: yields until as many growths have ended as are under way. They may be bringing what we were refused, or were lent it. */
void grow_wait_for_others(struct source *source);

/** A segment from the driver, within the budget if it can be. `give_back_first`: it would not be by itself, and idle segments can go
 * back without a wait (not in lines: there they make room). 0, with the request served or not, or why not. */
int grow(struct source *source, struct alloc_request *request, bool give_back_first);

#endif
