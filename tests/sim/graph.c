/*
 * Graphs: nodes, instantiation, and running them.
 *
 * The nodes of a graph are ordered: each comes after the nodes on which it depends. Instantiating
 * copies them. A launch is one piece of work in a stream; each of its steps runs a randomly chosen
 * node whose dependencies are done. Branches overlap as on a device, and a node that spins does not
 * stop its siblings.
 */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct exec_node {
    struct work work;
    size_t *needs;
    size_t need_count;
    struct graph_memory *memory;
};

struct exec {
    struct object object;
    unsigned refs; /* one for the handle, one for each run */
    size_t count;
    struct exec_node *nodes;
};

struct graph_run {
    struct exec *exec;
    struct work *works; /* arguments belong to the exec */
    bool *done;
    size_t left;
};

static struct slab graph_slab = SLAB(struct graph);
static struct slab node_slab = SLAB(struct node);
static struct slab exec_slab = SLAB(struct exec);

static void *copy_of(const void *from, size_t size) {
    void *copy = size ? malloc(size) : NULL;

    return copy ? memcpy(copy, from, size) : NULL;
}

void tips_add(struct node ***tips, size_t *count, struct node *node) {
    for (size_t i = 0; i < *count; i++)
        if ((*tips)[i] == node)
            return;
    struct node **longer = realloc(*tips, (*count + 1) * sizeof(*longer));
    if (!longer)
        abort();
    longer[(*count)++] = node;
    *tips = longer;
}

/* ---- building -------------------------------------------------------------------------------- */

struct graph *graph_new(void) {
    return slab_get(&graph_slab);
}

struct graph *graph_of(CUgraph handle) {
    struct graph *graph = (struct graph *)handle;

    return is_live(graph, &graph_slab) ? graph : NULL;
}

static void memory_unref(struct graph_memory *memory) {
    if (!memory || --memory->refs)
        return;
    struct range *range = range_find(memory->address);
    if (range && range->graph_owned) {
        if (memory->booked)
            pool_unbook(range);
        pool_free(range);
    }
    free(memory);
}

struct node *graph_add(struct graph *graph, CUgraphNodeType type, struct work work,
                       struct node *const *needs, size_t count) {
    struct node *node = slab_get(&node_slab);

    if (graph->count == graph->capacity) {
        graph->capacity = graph->capacity ? 2 * graph->capacity : 16;
        graph->nodes = realloc(graph->nodes, graph->capacity * sizeof(struct node *));
        if (!graph->nodes)
            abort();
    }
    node->graph = graph;
    node->type = type;
    node->work = work;
    node->needs = copy_of(needs, count * sizeof(*needs));
    node->need_count = count;
    node->index = graph->count;
    graph->nodes[graph->count++] = node;
    return node;
}

struct node *graph_add_memory(struct graph *graph, struct device *device, size_t size,
                              struct node *const *needs, size_t count, CUdeviceptr *address) {
    struct graph_memory *memory = calloc(1, sizeof(*memory));
    struct range *range = memory ? pool_address(pool_of_graphs(device), size) : NULL;

    if (!range) {
        free(memory);
        return NULL;
    }
    range->graph_owned = true;
    memory->refs = 1;
    memory->address = *address = range->base;
    struct node *node = graph_add(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC,
                                  (struct work){.kind = WORK_NOTHING}, needs, count);
    node->memory = memory;
    return node;
}

struct graph_memory *graph_find_memory(const struct graph *graph, CUdeviceptr address) {
    for (size_t i = 0; i < graph->count; i++) {
        struct graph_memory *memory = graph->nodes[i]->memory;
        if (memory && memory->address == address)
            return memory;
    }
    return NULL;
}

void graph_free(struct graph *graph) {
    for (size_t i = 0; i < graph->count; i++) {
        struct node *node = graph->nodes[i];
        work_dispose(&node->work);
        memory_unref(node->memory);
        free(node->needs);
        slab_put(&node_slab, node);
    }
    free(graph->nodes);
    slab_put(&graph_slab, graph);
}

