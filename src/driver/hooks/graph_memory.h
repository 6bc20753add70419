/* Hooks of graph memory: nodes that allocate. graph_memory.c says where their memory comes from. */
#ifndef GPUCACHE_DRIVER_HOOKS_GRAPH_MEMORY_H
#define GPUCACHE_DRIVER_HOOKS_GRAPH_MEMORY_H

#include "driver/state/device.h"

/**
 * Records that a node which allocates was added to a graph, on `device`, or on an unknown device if
 * it is NULL. The driver has reserved the addresses for the node. If a pool still counts them as
 * its own, its context has ended, and is removed. Called with no lock held.
 */
void graph_memory_given(struct device *device, CUdeviceptr address, size_t bytes);

#endif
