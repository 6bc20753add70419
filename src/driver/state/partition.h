/*
 * Reads the memory limits that the driver enforces for the cgroup of this process.
 *
 * An administrator sets the limits with `nvidia-smi memory-limits`, since CUDA 13.4 (MPS v3 memory
 * partitioning). They hold for all processes of the cgroup together. One thread loads NVML, reads
 * the limits and closes NVML again. With an older driver it loads nothing. The limits are atomic;
 * no lock protects them. The hooks of cuDeviceTotalMem and of context creation call
 * partition_read(). device.c uses the hard limits, and context/device_pool.c the soft ones.
 */
#ifndef GPUCACHE_DRIVER_STATE_PARTITION_H
#define GPUCACHE_DRIVER_STATE_PARTITION_H

#include <stdint.h>

/** Reads the limits of all devices, once, or waits for a thread that reads them. Each wait ends
 * after about 1 s. Limits that arrive later apply to devices whose first use is later still. Does
 * nothing before cuInit(). Call with no lock held, before the driver makes a context. */
void partition_read(void);

/** Returns the hard limit of a device: bytes that the cgroup gets at most. 0: no known limit. */
uint64_t partition_hard_limit(int ordinal);

/** Returns the soft limit of a device: bytes guaranteed to the cgroup. 0: no known limit. */
uint64_t partition_soft_limit(int ordinal);

#endif
