#include "driver/limit/array_size.h"

#include "heap/page.h"

#include <stdbool.h>

/*
 * A mipmap level consists of tiles of TILE_ROW_BYTES by TILE_ROWS. The driver groups tiles in
 * blocks of at most BLOCK_TILES. A block contains vertically adjacent tiles in a flat array, and
 * tiles of adjacent slices in a deep array. A level with fewer tiles gets a block of the next power
 * of two tiles. Measured on an H200 with 378 shapes (tests/gpu/facts_arrays.cu).
 */
#define TILE_ROW_BYTES 64
#define TILE_ROWS 8
#define BLOCK_TILES 16

/*
 * The driver divides its memory for arrays into pieces of PIECE_BYTES. An array of more than
 * SHARED_MAX_BYTES gets whole pages of its own.
 */
#define PIECE_BYTES 2048
#define SHARED_MAX_BYTES ((uint64_t)1 << 20)

/* Size of a texel by format. Has numbers because an older cuda.h lacks the later formats' names. */
struct texels {
    uint8_t first, last; /* range of CUarray_format values */
    uint8_t half_bytes;  /* size of a texel or channel, in half bytes */
    uint8_t side;        /* texels of a compressed block in each direction, else 1 */
    bool channels;       /* the size is of one channel; the descriptor has their number */
};

static const struct texels formats[] = {
    {0x01, 0x01, 2, 1, true},   /* UNSIGNED_INT8 */
    {0x02, 0x02, 4, 1, true},   /* UNSIGNED_INT16 */
    {0x03, 0x03, 8, 1, true},   /* UNSIGNED_INT32 */
    {0x08, 0x08, 2, 1, true},   /* SIGNED_INT8 */
    {0x09, 0x09, 4, 1, true},   /* SIGNED_INT16 */
    {0x0a, 0x0a, 8, 1, true},   /* SIGNED_INT32 */
    {0x10, 0x10, 4, 1, true},   /* HALF */
    {0x20, 0x20, 8, 1, true},   /* FLOAT */
    {0x50, 0x50, 8, 1, false},  /* UNORM_INT_101010_2 */
    {0x91, 0x92, 1, 4, false},  /* BC1 */
    {0x93, 0x96, 2, 4, false},  /* BC2, BC3 */
    {0x97, 0x98, 1, 4, false},  /* BC4 */
    {0x99, 0x9e, 2, 4, false},  /* BC5, BC6H, BC7 */
    {0x9f, 0x9f, 6, 1, false},  /* P010, 4:2:0 */
    {0xa1, 0xa1, 6, 1, false},  /* P016 */
    {0xa2, 0xa2, 4, 1, false},  /* NV16, 4:2:2 */
    {0xa3, 0xa4, 8, 1, false},  /* P210, P216 */
    {0xa5, 0xa5, 4, 1, false},  /* YUY2 */
    {0xa6, 0xa9, 8, 1, false},  /* Y210, Y216, AYUV, Y410 */
    {0xb0, 0xb0, 3, 1, false},  /* NV12, 4:2:0 */
    {0xb1, 0xb1, 16, 1, false}, /* Y416 */
    {0xb2, 0xb2, 6, 1, false},  /* Y444_PLANAR8 */
    {0xb3, 0xb3, 12, 1, false}, /* Y444_PLANAR10 */
    {0xb4, 0xb4, 6, 1, false},  /* YUV444_8bit_SemiPlanar */
    {0xb5, 0xb5, 12, 1, false}, /* YUV444_16bit_SemiPlanar */
    {0xc0, 0xc0, 2, 1, false},  /* UNORM_INT8X1 */
    {0xc1, 0xc1, 4, 1, false},  /* UNORM_INT8X2 */
    {0xc2, 0xc2, 8, 1, false},  /* UNORM_INT8X4 */
    {0xc3, 0xc3, 4, 1, false},  /* UNORM_INT16X1 */
    {0xc4, 0xc4, 8, 1, false},  /* UNORM_INT16X2 */
    {0xc5, 0xc5, 16, 1, false}, /* UNORM_INT16X4 */
    {0xc6, 0xc6, 2, 1, false},  /* SNORM_INT8X1 */
    {0xc7, 0xc7, 4, 1, false},  /* SNORM_INT8X2 */
    {0xc8, 0xc8, 8, 1, false},  /* SNORM_INT8X4 */
    {0xc9, 0xc9, 4, 1, false},  /* SNORM_INT16X1 */
    {0xca, 0xca, 8, 1, false},  /* SNORM_INT16X2 */
    {0xcb, 0xcb, 16, 1, false}, /* SNORM_INT16X4 */
};

