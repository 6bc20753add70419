/*
 * Host memory for the pool's own descriptors.
 *
 * The program under us may have replaced malloc, may be inside malloc, or may be a sanitizer's own
 * runtime: so descriptors come from mmap, zeroed, and are never given back. That they stay mapped
 * for ever is what allows readers (reports, look-ups of a pointer nobody has) to go through them
 * without a lock.
 */
#ifndef GPUCACHE_MEMORY_HOST_H
#define GPUCACHE_MEMORY_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Zeroed memory of `bytes`, aligned to `alignment` (a power of two, at least a page). NULL when
 * the system has none. */
void *host_map(size_t bytes, size_t alignment);

/** How much of it is mapped in all. What was never written takes no memory of the machine: at most so much. */
uint64_t host_bytes(void);

/** Unmaps memory of host_map() that no reader can see any more, and takes it off host_bytes().
 * Ignores NULL. munmap() would leave the count too high. */
void host_unmap(void *memory, size_t bytes);

/** Objects of one size, recycled through a free list. The caller's lock protects it. */
struct host_slab {
    size_t object_bytes; /* at least a pointer */
    void *recycled;
    char *fresh, *fresh_end;
};

/** Makes sure that the next `count` objects can be had, as far as nobody else takes them. False
 * without host memory. */
bool host_slab_prepare(struct host_slab *slab, unsigned count);

/** A zeroed object, or NULL. */
void *host_slab_get(struct host_slab *slab);
void host_slab_put(struct host_slab *slab, void *object);

#endif
