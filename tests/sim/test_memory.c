/*
 * Tests allocations, frees and copies.
 */
#include "test_sim.h"

static void test_blocks_are_laid_out_as_natively(void **state) {
    CUdeviceptr p, q, r, base;
    size_t size, pitch;

    (void)state;
    OK(cuMemAlloc_v2(&p, 1000));
    OK(cuMemAlloc_v2(&q, 1));
    OK(cuMemAlloc_v2(&r, 3 << 20));
    assert_int_equal(q - p, 1024);
    assert_int_equal(r % GRANULE, 0);
    OK(cuMemGetAddressRange_v2(&base, &size, p + 999));
    assert_int_equal(base, p);
    assert_int_equal(size, 1000);
    FAILS(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, p + 1000));
    OK(cuMemAllocPitch_v2(&p, &pitch, 1000, 3, 4));
    assert_int_equal(pitch, 1024);
}

static void test_wrong_frees_are_invalid_values(void **state) {
    CUdeviceptr p;

    (void)state;
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&p, 0));
    OK(cuMemAlloc_v2(&p, 5000));
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p + 512));
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(0x1000));
    OK(cuMemFree_v2(p));
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    OK(cuMemFree_v2(0));
}

static void test_a_full_device_refuses_until_a_free(void **state) {
    CUdeviceptr blocks[600];
    size_t free_bytes, total, before;
    int count = 0;

    (void)state;
    OK(cuMemGetInfo_v2(&before, &total));
    assert_int_equal(total, 1 << 30);
    while (cuMemAlloc_v2(&blocks[count], GRANULE) == CUDA_SUCCESS)
        count++;
    assert_int_equal(count, 511); /* one granule holds the small blocks */
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    assert_int_equal(free_bytes, 0);
    for (int i = 0; i < count; i += 2)
        OK(cuMemFree_v2(blocks[i]));
    /* memory has no fragmentation, only pages */
    OK(cuMemAlloc_v2(&blocks[0], 256 * GRANULE));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&blocks[2], GRANULE));
    OK(cuMemFree_v2(blocks[0]));
    for (int i = 1; i < count; i += 2)
        OK(cuMemFree_v2(blocks[i]));
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    assert_int_equal(free_bytes, before);
    sim_occupy(0, 1 << 30);
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&blocks[0], GRANULE));
    sim_occupy(0, 0);
}

static void test_free_waits_for_every_stream_of_the_context(void **state) {
    CUstream blocking, streams[] = {a, b, NULL, CU_STREAM_PER_THREAD, NULL};
    CUdeviceptr p, other;

    (void)state;
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    streams[4] = blocking;
    OK(cuMemAlloc_v2(&other, 1 << 20));
    for (int i = 0; i < 5; i++) {
        OK(cuMemAlloc_v2(&p, 64));
        launch_fill(streams[i], other, (uint32_t)i + 1, 1000);
        assert_int_equal(sim_pending_work(), 1);
        OK(cuMemFree_v2(p));
        assert_int_equal(sim_pending_work(), 0);
        assert_int_equal(read_u32(other), i + 1);
    }
}

static void test_allocations_do_not_wait(void **state) {
    CUdeviceptr p, q;

    (void)state;
    OK(cuMemAlloc_v2(&q, 4096));
    launch_fill(a, q, 1, 1);
    OK(cuMemAlloc_v2(&p, 64));
    OK(cuMemAllocAsync(&p, 64, b));
    assert_int_equal(sim_pending_work(), 2);
}

static void test_free_of_pool_memory_does_not_wait(void **state) {
    CUdeviceptr p, q;

    (void)state;
    OK(cuMemAlloc_v2(&q, 4096));
    OK(cuMemAllocAsync(&p, 4096, a));
    launch_fill(a, p, 1, 1024);
    launch_spin(b, flag, 1);
    OK(cuMemFree_v2(p));
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    OK(cuMemcpyHtoD_v2(flag, &(uint32_t){1}, 4));
    OK(cuCtxSynchronize()); /* the fill did not fault, because its memory stayed */
    OK(cuMemFreeAsync(q, a));
    OK(cuCtxSynchronize());
}

static void test_use_after_free_is_a_fault(void **state) {
    CUdeviceptr p;

    (void)state;
    OK(cuMemAlloc_v2(&p, 3 << 20));
    OK(cuMemFree_v2(p));
    launch_fill(a, p, 1, 1);
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&p, 64));
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    OK(cuCtxDestroy_v2(context));
}

