/* Prints answers about unpooled memory, and the free memory of the device. */
#include "diff.h"

#include <unistd.h>

static CUdevice device;

static void arrays(void) {
    CUarray array = NULL;
    CUmipmappedArray mipmap = NULL;
    CUDA_ARRAY_DESCRIPTOR flat = {64, 32, CU_AD_FORMAT_FLOAT, 1}, found;
    CUDA_ARRAY3D_DESCRIPTOR deep = {32, 16, 8, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0};
    CODES("outside: array", cuArrayCreate(&array, &flat));
    CODES("outside: array: described", cuArrayGetDescriptor(&found, array), (int)found.Width,
          (int)found.Height, (int)found.NumChannels);
    CODES("outside: array: destroy, again", cuArrayDestroy(array));
    CODES("outside: array: nothing", cuArrayCreate(NULL, &flat), cuArrayCreate(&array, NULL));
    CODES("outside: deep array", cuArray3DCreate(&array, &deep), cuArrayDestroy(array));
    CODES("outside: mipmap", cuMipmappedArrayCreate(&mipmap, &deep, 3),
          cuMipmappedArrayDestroy(mipmap));
    flat.Width = 0;
    CODES("outside: empty array", cuArrayCreate(&array, &flat));
    flat.Width = (size_t)1 << 40;
    CODES("outside: huge array", cuArrayCreate(&array, &flat) != CUDA_SUCCESS);
}

static void managed_and_host(void) {
    CUdeviceptr p = 0, d = 0;
    void *host = NULL;
    static char page[8192] __attribute__((aligned(4096)));
    CODES("outside: managed", cuMemAllocManaged(&p, 10000, CU_MEM_ATTACH_GLOBAL),
          cuMemsetD32(p, 3, 2500), cuCtxSynchronize(), *(int *)(p + 9996), cuMemFree(p),
          cuMemFree(p));
    CODES("outside: managed, bad", cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL),
          cuMemAllocManaged(&p, 100, 77));
    CHECK(cuMemAllocHost(&host, 10000));
    CHECK(cuMemFreeHost(host)); /* the library may keep it */
    CHECK(cuCtxSynchronize());
    CODES("outside: pinned, wrong flags", cuMemHostAlloc(&host, 10000, 0x80000000u));
    CODES("outside: pinned", cuMemAllocHost(&host, 10000), cuMemHostGetDevicePointer(&d, host, 0),
          cuMemsetD8(d, 5, 10000), cuCtxSynchronize(), ((char *)host)[9999], cuMemFreeHost(host));
    unsigned flags = 7;
    int on = 1;
    const CUpointer_attribute sync = CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    CODES("outside: pinned, freed", cuMemHostGetFlags(&flags, host), (int)flags,
          cuMemHostGetDevicePointer(&d, host, 0),
          cuMemHostGetDevicePointer(&d, (char *)host + 9999, 0), cuMemFreeHost(host));
    CODES("outside: pinned, mapped", cuMemHostAlloc(&host, 10000, CU_MEMHOSTALLOC_DEVICEMAP),
          cuMemFreeHost(host));
    CODES("outside: pinned, nothing", cuMemAllocHost(&host, 0), cuMemFreeHost(NULL));
    CHECK(cuMemAllocHost(&host, 20000));
    CODES("outside: pinned, attribute set", cuPointerSetAttribute(&on, sync, (CUdeviceptr)host),
          cuMemFreeHost(host), cuCtxSynchronize(), cuMemAllocHost(&host, 20000),
          cuPointerGetAttribute(&on, sync, (CUdeviceptr)host), on, cuMemFreeHost(host));
    CODES("outside: registered", cuMemHostRegister(page, 8192, 0), cuMemHostRegister(page, 8192, 0),
          cuMemHostUnregister(page), cuMemHostUnregister(page));
}

