/*
 * cuMemAlloc and cuMemFree, and pinned host memory.
 *
 * A free waits until all work submitted to the memory's context before it is finished. This
 * includes peer copies in streams of other contexts, but no kernels of another device (measured;
 * programs rely on it). During the wait no other thread can submit work to the context or allocate
 * from it. A free of a pool's memory does not wait: the pool keeps the order.
 */
#include "driver.h"

#include <sys/mman.h>

#define PITCH 512

static CUresult allocate(CUdeviceptr *address, size_t size) {
    struct context *context = context_owner(context_current());

    if (!address || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct range *range = heap_take(&context->heap, size, RANGE_DEVICE, context);
    if (!range) {
        /* The pools' reserve is released before out of memory. */
        pool_trim(context->device);
        range = heap_take(&context->heap, size, RANGE_DEVICE, context);
    }
    *address = range ? range->base : 0; /* measured: the driver clears it */
    return range ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_pitch(CUdeviceptr *address, size_t *pitch, size_t width, size_t height,
                               unsigned element) {
    if (!address || !pitch || width == 0 || height == 0 ||
        (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes;
    *pitch = round_up(width, PITCH); /* measured: also without memory */
    if (width > SIZE_MAX - PITCH || __builtin_mul_overflow(round_up(width, PITCH), height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return allocate(address, bytes);
}

static CUresult allocate_managed(CUdeviceptr *address, size_t size, unsigned flags) {
    struct context *context = context_owner(context_current());

    if (!address || size == 0 ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
         flags != CU_MEM_ATTACH_SINGLE))
        return CUDA_ERROR_INVALID_VALUE;
    void *memory = mmap(NULL, round_up(size, 4096), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range_add((uintptr_t)memory, size, RANGE_MANAGED, context, context->device->ordinal);
    *address = (CUdeviceptr)memory;
    return CUDA_SUCCESS;
}

CUresult memory_release(struct range *range) {
    switch (range->kind) {
    case RANGE_DEVICE:
    case RANGE_ARRAY:
        heap_give(range);
        return CUDA_SUCCESS;
    case RANGE_POOL:
        return pool_free(range);
    case RANGE_MANAGED:
    case RANGE_HOST:
        munmap((void *)range->base, round_up(range->size, 4096));
        range_remove(range);
        return CUDA_SUCCESS;
    case RANGE_IPC:
        munmap((void *)(range->base / GRANULE * GRANULE),
               round_up(range->base % GRANULE + range->size, GRANULE));
        range_remove(range);
        return CUDA_SUCCESS;
    case RANGE_REGISTERED:
        range_remove(range);
        return CUDA_SUCCESS;
    case RANGE_MAPPED:
    case RANGE_RESERVED:
        break;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static unsigned returning; /* upper bound: some ranges end with their context */

void memory_wait_for_return(struct range *range) {
    range->returning = true;
    returning++;
}

void memory_take_back(const struct device *device) {
    unsigned left = 0;
    for (struct range *range = returning > 0 ? range_after(0) : NULL, *next; range; range = next) {
        next = range_after(range->base + 1);
        if (range->returning && range->context->device == device)
            memory_release(range);
        else
            left += range->returning;
    }
    returning = left;
}

CUresult memory_release_behind(struct range *range) {
    unsigned long long id = range->id;
    uintptr_t base = range->base;

    context_wait(range->context);
    return range_find(base) == range && range->id == id ? memory_release(range)
                                                        : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult release_and_hold_up(struct range *range) {
    struct context *context = range->context;

    context->frees_waiting++;
    CUresult result = memory_release_behind(range);
    context->frees_waiting--;
    return result;
}

static CUresult memory_free(CUdeviceptr address) {
    struct range *range = range_find(address);
    struct context *current = context_current();

    /* A free needs no current context. A current one must be healthy. */
    if (current && context_check(current) != CUDA_SUCCESS)
        return context_check(current);
    if (address == 0)
        return CUDA_SUCCESS;
    if (!range || range->base != address || range->freeing ||
        (range->kind != RANGE_DEVICE && range->kind != RANGE_POOL && range->kind != RANGE_MANAGED &&
         !range->of_pool))
        return CUDA_ERROR_INVALID_VALUE;
    if (range->graph_owned) /* the next launch of the graph allocates it again */
        return CUDA_SUCCESS;
    if (range->of_pool && --range->opens)
        return CUDA_SUCCESS;
    range->freeing = true;
    if (range->kind == RANGE_POOL)
        return pool_free_behind_all(range);
    CUresult result = release_and_hold_up(range);
    return sim.fault != CUDA_SUCCESS ? sim.fault : result;
}

ENTRY(cuMemAlloc_v2, (CUdeviceptr * address, size_t size), ALLOCATE, allocate(address, size))
ENTRY(cuMemAllocPitch_v2,
      (CUdeviceptr * address, size_t *pitch, size_t width, size_t height, unsigned element),
      ALLOCATE, allocate_pitch(address, pitch, width, height, element))
ENTRY(cuMemAllocManaged, (CUdeviceptr * address, size_t size, unsigned flags), ALLOCATE,
      allocate_managed(address, size, flags))
ENTRY(cuMemFree_v2, (CUdeviceptr address), INITIALISED | HELD_UP | UNSAFE, memory_free(address))

/* ---- pinned host memory ---------------------------------------------------------------------- */

static CUresult host_allocate(void **memory, size_t size, unsigned flags) {
    struct context *context = context_owner(context_current());

    if (!memory || size == 0 || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    void *pages = mmap(NULL, round_up(size, 4096), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct range *range =
        range_add((uintptr_t)pages, size, RANGE_HOST, context, context->device->ordinal);
    range->flags = flags | CU_MEMHOSTALLOC_DEVICEMAP;
    *memory = pages;
    return CUDA_SUCCESS;
}

static CUresult host_free(void *memory) {
    struct range *range = range_find((uintptr_t)memory);

    if (!memory)
        return CUDA_SUCCESS;
    if (!range || range->base != (uintptr_t)memory || range->kind != RANGE_HOST || range->freeing)
        return CUDA_ERROR_INVALID_VALUE;
    range->freeing = true;
    return release_and_hold_up(range);
}

static CUresult host_register(void *memory, size_t size, unsigned flags) {
    struct context *context = context_owner(context_current());

    if (!memory || size == 0 || flags > 15)
        return CUDA_ERROR_INVALID_VALUE;
    const struct range *there = range_find((uintptr_t)memory);
    if (there && there->kind != RANGE_REGISTERED)
        return CUDA_ERROR_INVALID_VALUE;
    if (range_overlaps((uintptr_t)memory, size))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct range *range =
        range_add((uintptr_t)memory, size, RANGE_REGISTERED, context, context->device->ordinal);
    range->flags = flags | CU_MEMHOSTREGISTER_DEVICEMAP;
    return CUDA_SUCCESS;
}

static CUresult host_unregister(void *memory) {
    struct range *range = range_find((uintptr_t)memory);

    if (!memory || (range && range->base != (uintptr_t)memory))
        return CUDA_ERROR_INVALID_VALUE;
    if (!range || range->kind != RANGE_REGISTERED)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    return release_and_hold_up(range);
}

/* The driver answers these questions for mapped memory too, as if it were host memory (H100). */
static struct range *host_range(const void *memory) {
    struct range *range = range_find((uintptr_t)memory);

    return range && (!range_is_device(range) || range->kind == RANGE_MAPPED) ? range : NULL;
}

static CUresult device_pointer(CUdeviceptr *address, void *memory, unsigned flags) {
    if (!address || flags || !host_range(memory))
        return CUDA_ERROR_INVALID_VALUE;
    *address = (CUdeviceptr)memory;
    return CUDA_SUCCESS;
}

static CUresult host_flags(unsigned *flags, void *memory) {
    const struct range *range = host_range(memory);

    if (!flags || !range)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = range->flags;
    return CUDA_SUCCESS;
}

ENTRY(cuMemAllocHost_v2, (void **memory, size_t size), ALLOCATE, host_allocate(memory, size, 0))
ENTRY(cuMemHostAlloc, (void **memory, size_t size, unsigned flags), ALLOCATE,
      host_allocate(memory, size, flags))
ENTRY(cuMemFreeHost, (void *memory), ALLOCATE, host_free(memory))
ENTRY(cuMemHostRegister, (void *memory, size_t size, unsigned flags), ALLOCATE,
      host_register(memory, size, flags))
ENTRY(cuMemHostRegister_v2, (void *memory, size_t size, unsigned flags), ALLOCATE,
      host_register(memory, size, flags))
ENTRY(cuMemHostUnregister, (void *memory), ALLOCATE, host_unregister(memory))
ENTRY(cuMemHostGetDevicePointer_v2, (CUdeviceptr * address, void *memory, unsigned flags), CONTEXT,
      device_pointer(address, memory, flags))
ENTRY(cuMemHostGetFlags, (unsigned *flags, void *memory), CONTEXT, host_flags(flags, memory))

/* ---- questions ------------------------------------------------------------------------------- */

static CUresult get_info(size_t *free_bytes, size_t *total) {
    const struct device *device = context_current()->device;
    size_t taken = device_taken(device);

    if (!free_bytes || !total)
        return CUDA_ERROR_INVALID_VALUE;
    *total = device_most(device);
    *free_bytes = taken < *total ? *total - taken : 0;
    return CUDA_SUCCESS;
}

static CUresult address_range(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    const struct range *range = range_find(address);
    struct context *current = context_current();

    /* Measured: memory of a primary context needs no current context, other memory does. */
    if (current && context_check(current) != CUDA_SUCCESS)
        return context_check(current);
    if (!range || range->kind == RANGE_ARRAY)
        return current ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_CONTEXT;
    if (!current && range->context && !range->context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (base)
        *base = range->base;
    if (size)
        *size = range->size;
    return CUDA_SUCCESS;
}

ENTRY(cuMemGetInfo_v2, (size_t * free_bytes, size_t *total), CONTEXT, get_info(free_bytes, total))
ENTRY(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *size, CUdeviceptr address), INITIALISED,
      address_range(base, size, address))

/* Checks the address of a hint, which has no effect on the simulator. */
static CUresult hint(CUdeviceptr address) {
    const struct range *range = range_find(address);

    return range && range->kind == RANGE_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuMemAdvise, (CUdeviceptr address, size_t size, CUmem_advise advice, CUdevice device),
      CONTEXT, ((void)size, (void)advice, (void)device, hint(address)))
ENTRY(cuMemAdvise_v2,
      (CUdeviceptr address, size_t size, CUmem_advise advice, CUmemLocation location), CONTEXT,
      ((void)size, (void)advice, (void)location, hint(address)))
ENTRY_PTSZ(cuMemPrefetchAsync, (CUdeviceptr address, size_t size, CUdevice device, CUstream stream),
           SUBMIT, ((void)size, (void)device, (void)stream, hint(address)))
ENTRY_PTSZ(cuMemPrefetchAsync_v2,
           (CUdeviceptr address, size_t size, CUmemLocation location, unsigned flags,
            CUstream stream),
           SUBMIT, ((void)size, (void)location, (void)flags, (void)stream, hint(address)))
