/*
 * Pinned host memory: freed blocks kept for the next request of the same size and kind.
 *
 * Pinning is what costs (0.5 ms for 1 MiB, 17 ms for 64 MiB a pair: docs/cuda-facts.md), so a block is kept as the driver gave it, and only an
 * equal request gets it: nothing about it differs from a new one. The CPU touches this memory as soon as it has it, which no
 * device barrier orders: a block goes out again only when everything submitted before its free has *finished*, and otherwise the
 * driver is asked for a new one.
 *
 * Where a free finds the bound reached, the driver gets the block that was kept longest, and waits as it always did. A block that
 * many requests have passed by goes back too, once the device is idle.
 */
#ifndef GPUCACHE_DRIVER_REUSE_PINNED_H
#define GPUCACHE_DRIVER_REUSE_PINNED_H

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct context;

/* How a block was asked for: the flags of cuMemHostAlloc, or that it was cuMemAllocHost. */
#define PINNED_PLAIN 0x80000000u

/** A kept block for the request, or NULL. */
void *pinned_take(size_t bytes, unsigned kind);

/** Keeps a block that the program has freed, and that was known when pinned_ends() was `ends`. False: it is
 * to be freed by the driver. */
bool pinned_keep(void *host, size_t bytes, unsigned kind, uint64_t ends);

/** How many contexts have ended: then a block may have gone with its context. */
uint64_t pinned_ends(void);

/** Whether `host` lies in a kept block: to the program, memory it has freed. */
bool pinned_has(const void *host);

/** Gives blocks back to the driver, which waits for the device: only while that is idle. 0: all, -EBUSY: some are left; *any: set if any
 * went. */
int pinned_release(bool *any);

/** A context has ended, and its pinned memory with it. After unpooled_forget(). */
void pinned_forget(const struct context *context);

#endif