static void virtual_memory(void) {
    CUmemGenericAllocationHandle handle = 0, retained = 0;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr p = 0;
    size_t unit = 0;
    CODES("outside: virtual: granularity",
          cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
          unit == 2 * MIB);
    CODES("outside: virtual: create, reserve, map, access", cuMemCreate(&handle, 4 * MIB, &prop, 0),
          cuMemAddressReserve(&p, 8 * MIB, 0, 0, 0), cuMemMap(p, 4 * MIB, 0, handle, 0),
          cuMemSetAccess(p, 4 * MIB, &access, 1));
    CODES("outside: virtual: use", cuMemsetD32(p, 8, MIB), cuMemFree(p), cuMemFree(p + 4096));
    line("outside: virtual: %s", ends(p, 4 * MIB));
    CODES("outside: virtual: retain", cuMemRetainAllocationHandle(&retained, (void *)p),
          retained == handle);
    CODES("outside: virtual: release, release, unmap", cuMemRelease(handle), cuMemRelease(retained),
          cuMemUnmap(p, 4 * MIB));
    CODES("outside: virtual: range of the reservation", cuMemGetAddressRange(NULL, &unit, p));
    CODES("outside: virtual: address free", cuMemAddressFree(p, 8 * MIB));
    CODES("outside: virtual: odd size", cuMemCreate(&handle, 5000, &prop, 0));
    CODES("outside: virtual: nothing", cuMemCreate(NULL, 2 * MIB, &prop, 0),
          cuMemCreate(&handle, 2 * MIB, NULL, 0));
}

