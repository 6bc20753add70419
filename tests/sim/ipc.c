/*
 * Legacy IPC: memory of cuMemAlloc opened in another process. Blocks of pools are opened the same
 * way, once their pool has been imported.
 *
 * A device's memory is a file, so a handle names the file (by process and descriptor), the place of
 * the whole allocation in it, and its size. It is the same for every address of one allocation, and
 * opening it gives the allocation's base. The exporter's memory must stay while it is mapped
 * elsewhere, so its granules are never used again (see heap_give).
 */
#include "driver.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HANDLE_MAGIC 0x43504953u

struct handle {
    uint32_t magic;
    int32_t pid, fd, device;
    uint64_t offset, size;
    unsigned long long id;
};

_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "a handle has 64 bytes");

static CUresult get_handle(void *out, size_t bytes, struct range *range, enum range_kind kind) {
    if (!out || !range || range->kind != kind)
        return CUDA_ERROR_INVALID_VALUE;
    struct handle handle = {
        .magic = HANDLE_MAGIC,
        .pid = getpid(),
        .fd = arena_fd(),
        .device = range->device,
        .offset = arena_offset(range->base),
        .size = range->size,
        .id = range->id,
    };
    range->exported = true;
    sim.shared = true;
    memset(out, 0, bytes);
    memcpy(out, &handle, sizeof(handle));
    return CUDA_SUCCESS;
}

/* Returns the range of a handle that is open already. Opening it again gives the same mapping. */
static struct range *find_open(const struct context *context, const struct handle *handle) {
    for (struct range *range = context->ranges; range; range = range->next)
        if (range->kind == RANGE_IPC && range->origin.pid == handle->pid &&
            range->origin.fd == handle->fd && range->origin.offset == handle->offset &&
            range->origin.id == handle->id)
            return range;
    return NULL;
}

/* Maps the exporter's granules around a block, so that the block has the same offset as there. */
static void *map_file(const struct handle *handle) {
    size_t before = handle->offset % GRANULE, size = round_up(before + handle->size, GRANULE);
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", handle->pid, handle->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    uintptr_t base = reserve_addresses(size, GRANULE);
    void *memory = !base ? MAP_FAILED
                         : mmap((void *)base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                                fd, (off_t)(handle->offset - before));
    close(fd);
    return memory == MAP_FAILED ? NULL : (char *)memory + before;
}

static CUresult open_handle(CUdeviceptr *address, const void *in, unsigned flags, bool of_pool) {
    struct context *context = context_owner(context_current());
    struct handle handle;

    memcpy(&handle, in, sizeof(handle));
    /* measured: other bits are ignored */
    if (!address || !(flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) || handle.magic != HANDLE_MAGIC)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle.pid == getpid())
        return CUDA_ERROR_INVALID_CONTEXT;
    struct range *range = find_open(context, &handle);
    if (!range) {
        void *memory = map_file(&handle);
        if (!memory) /* the exporter has ended: the code is measured */
            return kill(handle.pid, 0) == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
        range =
            range_add((uintptr_t)memory, handle.size, RANGE_IPC, context, context->device->ordinal);
        range->of_pool = of_pool;
        range->origin.pid = handle.pid;
        range->origin.fd = handle.fd;
        range->origin.offset = handle.offset;
        range->origin.id = handle.id;
        sim.shared = true;
    }
    range->opens++;
    *address = range->base;
    return CUDA_SUCCESS;
}

static CUresult close_handle(CUdeviceptr address) {
    struct range *range = range_find(address);

    if (!range || range->kind != RANGE_IPC || range->of_pool || range->base != address)
        return CUDA_ERROR_INVALID_VALUE;
    if (--range->opens)
        return CUDA_SUCCESS;
    return memory_release_behind(range);
}

ENTRY(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr address), CONTEXT,
      get_handle(handle, sizeof(*handle), range_find(address), RANGE_DEVICE))
ENTRY(cuMemPoolExportPointer, (CUmemPoolPtrExportData * data, CUdeviceptr address), CONTEXT,
      get_handle(data, sizeof(*data), range_find(address), RANGE_POOL))
ENTRY(cuMemPoolImportPointer,
      (CUdeviceptr * address, CUmemoryPool pool, CUmemPoolPtrExportData *data), CONTEXT,
      !data || !pool_is_imported(pool)
          ? CUDA_ERROR_INVALID_VALUE
          : open_handle(address, data, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, true))
ENTRY(cuIpcOpenMemHandle, (CUdeviceptr * address, CUipcMemHandle handle, unsigned flags), ALLOCATE,
      open_handle(address, &handle, flags, false))
ENTRY(cuIpcOpenMemHandle_v2, (CUdeviceptr * address, CUipcMemHandle handle, unsigned flags),
      ALLOCATE, open_handle(address, &handle, flags, false))
ENTRY(cuIpcCloseMemHandle, (CUdeviceptr address), ALLOCATE, close_handle(address))
