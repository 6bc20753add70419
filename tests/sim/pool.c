/*
 * Stream-ordered memory: pools, cuMemAllocAsync, cuMemFreeAsync.
 *
 * A pool keeps two counts. The blocks lie in the device's arena and return to it when the stream
 * reaches their free. A block's bytes therefore belong to no other block while work may touch them.
 * The device is charged for `reserved`: the used bytes rounded up to 32 MiB. It shrinks only at a
 * synchronisation, down to the release threshold. The bytes of a block count as unused as soon as
 * its free is submitted, because real pools reuse memory in stream order without waiting.
 *
 * Allocations of graphs come from one more pool of each device. A graph's block has an address from
 * when its node is made, and memory from the first launch until the graph and its copies are gone;
 * the device gets it back by cuDeviceGraphMemTrim.
 */
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SHARE (32 * MIB) /* bytes that a pool takes from the device at a time */

static struct slab pool_slab = SLAB(struct pool);

static struct pool *pool_new(struct device *device) {
    struct pool *pool = slab_get(&pool_slab);

    pool->device = device;
    pool->heap = (struct heap){.device = device, .charged = false};
    pool->follow_events = pool->opportunistic = pool->internal_dependencies = 1;
    pool->accessible = device_mask(device->ordinal);
    pool->props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    pool->props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    pool->props.location.id = device->ordinal;
    return pool;
}

struct pool *pool_default(struct device *device) {
    if (!device->default_pool) {
        device->default_pool = pool_new(device);
        device->default_pool->is_default = true;
        device->pool = device->default_pool;
    }
    return device->default_pool;
}

struct pool *pool_of_graphs(struct device *device) {
    if (!device->graph_pool) {
        device->graph_pool = pool_new(device);
        device->graph_pool->of_graphs = true;
    }
    return device->graph_pool;
}

static void shrink(struct pool *pool, uint64_t keep) {
    uint64_t needed = round_up(pool->used, SHARE);

    if (keep >= pool->reserved)
        return;
    if (needed < keep)
        needed = round_up(keep, SHARE);
    if (pool->reserved > needed) {
        device_discharge(pool->device, pool->reserved - needed);
        pool->reserved = needed;
    }
}

bool pool_book(struct pool *pool, size_t size) {
    uint64_t used = pool->used + size;
    uint64_t needed = round_up(used, SHARE);
    size_t most = pool_props_max_size(&pool->props);

    if (most && needed > round_up(most, SHARE))
        return false;
    if (needed > pool->reserved) {
        if (!device_charge(pool->device, needed - pool->reserved))
            return false;
        pool->reserved = needed;
    }
    pool->used = used;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return true;
}

void pool_unbook(struct range *range) {
    range->pool->used -= range->size;
}

void pool_trim(struct device *device) {
    for (unsigned i = 0; i < pool_slab.count; i++) {
        struct pool *pool = (struct pool *)pool_slab.all[i];
        if (pool->object.live && pool->device == device && !pool->of_graphs)
            shrink(pool, pool->threshold);
    }
}

/* Returns a range for a block. The memory belongs to the pool, and not to a context. */
struct range *pool_address(struct pool *pool, size_t size) {
    struct range *range = heap_take(&pool->heap, size, RANGE_POOL, NULL);

    if (range) {
        range->pool = pool;
        pool->blocks++;
    }
    return range;
}

