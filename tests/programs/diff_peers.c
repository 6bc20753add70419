/* Prints answers of two devices: peer copies, and access to memory from before and after enabling.
 */
#include "diff.h"

static CUcontext context[2];
static struct kernels kernels[2];
static CUdeviceptr errors[2];

static unsigned check_here(unsigned device, CUdeviceptr p, uint32_t value, uint64_t count) {
    uint32_t wrong = 77;
    CHECK(cuCtxSetCurrent(context[device]));
    CHECK(cuMemsetD32(errors[device], 0, 1));
    CHECK(launch_check(&kernels[device], CU_STREAM_LEGACY, p, value, count, errors[device]));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(&wrong, errors[device], 4));
    return wrong;
}

static CUdeviceptr take_on(unsigned device, size_t bytes, uint32_t value) {
    CHECK(cuCtxSetCurrent(context[device]));
    CUdeviceptr p = take(bytes);
    CHECK(cuMemsetD32(p, value, bytes / 4));
    CHECK(cuCtxSynchronize());
    return p;
}

int main(void) {
    static const size_t sizes[] = {512, 5000, 100000, 3 * MIB, 40 * MIB};
    CUdeviceptr before[5], after[5], p, q;
    int count, can = -1;
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&count));
    if (count < 2) {
        line("peers: one device");
        return 0;
    }
    for (unsigned i = 0; i < 2; i++) {
        CHECK(cuDevicePrimaryCtxRetain(&context[i], (CUdevice)i));
        CHECK(cuCtxSetCurrent(context[i]));
        kernels_load(&kernels[i]);
        errors[i] = take(4);
    }
    CHECK(cuDeviceCanAccessPeer(&can, 0, 1));
    line("peers: can %d", can);
    for (unsigned i = 0; i < 5; i++)
        before[i] = take_on(1, sizes[i], 100 + i);
    CHECK(cuCtxSetCurrent(context[0]));
    for (unsigned i = 0; i < 5; i++) {
        p = take_on(0, sizes[i], 1);
        CODES("peers: copy without access",
              cuMemcpyPeer(p, context[0], before[i], context[1], sizes[i]));
        line("peers: copied %zu: %s", sizes[i], ends(p, sizes[i] / 4 * 4));
        CODES("peers: copy by unified address", cuMemcpy(p, before[i], sizes[i]));
        CODES("peers: free", cuMemFree(p));
    }
    CHECK(cuCtxSetCurrent(context[0]));
    CODES("peers: enable, twice, itself", cuCtxEnablePeerAccess(context[1], 0),
          cuCtxEnablePeerAccess(context[1], 0), cuCtxEnablePeerAccess(context[0], 0));
    for (unsigned i = 0; i < 5; i++)
        line("peers: read %zu allocated before: wrong %u", sizes[i],
             check_here(0, before[i], 100 + i, sizes[i] / 4));
    for (unsigned i = 0; i < 5; i++) {
        after[i] = take_on(1, sizes[i], 200 + i);
        line("peers: read %zu allocated after: wrong %u", sizes[i],
             check_here(0, after[i], 200 + i, sizes[i] / 4));
        CHECK(launch_fill(&kernels[0], CU_STREAM_LEGACY, after[i], 300 + i, sizes[i] / 4));
        CHECK(cuCtxSynchronize());
        line("peers: written from there, read here: wrong %u",
             check_here(1, after[i], 300 + i, sizes[i] / 4));
    }
    /* the second device reuses memory while the first one reads live blocks */
    unsigned wrong = 0;
    for (unsigned round = 0; round < 40; round++) {
        p = take_on(1, 70000 + 1000 * round, round);
        q = take_on(1, round % 4 ? 4096 : 4 * MIB, round + 1000);
        wrong += check_here(0, p, round, 17500);
        wrong += check_here(0, q, round + 1000, 1024);
        CHECK(cuMemFree(p)); /* the first device's context is current */
        CHECK(cuCtxSetCurrent(context[1]));
        CHECK(cuMemFree(q));
    }
    line("peers: going round: wrong %u", wrong);
    CUstream stream;
    CHECK(cuCtxSetCurrent(context[1]));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    wrong = 0;
    for (unsigned round = 0; round < 40; round++) {
        uint32_t last = 0;
        p = take_on(0, 100000, round);
        CHECK(cuCtxSetCurrent(context[1]));
        q = take(100000);
        CHECK(cuMemcpyPeerAsync(q, context[1], p, context[0], 100000, stream));
        CHECK(cuMemFree(p)); /* natively this free waits for the copy */
        p = take_on(0, 100000, 5555);
        CHECK(cuCtxSetCurrent(context[1]));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuMemcpyDtoH(&last, q + 99996, 4));
        wrong += last != round;
        CHECK(cuMemFree(q));
        CHECK(cuMemFree(p));
    }
    line("peers: copies whose source was freed: wrong %u", wrong);
    CHECK(cuCtxSetCurrent(context[0]));
    int ordinal = -1;
    CHECK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, after[2]));
    line("peers: ordinal %d", ordinal);
    CODES("peers: disable, twice", cuCtxDisablePeerAccess(context[1]),
          cuCtxDisablePeerAccess(context[1]));
    for (unsigned i = 0; i < 5; i++)
        CODES("peers: frees", cuMemFree(before[i]), cuMemFree(after[i]), cuMemFree(after[i]));
    p = take_on(0, 5000, 1);
    q = take_on(1, 5000, 2);
    CODES("peers: copy after disabling", cuMemcpyPeer(p, context[0], q, context[1], 5000));
    line("peers: copied %s", ends(p, 5000));
    CODES("peers: release", cuDevicePrimaryCtxRelease(1), cuDevicePrimaryCtxRelease(0));
    return 0;
}
