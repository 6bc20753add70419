/*
 * Finds libraries that register device memory with network cards (RDMA).
 *
 * Registration goes through the kernel, not through an entry of the driver, so no hook sees it
 * begin or end. Memory of the vmm backend ("pages") cannot be registered with all of them: some
 * libraries refuse it, and others register whole driver allocations, which its blocks are not. If
 * such a library is loaded when a device gets its first pool, the pool gets the segments backend,
 * unless GPUCACHE_BACKEND=pages. A library that is loaded later, or linked into the program itself,
 * is not found. device_pool.c calls this file. The file has no state and needs no lock.
 */
#ifndef GPUCACHE_DRIVER_STATE_RDMA_LIBRARIES_H
#define GPUCACHE_DRIVER_STATE_RDMA_LIBRARIES_H

#define RDMA_CARDS "/sys/class/infiniband" /* the kernel's folder of network cards */

/** Returns the reason for the segments backend, in words: an RDMA library that is loaded, or that
 * NCCL will load because the folder `cards` has entries. NULL: no reason. Keeps errno. */
const char *rdma_libraries_loaded(const char *cards);

#endif
