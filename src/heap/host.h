/*
 * Host memory for the allocator's own descriptors.
 *
 * Descriptors come from mmap, not from malloc. The program may have replaced malloc, may be inside
 * malloc when it calls CUDA, or may be a sanitizer's runtime. Fresh mappings are zeroed.
 *
 * Invariant: memory that any thread may read without a lock stays mapped for ever. Reports and
 * look-ups of unknown pointers therefore read descriptors without a lock. The worst case is the
 * content of a recycled descriptor, never a fault.
 *
 * host_map(), host_unmap() and host_bytes() need no lock. The caller's lock protects a
 * host_freelist: for arenas the pool's lock.
 */
#ifndef GPUCACHE_HEAP_HOST_H
#define GPUCACHE_HEAP_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/**
 * Returns `bytes` of zeroed memory, aligned to `alignment` (a power of two, at least 4096). Returns
 * NULL if the system has none.
 */
void *host_map(size_t bytes, size_t alignment);

/**
 * Returns the bytes that host_map() has mapped and host_unmap() has not unmapped. The figure is an
 * upper bound of the memory in use: pages that were never written take none.
 */
uint64_t host_bytes(void);

/**
 * Unmaps memory of host_map() that no other thread can read any more, and subtracts it from
 * host_bytes(). Ignores NULL. A plain munmap() would leave host_bytes() too high.
 */
void host_unmap(void *memory, size_t bytes);

/**
 * Returns memory of `bytes` with the first `used` bytes of `old`, which has `old_bytes`, and unmaps
 * `old`. No other thread may read `old`, which may be NULL. Returns NULL without host memory; `old`
 * then stays.
 */
void *host_grow(void *old, size_t old_bytes, size_t used, size_t bytes);

/** Allocator of descriptors of one size, recycled through a free list. */
struct host_freelist {
    size_t object_bytes;     /* at least the size of a pointer */
    void *recycled;          /* free list: each object begins with the pointer to the next */
    size_t recycled_count;   /* objects in the free list */
    char *fresh, *fresh_end; /* part of the newest mapping that was never handed out */
};

/**
 * Maps memory, if needed, so that the next `count` calls of host_freelist_get() succeed, unless
 * another thread gets objects in between. Returns false if the system has no host memory.
 */
bool host_freelist_prepare(struct host_freelist *freelist, unsigned count);

/** Returns a zeroed object, or NULL without host memory. */
void *host_freelist_get(struct host_freelist *freelist);
void host_freelist_put(struct host_freelist *freelist, void *object);

#endif
