/*
 * Tests pools, virtual memory, memory shared with another process, and queries of addresses.
 */
#include "test_sim.h"

#include <sys/socket.h>
#include <sys/wait.h>

static void test_pools_keep_their_release_threshold(void **state) {
    CUmemoryPool pool;
    CUdeviceptr p;
    cuuint64_t value, threshold = 64 << 20;

    (void)state;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    OK(cuMemAllocAsync(&p, 1000, a));
    launch_fill(a, p, 1, 250);
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
    assert_int_equal(value, 1000);
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    assert_int_equal(value, 32 << 20);
    OK(cuMemFreeAsync(p, a));
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, a));
    OK(cuStreamSynchronize(a));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    assert_int_equal(value, 0);
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuMemAllocAsync(&p, 40 << 20, a));
    OK(cuMemFreeAsync(p, a));
    OK(cuStreamSynchronize(a));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    assert_int_equal(value, 64 << 20);
    threshold = UINT64_MAX;
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuCtxSynchronize());
    OK(cuMemPoolTrimTo(pool, 100 << 20));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    assert_int_equal(value, 64 << 20);
    OK(cuMemPoolTrimTo(pool, 0));
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &value));
    assert_int_equal(value, 0);
}

static uint64_t graph_memory(void) {
    cuuint64_t value = 0;
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &value));
    return value;
}

static void test_memory_of_graphs_is_taken_at_a_launch_and_kept(void **state) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
        .bytesize = 40 << 20};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;

    (void)state;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    assert_int_equal(graph_memory(), 0);
    OK(cuGraphLaunch(exec, a));
    OK(cuStreamSynchronize(a));
    assert_int_equal(graph_memory(), 64 << 20);
    OK(cuDeviceGraphMemTrim(0));
    assert_int_equal(graph_memory(), 64 << 20);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuCtxSynchronize());
    assert_int_equal(graph_memory(), 64 << 20);
    OK(cuDeviceGraphMemTrim(0));
    assert_int_equal(graph_memory(), 0);
}

static bool addresses_are_scarce(void) {
#ifdef __SANITIZE_THREAD__
    return true;
#else
    const char *preload = getenv("LD_PRELOAD");

    return preload && strstr(preload, "vgpreload"); /* valgrind */
#endif
}

static void test_one_page_at_two_addresses_is_one_page(void **state) {
    CUmemGenericAllocationHandle page;
    CUdeviceptr p, q, base;
    uint64_t used = sim_used_memory(0);
    size_t span = (size_t)1 << (addresses_are_scarce() ? 30 : 44);
    CUipcMemHandle ipc;
    size_t size;

    (void)state;
    OK(cuMemAddressReserve(&p, span, 0, 0, 0));
    q = p + 100 * GRANULE;
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&page, 4096, &page_prop, 0));
    OK(cuMemCreate(&page, GRANULE, &page_prop, 0));
    OK(cuMemMap(p, GRANULE, 0, page, 0));
    OK(cuMemMap(q, GRANULE, 0, page, 0));
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(p, 1, 1));
    OK(cuMemSetAccess(p, GRANULE, &page_access, 1));
    OK(cuMemSetAccess(q, GRANULE, &page_access, 1));
    launch_fill(a, p, 42, 1000);
    OK(cuStreamSynchronize(a));
    assert_int_equal(read_u32(q + 3996), 42);
    OK(cuMemGetAddressRange_v2(&base, &size, q + 5));
    assert_int_equal(base, q);
    assert_int_equal(size, GRANULE);
    FAILS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&ipc, p));
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(p, span));
    assert_int_equal(sim_used_memory(0), used + GRANULE);
    launch_spin(a, flag, 1);
    OK(cuMemUnmap(p, GRANULE)); /* does not wait */
    assert_int_equal(sim_pending_work(), 1);
    OK(cuMemRelease(page));
    assert_int_equal(read_u32(q), 42); /* mapped memory stays alive */
    OK(cuMemUnmap(q, GRANULE));
    assert_int_equal(sim_used_memory(0), used);
    OK(cuMemAddressFree(p, span));
    *(uint32_t *)flag = 1;
}

