#include "pool/host.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define SLAB_BYTES ((size_t)64 << 10)

void *host_map(size_t bytes, size_t alignment) {
    size_t slack = alignment > 4096 ? alignment : 0;
    char *raw = mmap(NULL, bytes + slack, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) {
        return NULL;
    }
    if (slack == 0) {
        return raw;
    }
    char *aligned = (char *)(((uintptr_t)raw + alignment - 1) & ~(uintptr_t)(alignment - 1));
    if (aligned > raw) {
        munmap(raw, (size_t)(aligned - raw));
    }
    size_t tail = (size_t)(raw + bytes + slack - (aligned + bytes));
    if (tail > 0) {
        munmap(aligned + bytes, tail);
    }
    if (bytes >= HUGE_PAGE_BYTES) {
        madvise(aligned, bytes, MADV_HUGEPAGE); /* descriptors are spread out: one entry of the TLB
                                                   instead of hundreds */
    }
    return aligned;
}

void *host_slab_get(struct host_slab *slab) {
    void *object = slab->recycled;
    if (object) {
        memcpy(&slab->recycled, object, sizeof(void *));
        memset(object, 0, slab->object_bytes);
        return object;
    }
    if ((size_t)(slab->fresh_end - slab->fresh) < slab->object_bytes) {
        slab->fresh = host_map(SLAB_BYTES, 4096);
        if (!slab->fresh) {
            slab->fresh_end = NULL;
            return NULL;
        }
        slab->fresh_end = slab->fresh + SLAB_BYTES;
    }
    object = slab->fresh;
    slab->fresh += slab->object_bytes;
    return object;
}

void host_slab_put(struct host_slab *slab, void *object) {
    memcpy(object, &slab->recycled, sizeof(void *));
    slab->recycled = object;
}
