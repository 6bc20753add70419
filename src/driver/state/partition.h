/*
 * The limits that the driver keeps for the cgroup of this process, since CUDA 13.4 (MPS v3 memory
 * partitioning). An administrator sets them with `nvidia-smi memory-limits`, and the driver
 * enforces them for all processes of the cgroup together.
 *
 * NVML returns them. The library is loaded for the question and closed again, so the program finds
 * what it finds natively. With an older driver nothing is loaded. There is no lock: the first
 * thread that comes has the question asked, and the others go on.
 */
#ifndef GPUCACHE_DRIVER_STATE_PARTITION_H
#define GPUCACHE_DRIVER_STATE_PARTITION_H

#include <stdint.h>

/** Asks for the limits of all devices, once. Waits at most a second or so for the answer; a later
 * answer counts for devices that are used later. Call without a lock, before the driver makes a
 * context. Before cuInit() nothing is asked. */
void partition_read(void);

/** Returns the hard limit of a device in bytes: the most that the cgroup gets. 0: none is known. */
uint64_t partition_hard_limit(int ordinal);

/** Returns the soft limit of a device in bytes: what is guaranteed to the cgroup. 0: none is known.
 */
uint64_t partition_soft_limit(int ordinal);

#endif
