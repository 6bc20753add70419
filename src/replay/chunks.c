/* Chunks, and treaps of free chunks: search trees by size and address (chunks.h). */
#include "replay/chunks.h"

#include "replay/memory.h"

#include <stdlib.h>

static bool is_less(const struct chunk *a, uint64_t bytes, uint64_t address) {
    return a->bytes != bytes ? a->bytes < bytes : a->address < address;
}

struct chunk *chunks_at_least(struct chunk *tree, uint64_t bytes) {
    struct chunk *found = NULL;
    while (tree) {
        if (is_less(tree, bytes, 0)) {
            tree = tree->right;
        } else {
            found = tree;
            tree = tree->left;
        }
    }
    return found;
}

/* A treap: random priorities keep the tree flat for any order of chunks. */
void chunks_insert(struct chunk **tree, struct chunk *chunk) {
    while (*tree && (*tree)->priority >= chunk->priority)
        tree = is_less(*tree, chunk->bytes, chunk->address) ? &(*tree)->right : &(*tree)->left;
    struct chunk *rest = *tree, **less = &chunk->left, **more = &chunk->right;
    while (rest) {
        if (is_less(rest, chunk->bytes, chunk->address)) {
            *less = rest;
            less = &rest->right;
            rest = rest->right;
        } else {
            *more = rest;
            more = &rest->left;
            rest = rest->left;
        }
    }
    *less = *more = NULL;
    *tree = chunk;
    chunk->free = true;
}

void chunks_remove(struct chunk **tree, struct chunk *chunk) {
    while (*tree != chunk)
        tree = is_less(*tree, chunk->bytes, chunk->address) ? &(*tree)->right : &(*tree)->left;
    struct chunk *left = chunk->left, *right = chunk->right;
    while (left && right) {
        if (left->priority > right->priority) {
            *tree = left;
            tree = &left->right;
            left = left->right;
        } else {
            *tree = right;
            tree = &right->left;
            right = right->left;
        }
    }
    *tree = left ? left : right;
    chunk->free = false;
}

struct chunk *chunk_new(uint64_t address, uint64_t bytes, uint32_t pool) {
    static uint32_t random = 1;
    struct chunk *chunk = checked(malloc(sizeof *chunk));
    random ^= random << 13; /* xorshift32 */
    random ^= random >> 17;
    random ^= random << 5;
    *chunk = (struct chunk){.address = address, .bytes = bytes, .pool = pool, .priority = random};
    return chunk;
}

struct chunk *chunk_cut(struct chunk *chunk, uint64_t bytes) {
    struct chunk *rest = chunk_new(chunk->address + bytes, chunk->bytes - bytes, chunk->pool);
    rest->before = chunk;
    rest->behind = chunk->behind;
    if (rest->behind)
        rest->behind->before = rest;
    chunk->behind = rest;
    chunk->bytes = bytes;
    return rest;
}

void chunk_merge(struct chunk *chunk) {
    struct chunk *gone = chunk->behind;
    chunk->bytes += gone->bytes;
    chunk->behind = gone->behind;
    if (chunk->behind)
        chunk->behind->before = chunk;
    free(gone);
}
