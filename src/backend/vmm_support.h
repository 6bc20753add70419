/*
 * What vmm.c and vmm_support.c use of each other: driver calls for one handle, and the test whether
 * a device can have the vmm backend.
 */
#ifndef GPUCACHE_BACKEND_VMM_SUPPORT_H
#define GPUCACHE_BACKEND_VMM_SUPPORT_H

#include "backend/vmm.h"

/** Returns why a device cannot have the vmm backend, or NULL. Maps one VMM page to find out. */
const char *vmm_unavailable(struct device *device);

/** Returns why handles of a device cannot be exported to other processes, or NULL. */
const char *vmm_not_exportable(const struct device *device);

/** Returns the properties of a device's handles: every use that memory of cuMemAlloc has there. */
CUmemAllocationProp vmm_prop_of(const struct device *device);

/** Creates a handle of `bytes` bytes with the properties of `vmm`. Returns the driver's code. */
CUresult vmm_create_handle(struct vmm_backend *vmm, uint64_t bytes, uint64_t *created);

/** Releases handles. Returns how many of them the driver has taken back. */
unsigned vmm_release_handles(unsigned count, const uint64_t *handles);

/** Gives the own device and the devices of `vmm->peer_devices` access to mapped addresses. */
CUresult vmm_give_access(const struct vmm_backend *vmm, uint64_t address, uint64_t bytes);

#endif