/* Imports an exported handle. Its memory counts once. */
static void imported(void) {
    CUmemGenericAllocationHandle handle = 0, back = 0;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr p = 0;
    int fd = -1;
    CODES("outside: imported: create, export", cuMemCreate(&handle, 4 * MIB, &prop, 0),
          cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CODES("outside: imported: import",
          cuMemImportFromShareableHandle(&back, (void *)(intptr_t)fd,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    CODES("outside: imported: reserve, map, access, use", cuMemAddressReserve(&p, 4 * MIB, 0, 0, 0),
          cuMemMap(p, 4 * MIB, 0, back, 0), cuMemSetAccess(p, 4 * MIB, &access, 1),
          cuMemsetD32(p, 9, MIB));
    line("outside: imported: %s", ends(p, 4 * MIB));
    CODES("outside: imported: release, release, unmap, address free", cuMemRelease(back),
          cuMemRelease(handle), cuMemUnmap(p, 4 * MIB), cuMemAddressFree(p, 4 * MIB));
    CODES("outside: imported: nothing",
          cuMemImportFromShareableHandle(&back, (void *)(intptr_t)-1,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

static void pools(void) {
    CUmemoryPool pool = NULL, found = NULL;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
    CUdeviceptr p = 0, q = 0;
    cuuint64_t used = 77;
    CODES("outside: pool: create, allocate", cuMemPoolCreate(&pool, &props),
          cuMemAllocFromPoolAsync(&p, 100000, pool, 0), cuMemAllocAsync(&q, 100000, 0));
    CODES("outside: pool: used",
          cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used),
          used >= 100000 && used < 4 * MIB);
    CODES("outside: pool: of which",
          cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p), found == pool);
    CODES("outside: pool: use", cuMemsetD32(p, 4, 25000), cuMemsetD32(q, 5, 25000));
    line("outside: pool: %s %s", ends(p, 100000), ends(q, 100000));
    CODES("outside: pool: free", cuMemFreeAsync(p, 0), cuMemFree(q), cuCtxSynchronize());
    CODES("outside: pool: trim, destroy", cuMemPoolTrimTo(pool, 0), cuMemPoolDestroy(pool));
    CODES("outside: pool: nothing", cuMemAllocAsync(&p, 0, 0));
}

static void no_pool(void) {
    CUdeviceptr p;
    CODES("outside: no pool", cuMemAllocAsync(NULL, 100, 0),
          cuMemAllocFromPoolAsync(&p, 100, NULL, 0));
}

/* The free memory itself differs by cached memory and by partly used pages. Prints only facts that
 * must be equal. */
static long about(size_t before, size_t after) {
    long mib = ((ssize_t)before - (ssize_t)after) / (ssize_t)MIB;
    return (mib + (mib < 0 ? -16 : 16)) / 32 * 32;
}

static void info(void) {
    size_t before = 0, during = 0, after = 0, total = 0, whole = 0;
    CUdeviceptr p, q[64];
    CHECK(cuCtxSynchronize());
    CODES("outside: info", cuMemGetInfo(&before, &total), cuDeviceTotalMem(&whole, device),
          total == whole, before <= total, before > 0);
    CODES("outside: info: total of no device", cuDeviceTotalMem(&whole, 99));
    p = take(256 * MIB);
    CHECK(cuMemGetInfo(&during, &total));
    line("outside: info: 256 MiB take %ld MiB", about(before, during));
    CHECK(cuMemFree(p));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemGetInfo(&after, &total));
    line("outside: info: and leave %ld MiB", about(before, after));
    for (unsigned i = 0; i < 64; i++)
        q[i] = take(16 * MIB);
    CHECK(cuMemGetInfo(&during, &total));
    line("outside: info: 64 of 16 MiB take %ld MiB", about(before, during));
    for (unsigned i = 0; i < 64; i++)
        CHECK(cuMemFree(q[i]));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemGetInfo(&after, &total));
    line("outside: info: and leave %ld MiB", about(before, after));
    /* the reported free memory can be allocated, except for the driver's granules */
    size_t most = after / MIB * MIB;
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < 32 && r == CUDA_ERROR_OUT_OF_MEMORY; i++, most -= 32 * MIB)
        r = cuMemAlloc(&p, most);
    CODES("outside: info: all that is free can be had", r, r ? -1 : (int)cuMemFree(p));
    CODES("outside: info: twice the device cannot", cuMemAlloc(&p, 2 * total));
}

/* Tests for leaks, without a wait of its own, because a free has waited. */
static void all_freed(void) {
    size_t before = 0, after = 0, total = 0;
    CUdeviceptr p[100];
    CHECK(cuMemFree(take(1000)));
    CHECK(cuMemGetInfo(&before, &total));
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 100; i++)
            p[i] = take((size_t)(i * i * 1000) + round + 1);
        for (unsigned i = 0; i < 100; i++)
            CHECK(cuMemFree(p[i]));
        CHECK(cuMemGetInfo(&after, &total));
        line("outside: all freed: as much is free as before %d", before == after);
    }
}

/* Allocates the last memory of the device. Another context has freed some of it, and a pool of the
 * driver keeps more than its live memory. */
static void kept_elsewhere(void) {
    CUcontext first, second;
    CUdeviceptr theirs, p, rest, last = 0;
    size_t left = 0, total = 0;
    int version = 0;
    CHECK(cuDriverGetVersion(&version));
    if (version < 12050) /* the library cannot query another context's work there */
        return;
    CHECK(cuCtxGetCurrent(&first));
    theirs = take(16 * MIB);
    CHECK(cuCtxCreate_v2(&second, 0, device));
    CHECK(cuMemAllocAsync(&p, 1000, NULL));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemGetInfo(&left, &total));
    rest = take((left / (2 * MIB) - 4) * (2 * MIB));
    CHECK(cuCtxPushCurrent(first));
    CHECK(cuMemFree(theirs));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxPopCurrent(&first));
    CODES("outside: kept elsewhere: the last of the device", cuMemAlloc(&last, 20 * MIB),
          cuMemFree(last));
    CODES("outside: kept elsewhere: frees", cuMemFree(rest), cuMemFree(p), cuCtxDestroy(second));
    CHECK(cuCtxSetCurrent(first));
}

