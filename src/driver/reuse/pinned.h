/*
 * Keeps freed blocks of pinned host memory for the next request of the same size and kind.
 *
 * Pinning is slow (a pair of calls takes 0.5 ms for 1 MiB, 17 ms for 64 MiB: docs/cuda-facts.md).
 * A request gets a kept block only if size and kind are equal, so the block does not differ from a
 * new one. The CPU may use the block at once, and no device barrier orders the CPU. Invariant: a
 * block is handed out only after all work submitted before its free has completed.
 *
 * A free that exceeds the bound on kept memory gives the oldest block back to the driver, which
 * waits as it does natively. If work on the oldest block is pending, the freed block goes back. A
 * block that many requests did not take goes back too, once the context is idle. A lock of rank
 * PINNED protects the state. Hooks and control/ call these functions.
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

/** Returns a kept block of this size and kind whose work has completed, or NULL. The program owns
 * the block then. */
void *pinned_take(size_t bytes, unsigned kind);

/**
 * Keeps a block that the program has freed. The block existed when pinned_ends() returned `ends`.
 * Records an event, and may free other kept blocks. Returns false if the caller must free the block
 * with the driver, also if the block exceeds a quarter of the bound. Call with no lock held.
 */
bool pinned_keep(void *host, size_t bytes, unsigned kind, uint64_t ends);

/**
 * Returns how many contexts have ended. After a change of this number, a block may have ended with
 * its context.
 */
uint64_t pinned_ends(void);

/** Notes that the program has set an attribute of memory outside the pool. From then on a block is
 * kept only if the driver says that SYNC_MEMOPS is not set: the next owner must not inherit it. */
void pinned_attribute_was_set(void);

/** Returns whether `host` lies in a kept block, that is, in memory that the program has freed. */
bool pinned_has(const void *host);

/**
 * Gives kept blocks back to the driver as long as their context is idle: the driver's free waits
 * for the device. Sets *any if a block went back. Returns 0 if no kept block is left, else -EBUSY.
 * Call with no lock held.
 */
int pinned_release(bool *any);

/**
 * Forgets the kept blocks of an ended context: the driver has freed them with the context. Call
 * after unpooled_forget().
 */
void pinned_forget(const struct context *context);

#endif
