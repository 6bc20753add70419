/*
 * Hooks that add nodes which allocate memory to graphs. A node has its address when it is added.
 * Its memory comes from the driver's graph pool of the device when the graph is launched. The hooks
 * announce that pool, so that its memory is counted (limit/driver_pools.h). Called with no lock
 * held.
 */
#include "driver/hooks/graph_memory.h"

#include "driver/context/context.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/retry.h"
#include "driver/table/entries.h"
#include "process/process.h"

void graph_memory_given(struct device *device, CUdeviceptr address, size_t bytes) {
    driver_pool_add_graph_memory(device);
    context_address_given(address, bytes);
}

/* Records a node that the driver has added. Memory of the host gets no device. */
static void record_node(const CUmemLocation *where, CUdeviceptr address, size_t bytes) {
    bool on_device = where->type == CU_MEM_LOCATION_TYPE_DEVICE && process_ready();
    graph_memory_given(on_device ? device_get(where->id) : NULL, address, bytes);
}

CUresult hook_cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph,
                                     const CUgraphNode *dependencies, size_t count,
                                     CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    CUresult answer = RETRY(REAL(cuGraphAddMemAllocNode)(node, graph, dependencies, count, params));
    if (answer == CUDA_SUCCESS)
        record_node(&params->poolProps.location, params->dptr, params->bytesize);
    return answer;
}

/* Records the node that the driver has added, if it allocates. Returns `answer`. */
static CUresult account_added(CUresult answer, const CUgraphNodeParams *params) {
    if (answer == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        record_node(&params->alloc.poolProps.location, params->alloc.dptr, params->alloc.bytesize);
    return answer;
}

CUresult hook_cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                             size_t count, CUgraphNodeParams *params) {
    CUresult answer = RETRY(REAL(cuGraphAddNode)(node, graph, dependencies, count, params));
    return account_added(answer, params);
}

CUresult hook_cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                const CUgraphEdgeData *edges, size_t count,
                                CUgraphNodeParams *params) {
    CUresult answer =
        RETRY(REAL(cuGraphAddNode_v2)(node, graph, dependencies, edges, count, params));
    return account_added(answer, params);
}

CUresult hook_cuDeviceGraphMemTrim(CUdevice ordinal) {
    CUresult answer = REAL(cuDeviceGraphMemTrim)(ordinal);
    bool started = process_is_started();
    struct device *device = started && answer == CUDA_SUCCESS ? device_used(ordinal) : NULL;
    if (device)
        driver_pool_query_all(device);
    return answer;
}
