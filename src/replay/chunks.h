/*
 * Ranges of memory that are cut and merged, and the free ones of them by size: what the models of
 * other allocators are made of.
 */
#ifndef GPUCACHE_REPLAY_CHUNKS_H
#define GPUCACHE_REPLAY_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

struct chunk {
    uint64_t address, bytes;
    struct chunk *before, *behind; /* neighbours of the same segment */
    bool free;
    uint32_t pool; /* which tree it is in while it is free */
    /* the tree */
    struct chunk *left, *right;
    uint32_t priority;
};

/** The free one of at least so many bytes: the smallest, the lowest of equals. NULL. */
struct chunk *chunks_at_least(struct chunk *tree, uint64_t bytes);
void chunks_insert(struct chunk **tree, struct chunk *chunk);
void chunks_remove(struct chunk **tree, struct chunk *chunk);

/** A new one, on its own; NULL without memory. */
struct chunk *chunk_new(uint64_t address, uint64_t bytes, uint32_t pool);
/** Leaves the first `bytes` and returns the rest as its neighbour; neither in a tree. NULL without
 * memory. */
struct chunk *chunk_cut(struct chunk *chunk, uint64_t bytes);
/** Takes the neighbour behind in. */
void chunk_merge(struct chunk *chunk);

#endif
