/*
 * Virtual memory: reserved addresses, physical memory, and mappings.
 *
 * Physical memory is a run of granules of a device's memory file. A mapping maps that file, so two
 * mappings of one handle have the same bytes. No call waits for the device: if memory is unmapped
 * while work uses it, the work faults.
 *
 * An exported handle is a descriptor of the whole memory file, whose file position is the first
 * byte of the run. The first granules of the file are a directory: a word for each granule has the
 * length and the device of the run that begins there. Exported runs are never reused, so the
 * directory is right for an importer, which asks the exporter nothing.
 */
#include "driver.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIRECTORY_MAGIC 0x53494D47u /* stored in the word of granule 0, which is never a run */
#define LENGTH_BITS 24

struct physical {
    struct object object;
    struct device *device;
    size_t size;
    int fd;
    uint64_t offset; /* in fd */
    bool imported, exported;
    unsigned handles, mappings;
    CUmemAllocationProp prop;
};

static struct slab physical_slab = SLAB(struct physical);

/* Imported handles of one file share one descriptor. */
#define IMPORTED_FILES 64
static struct imported_file {
    dev_t device;
    ino_t number;
    int fd;
    unsigned users;
} imported_files[IMPORTED_FILES];

static int open_imported(int fd) {
    struct imported_file *unused = NULL;
    struct stat file;

    if (fstat(fd, &file) != 0)
        return -1;
    for (unsigned i = 0; i < IMPORTED_FILES; i++) {
        struct imported_file *known = &imported_files[i];
        if (known->users && known->device == file.st_dev && known->number == file.st_ino)
            return known->users++, known->fd;
        if (!known->users)
            unused = known;
    }
    int own = unused ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (own >= 0)
        *unused = (struct imported_file){file.st_dev, file.st_ino, own, 1};
    return own;
}

static void close_imported(int fd) {
    for (unsigned i = 0; i < IMPORTED_FILES; i++)
        if (imported_files[i].users && imported_files[i].fd == fd && --imported_files[i].users == 0)
            close(fd);
}

static bool aligned(uint64_t value) {
    return value % GRANULE == 0;
}

/* ---- physical memory ------------------------------------------------------------------------- */

static struct physical *physical_of(CUmemGenericAllocationHandle handle) {
    struct physical *physical = (struct physical *)(uintptr_t)handle;

    return is_live(physical, &physical_slab) && physical->handles ? physical : NULL;
}

static void drop_if_unused(struct physical *physical) {
    if (physical->handles || physical->mappings)
        return;
    if (physical->imported) {
        close_imported(physical->fd);
    } else {
        uintptr_t base = arena_base() + physical->offset;
        if (physical->exported)
            arena_retire(base, physical->size / GRANULE);
        else
            arena_give(base, physical->size / GRANULE);
        device_discharge(physical->device, physical->size);
    }
    slab_put(&physical_slab, physical);
}

static CUresult check_prop(const CUmemAllocationProp *prop) {
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!device_of(prop->location.id))
        return CUDA_ERROR_INVALID_DEVICE;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    return sim.options.vmm ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult granularity(size_t *size, const CUmemAllocationProp *prop) {
    CUresult result = check_prop(prop);

    if (result == CUDA_SUCCESS && !size)
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS)
        *size = GRANULE;
    return result;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size,
                       const CUmemAllocationProp *prop, unsigned long long flags) {
    CUresult result = check_prop(prop);

    if (result != CUDA_SUCCESS)
        return result;
    if (!handle || size == 0 || !aligned(size) || flags)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = device_of(prop->location.id);
    if (!device_charge(device, size))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uintptr_t base = arena_take(size / GRANULE);
    if (!base) {
        device_discharge(device, size);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct physical *physical = slab_get(&physical_slab);
    physical->device = device;
    physical->size = size;
    physical->fd = arena_fd();
    physical->offset = arena_offset(base);
    physical->handles = 1;
    physical->prop = *prop;
    *handle = (uintptr_t)physical;
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle) {
    struct physical *physical = physical_of(handle);

    if (!physical)
        return CUDA_ERROR_INVALID_VALUE;
    physical->handles--;
    drop_if_unused(physical);
    return CUDA_SUCCESS;
}

static CUresult retain(CUmemGenericAllocationHandle *handle, const void *address) {
    struct range *range = range_find((uintptr_t)address);

    if (!handle || !range || range->kind != RANGE_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    range->physical->handles++;
    *handle = (uintptr_t)range->physical;
    return CUDA_SUCCESS;
}

static CUresult properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
    const struct physical *physical = physical_of(handle);

    if (!prop || !physical)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = physical->prop;
    return CUDA_SUCCESS;
}

const CUmemAllocationProp *physical_prop(const struct physical *physical) {
    return &physical->prop;
}

ENTRY(cuMemGetAllocationGranularity,
      (size_t * size, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option),
      INITIALISED, ((void)option, granularity(size, prop)))
ENTRY(cuMemCreate,
      (CUmemGenericAllocationHandle * handle, size_t size, const CUmemAllocationProp *prop,
       unsigned long long flags),
      INITIALISED, create(handle, size, prop, flags))
ENTRY(cuMemRelease, (CUmemGenericAllocationHandle handle), INITIALISED, release(handle))
ENTRY(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void *address),
      INITIALISED, retain(handle, address))
