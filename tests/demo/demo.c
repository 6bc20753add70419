/*
 * demo [steps]: an unmodified program of the driver API, as scripts/demo.sh runs it.
 *
 * Each step is what a training step does to memory: a handful of temporary arrays of changing size,
 * filled, added and checked on two streams, and freed without waiting. It knows nothing of
 * libgpucache.
 */
#include <cuda.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        CUresult r = (call);                                                                       \
        if (r != CUDA_SUCCESS) {                                                                   \
            const char *text = NULL;                                                               \
            cuGetErrorName(r, &text);                                                              \
            fprintf(stderr, "demo: %s: %s\n", #call, text ? text : "unknown error");               \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define INDEX                                                                                      \
    ".reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<8>;\n"                                           \
    "mov.u32 %r0, %ctaid.x; mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x;\n"                          \
    "mad.lo.u32 %r3, %r0, %r1, %r2; cvt.u64.u32 %d0, %r3;\n"                                       \
    "ld.param.u64 %d1, [count]; setp.ge.u64 %p, %d0, %d1; @%p bra END;\n"                          \
    "shl.b64 %d0, %d0, 2;\n"

static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry fill_u32(.param .u64 to, .param .u32 value, .param .u64 count)\n{\n" INDEX
    "ld.param.u64 %d2, [to]; ld.param.u32 %r4, [value]; add.u64 %d2, %d2, %d0;\n"
    "st.global.u32 [%d2], %r4;\nEND: ret;\n}\n"
    ".visible .entry add_u32(.param .u64 to, .param .u64 a, .param .u64 b, .param .u64 count)\n"
    "{\n" INDEX "ld.param.u64 %d2, [a]; add.u64 %d2, %d2, %d0; ld.global.u32 %r4, [%d2];\n"
    "ld.param.u64 %d3, [b]; add.u64 %d3, %d3, %d0; ld.global.u32 %r5, [%d3];\n"
    "add.u32 %r4, %r4, %r5; ld.param.u64 %d4, [to]; add.u64 %d4, %d4, %d0;\n"
    "st.global.u32 [%d4], %r4;\nEND: ret;\n}\n"
    ".visible .entry check_u32(.param .u64 from, .param .u32 value, .param .u64 count,\n"
    " .param .u64 errors)\n{\n" INDEX
    "ld.param.u64 %d2, [from]; add.u64 %d2, %d2, %d0; ld.global.u32 %r4, [%d2];\n"
    "ld.param.u32 %r5, [value]; setp.eq.u32 %p, %r4, %r5; @%p bra END;\n"
    "ld.param.u64 %d3, [errors]; atom.global.add.u32 %r6, [%d3], 1;\nEND: ret;\n}\n";

static CUfunction fill, add, check;

static void launch(CUfunction function, uint64_t count, void **arguments, CUstream stream) {
    unsigned blocks = (unsigned)((count + 255) / 256);
    CHECK(cuLaunchKernel(function, blocks, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
}

/* c = a + b over `count` words, with arrays that live for this step only. */
static void step(unsigned number, CUstream stream, CUdeviceptr errors) {
    uint64_t count = 1000 + (uint64_t)number * 7919 % 60000;
    uint32_t one = number, two = number * 3, three = one + two;
    CUdeviceptr a, b, c;
    CHECK(cuMemAlloc(&a, count * 4));
    CHECK(cuMemAlloc(&b, count * 4));
    launch(fill, count, (void *[]){&a, &one, &count}, stream);
    launch(fill, count, (void *[]){&b, &two, &count}, stream);
    CHECK(cuMemAlloc(&c, count * 4));
    launch(add, count, (void *[]){&c, &a, &b, &count}, stream);
    CHECK(cuMemFree(a));
    CHECK(cuMemFree(b));
    launch(check, count, (void *[]){&c, &three, &count, &errors}, stream);
    CHECK(cuMemFree(c));
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv) {
    unsigned steps = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 500;
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUstream streams[2];
    CUdeviceptr errors, weights;
    char name[128];
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDeviceGetName(name, sizeof name, device));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoadData(&module, ptx));
    CHECK(cuModuleGetFunction(&fill, module, "fill_u32"));
    CHECK(cuModuleGetFunction(&add, module, "add_u32"));
    CHECK(cuModuleGetFunction(&check, module, "check_u32"));
    CHECK(cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAlloc(&weights, (size_t)8 << 20));
    CHECK(cuMemAlloc(&errors, sizeof(uint32_t)));
    CHECK(cuMemsetD32(errors, 0, 1));
    CHECK(cuCtxSynchronize());

    double start = now();
    for (unsigned i = 0; i < steps; i++)
        step(i, streams[i % 2], errors);
    CHECK(cuCtxSynchronize());
    double seconds = now() - start;

    uint32_t wrong = 1;
    CHECK(cuMemcpyDtoH(&wrong, errors, sizeof wrong));
    CHECK(cuMemFree(errors));
    CHECK(cuMemFree(weights));
    printf("%s: %u steps, %u wrong words, %.1f us per step\n", name, steps, wrong,
           seconds * 1e6 / (steps ? steps : 1));
    CHECK(cuModuleUnload(module));
    CHECK(cuDevicePrimaryCtxRelease(device));
    return wrong != 0;
}
