/*
 * A driver-API program: allocates, fills, checks and frees, with two kernels in PTX. Included by
 * driver_linked.c and driver_dlopen.c, which differ in how D(name) reaches the driver's entry.
 */
#include <string.h>

#include "check.h"

static const char ptx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry fill(.param .u64 p, .param .u32 n, .param .u32 seed) {\n"
    " .reg .pred %c; .reg .b32 %r<9>; .reg .b64 %d<4>;\n"
    " ld.param.u64 %d0, [p]; ld.param.u32 %r0, [n]; ld.param.u32 %r1, [seed];\n"
    " mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, "
    "%r4;\n"
    " setp.ge.u32 %c, %r5, %r0; @%c bra DONE;\n"
    " cvta.to.global.u64 %d1, %d0; mul.lo.u32 %r6, %r5, 0x9e3779b1; xor.b32 %r7, %r6, %r1;\n"
    " mul.wide.u32 %d2, %r5, 4; add.s64 %d3, %d1, %d2; st.global.u32 [%d3], %r7;\n"
    "DONE: ret;\n}\n"
    ".visible .entry verify(.param .u64 p, .param .u32 n, .param .u32 seed, .param .u64 bad) {\n"
    " .reg .pred %c; .reg .b32 %r<10>; .reg .b64 %d<6>;\n"
    " ld.param.u64 %d0, [p]; ld.param.u32 %r0, [n]; ld.param.u32 %r1, [seed]; ld.param.u64 %d4, "
    "[bad];\n"
    " mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.u32 %r5, %r2, %r3, "
    "%r4;\n"
    " setp.ge.u32 %c, %r5, %r0; @%c bra DONE;\n"
    " cvta.to.global.u64 %d1, %d0; mul.lo.u32 %r6, %r5, 0x9e3779b1; xor.b32 %r7, %r6, %r1;\n"
    " mul.wide.u32 %d2, %r5, 4; add.s64 %d3, %d1, %d2; ld.global.u32 %r8, [%d3];\n"
    " setp.eq.u32 %c, %r7, %r8; @%c bra DONE;\n"
    " cvta.to.global.u64 %d5, %d4; atom.global.add.u32 %r9, [%d5], 1;\n"
    "DONE: ret;\n}\n";

static CUfunction fill, verify;
static CUdeviceptr bad;

static void launch(CUfunction f, CUdeviceptr p, unsigned n, unsigned seed, CUstream s) {
    void *args[] = {&p, &n, &seed, &bad};
    CHECK(D(cuLaunchKernel)(f, (n + 255) / 256, 1, 1, 256, 1, 1, 0, s, args, NULL));
}

static int driver_loop(int argc, char **argv) {
    enum { slots = 24 };
    struct {
        CUdeviceptr p;
        unsigned n, seed, stream;
    } live[slots];
    long steps = arg_long(argc, argv, 1, 2000);
    uint64_t random = (uint64_t)arg_long(argc, argv, 2, 1);
    memset(live, 0, sizeof live);

    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUstream streams[2];
    CHECK(D(cuInit)(0));
    CHECK(D(cuDeviceGet)(&device, 0));
    CHECK(D(cuDevicePrimaryCtxRetain)(&context, device));
    CHECK(D(cuCtxSetCurrent)(context));
    CHECK(D(cuModuleLoadData)(&module, ptx));
    CHECK(D(cuModuleGetFunction)(&fill, module, "fill"));
    CHECK(D(cuModuleGetFunction)(&verify, module, "verify"));
    for (int i = 0; i < 2; i++)
        CHECK(D(cuStreamCreate)(&streams[i], CU_STREAM_NON_BLOCKING));
    CHECK(D(cuMemAlloc)(&bad, 4));
    CHECK(D(cuMemsetD32)(bad, 0, 1));
    CHECK(D(cuCtxSynchronize)());

    unsigned long long bytes = 0, ranges_wrong = 0;
    double start = now_s();
    for (long i = 0; i < steps; i++) {
        unsigned at = (unsigned)(rng(&random) % slots);
        if (live[at].p) {
            launch(verify, live[at].p, live[at].n, live[at].seed, streams[live[at].stream]);
            CHECK(D(cuMemFree)(live[at].p));
        }
        live[at].n = 1u + (unsigned)(rng(&random) % (1u << (4 + rng(&random) % 18)));
        live[at].seed = (unsigned)rng(&random);
        live[at].stream = (unsigned)(rng(&random) % 2);
        CHECK(D(cuMemAlloc)(&live[at].p, (size_t)live[at].n * 4));
        bytes += live[at].n * 4ull;
        launch(fill, live[at].p, live[at].n, live[at].seed, streams[live[at].stream]);
        if (i % 16 == 0) {
            CUdeviceptr base;
            size_t size;
            CHECK(D(cuMemGetAddressRange)(&base, &size, live[at].p + live[at].n));
            ranges_wrong += base != live[at].p || size != (size_t)live[at].n * 4;
        }
    }
    for (int at = 0; at < slots; at++)
        if (live[at].p) {
            launch(verify, live[at].p, live[at].n, live[at].seed, streams[live[at].stream]);
            CHECK(D(cuMemFree)(live[at].p));
        }
    CHECK(D(cuCtxSynchronize)());
    print_time("per_step", (now_s() - start) * 1e6 / (double)steps, "us");
    unsigned wrong;
    CHECK(D(cuMemcpyDtoH)(&wrong, bad, 4));
    CHECK(D(cuMemFree)(bad));
    int again = (int)D(cuMemFree)(bad);
    printf("%ld steps, %llu bytes, %u words wrong, %llu address ranges wrong, double free %d\n",
           steps, bytes, wrong, ranges_wrong, again);
    CHECK(D(cuDevicePrimaryCtxRelease)(device));
    return wrong != 0 || ranges_wrong != 0;
}