ENTRY(cuMemGetAllocationPropertiesFromHandle,
      (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle), INITIALISED,
      properties(prop, handle))

/* ---- addresses ------------------------------------------------------------------------------- */

static CUresult reserve(CUdeviceptr *address, size_t size, size_t alignment) {
    if (!address || size == 0 || !aligned(size) || (alignment & (alignment - 1)))
        return CUDA_ERROR_INVALID_VALUE;
    if (alignment < GRANULE)
        alignment = GRANULE;
    if (size > SIZE_MAX - alignment)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uintptr_t base = reserve_addresses(size, alignment);
    if (!base)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range_add(base, size, RANGE_RESERVED, NULL, -1);
    *address = base;
    return CUDA_SUCCESS;
}

static CUresult free_addresses(CUdeviceptr address, size_t size) {
    struct range *reservation = reservation_find(address);
    const struct range *first = range_after(address);

    if (!reservation || reservation->base != address || reservation->size != size ||
        (first && first->base < address + size))
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)address, size);
    range_remove(reservation);
    return CUDA_SUCCESS;
}

ENTRY(cuMemAddressReserve,
      (CUdeviceptr * address, size_t size, size_t alignment, CUdeviceptr hint,
       unsigned long long flags),
      INITIALISED,
      ((void)hint, flags ? CUDA_ERROR_INVALID_VALUE : reserve(address, size, alignment)))
ENTRY(cuMemAddressFree, (CUdeviceptr address, size_t size), INITIALISED,
      free_addresses(address, size))

/* ---- mapping --------------------------------------------------------------------------------- */

static bool reserved(CUdeviceptr address, size_t size) {
    const struct range *reservation = reservation_find(address);

    return reservation && size <= reservation->base + reservation->size - address;
}

