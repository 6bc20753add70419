/*
 * Ranges of memory that are cut and merged, and trees of free ones by size. The models of other
 * allocators (models.c) are built from them. One thread uses them, without a lock.
 */
#ifndef GPUCACHE_REPLAY_CHUNKS_H
#define GPUCACHE_REPLAY_CHUNKS_H

#include <stdbool.h>
#include <stdint.h>

struct chunk {
    uint64_t address, bytes;
    struct chunk *before, *behind; /* neighbours in the same segment */
    bool free;
    uint32_t pool; /* number of the tree that has the chunk while it is free */
    /* links of the tree */
    struct chunk *left, *right;
    uint32_t priority; /* random */
};

/** Returns the smallest free chunk of at least `bytes`, or NULL. Of equals, the lowest. */
struct chunk *chunks_at_least(struct chunk *tree, uint64_t bytes);
/* Insert a chunk into a tree, or remove it, and set chunk->free. */
void chunks_insert(struct chunk **tree, struct chunk *chunk);
void chunks_remove(struct chunk **tree, struct chunk *chunk);

/** Makes a chunk without neighbours. */
struct chunk *chunk_new(uint64_t address, uint64_t bytes, uint32_t pool);
/** Cuts a chunk after `bytes` and returns the rest, its neighbour. Neither may be in a tree. */
struct chunk *chunk_cut(struct chunk *chunk, uint64_t bytes);
/** Merges a chunk with the neighbour behind it, and frees the neighbour. Neither is in a tree. */
void chunk_merge(struct chunk *chunk);

#endif