/* Does the same with large blocks, and with one small block that stays live. */
static void freed_among_others(void) {
    static const struct {
        size_t first, then[3];
    } sizes[] = {{64 * MIB, {20 * MIB + 5, 10 * MIB + 5, 3 * MIB}},
                 {700 * MIB, {300 * MIB, 150 * MIB, 40 * MIB}},
                 {31 * MIB, {8 * MIB, 8 * MIB, 8 * MIB}}};
    size_t before = 0, after = 0, total = 0;
    CUdeviceptr keep = take(1000), p[3];
    CHECK(cuMemFree(take(1000)));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemGetInfo(&before, &total));
    for (unsigned i = 0; i < 3; i++) {
        CHECK(cuMemFree(take(sizes[i].first)));
        CHECK(cuCtxSynchronize());
        for (unsigned j = 0; j < 3; j++)
            p[j] = take(sizes[i].then[j]);
        for (unsigned j = 0; j < 3; j++)
            CHECK(cuMemFree(p[j]));
        CHECK(cuMemGetInfo(&after, &total));
        line("outside: info: large blocks freed, a small one kept: as much is free as before %d",
             after + 2 * MIB > before);
    }
    CHECK(cuMemFree(keep));
}

/* Tests for leaks of small blocks, while one stays live: alone, and with the cached ones. */
static void small_freed_among_others(void) {
    size_t before = 0, after = 0, total = 0;
    CUdeviceptr keep = take(4), p[300];
    CHECK(cuMemGetInfo(&before, &total));
    for (unsigned pairs = 1; pairs <= 1000; pairs *= 10) {
        for (unsigned i = 0; i < pairs; i++)
            CHECK(cuMemFree(take(i * 37 % 100000 + 1)));
        CHECK(cuMemGetInfo(&after, &total));
        line("outside: info: %u small pairs, a block kept: as much is free as before %d", pairs,
             before == after);
    }
    for (unsigned i = 0; i < 300; i++)
        p[i] = take(20000 + i);
    for (unsigned i = 0; i < 300; i++)
        CHECK(cuMemFree(p[i * 7 % 300]));
    CHECK(cuMemGetInfo(&after, &total));
    line("outside: info: 300 small blocks freed, a block kept: as much is free as before %d",
         before == after);
    CHECK(cuMemFree(keep));
}

static void half_an_answer(void) {
    size_t before = 0, total = 0, again = 0;
    CHECK(cuMemGetInfo(&before, &total));
    CODES("outside: info: without one or the other", cuMemGetInfo(NULL, &again), again == total,
          cuMemGetInfo(&again, NULL), again == before);
    CODES("outside: info: total to nowhere", cuDeviceTotalMem(NULL, device));
}

static void granules(void) {
    CUdeviceptr p[256];
    for (unsigned i = 0; i < 256; i++)
        p[i] = take(4096 << (i % 10));
    bool apart = true;
    for (unsigned i = 0; i < 256; i++)
        for (unsigned j = 0; j < i; j++)
            apart &= p[i] + (4096u << (i % 10)) <= p[j] || p[j] + (4096u << (j % 10)) <= p[i];
    line("outside: blocks do not overlap %d", apart);
    for (unsigned i = 0; i < 256; i++)
        CHECK(cuMemFree(p[i]));
}

int main(void) {
    begin();
    CHECK(cuDeviceGet(&device, 0));
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"kept elsewhere", kept_elsewhere},
                 {"all freed", all_freed},
                 {"info", info},
                 {"arrays", arrays},
                 {"managed and host", managed_and_host},
                 {"virtual memory", virtual_memory},
                 {"imported", imported},
                 {"pools", pools},
                 {"granules", granules},
                 {"info again", info},
                 {"half an answer", half_an_answer},
                 {"no pool", no_pool},
                 {"freed among others", freed_among_others},
                 {"small ones freed among others", small_freed_among_others}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        if (section(parts[i].name))
            parts[i].run();
    return 0;
}
