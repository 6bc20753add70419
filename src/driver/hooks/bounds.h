/*
 * Copies and fills that leave the block they begin in.
 *
 * The driver refuses them with CUDA_ERROR_INVALID_VALUE, as it does those of memory that was freed. To it a block of a pool
 * is a part of a segment: it would write into the next block, or into what another one was given since.
 *
 * Each function answers whether the call has to be refused. If so, what is to be copied is made to be nothing, so that the
 * driver can be asked all the same: without a context, after a fault, or beside an invalid stream it has an answer of its own.
 * Else what is copied begins in these `pools`: the one that is written, the one that is read (of a single side the first);
 * what is in none is left as it was.
 */
#ifndef GPUCACHE_DRIVER_HOOKS_BOUNDS_H
#define GPUCACHE_DRIVER_HOOKS_BOUNDS_H

#include "driver/ipc/ipc.h"
#include "pool/pool.h"

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>

/** Of memory that no block covers, and some stream may have yet to free: they are asked whether they have. */
bool bounds_freed(CUdeviceptr at, size_t bytes, struct pool **pool);

/** Of the pools here, or opened by an IPC handle: there the next block is another process's. */
static inline bool bounds_exceeded(CUdeviceptr at, size_t bytes, struct pool **pool) {
    struct ipc_block block;
    int r = pool_exceeds(at, bytes, pool);
    return r != 0 ? r > 0 || bounds_freed(at, bytes, pool)
                  : ipc_find(at, &block) == 0 && bytes > block.address + block.bytes - at;
}

static inline bool bounds_one(CUdeviceptr at, size_t *bytes, struct pool **pool) {
    bool beyond = *bytes > 0 && bounds_exceeded(at, *bytes, pool);
    *bytes = beyond ? 0 : *bytes;
    return beyond;
}

static inline bool bounds_two(CUdeviceptr to, CUdeviceptr from, size_t *bytes,
                              struct pool *pools[2]) {
    return bounds_one(to, bytes, &pools[0]) || bounds_one(from, bytes, &pools[1]);
}

/** Of `count` words of `size` bytes. */
bool bounds_fill(CUdeviceptr to, size_t *count, size_t size);

/** Of `height` rows of `width` words, `pitch` bytes apart. */
bool bounds_fill_rows(CUdeviceptr to, size_t pitch, size_t *width, size_t size, size_t height);

/** Of both sides, where they are addresses of a device. */
bool bounds_rows(const CUDA_MEMCPY2D **copy, struct pool *pools[2]);
bool bounds_slices(const CUDA_MEMCPY3D **copy, struct pool *pools[2]);

#endif
