/* Records nodes that allocate. graph_memory.c has the hooks and says where the memory is from. */
#ifndef GPUCACHE_DRIVER_HOOKS_GRAPH_MEMORY_H
#define GPUCACHE_DRIVER_HOOKS_GRAPH_MEMORY_H

#include "driver/state/device.h"

/**
 * Records that a node which allocates was added to a graph, on `device`, or on an unknown device if
 * `device` is NULL. The driver has reserved the addresses for the node. Removes a pool that still
 * counts these addresses as its own: its context has ended. Called with no lock held.
 */
void graph_memory_given(struct device *device, CUdeviceptr address, size_t bytes);

#endif
