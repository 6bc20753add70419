/*
 * The pages backend: memory from the virtual memory API, in pages of 2 MiB that lie where the pool maps them.
 *
 *      addresses      taken in ranges, plain reservations           cuMemAddressReserve
 *      pages          physical, a handle each; of 2 MiB or several  cuMemCreate
 *      mappings       a page at one address or at several           cuMemMap, cuMemSetAccess
 *
 * The driver counts none of this as an allocation, and none of it ends with a context: the pool gives it back
 * when its context has ended. What the program asks about a block is answered in driver/query.c as for memory
 * of cuMemAlloc, and calls of the API itself find nothing at addresses of ours (vmm_touches).
 *
 * Pages are made for all that memory of cuMemAlloc can be used for: network cards, the decompression engine,
 * export to another process, each where the device has it. They are accessible to the device, and to every
 * device that the program has given access to the context, by cuCtxEnablePeerAccess, as long as the context
 * lives. For a device that comes later the backend knows what is mapped: a bit for each page of a range.
 */
#ifndef GPUCACHE_BACKEND_VMM_H
#define GPUCACHE_BACKEND_VMM_H

#include "backend/device_backend.h"
#include "process/lock.h"

struct vmm_range;

#define VMM_STUCK_MOST 16

struct vmm {
    struct device_backend common; /* first */
    bool begun;                   /* what is below outlives a context */
    struct lock lock; /* over what is mapped and who has access, across the driver's calls */
    struct vmm_range *ranges;
    uint64_t reached_by; /* the devices that have access besides its own, a bit for each */
    CUmemAllocationProp prop;
    struct vmm_stuck {
        uint64_t address, bytes;
    } stuck[VMM_STUCK_MOST]; /* mapped in vain, and not unmapped; charged until it is */
    unsigned stuck_count;
    atomic_bool cannot_decompress; /* the device has an engine that these pages are not for */
};

/** Why a device can have none: in words, for reports; NULL: it can. Tries it out, the first time. */
const char *vmm_unavailable(struct device *device);

/** Why IPC handles of a device's pages would be refused, in words; NULL: they are not. */
const char *vmm_not_exportable(const struct device *device);

/** As device_backend_start(); `reached_by`: the devices that have access from the start. */
int vmm_start(struct vmm *vmm, CUcontext context, struct device *device, uint64_t reached_by);

/** Gives a device access to all pages, those as well that are mapped later. Without the pool's lock. */
CUresult vmm_grant_access(struct vmm *vmm, CUdevice device);

/** Whether its pages can be used for all that the decompression engine can do with memory of cuMemAlloc. */
static inline bool vmm_can_decompress(const struct vmm *vmm) {
    return !atomic_load(&vmm->cannot_decompress);
}

/** Whether the driver hands them to other processes, as descriptors. */
static inline bool vmm_can_export(const struct vmm *vmm) {
    return (vmm->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
}

/** Whether some address of the range belongs to a backend of this kind. */
bool vmm_touches(uint64_t address, uint64_t bytes);

#endif