/* Neighbours keep a freed small block accessible. Pages that were never used need no memory. */
static void test_a_freed_small_block_is_overwritten(void **state) {
    const size_t bytes = 300 << 10, middle = 150 << 10;
    CUdeviceptr keep, p;

    (void)state;
    OK(cuMemAlloc_v2(&keep, 1000));
    OK(cuMemAlloc_v2(&p, bytes));
    OK(cuMemsetD32_v2(p, 0x1234, 1));
    OK(cuMemsetD32_v2(p + middle, 0x1234, 3000));
    OK(cuMemsetD16_v2(p + bytes - 6, 0x1234, 3));
    OK(cuCtxSynchronize());
    for (size_t i = 0; i < 3000; i++)
        assert_int_equal(((uint32_t *)(p + middle))[i], 0x1234);
    assert_int_equal(*(uint16_t *)(p + bytes - 2), 0x1234);
    OK(cuMemFree_v2(p));
    assert_int_equal(*(uint32_t *)p, 0xEEEEEEEE);
    for (size_t i = 0; i < 3000; i++)
        assert_int_equal(((uint32_t *)(p + middle))[i], 0xEEEEEEEE);
    assert_int_equal(*(uint16_t *)(p + bytes - 2), 0xEEEE);
}

static void test_a_kernel_fault_sticks(void **state) {
    CUdeviceptr p = flag;

    (void)state;
    launch(fault, a, NULL);
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(b) ? 700 : cuCtxSynchronize());
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemFree_v2(p));
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxRecordEvent(context, NULL));
}

static void test_pageable_sources_are_read_at_once(void **state) {
    uint32_t value = 5, *pinned;
    CUdeviceptr p;

    (void)state;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemHostAlloc((void **)&pinned, 4096, 0));
    *pinned = 5;
    OK(cuMemcpyHtoDAsync_v2(p, &value, 4, a));
    OK(cuMemcpyHtoDAsync_v2(p + 4, pinned, 4, a));
    value = *pinned = 6;
    OK(cuStreamSynchronize(a));
    assert_int_equal(read_u32(p), 5);
    assert_int_equal(read_u32(p + 4), 6);
    OK(cuMemFreeHost(pinned));
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(pinned));
}

static void test_planes_are_copied_row_by_row(void **state) {
    CUdeviceptr p;
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR desc = {16, 8, CU_AD_FORMAT_UNSIGNED_INT8, 1};
    char host[8][16], back[8][16];
    size_t pitch;

    (void)state;
    for (int i = 0; i < 128; i++)
        host[i / 16][i % 16] = (char)i;
    memset(back, 0, sizeof(back));
    OK(cuMemAllocPitch_v2(&p, &pitch, 16, 8, 4));
    OK(cuArrayCreate_v2(&array, &desc));
    CUDA_MEMCPY2D in = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = host,
                        .srcPitch = 16,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = p,
                        .dstPitch = pitch,
                        .WidthInBytes = 16,
                        .Height = 8};
    CUDA_MEMCPY2D across = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                            .srcDevice = p,
                            .srcPitch = pitch,
                            .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                            .dstArray = array,
                            .WidthInBytes = 16,
                            .Height = 8};
    CUDA_MEMCPY2D out = {.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                         .srcArray = array,
                         .srcY = 1,
                         .srcXInBytes = 2,
                         .dstMemoryType = CU_MEMORYTYPE_HOST,
                         .dstHost = back,
                         .dstPitch = 16,
                         .WidthInBytes = 10,
                         .Height = 7};
    OK(cuMemcpy2D_v2(&in));
    OK(cuMemcpy2D_v2(&across));
    OK(cuMemcpy2D_v2(&out));
    for (int y = 0; y < 7; y++)
        for (int x = 0; x < 10; x++)
            assert_int_equal(back[y][x], host[y + 1][x + 2]);
    OK(cuArrayDestroy(array));
}

/* A real driver may place blocks at any multiple of 512. */
static void test_large_blocks_may_lie_anywhere(void **state) {
    CUdeviceptr p, q, small;
    uint64_t used;

    (void)state;
    fresh_with("GPUCACHE_SIM_MISALIGN", "64K");
    used = sim_used_memory(0);
    OK(cuMemAlloc_v2(&p, GRANULE));
    OK(cuMemAlloc_v2(&q, 5 * GRANULE - 65536));
    OK(cuMemAlloc_v2(&small, 65536));
    assert_int_equal(p % GRANULE, 65536);
    assert_int_equal(q % GRANULE, 65536);
    assert_int_equal(sim_used_memory(0) - used, 7 * GRANULE);
    launch_fill(NULL, p, 3, GRANULE / 4);
    launch_fill(NULL, q, 4, (5 * GRANULE - 65536) / 4);
    OK(cuCtxSynchronize());
    assert_int_equal(read_u32(p + GRANULE - 4), 3);
    OK(cuMemFree_v2(p));
    OK(cuMemFree_v2(q));
    assert_int_equal(sim_used_memory(0), used);
}

