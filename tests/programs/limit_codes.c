/*
 * limit_codes BYTES: asks for too much by each entry of cuMemAlloc's kind. Prints the code of each
 * call, what the pointer is afterwards, and the state of a capture in which the call was made.
 *
 * limit_codes BYTES unpooled: asks for too much unpooled memory of several kinds, and for some with
 * wrong arguments. Prints the codes, and how a capture ends in which an array or stream-ordered
 * memory was asked for.
 */
#include "program.h"

#include <string.h>

static const CUdeviceptr before = 0xdeadbeef;
static size_t too_much, pitch;

static CUresult plain(CUdeviceptr *p) {
    return cuMemAlloc(p, too_much);
}

static CUresult pitched(CUdeviceptr *p) {
    return cuMemAllocPitch(p, &pitch, 1 << 20, too_much >> 20, 4);
}

static const struct {
    const char *name;
    CUresult (*call)(CUdeviceptr *p);
} calls[] = {{"cuMemAlloc", plain}, {"cuMemAllocPitch", pitched}};

/* Asks for stream-ordered memory in a stream that is not captured, during a capture of another. */
static void ordered_in_capture(CUstream stream, CUstreamCaptureMode mode, bool from_pool) {
    CUdeviceptr p;
    CUgraph graph;
    CUstream captured;
    CUmemoryPool pool;
    CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamBeginCapture(captured, mode));
    int code = from_pool ? cuMemAllocFromPoolAsync(&p, too_much, pool, stream)
                         : cuMemAllocAsync(&p, too_much, stream);
    printf("stream-ordered%s in a capture of mode %d: %d; the capture ends with %d\n",
           from_pool ? " from a pool" : "", (int)mode, code, cuStreamEndCapture(captured, &graph));
}

static int unpooled(CUstream stream) {
    CUdeviceptr p;
    CUarray array;
    CUgraph graph;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const CUDA_ARRAY_DESCRIPTOR descriptor = {
        .Width = 1 << 15, .Height = 1 << 15, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    printf("stream-ordered %d\n", cuMemAllocAsync(&p, too_much, stream));
    printf("mapped %d\n", cuMemCreate(&handle, too_much, &prop, 0));
    printf("managed, wrong flags %d\n", cuMemAllocManaged(&p, too_much, 0));
    prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    printf("mapped, wrong type %d\n", cuMemCreate(&handle, too_much, &prop, 0));
    printf("array of 4 GiB %d\n", cuArrayCreate(&array, &descriptor));
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    int code = cuArrayCreate(&array, &descriptor);
    printf("in a capture %d; the capture ends with %d\n", code, cuStreamEndCapture(stream, &graph));
    for (int mode = CU_STREAM_CAPTURE_MODE_GLOBAL; mode <= CU_STREAM_CAPTURE_MODE_RELAXED; mode++) {
        ordered_in_capture(stream, mode, false);
        ordered_in_capture(stream, mode, true);
    }
    return 0;
}

int main(int argc, char **argv) {
    CUstream stream;
    CUgraph graph;
    too_much = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    begin();
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (argc > 2)
        return unpooled(stream);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        CUdeviceptr p = before;
        CUresult r = calls[i].call(&p);
        printf("%s: %d, the pointer is %s, the pitch %zu\n", calls[i].name, r,
               p == 0        ? "0"
               : p == before ? "as before"
                             : "other",
               pitch);
        CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
        p = before;
        r = calls[i].call(&p);
        printf("%s in a capture: %d, the pointer is %s; the capture ends with %d\n", calls[i].name,
               r,
               p == 0        ? "0"
               : p == before ? "as before"
                             : "other",
               cuStreamEndCapture(stream, &graph));
    }
    return 0;
}