static const struct texels *find_texels(unsigned format) {
    for (unsigned i = 0; i < sizeof formats / sizeof *formats; i++)
        if (format >= formats[i].first && format <= formats[i].last)
            return &formats[i];
    return NULL;
}

static uint64_t round_up(uint64_t value, uint64_t unit) {
    return (value + unit - 1) / unit * unit;
}

/* Returns `tiles` rounded up to whole blocks of tiles. */
static uint64_t round_up_to_blocks(uint64_t tiles) {
    uint64_t block = 1;
    while (block < BLOCK_TILES && block < tiles)
        block *= 2;
    return round_up(tiles, block);
}

/* Texels in one direction; the driver refuses longer arrays. */
#define LONGEST ((uint64_t)1 << 31)

/*
 * Returns the bytes of a mipmap level: of one layer if `depth` is 0, else of all slices. Returns
 * UINT64_MAX on overflow.
 */
static uint64_t level_size(const struct texels *texels, unsigned channels, uint64_t width,
                           uint64_t height, uint64_t depth) {
    uint64_t half = (uint64_t)texels->half_bytes * (texels->channels ? channels : 1);
    half *= (uint64_t)texels->side * texels->side;
    uint64_t across = (width + texels->side - 1) / texels->side;
    uint64_t down = height ? (height + texels->side - 1) / texels->side : 1;
    uint64_t tiles = (down + TILE_ROWS - 1) / TILE_ROWS;
    uint64_t rows = (depth ? tiles : round_up_to_blocks(tiles)) * TILE_ROWS;
    uint64_t plane = round_up((across * half + 1) / 2, TILE_ROW_BYTES) * rows;
    uint64_t slices = depth ? round_up_to_blocks(depth) : 1;
    return plane > UINT64_MAX / slices ? UINT64_MAX : plane * slices;
}

/* Returns the size of the next mipmap level in one direction; 0 stays 0. */
static uint64_t halved(uint64_t size) {
    return size > 1 ? size / 2 : size;
}

uint64_t array_size(const CUDA_ARRAY3D_DESCRIPTOR *descriptor, unsigned levels) {
    const struct texels *texels = find_texels((unsigned)descriptor->Format);
    uint64_t width = descriptor->Width, height = descriptor->Height, depth = descriptor->Depth;
    unsigned channels = descriptor->NumChannels;
    /* The program maps memory to these arrays later. */
    bool without_memory = descriptor->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING);
    bool is_layered = descriptor->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    uint64_t bytes = 0, layer = 0, most = UINT64_MAX / 2;
    if (!texels || without_memory || width == 0 || width > LONGEST || height > LONGEST ||
        depth > LONGEST || channels > 4 || (texels->channels && channels == 3))
        return 0;
    uint64_t layers = is_layered && depth ? depth : 1;
    depth = is_layered ? 0 : depth;
    /* The driver makes no levels beyond 1 x 1 x 1. */
    for (bool last = false; levels > 0 && !last; levels--) {
        last = width <= 1 && height <= 1 && depth <= 1;
        layer = level_size(texels, channels, width, height, depth);
        if (layer > most / layers || bytes > most - layer * layers)
            return most; /* more than any device has */
        bytes += layer * layers;
        width = halved(width);
        height = halved(height);
        depth = halved(depth);
    }
    return round_up(bytes, bytes > SHARED_MAX_BYTES ? PAGE_BYTES : PIECE_BYTES);
}
