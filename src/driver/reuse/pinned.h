/*
 * Pinned host memory: freed blocks are kept for the next request of the same size and kind.
 *
 * Pinning is slow (a pair of calls takes 0.5 ms for 1 MiB, 17 ms for 64 MiB: docs/cuda-facts.md). A
 * block is kept as the driver gave it. Only an equal request gets the block, which therefore does
 * not differ from a new one. The CPU uses the block at once, and no device barrier orders the CPU.
 * Invariant: a block is handed out only after all work submitted before its free has *completed*.
 *
 * If a free finds the bound on kept memory reached, the oldest block goes back to the driver, which
 * waits as it does natively. A block that many requests did not match goes back too, once the
 * device is idle. Hooks call these functions; the lock is PINNED.
 */
#ifndef GPUCACHE_DRIVER_REUSE_PINNED_H
#define GPUCACHE_DRIVER_REUSE_PINNED_H

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct context;

/* Kind of a block: the flags of cuMemHostAlloc, or PINNED_PLAIN for cuMemAllocHost. */
#define PINNED_PLAIN 0x80000000u

/** Returns a kept block for the request whose work has completed, or NULL. */
void *pinned_take(size_t bytes, unsigned kind);

/**
 * Keeps a block that the program has freed and that existed when pinned_ends() was `ends`. Returns
 * false if the caller must free the block with the driver.
 */
bool pinned_keep(void *host, size_t bytes, unsigned kind, uint64_t ends);

/**
 * Returns how many contexts have ended. If the number has changed, a block may have ended with its
 * context.
 */
uint64_t pinned_ends(void);

/** Returns whether `host` lies in a kept block, which to the program is freed memory. */
bool pinned_has(const void *host);

/**
 * Gives kept blocks back to the driver while their context is idle, since the driver's free waits
 * for the device. Sets *any if a block went back. Returns 0 if none is left, else -EBUSY. Call with
 * no lock held.
 */
int pinned_release(bool *any);

/**
 * Forgets the kept blocks of a context that has ended; its pinned memory ended with it. Call after
 * unpooled_forget().
 */
void pinned_forget(const struct context *context);

#endif