/* The driver may lack memory for itself, as natively. */
static void test_the_driver_takes_memory_for_a_context(void **state) {
    CUcontext other;
    CUdeviceptr p;
    uint64_t used;
    size_t heap;

    (void)state;
    fresh_with("GPUCACHE_SIM_CONTEXT_BYTES", "400M");
    used = sim_used_memory(0);
    assert_true(used >= (uint64_t)400 << 20);
    OK(cuCtxCreate_v2(&other, 0, 0));
    assert_int_equal(sim_used_memory(0), used + ((uint64_t)400 << 20));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate_v2(&other, 0, 0));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuDevicePrimaryCtxRetain(&other, 0));
    OK(cuCtxGetCurrent(&other));
    OK(cuCtxGetLimit(&heap, CU_LIMIT_MALLOC_HEAP_SIZE));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap + (1 << 30)));
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, heap + (100 << 20)));
    OK(cuCtxDestroy_v2(other));
    assert_int_equal(sim_used_memory(0), used);
    OK(cuMemAlloc_v2(&p, 600 << 20));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuDevicePrimaryCtxRetain(&other, 0));
    OK(cuMemFree_v2(p));
    OK(cuDevicePrimaryCtxRetain(&other, 0));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    assert_int_equal(sim_used_memory(0), used);
}

static void test_the_driver_takes_memory_for_code(void **state) {
    CUmodule module;
    CUlibrary library;
    CUdeviceptr p;
    uint64_t used;

    (void)state;
    fresh_with("GPUCACHE_SIM_MODULE_BYTES", "10M");
    used = sim_used_memory(0);
    OK(cuModuleLoadData(&module, "x"));
    assert_int_equal(sim_used_memory(0), used + (10 << 20));
    OK(cuLibraryLoadData(&library, "x", NULL, NULL, 0, NULL, NULL, 0));
    assert_int_equal(sim_used_memory(0), used + (20 << 20));
    OK(cuMemAlloc_v2(&p, (1 << 30) - used - (24 << 20)));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuModuleLoadData(&module, "x"));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuLibraryLoadData(&library, "x", NULL, NULL, 0, NULL, NULL, 0));
    OK(cuModuleUnload(module));
    OK(cuModuleLoadData(&module, "x"));
    OK(cuModuleUnload(module));
    OK(cuCtxDestroy_v2(context));
    assert_int_equal(sim_used_memory(0), 0);
    OK(cuLibraryUnload(library)); /* its memory ended with the context */
    assert_int_equal(sim_used_memory(0), 0);
}

static void test_the_driver_takes_memory_at_the_first_launch(void **state) {
    CUdeviceptr p;
    CUcontext other;

    (void)state;
    fresh_with("GPUCACHE_SIM_LOCAL_BYTES", "600M");
    OK(cuMemAlloc_v2(&p, 500 << 20));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY,
          cuLaunchKernel(set, 1, 1, 1, 1, 1, 1, 0, a, (void *[]){&flag, &(uint32_t){1}}, NULL));
    OK(cuMemFree_v2(p));
    launch_set(a, flag, 1);
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 500 << 20));
    launch_set(a, flag, 2); /* once is enough */
    OK(cuCtxCreate_v2(&other, 0, 0));
    load_kernels();
    FAILS(CUDA_ERROR_OUT_OF_MEMORY,
          cuLaunchKernel(set, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&flag, &(uint32_t){1}}, NULL));
    OK(cuCtxDestroy_v2(context));
    launch(fault, NULL, NULL);
}

static void test_pools_and_the_driver_share_the_device(void **state) {
    CUdeviceptr p, q;
    CUcontext other;

    (void)state;
    fresh_with("GPUCACHE_SIM_CONTEXT_BYTES", "100M");
    OK(cuMemAlloc_v2(&p, 860 << 20));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&q, 64 << 20, a));
    OK(cuMemAllocAsync(&q, 32 << 20, a));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuCtxCreate_v2(&other, 0, 0));
    OK(cuMemFree_v2(p));
    OK(cuCtxCreate_v2(&other, 0, 0));
}

int test_memory(void) {
    static const struct CMUnitTest tests[] = {
        TEST(test_blocks_are_laid_out_as_natively),
        TEST(test_wrong_frees_are_invalid_values),
        TEST(test_a_full_device_refuses_until_a_free),
        TEST(test_free_waits_for_every_stream_of_the_context),
        TEST(test_allocations_do_not_wait),
        TEST(test_free_of_pool_memory_does_not_wait),
        TEST(test_use_after_free_is_a_fault),
        TEST(test_a_freed_small_block_is_overwritten),
        TEST(test_a_kernel_fault_sticks),
        TEST(test_pageable_sources_are_read_at_once),
        TEST(test_planes_are_copied_row_by_row),
        TEST(test_large_blocks_may_lie_anywhere),
        TEST(test_the_driver_takes_memory_for_a_context),
        TEST(test_the_driver_takes_memory_for_code),
        TEST(test_the_driver_takes_memory_at_the_first_launch),
        TEST(test_pools_and_the_driver_share_the_device),
    };

    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
