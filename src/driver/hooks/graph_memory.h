/* Memory that graphs take for themselves. */
#ifndef GPUCACHE_DRIVER_HOOKS_GRAPH_MEMORY_H
#define GPUCACHE_DRIVER_HOOKS_GRAPH_MEMORY_H

#include "driver/state/device.h"

/** A node that allocates has been made, on `device` (NULL: on none that is known), and given its address, which no ended
 * context's memory has any more. */
void graph_memory_given(struct device *device, CUdeviceptr address, size_t bytes);

#endif
