/* Tests the bytes that an array takes, computed from its descriptor (driver/limit/array_size.h). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/limit/array_size.h"

#include <limits.h>

#define MIB ((uint64_t)1 << 20)

static uint64_t size(unsigned format, unsigned channels, size_t width, size_t height, size_t depth,
                     unsigned flags, unsigned levels) {
    CUDA_ARRAY3D_DESCRIPTOR d = {.Width = width,
                                 .Height = height,
                                 .Depth = depth,
                                 .Format = (CUarray_format)format,
                                 .NumChannels = channels,
                                 .Flags = flags};
    return array_size(&d, levels);
}

static void a_texel_is_as_large_as_its_format_says(void **state) {
    (void)state;
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 1024, 1024, 0, 0, 1), 4 * MIB);
    assert_int_equal(size(CU_AD_FORMAT_UNSIGNED_INT8, 4, 1024, 1024, 0, 0, 1), 4 * MIB);
    assert_int_equal(size(CU_AD_FORMAT_HALF, 2, 1024, 1024, 0, 0, 1), 4 * MIB);
    assert_int_equal(size(0xc2 /* UNORM_INT8X4 */, 4, 2048, 2048, 0, 0, 1), 16 * MIB);
    assert_int_equal(size(0xcb /* SNORM_INT16X4 */, 4, 1024, 1024, 0, 0, 1), 8 * MIB);
    assert_int_equal(size(0xb0 /* NV12 */, 3, 2048, 2048, 0, 0, 1), 6 * MIB);
    assert_int_equal(size(0x50 /* UNORM_INT_101010_2 */, 4, 1024, 1024, 0, 0, 1), 4 * MIB);
}

static void a_compressed_format_has_blocks_of_sixteen_texels(void **state) {
    (void)state;
    assert_int_equal(size(0x91 /* BC1 */, 4, 4096, 4096, 0, 0, 1), 8 * MIB);
    assert_int_equal(size(0x97 /* BC4 */, 1, 4096, 4096, 0, 0, 1), 8 * MIB);
    assert_int_equal(size(0x9e /* BC7 */, 4, 4096, 4096, 0, 0, 1), 16 * MIB);
    /* 1021 texels are 256 blocks */
    assert_int_equal(size(0x91, 4, 1021, 1021, 0, 0, 1), size(0x91, 4, 1024, 1024, 0, 0, 1));
}

/* An array of one float per texel, and its expected bytes. */
struct extent {
    size_t width, height, depth;
    uint64_t bytes;
};

static void assert_sizes(const struct extent *of, size_t count) {
    for (; count > 0; of++, count--) {
        uint64_t bytes = size(CU_AD_FORMAT_FLOAT, 1, of->width, of->height, of->depth, 0, 1);
        if (bytes != of->bytes)
            fail_msg("%zu x %zu x %zu floats: %llu bytes, not %llu", of->width, of->height,
                     of->depth, (unsigned long long)bytes, (unsigned long long)of->bytes);
    }
}

/* A tile has 64 bytes x 8 rows. Sizes are multiples of 2048 bytes. */
static void rows_and_columns_are_made_of_tiles(void **state) {
    (void)state;
    static const struct extent tiled[] = {
        {1, 1, 0, 2048}, {65, 0, 0, 4096}, {1000, 0, 0, 32768}, {129, 9, 0, 10240}};
    assert_sizes(tiled, sizeof tiled / sizeof *tiled);
}

/* The sizes are those of cuArrayGetMemoryRequirements on an H200, within its 64 KiB. */
static void tiles_are_stacked_up_to_the_next_power_of_two(void **state) {
    (void)state;
    static const struct extent stacked[] = {
        {1, 17, 0, 2048},
        {1, 65, 0, 8192},
        {128, 129, 0, 131072},
        {33, 1000, 0, 196608},
        /* in a deep array, slices are stacked instead of rows */
        {64, 64, 33, 786432},
        {64, 60, 9, 262144},
    };
    assert_sizes(stacked, sizeof stacked / sizeof *stacked);
}

static void a_large_array_gets_pages_of_its_own(void **state) {
    (void)state;
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 512, 512, 0, 0, 1), MIB);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 4100, 64, 0, 0, 1), 2 * MIB);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 1000, 1000, 0, 0, 1), 4 * MIB);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 1024, 1024, 0, 0, 99), 6 * MIB);
}

static void each_level_has_all_layers_and_half_the_depth(void **state) {
    (void)state;
    uint64_t one = size(CU_AD_FORMAT_FLOAT, 1, 512, 512, 1, CUDA_ARRAY3D_LAYERED, 1);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 512, 512, 6, CUDA_ARRAY3D_LAYERED, 1), 6 * one);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 512, 512, 6, CUDA_ARRAY3D_CUBEMAP, 1), 6 * one);
    /* 351 232 bytes a layer */
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 256, 256, 6, CUDA_ARRAY3D_LAYERED, 9), 4 * MIB);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 256, 256, 2, CUDA_ARRAY3D_LAYERED, 9), 702464);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 64, 64, 16, 0, 2),
                     (64 * 64 * 16 + 32 * 32 * 8) * 4);
}

static void levels_end_at_a_single_texel(void **state) {
    (void)state;
    uint64_t all = size(CU_AD_FORMAT_FLOAT, 4, 64, 64, 0, 0, 7);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 4, 64, 64, 0, 0, 8), all);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 4, 64, 64, 0, 0, UINT_MAX), all);
    assert_true(size(CU_AD_FORMAT_FLOAT, 4, 64, 64, 0, 0, 3) < all);
}

static void arrays_without_memory_of_their_own_count_nothing(void **state) {
    (void)state;
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 64, 64, 0, CUDA_ARRAY3D_SPARSE, 1), 0);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 64, 64, 0, CUDA_ARRAY3D_DEFERRED_MAPPING, 1), 0);
}

static void invalid_descriptors_are_left_to_the_driver(void **state) {
    (void)state;
    assert_int_equal(size(0x7f, 1, 64, 64, 0, 0, 1), 0);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, 0, 64, 0, 0, 1), 0);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 7, 64, 64, 0, 0, 1), 0);
    assert_int_equal(size(CU_AD_FORMAT_FLOAT, 1, SIZE_MAX, 64, 0, 0, 1), 0);
    size_t longest = (size_t)1 << 31;
    assert_true(size(CU_AD_FORMAT_FLOAT, 4, longest, longest, longest, 0, 30) > (uint64_t)1 << 60);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_texel_is_as_large_as_its_format_says),
        cmocka_unit_test(a_compressed_format_has_blocks_of_sixteen_texels),
        cmocka_unit_test(rows_and_columns_are_made_of_tiles),
        cmocka_unit_test(tiles_are_stacked_up_to_the_next_power_of_two),
        cmocka_unit_test(a_large_array_gets_pages_of_its_own),
        cmocka_unit_test(each_level_has_all_layers_and_half_the_depth),
        cmocka_unit_test(levels_end_at_a_single_texel),
        cmocka_unit_test(arrays_without_memory_of_their_own_count_nothing),
        cmocka_unit_test(invalid_descriptors_are_left_to_the_driver),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
