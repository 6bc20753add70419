/* Prints answers of copies and fills that exceed a block by a word or by far, or use freed memory.
 */
#include "diff.h"

static char host[8 * MIB];
static CUdeviceptr guard, block, behind; /* neighbours, if the driver places them side by side */
static size_t size;

static void three(size_t bytes) {
    size = bytes;
    guard = take(bytes);
    block = take(bytes);
    behind = take(bytes);
    CHECK(cuMemsetD8(guard, 1, bytes));
    CHECK(cuMemsetD8(block, 2, bytes));
    CHECK(cuMemsetD8(behind, 3, bytes));
}

/* Prints the neighbours' bytes after the refused calls. */
static void as_they_were(const char *what) {
    static const unsigned char value[] = {1, 3};
    CUdeviceptr neighbour[] = {guard, behind};
    size_t wrong = 0;
    for (unsigned i = 0; i < 2; i++) {
        CHECK(cuMemcpyDtoH(host, neighbour[i], size));
        for (size_t at = 0; at < size; at++)
            wrong += host[at] != value[i];
    }
    line("bounds: %zu bytes, %s: bytes of others changed: %zu", size, what, wrong);
}

static void copies(void) {
    CUdeviceptr last = block + size - 1;
    CODES("bounds: to the device", cuMemcpyHtoD(block, host, size + 1), cuMemcpyHtoD(last, host, 2),
          cuMemcpyHtoD(block, host, size), cuMemcpyHtoD(last, host, 1),
          cuMemcpyHtoDAsync(block, host, size + 1, NULL), cuMemcpyHtoDAsync(last, host, 600, NULL),
          cuMemcpyHtoDAsync(last, host, 1, NULL));
    CODES("bounds: to the host", cuMemcpyDtoH(host, block, size + 1), cuMemcpyDtoH(host, last, 2),
          cuMemcpyDtoH(host, block, size), cuMemcpyDtoHAsync(host, last, 513, NULL),
          cuMemcpyDtoHAsync(host, last, 1, NULL));
    CODES("bounds: on the device", cuMemcpyDtoD(block, guard, size + 1),
          cuMemcpyDtoD(last, guard, 2), cuMemcpyDtoD(guard, last, 2),
          cuMemcpyDtoD(block, block, size), cuMemcpyDtoDAsync(last, guard, size, NULL),
          cuMemcpyDtoDAsync(guard, last, size, NULL));
    CODES("bounds: between any", cuMemcpy(block, (CUdeviceptr)host, size + 1),
          cuMemcpy((CUdeviceptr)host, last, 2), cuMemcpy(last, guard, 2),
          cuMemcpyAsync(last, guard, 2, NULL), cuMemcpyAsync(guard, last, 2, NULL),
          cuMemcpyAsync((CUdeviceptr)host, last, 1, NULL));
    CODES("bounds: nothing", cuMemcpyHtoD(block + size, host, 0), cuMemcpyDtoH(host, last, 0),
          cuMemcpyDtoD(block + size, guard, 0), cuMemsetD8(block + size, 0, 0));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemsetD8(behind, 3, size));
    CHECK(cuMemsetD8(guard, 1, size));
}

static void fills(void) {
    CODES("bounds: fills", cuMemsetD8(block, 7, size + 1), cuMemsetD8(block + size - 1, 7, 2),
          cuMemsetD8(block, 7, size), cuMemsetD8Async(block, 7, size + 1, NULL),
          cuMemsetD16(block, 7, size / 2 + 1), cuMemsetD16(block, 7, size / 2),
          cuMemsetD16Async(block, 7, size / 2 + 1, NULL), cuMemsetD32(block, 7, size / 4 + 1),
          cuMemsetD32(block, 7, size / 4), cuMemsetD32Async(block, 7, size / 4 + 1, NULL));
    size_t pitch = size / 4 & ~(size_t)3, rest = size - 3 * pitch;
    CODES("bounds: rows", cuMemsetD2D8(block, pitch, 7, pitch, 4),
          cuMemsetD2D8(block, pitch, 7, rest, 4), cuMemsetD2D8(block, pitch, 7, pitch, 5),
          cuMemsetD2D16(block, pitch, 7, pitch / 2, 5),
          cuMemsetD2D32(block, pitch, 7, pitch / 4, 5),
          cuMemsetD2D32(block, pitch, 7, pitch / 4, 4),
          cuMemsetD2D8Async(block, pitch, 7, pitch, 5, NULL),
          cuMemsetD2D16Async(block, pitch, 7, pitch / 2, 5, NULL),
          cuMemsetD2D32Async(block, pitch, 7, pitch / 4, 5, NULL));
    CHECK(cuCtxSynchronize());
}

