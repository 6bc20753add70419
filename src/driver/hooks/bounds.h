/*
 * Bounds of copies and fills: finds calls that leave the block they begin in. Called by the BOUNDED
 * and ORDERED hooks (copies.c), with no lock held.
 *
 * The driver refuses such a call with CUDA_ERROR_INVALID_VALUE, as it refuses freed memory. It does
 * not refuse the call for a pooled block, which is only a part of a segment. The call would write
 * into the next block, or into a block that got the freed memory since.
 *
 * Each function returns true if the hook must refuse the call. The extent of the copy is then set
 * to zero, and the hook passes the empty copy to the driver. The driver may have an error of its
 * own: no context, a fault, an invalid stream.
 *
 * A function that returns false has stored the pools in which the copy begins: pools[0] of the
 * destination or the only side, pools[1] of the source. NULL means outside all pools. The entry of
 * a side that is not a device address keeps its value.
 */
#ifndef GPUCACHE_DRIVER_HOOKS_BOUNDS_H
#define GPUCACHE_DRIVER_HOOKS_BOUNDS_H

#include "driver/ipc/ipc.h"
#include "pool/pool.h"

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>

/**
 * Reclaims the deferred frees that their streams have reached, then repeats the check. Called with
 * no lock held, after pool_exceeds() returned -EAGAIN: no live block covers `at`, and the pool has
 * deferred frees. Returns false if pool_exceeds() returns -EAGAIN again: the copy is then allowed.
 */
bool bounds_freed(CUdeviceptr at, size_t bytes, struct pool **pool);

/**
 * Returns whether [at, at + bytes) begins in a pool or an imported block, and leaves the block.
 * Past the end of an imported block lies memory of another process. Sets *pool to the pool of `at`,
 * or NULL.
 */
static inline bool bounds_exceeded(CUdeviceptr at, size_t bytes, struct pool **pool) {
    struct ipc_block block;
    int r = pool_exceeds(at, bytes, pool);
    return r != 0 ? r > 0 || bounds_freed(at, bytes, pool)
                  : ipc_find(at, &block) == 0 && bytes > block.address + block.bytes - at;
}

/** Checks one side of a copy. Sets *bytes to 0 if the call must be refused. */
static inline bool bounds_one(CUdeviceptr at, size_t *bytes, struct pool **pool) {
    bool beyond = *bytes > 0 && bounds_exceeded(at, *bytes, pool);
    *bytes = beyond ? 0 : *bytes;
    return beyond;
}

/** Checks both sides of a copy. Sets *bytes to 0 if the call must be refused. */
static inline bool bounds_two(CUdeviceptr to, CUdeviceptr from, size_t *bytes,
                              struct pool *pools[2]) {
    return bounds_one(to, bytes, &pools[0]) || bounds_one(from, bytes, &pools[1]);
}

/** Checks a fill of `count` words of `size` bytes. */
bool bounds_fill(CUdeviceptr to, size_t *count, size_t size);

/** Checks a fill of `height` rows, `pitch` bytes apart. A row has `width` words of `size` bytes. */
bool bounds_fill_rows(CUdeviceptr to, size_t pitch, size_t *width, size_t size, size_t height);

/** Check each side of a copy that is a device address. Replace *copy by an empty copy to refuse the
 * call. */
bool bounds_rows(const CUDA_MEMCPY2D **copy, struct pool *pools[2]);
bool bounds_slices(const CUDA_MEMCPY3D **copy, struct pool *pools[2]);

#endif