static void test_unmapping_under_work_is_a_fault(void **state) {
    CUmemGenericAllocationHandle page;
    CUdeviceptr p;

    (void)state;
    OK(cuMemAddressReserve(&p, GRANULE, 0, 0, 0));
    OK(cuMemCreate(&page, GRANULE, &page_prop, 0));
    OK(cuMemMap(p, GRANULE, 0, page, 0));
    OK(cuMemSetAccess(p, GRANULE, &page_access, 1));
    launch_fill(a, p, 1, 100);
    OK(cuMemUnmap(p, GRANULE));
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

static void test_exported_pages_are_shared_with_another_process(void **state) {
    CUmemGenericAllocationHandle page, other;
    CUdeviceptr p;
    int fd, status;

    (void)state;
    OK(cuMemAddressReserve(&p, 2 * GRANULE, 0, 0, 0));
    OK(cuMemCreate(&other, GRANULE, &page_prop, 0));
    OK(cuMemCreate(&page, 2 * GRANULE, &page_prop, 0));
    OK(cuMemMap(p, 2 * GRANULE, 0, page, 0));
    OK(cuMemSetAccess(p, 2 * GRANULE, &page_access, 1));
    OK(cuMemsetD32_v2(p + GRANULE, 77, 1));
    OK(cuCtxSynchronize());
    OK(cuMemExportToShareableHandle(&fd, page, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    pid_t child = start_scene("vmm importer", fd, 4);
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    assert_int_equal(read_u32(p), 78);
    close(fd);
}

static void test_legacy_ipc_opens_the_allocation(void **state) {
    CUipcMemHandle handle, inner;
    CUdeviceptr p, q;
    int sockets[2], status;
    char byte;

    (void)state;
    OK(cuMemAlloc_v2(&q, 512)); /* so that p does not begin its page */
    OK(cuMemAlloc_v2(&p, 100000));
    OK(cuMemsetD32_v2(p, 1234, 1));
    OK(cuMemsetD32_v2(p + 1000, 5678, 1));
    OK(cuCtxSynchronize());
    OK(cuIpcGetMemHandle(&handle, p));
    OK(cuIpcGetMemHandle(&inner, p + 300));
    assert_memory_equal(&handle, &inner, sizeof(handle));
    FAILS(CUDA_ERROR_INVALID_CONTEXT,
          cuIpcOpenMemHandle_v2(&q, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    FAILS(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(p));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    pid_t child = start_scene("ipc importer", sockets[1], 3);
    assert_int_equal(write(sockets[0], &handle, sizeof(handle)), sizeof(handle));
    assert_int_equal(read(sockets[0], &byte, 1), 1);
    assert_int_equal(read_u32(p), 4321);
    assert_int_equal(write(sockets[0], "x", 1), 1);
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    close(sockets[0]);
    close(sockets[1]);
}

static void test_pointers_can_be_queried(void **state) {
    CUdeviceptr p, start_address;
    CUcontext owner;
    size_t size;
    unsigned type;
    int ordinal;
    unsigned long long id1, id2;
    CUpointer_attribute names[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};

    (void)state;
    OK(cuMemAlloc_v2(&p, 5000));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p + 64));
    OK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + 64));
    OK(cuPointerGetAttribute(&start_address, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 64));
    OK(cuPointerGetAttribute(&id1, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    OK(cuPointerGetAttributes(2, names, (void *[]){&type, &ordinal}, p));
    assert_ptr_equal(owner, context);
    assert_int_equal(size, 5000);
    assert_int_equal(start_address, p);
    assert_int_equal(type, CU_MEMORYTYPE_DEVICE);
    assert_int_equal(ordinal, 0);
    OK(cuMemFree_v2(p));
    FAILS(CUDA_ERROR_INVALID_VALUE,
          cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p));
    OK(cuPointerGetAttributes(2, names, (void *[]){&type, &ordinal}, p));
    assert_int_equal(type, 0);
    OK(cuMemAlloc_v2(&p, 5000));
    OK(cuPointerGetAttribute(&id2, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    assert_int_not_equal(id1, id2);
}

int test_sharing(void) {
    static const struct CMUnitTest tests[] = {
        TEST(test_pools_keep_their_release_threshold),
        TEST(test_memory_of_graphs_is_taken_at_a_launch_and_kept),
        TEST(test_one_page_at_two_addresses_is_one_page),
        TEST(test_unmapping_under_work_is_a_fault),
        TEST(test_exported_pages_are_shared_with_another_process),
        TEST(test_legacy_ipc_opens_the_allocation),
        TEST(test_pointers_can_be_queried),
    };

    return cmocka_run_group_tests_name("sharing", tests, NULL, NULL);
}
