/*
 * The structure of graphs, shared by graph.c, which builds and runs them, and capture.c, which
 * fills them from streams.
 */
#ifndef GPUCACHE_TESTS_SIM_GRAPH_H
#define GPUCACHE_TESTS_SIM_GRAPH_H

#include "driver.h"

/* Memory of an allocation node, at a fixed address while the graph or a copy exists. */
struct graph_memory {
    unsigned refs;
    CUdeviceptr address;
    bool booked; /* since its first launch */
};

struct node {
    struct object object;
    struct graph *graph;
    size_t index; /* in its graph; dependencies have lower indices */
    CUgraphNodeType type;
    struct work work;
    struct node **needs;
    size_t need_count;
    struct graph_memory *memory;
};

struct graph {
    struct object object;
    struct node **nodes;
    size_t count, capacity;
};

struct graph *graph_new(void);
struct graph *graph_of(CUgraph handle); /* NULL if it is none */
void graph_free(struct graph *graph);

/* Adds a node that depends on these nodes. Takes ownership of the buffers of the work. */
struct node *graph_add(struct graph *graph, CUgraphNodeType type, struct work work,
                       struct node *const *needs, size_t count);
/* An allocation node; NULL if the pool has no memory. */
struct node *graph_add_memory(struct graph *graph, struct device *device, size_t size,
                              struct node *const *needs, size_t count, CUdeviceptr *address);
struct graph_memory *graph_find_memory(const struct graph *graph, CUdeviceptr address);

/* Puts `node` at the end of a list of nodes without doubles. */
void tips_add(struct node ***tips, size_t *count, struct node *node);

#endif
