/*
 * Host memory for descriptors: mappings, and a free list of objects of one size. host.h says why
 * they are never unmapped.
 */
#include "heap/host.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define SLAB_BYTES ((size_t)64 << 10)

static _Atomic uint64_t mapped;

uint64_t host_bytes(void) {
    return atomic_load_explicit(&mapped, memory_order_relaxed);
}

void *host_map(size_t bytes, size_t alignment) {
    size_t slack = alignment > 4096 ? alignment : 0;
    char *raw = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return NULL;
    atomic_fetch_add_explicit(&mapped, bytes, memory_order_relaxed);
    if (slack == 0)
        return raw;
    char *aligned = (char *)(((uintptr_t)raw + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (aligned > raw)
        munmap(raw, (size_t)(aligned - raw));
    size_t tail = (size_t)(raw + bytes + slack - (aligned + bytes));
    if (tail > 0)
        munmap(aligned + bytes, tail);
    /* With huge pages, the first use of a descriptor would clear 2 MiB. */
    madvise(aligned, bytes, MADV_NOHUGEPAGE);
    return aligned;
}

void host_unmap(void *memory, size_t bytes) {
    if (memory) {
        munmap(memory, bytes);
        atomic_fetch_sub_explicit(&mapped, bytes, memory_order_relaxed);
    }
}

void *host_grow(void *old, size_t old_bytes, size_t used, size_t bytes) {
    void *larger = host_map(bytes, 4096);
    if (larger && old) {
        memcpy(larger, old, used);
        host_unmap(old, old_bytes);
    }
    return larger;
}

/* Returns the object after `object` in the free list. */
static void *next_recycled(const void *object) {
    void *next;
    memcpy(&next, object, sizeof next);
    return next;
}

bool host_slab_prepare(struct host_slab *slab, unsigned count) {
    size_t spare = (size_t)(slab->fresh_end - slab->fresh) / slab->object_bytes;
    for (const void *object = slab->recycled; object && spare < count; spare++)
        object = next_recycled(object);
    if (spare >= count)
        return true;
    size_t bytes = (count - spare) * slab->object_bytes;
    bytes = bytes > SLAB_BYTES ? (bytes + 4095) & ~(size_t)4095 : SLAB_BYTES;
    char *fresh = host_map(bytes, 4096);
    if (!fresh)
        return false;
    for (; slab->fresh_end - slab->fresh >= (ptrdiff_t)slab->object_bytes;
         slab->fresh += slab->object_bytes)
        host_slab_put(slab, slab->fresh);
    slab->fresh = fresh;
    slab->fresh_end = fresh + bytes;
    return true;
}

void *host_slab_get(struct host_slab *slab) {
    if (!host_slab_prepare(slab, 1))
        return NULL;
    void *object = slab->recycled;
    if (object) {
        slab->recycled = next_recycled(object);
        memset(object, 0, slab->object_bytes);
        return object;
    }
    object = slab->fresh;
    slab->fresh += slab->object_bytes;
    return object;
}

void host_slab_put(struct host_slab *slab, void *object) {
    memcpy(object, &slab->recycled, sizeof(void *));
    slab->recycled = object;
}
