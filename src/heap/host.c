/*
 * Host memory for descriptors: mappings, and a free list of objects of one size. host.h says why
 * descriptors are never unmapped, and which lock protects a free list. Invariant: recycled_count is
 * the length of the free list.
 */
#include "heap/host.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#define MAPPING_BYTES ((size_t)64 << 10)

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

bool host_freelist_prepare(struct host_freelist *freelist, unsigned count) {
    size_t spare = freelist->recycled_count +
                   (size_t)(freelist->fresh_end - freelist->fresh) / freelist->object_bytes;
    if (spare >= count)
        return true;
    size_t bytes = (count - spare) * freelist->object_bytes;
    bytes = bytes > MAPPING_BYTES ? (bytes + 4095) & ~(size_t)4095 : MAPPING_BYTES;
    char *fresh = host_map(bytes, 4096);
    if (!fresh)
        return false;
    for (; freelist->fresh_end - freelist->fresh >= (ptrdiff_t)freelist->object_bytes;
         freelist->fresh += freelist->object_bytes)
        host_freelist_put(freelist, freelist->fresh);
    freelist->fresh = fresh;
    freelist->fresh_end = fresh + bytes;
    return true;
}

void *host_freelist_get(struct host_freelist *freelist) {
    if (!host_freelist_prepare(freelist, 1))
        return NULL;
    void *object = freelist->recycled;
    if (object) {
        memcpy(&freelist->recycled, object, sizeof freelist->recycled);
        freelist->recycled_count--;
        memset(object, 0, freelist->object_bytes);
        return object;
    }
    object = freelist->fresh;
    freelist->fresh += freelist->object_bytes;
    return object;
}

void host_freelist_put(struct host_freelist *freelist, void *object) {
    memcpy(object, &freelist->recycled, sizeof(void *));
    freelist->recycled = object;
    freelist->recycled_count++;
}