static CUresult create(CUgraph *handle, unsigned flags) {
    if (!handle || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (CUgraph)graph_new();
    return CUDA_SUCCESS;
}

static CUresult destroy(CUgraph handle) {
    struct graph *graph = graph_of(handle);

    if (!graph)
        return CUDA_ERROR_INVALID_VALUE;
    graph_free(graph);
    return CUDA_SUCCESS;
}

/* Adds a node for the entries cuGraphAdd*Node. */
static CUresult add(CUgraphNode *out, CUgraph handle, const CUgraphNode *needs, size_t count,
                    CUgraphNodeType type, struct work work) {
    struct graph *graph = graph_of(handle);

    if (!out || !graph || (count && !needs)) {
        work_dispose(&work);
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        if (!is_live(needs[i], &node_slab) || ((struct node *)needs[i])->graph != graph) {
            work_dispose(&work);
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    *out = (CUgraphNode)graph_add(graph, type, work, (struct node *const *)needs, count);
    return CUDA_SUCCESS;
}

static CUresult add_kernel(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                           const CUDA_KERNEL_NODE_PARAMS_v2 *p) {
    struct work work = {.kind = WORK_KERNEL};

    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    CUfunction function = p->func ? p->func : (CUfunction)p->kern;
    const unsigned grid[3] = {p->gridDimX, p->gridDimY, p->gridDimZ};
    const unsigned block[3] = {p->blockDimX, p->blockDimY, p->blockDimZ};
    CUresult result = kernel_call_make(&work.kernel, function, grid, block, p->sharedMemBytes,
                                       p->kernelParams, p->extra);
    return result == CUDA_SUCCESS ? add(out, graph, needs, count, CU_GRAPH_NODE_TYPE_KERNEL, work)
                                  : result;
}

static CUresult add_kernel_old(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs,
                               size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *p) {
    if (!p)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS_v2 params = {.func = p->func,
                                         .gridDimX = p->gridDimX,
                                         .gridDimY = p->gridDimY,
                                         .gridDimZ = p->gridDimZ,
                                         .blockDimX = p->blockDimX,
                                         .blockDimY = p->blockDimY,
                                         .blockDimZ = p->blockDimZ,
                                         .sharedMemBytes = p->sharedMemBytes,
                                         .kernelParams = p->kernelParams,
                                         .extra = p->extra};
    return add_kernel(out, graph, needs, count, &params);
}

static CUresult add_set(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                        const CUDA_MEMSET_NODE_PARAMS *p) {
    if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4))
        return CUDA_ERROR_INVALID_VALUE;
    struct set set = {.address = p->dst,
                      .pitch = p->pitch,
                      .width = p->width * p->elementSize,
                      .height = p->height,
                      .value = p->value,
                      .element = p->elementSize};
    return add(out, graph, needs, count, CU_GRAPH_NODE_TYPE_MEMSET,
               (struct work){.kind = WORK_SET, .set = set});
}

static CUresult add_copy(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                         const CUDA_MEMCPY3D *p) {
    struct work work = {.kind = WORK_COPY};

    if (!p || !copy_describe(&work.copy, p))
        return CUDA_ERROR_INVALID_VALUE;
    return add(out, graph, needs, count, CU_GRAPH_NODE_TYPE_MEMCPY, work);
}

static CUresult add_host(CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count,
                         const CUDA_HOST_NODE_PARAMS *p) {
    if (!p || !p->fn)
        return CUDA_ERROR_INVALID_VALUE;
    struct work work = {.kind = WORK_HOST, .host = {.function = p->fn, .data = p->userData}};
    return add(out, graph, needs, count, CU_GRAPH_NODE_TYPE_HOST, work);
}

static CUresult add_allocation(CUgraphNode *out, CUgraph handle, const CUgraphNode *needs,
                               size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *p) {
    struct graph *graph = graph_of(handle);
    struct device *device = p ? device_of(p->poolProps.location.id) : NULL;

    if (!out || !graph || !device || p->bytesize == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct node *node =
        graph_add_memory(graph, device, p->bytesize, (struct node *const *)needs, count, &p->dptr);
    *out = (CUgraphNode)node;
    return node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Adds a node of memory, which is the only kind that tests add this way. */
static CUresult add_any(CUgraphNode *out, CUgraph handle, const CUgraphNode *needs, size_t count,
                        CUgraphNodeParams *params) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    if (params->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {.poolProps = params->alloc.poolProps,
                                         .bytesize = params->alloc.bytesize};
    CUresult r = add_allocation(out, handle, needs, count, &memory);
    params->alloc.dptr = memory.dptr;
    return r;
}

static CUresult node_type(CUgraphNode handle, CUgraphNodeType *type) {
    const struct node *node = (struct node *)handle;

    if (!type || !is_live(node, &node_slab))
        return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

static CUresult get_nodes(CUgraph handle, CUgraphNode *nodes, size_t *count, bool roots) {
    const struct graph *graph = graph_of(handle);
    size_t found = 0;

    if (!graph || !count)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < graph->count; i++) {
        if (roots && graph->nodes[i]->need_count)
            continue;
        if (nodes && found < *count)
            nodes[found] = (CUgraphNode)graph->nodes[i];
        found++;
    }
    for (size_t i = found; nodes && i < *count; i++)
        nodes[i] = NULL;
    *count = found;
    return CUDA_SUCCESS;
}

#define NODE_PARAMETERS CUgraphNode *out, CUgraph graph, const CUgraphNode *needs, size_t count

ENTRY(cuGraphCreate, (CUgraph * graph, unsigned flags), INITIALISED, create(graph, flags))
ENTRY(cuGraphDestroy, (CUgraph graph), INITIALISED, destroy(graph))
ENTRY(cuGraphAddKernelNode, (NODE_PARAMETERS, const CUDA_KERNEL_NODE_PARAMS_v1 *params),
      INITIALISED, add_kernel_old(out, graph, needs, count, params))
ENTRY(cuGraphAddKernelNode_v2, (NODE_PARAMETERS, const CUDA_KERNEL_NODE_PARAMS_v2 *params),
      INITIALISED, add_kernel(out, graph, needs, count, params))
ENTRY(cuGraphAddMemsetNode,
      (NODE_PARAMETERS, const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context), INITIALISED,
      ((void)context, add_set(out, graph, needs, count, params)))
ENTRY(cuGraphAddMemcpyNode, (NODE_PARAMETERS, const CUDA_MEMCPY3D *params, CUcontext context),
      INITIALISED, ((void)context, add_copy(out, graph, needs, count, params)))
ENTRY(cuGraphAddHostNode, (NODE_PARAMETERS, const CUDA_HOST_NODE_PARAMS *params), INITIALISED,
      add_host(out, graph, needs, count, params))
ENTRY(cuGraphAddEmptyNode, (NODE_PARAMETERS), INITIALISED,
      add(out, graph, needs, count, CU_GRAPH_NODE_TYPE_EMPTY, (struct work){.kind = WORK_NOTHING}))
ENTRY(cuGraphAddMemAllocNode, (NODE_PARAMETERS, CUDA_MEM_ALLOC_NODE_PARAMS *params), INITIALISED,
      add_allocation(out, graph, needs, count, params))
ENTRY(cuGraphAddNode, (NODE_PARAMETERS, CUgraphNodeParams *params), INITIALISED,
      add_any(out, graph, needs, count, params))
ENTRY(cuGraphAddNode_v2,
      (CUgraphNode * out, CUgraph graph, const CUgraphNode *needs, const CUgraphEdgeData *edges,
       size_t count, CUgraphNodeParams *params),
      INITIALISED, ((void)edges, add_any(out, graph, needs, count, params)))
ENTRY(cuGraphAddMemFreeNode, (NODE_PARAMETERS, CUdeviceptr address), INITIALISED,
      ((void)address, add(out, graph, needs, count, CU_GRAPH_NODE_TYPE_MEM_FREE,
                          (struct work){.kind = WORK_NOTHING})))
ENTRY(cuGraphNodeGetType, (CUgraphNode node, CUgraphNodeType *type), INITIALISED,
      node_type(node, type))
ENTRY(cuGraphGetNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count), INITIALISED,
      get_nodes(graph, nodes, count, false))
ENTRY(cuGraphGetRootNodes, (CUgraph graph, CUgraphNode *nodes, size_t *count), INITIALISED,
      get_nodes(graph, nodes, count, true))

/* ---- instantiating --------------------------------------------------------------------------- */

static void exec_unref(struct exec *exec) {
    if (--exec->refs)
        return;
    for (size_t i = 0; i < exec->count; i++) {
        work_dispose(&exec->nodes[i].work);
        memory_unref(exec->nodes[i].memory);
        free(exec->nodes[i].needs);
    }
    free(exec->nodes);
    slab_put(&exec_slab, exec);
}

static void copy_node(struct exec_node *to, const struct node *from) {
    to->work = work_clone(&from->work);
    to->need_count = from->need_count;
    to->needs = from->need_count ? calloc(from->need_count, sizeof(size_t)) : NULL;
    for (size_t i = 0; i < from->need_count; i++)
        to->needs[i] = from->needs[i]->index;
    to->memory = from->memory;
    if (to->memory)
        to->memory->refs++;
}

static CUresult instantiate(CUgraphExec *handle, CUgraph graph_handle) {
    const struct graph *graph = graph_of(graph_handle);

    if (!handle || !graph)
        return CUDA_ERROR_INVALID_VALUE;
    struct exec *exec = slab_get(&exec_slab);
    exec->refs = 1;
    exec->count = graph->count;
    exec->nodes = calloc(graph->count ? graph->count : 1, sizeof(*exec->nodes));
    if (!exec->nodes)
        abort();
    for (size_t i = 0; i < graph->count; i++)
        copy_node(&exec->nodes[i], graph->nodes[i]);
    *handle = (CUgraphExec)exec;
    return CUDA_SUCCESS;
}

static CUresult instantiate_with(CUgraphExec *handle, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(handle, graph);
    params->hErrNode_out = NULL;
    params->result_out =
        result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

static struct exec *exec_of(CUgraphExec handle) {
    struct exec *exec = (struct exec *)handle;

    return is_live(exec, &exec_slab) ? exec : NULL;
}

static CUresult destroy_exec(CUgraphExec handle) {
    struct exec *exec = exec_of(handle);

    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    exec_unref(exec);
    return CUDA_SUCCESS;
}

ENTRY(cuGraphInstantiate,
      (CUgraphExec * exec, CUgraph graph, CUgraphNode *error, char *log, size_t size), INITIALISED,
      ((void)error, (void)log, (void)size, instantiate(exec, graph)))
ENTRY(cuGraphInstantiate_v2,
      (CUgraphExec * exec, CUgraph graph, CUgraphNode *error, char *log, size_t size), INITIALISED,
      ((void)error, (void)log, (void)size, instantiate(exec, graph)))
ENTRY(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
      INITIALISED, ((void)flags, instantiate(exec, graph)))
ENTRY_PTSZ(cuGraphInstantiateWithParams,
           (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params), INITIALISED,
           instantiate_with(exec, graph, params))
ENTRY(cuGraphExecDestroy, (CUgraphExec exec), INITIALISED, destroy_exec(exec))

/* ---- running --------------------------------------------------------------------------------- */

static bool ready(const struct graph_run *run, size_t at) {
    const struct exec_node *node = &run->exec->nodes[at];

    if (run->done[at])
        return false;
    for (size_t i = 0; i < node->need_count; i++)
        if (!run->done[node->needs[i]])
            return false;
    return true;
}

enum verdict graph_run_step(struct graph_run *run, struct context *context) {
    size_t count = run->exec->count;
    size_t start = count ? (size_t)(sim_random() % count) : 0;

    for (size_t i = 0; i < count && run->left; i++) {
        size_t at = (start + i) % count;
        if (!ready(run, at))
            continue;
        enum verdict verdict = work_run(&run->works[at], context);
        if (verdict == FAULT)
            return FAULT;
        if (verdict == SPIN)
            continue;
        if (verdict == DONE) {
            run->done[at] = true;
            run->left--;
        }
        return run->left ? MORE : DONE;
    }
    return run->left ? SPIN : DONE;
}

void graph_run_free(struct graph_run *run) {
    exec_unref(run->exec);
    free(run->works);
    free(run->done);
    free(run);
}

static CUresult launch(CUgraphExec handle, CUstream stream_handle, bool per_thread) {
    struct exec *exec = exec_of(handle);
    struct stream *stream;
    CUresult result = stream_resolve(stream_handle, per_thread, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (!exec)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture)
        return CUDA_ERROR_NOT_SUPPORTED; /* would be a child graph */
    for (size_t i = 0; i < exec->count; i++) {
        struct graph_memory *memory = exec->nodes[i].memory;
        const struct range *range = memory && !memory->booked ? range_find(memory->address) : NULL;
        if (range && !(memory->booked = pool_book(range->pool, range->size)))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct graph_run *run = calloc(1, sizeof(*run));
    struct work *works = calloc(exec->count + 1, sizeof(*works));
    bool *done = calloc(exec->count + 1, sizeof(*done));
    if (!run || !works || !done)
        abort();
    *run = (struct graph_run){.exec = exec, .works = works, .done = done, .left = exec->count};
    exec->refs++;
    for (size_t i = 0; i < exec->count; i++) {
        works[i] = exec->nodes[i].work;
        if (works[i].kind == WORK_KERNEL) {
            works[i].kernel.launch.device = stream->context->device->ordinal;
            works[i].kernel.launch.context = (CUcontext)stream->context;
        }
    }
    return submit(stream, (struct work){.kind = WORK_GRAPH, .run = run});
}

static CUresult upload(CUgraphExec handle, CUstream stream_handle, bool per_thread) {
    struct stream *stream;
    CUresult result = stream_resolve(stream_handle, per_thread, &stream);

    return result == CUDA_SUCCESS && !exec_of(handle) ? CUDA_ERROR_INVALID_VALUE : result;
}

ENTRY_PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream), SUBMIT,
           launch(exec, stream, per_thread))
ENTRY_PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream), SUBMIT,
           upload(exec, stream, per_thread))

void graph_forget_all(void) {
    for (unsigned i = 0; i < exec_slab.count; i++)
        if (exec_slab.all[i]->live)
            exec_unref((struct exec *)exec_slab.all[i]);
    for (unsigned i = 0; i < graph_slab.count; i++)
        if (graph_slab.all[i]->live)
            graph_free((struct graph *)graph_slab.all[i]);
}
