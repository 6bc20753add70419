/*
 * reuse_pinned: frees host memory while copies and kernels still use it, and requests it again at
 * once, many times.
 *
 * The device fills or reads each block in streams that are far behind; the program frees it without
 * a wait. If a block comes back too early, old work overwrites it or reads new contents: both are
 * checked. With "count" the program prints the number of driver calls for memory (simulator only).
 */
#include "program.h"

#include <dlfcn.h>

#define WORDS 4096
#define ROUNDS 400

static uint64_t calls(const char *symbol) {
    uint64_t (*count)(const char *) = (uint64_t(*)(const char *))dlsym(RTLD_DEFAULT, "sim_calls");
    return count ? count(symbol) : 0;
}

/* The device writes into a pinned block that is freed at once; the next block must keep what
 * the CPU writes. */
static unsigned written_late(struct kernels *k, CUstream stream, CUdeviceptr source) {
    unsigned wrong = 0;
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint32_t *a, *b;
        CHECK(cuMemAllocHost((void **)&a, WORDS * 4));
        CHECK(launch_sleep(k, stream, 30));
        CHECK(cuMemcpyDtoHAsync(a, source, WORDS * 4, stream));
        CHECK(cuMemFreeHost(a));
        CHECK(cuMemAllocHost((void **)&b, WORDS * 4));
        for (unsigned w = 0; w < WORDS; w++)
            b[w] = i + w;
        if (i % 16 == 0)
            CHECK(cuStreamSynchronize(stream));
        for (unsigned w = 0; w < WORDS; w++)
            wrong += b[w] != i + w;
        CHECK(cuMemFreeHost(b));
    }
    CHECK(cuCtxSynchronize());
    return wrong;
}

/* The device reads from a pinned block that is freed at once; it must still see what was there. */
static unsigned read_late(struct kernels *k, CUstream stream, CUdeviceptr to, CUdeviceptr errors) {
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint32_t *a;
        CHECK(cuMemHostAlloc((void **)&a, WORDS * 4, CU_MEMHOSTALLOC_PORTABLE));
        for (unsigned w = 0; w < WORDS; w++)
            a[w] = i;
        CHECK(launch_sleep(k, stream, 30));
        CHECK(cuMemcpyHtoDAsync(to, a, WORDS * 4, stream));
        CHECK(launch_check(k, stream, to, i, WORDS, errors));
        CHECK(cuMemFreeHost(a));
    }
    CHECK(cuCtxSynchronize());
    uint32_t wrong;
    CHECK(cuMemcpyDtoH(&wrong, errors, 4));
    return wrong;
}

/* Does the same while device memory is reused behind a barrier: a barrier does not order the CPU.
 */
static unsigned behind_a_barrier(struct kernels *k, CUstream stream, CUdeviceptr source) {
    unsigned wrong = 0;
    for (unsigned i = 0; i < 20; i++) {
        CUdeviceptr p, q;
        uint32_t *a, *b;
        CHECK(cuMemAlloc(&p, 3 << 20));
        CHECK(cuMemAllocHost((void **)&a, WORDS * 4));
        CHECK(launch_sleep(k, stream, 2000));
        CHECK(cuMemcpyDtoHAsync(a, source, WORDS * 4, stream));
        CHECK(cuMemFreeHost(a));
        CHECK(cuMemFree(p));
        CHECK(cuMemAlloc(&q, 3 << 20));
        CHECK(cuMemAllocHost((void **)&b, WORDS * 4));
        for (unsigned w = 0; w < WORDS; w++)
            b[w] = i + w;
        CHECK(cuStreamSynchronize(stream));
        for (unsigned w = 0; w < WORDS; w++)
            wrong += b[w] != i + w;
        CHECK(cuMemFreeHost(b));
        CHECK(cuMemFree(q));
    }
    return wrong;
}

/* Frees two equal blocks. Work still uses the one freed last, so the other one must serve. Returns
 * the driver calls. */
static unsigned with_one_in_use(struct kernels *k, CUstream stream, CUdeviceptr source) {
    void *a, *b, *c;
    CHECK(cuMemAllocHost(&a, 77 * WORDS));
    CHECK(cuMemAllocHost(&b, 77 * WORDS));
    CHECK(cuMemFreeHost(a));
    CHECK(cuCtxSynchronize());
    CHECK(launch_sleep(k, stream, 20000));
    CHECK(cuMemcpyDtoHAsync(b, source, WORDS * 4, stream));
    CHECK(cuMemFreeHost(b));
    uint64_t before = calls("cuMemAllocHost_v2");
    CHECK(cuMemAllocHost(&c, 77 * WORDS));
    unsigned more = (unsigned)(calls("cuMemAllocHost_v2") - before);
    CHECK(cuMemFreeHost(c));
    CHECK(cuCtxSynchronize());
    return more;
}

/* Prints the codes of frees of freed memory. Without a context, that code comes first. */
static void freed_twice(CUcontext context) {
    void *a;
    CHECK(cuMemHostAlloc(&a, 54321, 0));
    CHECK(cuMemFreeHost(a));
    printf("freed twice: %d", (int)cuMemFreeHost(a));
    printf(", inside: %d", (int)cuMemFreeHost((char *)a + 64));
    CHECK(cuCtxSetCurrent(NULL));
    printf(", without a context: %d\n", (int)cuMemFreeHost(a));
    CHECK(cuCtxSetCurrent(context));
}

int main(int argc, char **argv) {
    CUdevice device;
    CUcontext context;
    CUstream stream;
    struct kernels k;
    CUdeviceptr source, errors;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    kernels_load(&k);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&source, WORDS * 4));
    CHECK(cuMemAlloc(&errors, 4));
    CHECK(cuMemsetD32(source, 0xdead, WORDS));
    CHECK(cuMemsetD32(errors, 0, 1));
    CHECK(cuCtxSynchronize());

    printf("overwritten by old work: %u words\n", written_late(&k, stream, source));
    printf("read by old work after reuse: %u words\n", read_late(&k, stream, source, errors));
    printf("overwritten behind a barrier: %u words\n", behind_a_barrier(&k, stream, source));
    freed_twice(context);

    void *a, *b;
    CHECK(cuMemHostAlloc(&a, 12345, CU_MEMHOSTALLOC_WRITECOMBINED));
    CHECK(cuMemFreeHost(a));
    CUresult twice = cuMemFreeHost(a);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemHostAlloc(&b, 12345, CU_MEMHOSTALLOC_PORTABLE));
    unsigned flags = 0;
    CHECK(cuMemHostGetFlags(&flags, b));
    printf("freed twice: %d, kinds apart: %s\n", (int)twice,
           flags & CU_MEMHOSTALLOC_WRITECOMBINED ? "no" : "yes");
    CHECK(cuMemFreeHost(b));

    /* an idle loop of one size needs one driver call */
    uint64_t before = calls("cuMemAllocHost_v2");
    for (unsigned i = 0; i < 100; i++) {
        CHECK(cuMemAllocHost(&a, 1 << 20));
        CHECK(cuMemFreeHost(a));
        CHECK(cuCtxSynchronize());
    }
    unsigned pairs = (unsigned)(calls("cuMemAllocHost_v2") - before);
    unsigned more = with_one_in_use(&k, stream, source);
    if (argc > 1 && strcmp(argv[1], "count") == 0) {
        printf("driver calls with one in use: %u\n", more);
        printf("driver calls for 100 pairs: %u\n", pairs);
    }
    return 0;
}