static void rows(void) {
    size_t pitch = size / 4;
    CUDA_MEMCPY2D c = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = block,
                       .srcPitch = pitch,
                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                       .dstHost = host,
                       .dstPitch = pitch,
                       .WidthInBytes = pitch,
                       .Height = 5};
    CODES("bounds: rows to the host", cuMemcpy2D(&c), cuMemcpy2DUnaligned(&c),
          cuMemcpy2DAsync(&c, NULL), (c.Height = 4, cuMemcpy2D(&c)), (c.srcY = 1, cuMemcpy2D(&c)),
          (c.Height = 3, cuMemcpy2D(&c)), cuMemcpy2DUnaligned(&c));
    c = (CUDA_MEMCPY2D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = host,
                        .srcPitch = pitch,
                        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
                        .dstDevice = block,
                        .dstPitch = pitch,
                        .WidthInBytes = pitch,
                        .Height = 5};
    CODES("bounds: rows to the device", cuMemcpy2D(&c), cuMemcpy2DUnaligned(&c),
          (c.Height = 4, cuMemcpy2D(&c)));
    CUDA_MEMCPY3D d = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                       .srcDevice = block,
                       .srcPitch = pitch,
                       .srcHeight = 2,
                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                       .dstHost = host,
                       .dstPitch = pitch,
                       .dstHeight = 2,
                       .WidthInBytes = pitch,
                       .Height = 2,
                       .Depth = 3};
    CODES("bounds: slices", cuMemcpy3D(&d), cuMemcpy3DAsync(&d, NULL),
          (d.Depth = 2, cuMemcpy3D(&d)), (d.srcZ = 1, cuMemcpy3D(&d)),
          (d.Depth = 1, cuMemcpy3D(&d)));
    CHECK(cuCtxSynchronize());
}

static void freed(void) {
    CHECK(cuMemFree(block));
    CODES("bounds: freed", cuMemcpyHtoD(block, host, 1), cuMemcpyDtoH(host, block, 1),
          cuMemcpyDtoD(guard, block, 1), cuMemcpyDtoHAsync(host, block, 1, NULL),
          cuMemsetD8(block, 0, 1), cuMemsetD32(block, 0, 1), cuMemsetD8Async(block, 0, 1, NULL),
          cuMemcpyHtoD(block, host, 0));
    block = take(size);
    CODES("bounds: and taken again", cuMemcpyHtoD(block, host, size), cuMemsetD8(block, 2, size));
}

/* Memory may be used until its stream reaches the free, and no longer. */
static void freed_later(void) {
    struct kernels k;
    CUstream stream;
    CUdeviceptr flag = take(4), p = take(4096);
    kernels_load(&k);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemsetD32(flag, 0, 1));
    CHECK(cuCtxSynchronize());
    CHECK(launch_spin(&k, stream, flag, 1));
    CHECK(cuMemFreeAsync(p, stream));
    CODES("bounds: before its stream gets to the free", cuMemsetD8(p, 1, 4096));
    CHECK(cuMemsetD32(flag, 1, 1));
    CHECK(cuCtxSynchronize());
    CODES("bounds: after it has", cuMemsetD8(p, 1, 4096), cuMemcpyHtoD(p, host, 1),
          cuMemcpyDtoD(guard, p, 1));
}

/* Other errors of the driver take precedence. */
static void other_answers(CUcontext context) {
    CHECK(cuCtxSetCurrent(NULL));
    CODES("bounds: without a context", cuMemcpyHtoD(block, host, size + 1),
          cuMemsetD8(block, 1, size + 1), cuMemcpyDtoH(host, block, size + 1));
    CHECK(cuCtxSetCurrent(context));
}

int main(void) {
    static const size_t sizes[] = {1000, 4096, 100000, MIB, MIB + 4, 2 * MIB, 3 * MIB + 8};
    CUcontext context = begin();
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char name[32];
        snprintf(name, sizeof name, "%zu", sizes[i]);
        if (!section(name))
            continue;
        three(sizes[i]);
        copies();
        fills();
        rows();
        as_they_were("copies and fills");
        freed();
        as_they_were("after a free");
        other_answers(context);
    }
    if (section("freed later"))
        freed_later();
    return 0;
}
