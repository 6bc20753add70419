/*
 * The vmm backend (public name: pages): virtual memory, mapped at addresses that the pool chooses.
 *
 *     addresses      reserved in VA ranges                         cuMemAddressReserve
 *     handles        physical memory, 2 MiB or a multiple each     cuMemCreate
 *     mappings       a handle at one address, or at several        cuMemMap, cuMemSetAccess
 *
 * Addresses, handles and mappings belong to no context: the pool releases them after its context
 * has ended. driver/hooks/query.c answers the program's questions about a block as for memory of
 * cuMemAlloc. The program's own calls of the API find nothing at these addresses (vmm_touches()).
 *
 * Handles are made for all uses of cuMemAlloc's memory that the device has: network cards,
 * decompression engine, export. The device has access, and every device that the program gave
 * access to the context by cuCtxEnablePeerAccess, until the context ends. A bitmap of mapped VMM
 * pages serves devices that get access later. `lock` protects the mappings and the set of devices.
 */
#ifndef GPUCACHE_BACKEND_VMM_H
#define GPUCACHE_BACKEND_VMM_H

#include "backend/common.h"
#include "base/lock.h"
#include "driver/context/device_pool.h"

struct vmm_range;

#define VMM_LEAKED_MOST 16

struct vmm_backend {
    struct device_backend common; /* first */
    bool started;                 /* `lock` and `prop` are set up; they outlive a context */
    struct lock lock;             /* protects mappings and access, also during driver calls */
    struct vmm_range *ranges;
    uint64_t peer_devices; /* other devices with access, a bit for each */
    CUmemAllocationProp prop;
    /* Mappings of a failed map() that the driver did not unmap. They stay charged until it does. */
    struct vmm_leaked {
        uint64_t address, bytes;
    } leaked[VMM_LEAKED_MOST];
    unsigned leaked_count;
    atomic_bool cannot_decompress; /* the device has an engine, but not for this memory */
};

extern const struct backend_kind vmm_kind;

/** Returns whether the decompression engine can use the memory as it can use memory of
 * cuMemAlloc. */
static inline bool vmm_can_decompress(const struct vmm_backend *vmm) {
    return !atomic_load(&vmm->cannot_decompress);
}

/** Returns whether the driver can export handles to other processes, as file descriptors. */
static inline bool vmm_can_export(const struct vmm_backend *vmm) {
    return (vmm->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
}

/** Returns whether any address of [address, address + bytes) lies in a VA range of a vmm backend.
 * Takes ranges_lock. */
bool vmm_touches(uint64_t address, uint64_t bytes);

#endif