static CUresult map(CUdeviceptr address, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
    struct physical *physical = physical_of(handle);

    if (!physical || size == 0 || !aligned(address) || !aligned(size) || flags ||
        !reserved(address, size) || range_overlaps(address, size))
        return CUDA_ERROR_INVALID_VALUE;
    if (offset != 0 || size != physical->size) /* a handle is mapped as a whole or not at all */
        return CUDA_ERROR_NOT_SUPPORTED;
    if (mmap((void *)address, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, physical->fd,
             (off_t)physical->offset) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct range *range = range_add(address, size, RANGE_MAPPED, NULL, physical->device->ordinal);
    range->physical = physical;
    physical->mappings++;
    return CUDA_SUCCESS;
}

static void unmap_one(struct range *range) {
    mmap((void *)range->base, range->size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    range->physical->mappings--;
    drop_if_unused(range->physical);
    range_remove(range);
}

/* Unmaps whole mappings. Addresses without a mapping are allowed. */
static CUresult unmap(CUdeviceptr address, size_t size) {
    const struct range *before = range_find(address);
    CUdeviceptr end = address + size;

    if (size == 0 || !aligned(address) || !aligned(size) || !reserved(address, size) ||
        (before && before->base != address))
        return CUDA_ERROR_INVALID_VALUE;
    for (const struct range *range = range_after(address); range && range->base < end;
         range = range_after(range->base + 1))
        if (range->base + range->size > end)
            return CUDA_ERROR_INVALID_VALUE;
    for (struct range *range; (range = range_after(address)) && range->base < end;)
        unmap_one(range);
    return CUDA_SUCCESS;
}

/* Requires whole mappings without a gap. */
static bool all_mapped(CUdeviceptr address, size_t size) {
    while (size) {
        const struct range *range = range_find(address);
        if (!range || range->kind != RANGE_MAPPED || range->base != address || range->size > size)
            return false;
        address += range->size;
        size -= range->size;
    }
    return true;
}

static void grant(struct range *range, const CUmemAccessDesc *access) {
    uint32_t bit = device_mask(access->location.id);

    if (access->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        range->access &= ~bit;
    else
        range->access |= bit;
    mprotect((void *)range->base, range->size, range->access ? PROT_READ | PROT_WRITE : PROT_NONE);
}

static CUresult set_access(CUdeviceptr address, size_t size, const CUmemAccessDesc *access,
                           size_t count) {
    if (size == 0 || !access || count == 0 || !all_mapped(address, size))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (access[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
            !device_of(access[i].location.id))
            return CUDA_ERROR_INVALID_DEVICE;
    for (CUdeviceptr at = address; at < address + size;) {
        struct range *range = range_find(at);
        for (size_t i = 0; i < count; i++)
            grant(range, &access[i]);
        at += range->size;
    }
    return CUDA_SUCCESS;
}

static CUresult get_access(unsigned long long *flags, const CUmemLocation *location,
                           CUdeviceptr address) {
    const struct range *range = range_find(address);

    if (!flags || !location || !device_of(location->id) || !range ||
        (range->kind != RANGE_MAPPED && range->kind != RANGE_DEVICE))
        return CUDA_ERROR_INVALID_VALUE;
    bool allowed = range->kind == RANGE_DEVICE ? range->device == location->id
                                               : (range->access & device_mask(location->id)) != 0;
    *flags = allowed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

ENTRY(cuMemMap,
      (CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
       unsigned long long flags),
      INITIALISED, map(address, size, offset, handle, flags))
ENTRY(cuMemUnmap, (CUdeviceptr address, size_t size), INITIALISED, unmap(address, size))
ENTRY(cuMemSetAccess,
      (CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count), INITIALISED,
      set_access(address, size, access, count))
ENTRY(cuMemGetAccess,
      (unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address), INITIALISED,
      get_access(flags, location, address))

/* ---- sharing --------------------------------------------------------------------------------- */

static CUresult export_handle(void *out, CUmemGenericAllocationHandle handle,
                              CUmemAllocationHandleType type) {
    struct physical *physical = physical_of(handle);
    char path[64];

    if (!out || !physical || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(physical->prop.requestedHandleTypes & type))
        return CUDA_ERROR_INVALID_VALUE;
    /* A newly opened file has a position of its own, which is passed with the descriptor. */
    snprintf(path, sizeof(path), "/proc/self/fd/%d", physical->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || lseek(fd, (off_t)physical->offset, SEEK_SET) < 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!physical->imported) {
        uint32_t *directory = (uint32_t *)arena_base();
        directory[0] = DIRECTORY_MAGIC;
        directory[physical->offset / GRANULE] = (uint32_t)physical->device->ordinal << LENGTH_BITS |
                                                (uint32_t)(physical->size / GRANULE);
    }
    physical->exported = true;
    sim.shared = true;
    memcpy(out, &fd, sizeof(fd));
    return CUDA_SUCCESS;
}

static bool read_word(int fd, uint64_t index, uint32_t *word) {
    return pread(fd, word, sizeof(*word), (off_t)(index * sizeof(*word))) == sizeof(*word);
}

static CUresult import_handle(CUmemGenericAllocationHandle *handle, void *os_handle,
                              CUmemAllocationHandleType type) {
    int fd = (int)(intptr_t)os_handle;
    uint32_t magic, run;

    if (!handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    off_t offset = lseek(fd, 0, SEEK_CUR);
    if (offset <= 0 || !aligned((uint64_t)offset) || !read_word(fd, 0, &magic) ||
        magic != DIRECTORY_MAGIC || !read_word(fd, (uint64_t)offset / GRANULE, &run) || run == 0)
        return CUDA_ERROR_INVALID_VALUE;
    int ordinal = (int)(run >> LENGTH_BITS);
    int own = device_of(ordinal) ? open_imported(fd) : -1;
    if (own < 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = slab_get(&physical_slab);
    physical->device = device_of(ordinal);
    physical->size = (run & ((1u << LENGTH_BITS) - 1)) * GRANULE;
    physical->fd = own;
    physical->offset = (uint64_t)offset;
    physical->imported = true;
    physical->handles = 1;
    physical->prop = (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ordinal},
    };
    sim.shared = true;
    *handle = (uintptr_t)physical;
    return CUDA_SUCCESS;
}

ENTRY(cuMemExportToShareableHandle,
      (void *out, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
       unsigned long long flags),
      INITIALISED, flags ? CUDA_ERROR_INVALID_VALUE : export_handle(out, handle, type))
ENTRY(cuMemImportFromShareableHandle,
      (CUmemGenericAllocationHandle * handle, void *os_handle, CUmemAllocationHandleType type),
      INITIALISED, import_handle(handle, os_handle, type))

void vmm_forget_all(void) {
    for (struct range *range = range_after(0), *next; range; range = next) {
        next = range_after(range->base + 1);
        if (range->kind == RANGE_MAPPED)
            unmap_one(range);
    }
    for (struct range *range; (range = reservation_after(0));)
        free_addresses(range->base, range->size);
    for (unsigned i = 0; i < physical_slab.count; i++) {
        struct physical *physical = (struct physical *)physical_slab.all[i];
        if (physical->object.live) {
            physical->handles = 0;
            drop_if_unused(physical);
        }
    }
}
