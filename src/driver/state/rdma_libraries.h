/*
 * Finds libraries that register device memory with network cards (RDMA).
 *
 * Registration goes through the kernel, not through an entry of the driver, so no hook sees it
 * begin or end. For memory of the pages backend some libraries refuse registration. Others register
 * whole driver allocations, and blocks in pages are not driver allocations. If such a library is
 * loaded when a device gets its first pool, the pool takes segments, unless GPUCACHE_BACKEND asks
 * for pages. A library that is loaded later, or linked into the program itself, is not found.
 * device_pool.c calls this file; it needs no lock.
 */
#ifndef GPUCACHE_DRIVER_STATE_RDMA_LIBRARIES_H
#define GPUCACHE_DRIVER_STATE_RDMA_LIBRARIES_H

#define RDMA_CARDS "/sys/class/infiniband"

/** Returns the reason for segments, in words, if such a library is loaded, or will be because the
 * folder `cards` of the network cards has entries. NULL: there is no reason. Keeps errno. */
const char *rdma_libraries_loaded(const char *cards);

#endif
