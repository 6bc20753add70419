/*
 * diff_faults HOW: prints the codes of allocations and frees after a fault. HOW is the call that
 * reports the fault to the program. The blocks are small and were freed before, so the library
 * could serve them without asking the driver.
 */
#include "diff.h"

#include <time.h>

static CUevent event;
static CUdeviceptr block;
static void *pinned[3];
static uint32_t words[16];

/* Polls until the driver answers an error. Gives up after 20 seconds: a GPU that other processes
 * use too runs the kernel late. */
static int polled(CUresult (*call)(void)) {
    CUresult r = CUDA_ERROR_NOT_READY;
    time_t end = time(NULL) + 20;
    while (r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_READY) {
        r = call();
        if (time(NULL) > end)
            return -1;
    }
    return r;
}

static CUresult copy_to_device(void) {
    return cuMemcpyHtoD(block, words, 64);
}

static CUresult copy(void) {
    return cuMemcpy(block, block + 64, 64);
}

static CUresult copy_on_device(void) {
    return cuMemcpyDtoD(block, block + 64, 64);
}

static CUresult copy_of_rows(void) {
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = block,
                          .srcPitch = 64,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = words,
                          .dstPitch = 16,
                          .WidthInBytes = 16,
                          .Height = 4};
    return cuMemcpy2D(&rows);
}

static CUresult fill(void) {
    return cuMemsetD8(block, 1, 64);
}

static CUresult copy_to_host(void) {
    return cuMemcpyDtoH(words, block, 64);
}

static CUresult query_event(void) {
    return cuEventQuery(event);
}

static CUresult wait_for_event(void) {
    return cuEventSynchronize(event);
}

static CUresult query_stream(void) {
    return cuStreamQuery(0);
}

static CUresult copy_async(void) {
    return cuMemcpyAsync(block, block + 64, 64, 0);
}

static CUresult copy_to_host_async(void) {
    return cuMemcpyDtoHAsync(words, block, 64, 0);
}

static CUresult copy_to_device_async(void) {
    return cuMemcpyHtoDAsync(block, words, 64, 0);
}

static CUresult fill_async(void) {
    return cuMemsetD32Async(block, 1, 16, 0);
}

static struct kernels k;

static CUresult launched(void) {
    return launch_fill(&k, 0, block, 1, 16);
}

static CUresult question(void) {
    size_t free_bytes, total;
    return cuMemGetInfo(&free_bytes, &total);
}

static CUresult allocation_async(void) {
    CUdeviceptr p;
    CUresult r = cuMemAllocAsync(&p, 64, 0);
    return r == CUDA_SUCCESS ? cuMemFreeAsync(p, 0) : r;
}

static CUresult allocation_managed(void) {
    CUdeviceptr p;
    CUresult r = cuMemAllocManaged(&p, 64, CU_MEM_ATTACH_GLOBAL);
    return r == CUDA_SUCCESS ? cuMemFree(p) : r;
}

static CUstream side;

static CUresult capture(void) {
    CUgraph graph;
    CUresult r = cuStreamBeginCapture(side, CU_STREAM_CAPTURE_MODE_RELAXED);
    return r == CUDA_SUCCESS ? cuStreamEndCapture(side, &graph) : r;
}

/* Natively an error in any case. */
static CUresult allocation_of_nothing(void) {
    CUdeviceptr p;
    CUresult r = cuMemAlloc(&p, 0);
    return r == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : r;
}

static CUresult stream(void) {
    CUstream stream;
    CUresult r = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    return r == CUDA_SUCCESS ? cuStreamDestroy(stream) : r;
}

static CUresult pitched(void) {
    CUdeviceptr p;
    size_t pitch;
    return cuMemAllocPitch(&p, &pitch, 100, 16, 4);
}

static CUresult array(void) {
    CUDA_ARRAY_DESCRIPTOR a = {
        .Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUarray made;
    return cuArrayCreate(&made, &a);
}

static CUresult range_of(CUdeviceptr p) {
    CUdeviceptr base;
    size_t bytes;
    return cuMemGetAddressRange(&base, &bytes, p);
}

static CUresult type_of(CUdeviceptr p) {
    unsigned type;
    return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);
}

static CUresult synchronous(CUdeviceptr p) {
    unsigned one = 1;
    return cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
}

static const struct {
    const char *name;
    CUresult (*learn)(void);
} ways[] = {
    {"copy to host", copy_to_host},
    {"copy to device", copy_to_device},
    {"copy", copy},
    {"copy on device", copy_on_device},
    {"copy of rows", copy_of_rows},
    {"fill", fill},
    {"event query", query_event},
    {"event wait", wait_for_event},
    {"stream query", query_stream},
    {"async copy", copy_async},
    {"async copy to host", copy_to_host_async},
    {"async copy to device", copy_to_device_async},
    {"async fill", fill_async},
    {"launch", launched},
    {"question", question},
    {"async allocation", allocation_async},
    {"managed allocation", allocation_managed},
    {"stream", stream},
    {"capture", capture},
    {"allocation of nothing", allocation_of_nothing},
};

int main(int argc, char **argv) {
    CUdeviceptr p, q = 0, r;
    CUipcMemHandle handle;
    unsigned flags, way = argc > 1 ? (unsigned)atoi(argv[1]) : 0;
    if (way >= sizeof ways / sizeof *ways)
        return 2;
    begin();
    kernels_load(&k);
    block = take(4096);
    p = take(4096);
    r = take(4096);
    CHECK(cuMemFree(take(4096)));
    CHECK(cuMemAllocHost(&pinned[0], 4096));
    CHECK(cuMemAllocHost(&pinned[1], 4096));
    CHECK(cuMemAllocHost(&pinned[2], 8192));
    CHECK(cuMemFreeHost(pinned[1])); /* the library may keep it */
    CHECK(cuMemFreeHost(pinned[2]));
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemAllocHost(&pinned[2], 8192)); /* the library learns that both frees are complete */
    CHECK(launch(k.fault, 0, 1, NULL));
    cuEventRecord(event, 0); /* may report the fault already */
    line("faults: %s: %d", ways[way].name, polled(ways[way].learn));
    CODES("faults: free, again, of nothing, alloc, large alloc", cuMemFree(p), cuMemFree(p),
          cuMemFree(0), cuMemAlloc(&q, 4096), cuMemAlloc(&q, 30 * MIB));
    CODES("faults: pinned: alloc, free", cuMemAllocHost(&pinned[1], 4096),
          cuMemFreeHost(pinned[0]));
    CODES("faults: pitched, managed, pinned, array, in stream", pitched(), allocation_managed(),
          cuMemHostAlloc(&pinned[1], 8192, 0), array(), allocation_async());
    CODES("faults: questions about a block", range_of(r), type_of(r), cuIpcGetMemHandle(&handle, r),
          synchronous(r), cuPointerGetAttribute(words, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, r));
    CODES("faults: questions about pinned memory", cuMemHostGetFlags(&flags, pinned[2]),
          cuMemHostGetDevicePointer(&q, pinned[2], 0), type_of((CUdeviceptr)pinned[2]));
    CODES("faults: another free, free in stream, fill", cuMemFree(r), cuMemFreeAsync(block, 0),
          cuMemsetD8(block, 0, 64));
    return 0;
}