CUresult pool_allocate(struct pool *pool, size_t size, uintptr_t *out) {
    if (!pool_book(pool, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    const struct range *range = pool_address(pool, size);
    if (!range) {
        pool->used -= size;
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = range->base;
    return CUDA_SUCCESS;
}

CUresult pool_free_behind_all(struct range *range) {
    struct context *current = context_owner(context_current());
    struct context *context = current ? current : range->pool->device->primary;

    pool_unbook(range);
    if (!context || !context->alive || context->ending)
        return pool_free(range);
    queue_push(context->marks, (struct work){.kind = WORK_FREE, .free_address = range->base});
    return CUDA_SUCCESS;
}

static void give_back(struct pool *pool) {
    device_discharge(pool->device, pool->reserved);
    pool->reserved = 0;
    slab_put(&pool_slab, pool);
}

CUresult pool_free(struct range *range) {
    struct pool *pool = range->pool;

    heap_give(range);
    if (--pool->blocks == 0 && pool->destroyed)
        give_back(pool);
    return CUDA_SUCCESS;
}

void pool_forget_all(void) {
    for (struct range *range = range_after(0), *next; range; range = next) {
        next = range_after(range->base + 1);
        if (range->kind == RANGE_POOL)
            pool_free(range);
    }
    for (unsigned i = 0; i < pool_slab.count; i++)
        if (pool_slab.all[i]->live)
            slab_put(&pool_slab, pool_slab.all[i]);
}

/* ---- allocating in a stream ------------------------------------------------------------------ */

static CUresult allocate(CUdeviceptr *address, size_t size, struct pool *pool, CUstream handle,
                         bool per_thread) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (!address)
        return CUDA_ERROR_INVALID_VALUE;
    if (!pool) {
        pool_default(stream->context->device);
        pool = stream->context->device->pool;
    }
    if (!is_live(pool, &pool_slab) || pool->destroyed || pool->imported)
        return CUDA_ERROR_INVALID_VALUE;
    if (size == 0) {
        *address = 0;
        return CUDA_SUCCESS;
    }
    if (stream->capture)
        return capture_allocate(stream, size, pool, address);
    if (capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    uintptr_t base;
    result = pool_allocate(pool, size, &base);
    if (result != CUDA_SUCCESS)
        return result;
    *address = base;
    return submit(stream, (struct work){.kind = WORK_NOTHING});
}

static CUresult free_in(CUdeviceptr address, CUstream handle, bool per_thread) {
    struct range *range = range_find(address);
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result != CUDA_SUCCESS || address == 0)
        return result;
    if (stream->capture)
        return capture_free(stream, address);
    if (capture_forbids())
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (!range || range->base != address || range->freeing ||
        (range->kind != RANGE_DEVICE && range->kind != RANGE_POOL && range->kind != RANGE_MANAGED))
        return CUDA_ERROR_INVALID_VALUE;
    if (range->graph_owned) /* the next launch of the graph allocates it again */
        return submit(stream, (struct work){.kind = WORK_NOTHING});
    result = submit(stream, (struct work){.kind = WORK_FREE, .free_address = address});
    if (result == CUDA_SUCCESS) {
        range->freeing = true;
        if (range->kind == RANGE_POOL)
            pool_unbook(range);
    }
    return result;
}

ENTRY_PTSZ(cuMemAllocAsync, (CUdeviceptr * address, size_t size, CUstream stream), CONTEXT,
           allocate(address, size, NULL, stream, per_thread))
ENTRY_PTSZ(cuMemAllocFromPoolAsync,
           (CUdeviceptr * address, size_t size, CUmemoryPool pool, CUstream stream), CONTEXT,
           !pool ? CUDA_ERROR_INVALID_VALUE
                 : allocate(address, size, (struct pool *)pool, stream, per_thread))
ENTRY_PTSZ(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), CONTEXT,
           free_in(address, stream, per_thread))

/* ---- pools as objects ------------------------------------------------------------------------ */

static struct pool *pool_of(CUmemoryPool handle) {
    struct pool *pool = (struct pool *)handle;

    return is_live(pool, &pool_slab) && !pool->destroyed ? pool : NULL;
}

static CUresult create(CUmemoryPool *handle, const CUmemPoolProps *props) {
    if (!handle || !props)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct device *device = device_of(props->location.id);
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    struct pool *pool = pool_new(device);
    pool->props = *props;
    *handle = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUmemoryPool handle) {
    struct pool *pool = pool_of(handle);

    if (!pool || pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool->device->pool == pool)
        pool->device->pool = pool->device->default_pool;
    pool->destroyed = true;
    if (pool->blocks == 0)
        give_back(pool);
    return CUDA_SUCCESS;
}

static CUresult trim_to(CUmemoryPool handle, size_t keep) {
    struct pool *pool = pool_of(handle);

    if (!pool)
        return CUDA_ERROR_INVALID_VALUE;
    shrink(pool, keep);
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUmemoryPool handle, CUmemPool_attribute name, const void *value) {
    struct pool *pool = pool_of(handle);

    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (name) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        pool->follow_events = *(const int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        pool->opportunistic = *(const int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->internal_dependencies = *(const int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        memcpy(&pool->threshold, value, sizeof(pool->threshold));
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: /* the high marks can only be set to 0 */
        pool->reserved_high = pool->reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        pool->used_high = pool->used;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult get_attribute(CUmemoryPool handle, CUmemPool_attribute name, void *value) {
    const struct pool *pool = pool_of(handle);

    if (!pool || !value)
        return CUDA_ERROR_INVALID_VALUE;
    switch (name) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        *(int *)value = pool->follow_events;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        *(int *)value = pool->opportunistic;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->internal_dependencies;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        *(cuuint64_t *)value = pool->threshold;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->reserved;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = pool->reserved_high;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->used;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = pool->used_high;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult set_access(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count) {
    struct pool *pool = pool_of(handle);

    if (!pool || !map)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_of(map[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
        uint32_t bit = device_mask(map[i].location.id);
        if (map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
            pool->accessible &= ~bit;
        else
            pool->accessible |= bit;
    }
    return CUDA_SUCCESS;
}

static CUresult get_access(CUmemAccess_flags *flags, CUmemoryPool handle,
                           const CUmemLocation *location) {
    const struct pool *pool = pool_of(handle);

    if (!pool || !flags || !location || !device_of(location->id))
        return CUDA_ERROR_INVALID_VALUE;
    bool reaches = pool->accessible & device_mask(location->id);
    *flags = reaches ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

static CUresult device_pool(CUmemoryPool *handle, CUdevice ordinal, bool current) {
    struct device *device = device_of(ordinal);

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    struct pool *pool = pool_default(device);
    *handle = (CUmemoryPool)(current ? device->pool : pool);
    return CUDA_SUCCESS;
}

static CUresult set_device_pool(CUdevice ordinal, CUmemoryPool handle) {
    struct device *device = device_of(ordinal);
    struct pool *pool = pool_of(handle);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!pool || pool->device != device)
        return CUDA_ERROR_INVALID_VALUE;
    pool_default(device);
    device->pool = pool;
    return CUDA_SUCCESS;
}

static int location_device(const CUmemLocation *location) {
    return location && location->type == CU_MEM_LOCATION_TYPE_DEVICE ? location->id : -1;
}

/* ---- the memory of graphs -------------------------------------------------------------------- */

static CUresult graph_trim(int ordinal) {
    struct device *device = device_of(ordinal);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    shrink(pool_of_graphs(device), 0);
    return CUDA_SUCCESS;
}

static CUresult graph_attribute(int ordinal, CUgraphMem_attribute name, void *value) {
    struct device *device = device_of(ordinal);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    const struct pool *pool = pool_of_graphs(device);
    switch (name) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->used;
        return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
        *(cuuint64_t *)value = pool->used_high;
        return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
        *(cuuint64_t *)value = pool->reserved;
        return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        *(cuuint64_t *)value = pool->reserved_high;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuDeviceGraphMemTrim, (CUdevice device), INITIALISED, graph_trim(device))
ENTRY(cuDeviceGetGraphMemAttribute, (CUdevice device, CUgraphMem_attribute name, void *value),
      INITIALISED, graph_attribute(device, name, value))

/* ---- pools of other processes ---------------------------------------------------------------- */

bool pool_is_imported(CUmemoryPool handle) {
    const struct pool *pool = pool_of(handle);

    return pool && pool->imported;
}

/* Exports a pool as a descriptor whose file position is the device's ordinal. Exported blocks
 * name their own place. */
static CUresult export_pool(void *out, CUmemoryPool handle, CUmemAllocationHandleType type) {
    const struct pool *pool = pool_of(handle);
    char path[64];

    if (!out || !pool || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(pool->props.handleTypes & type))
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(path, sizeof(path), "/proc/self/fd/%d", arena_fd());
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || lseek(fd, pool->device->ordinal, SEEK_SET) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(out, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}

static CUresult import_pool(CUmemoryPool *handle, void *os_handle, CUmemAllocationHandleType type) {
    struct device *device = device_of((int)lseek((int)(intptr_t)os_handle, 0, SEEK_CUR));

    if (!handle || !device || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    struct pool *pool = pool_new(device);
    pool->imported = true;
    *handle = (CUmemoryPool)pool;
    return CUDA_SUCCESS;
}

ENTRY(cuMemPoolExportToShareableHandle,
      (void *out, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags),
      INITIALISED, flags ? CUDA_ERROR_INVALID_VALUE : export_pool(out, pool, type))
ENTRY(cuMemPoolImportFromShareableHandle,
      (CUmemoryPool * pool, void *os_handle, CUmemAllocationHandleType type,
       unsigned long long flags),
      INITIALISED, flags ? CUDA_ERROR_INVALID_VALUE : import_pool(pool, os_handle, type))

ENTRY(cuMemPoolCreate, (CUmemoryPool * pool, const CUmemPoolProps *props), INITIALISED,
      create(pool, props))
ENTRY(cuMemPoolDestroy, (CUmemoryPool pool), INITIALISED, destroy(pool))
ENTRY(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep), INITIALISED | UNSAFE, trim_to(pool, keep))
ENTRY(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute name, void *value),
      INITIALISED, set_attribute(pool, name, value))
ENTRY(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute name, void *value),
      INITIALISED | UNSAFE, get_attribute(pool, name, value))
ENTRY(cuMemPoolSetAccess, (CUmemoryPool pool, const CUmemAccessDesc *map, size_t count),
      INITIALISED, set_access(pool, map, count))
ENTRY(cuMemPoolGetAccess, (CUmemAccess_flags * flags, CUmemoryPool pool, CUmemLocation *location),
      INITIALISED, get_access(flags, pool, location))
ENTRY(cuDeviceGetDefaultMemPool, (CUmemoryPool * pool, CUdevice device), INITIALISED,
      device_pool(pool, device, false))
ENTRY(cuDeviceGetMemPool, (CUmemoryPool * pool, CUdevice device), INITIALISED,
      device_pool(pool, device, true))
ENTRY(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool), INITIALISED,
      set_device_pool(device, pool))
ENTRY(cuMemGetDefaultMemPool,
      (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type), INITIALISED,
      ((void)type, device_pool(pool, location_device(location), false)))
ENTRY(cuMemGetMemPool, (CUmemoryPool * pool, CUmemLocation *location, CUmemAllocationType type),
      INITIALISED, ((void)type, device_pool(pool, location_device(location), true)))
ENTRY(cuMemSetMemPool, (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool pool),
      INITIALISED, ((void)type, set_device_pool(location_device(location), pool)))
