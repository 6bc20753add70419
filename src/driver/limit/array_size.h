/*
 * How much memory of the device an array takes. No driver call says it (cuArrayGetMemoryRequirements
 * answers for arrays without memory of their own only), so it is computed from the descriptor, as the
 * driver was measured to lay arrays out: rows of texels, or of blocks of 4 x 4 where the format is
 * compressed, in blocks of tiles.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_ARRAY_SIZE_H
#define GPUCACHE_DRIVER_LIMIT_ARRAY_SIZE_H

#include <cuda.h>

#include <stdint.h>

/** Bytes of an array with so many levels, 1 for one without a mipmap; 0 if the descriptor makes no
 * sense, or the array takes no memory by itself. */
uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels);

#endif
