/* What the program's own records and waits of contexts ask of a pool that begins after them. */
#ifndef GPUCACHE_DRIVER_SYNC_H
#define GPUCACHE_DRIVER_SYNC_H

struct pool;

/** A pool begins: what the program did before is told to it. */
void sync_catch_up(struct pool *pool);

#endif
