/*
 * Computes the device memory of an array from its descriptor. hooks/array.c calls this file, which
 * has no state and no lock.
 *
 * No driver call returns this size: cuArrayGetMemoryRequirements serves only arrays without memory
 * of their own. The computation follows the measured layout: rows of texels, or of blocks of 4 x 4
 * texels in compressed formats, arranged in blocks of tiles.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_ARRAY_SIZE_H
#define GPUCACHE_DRIVER_LIMIT_ARRAY_SIZE_H

#include <cuda.h>

#include <stdint.h>

/**
 * Returns the bytes of an array with `levels` mipmap levels, 1 for an array without mipmaps.
 * Returns 0 if the descriptor is invalid, or if the array takes no memory itself.
 */
uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);

#endif
