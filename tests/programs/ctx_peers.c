/*
 * ctx_peers: frees memory of one context during its work, allocates it again, and lets a copy of
 * the *other* context write to it.
 *
 * A device barrier orders the work of its own context only. With two contexts alive the library
 * must wait on the CPU before it hands such memory out. With a barrier only, old work of the first
 * context would overwrite the copy of the second one. Prints the number of overwritten copies.
 */
#include "program.h"

#define WORDS (1 << 18)
#define ROUNDS 200

int main(void) {
    CUdevice device[2];
    CUcontext context[2];
    CUstream stream[2];
    struct kernels k;
    CUdeviceptr source;
    static uint32_t seen[WORDS];
    CHECK(cuInit(0));
    for (int i = 0; i < 2; i++) {
        CHECK(cuDeviceGet(&device[i], i));
        CHECK(cuDevicePrimaryCtxRetain(&context[i], device[i]));
        CHECK(cuCtxSetCurrent(context[i]));
        CHECK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    }
    CHECK(cuMemAlloc(&source, WORDS * 4)); /* on the second device */
    CHECK(cuMemsetD32(source, 2, WORDS));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxSetCurrent(context[0]));
    kernels_load(&k);
    unsigned wrong = 0, again = 0;
    CUdeviceptr more[4];
    for (unsigned i = 0; i < ROUNDS; i++) {
        CUdeviceptr p, q;
        for (int j = 0; j < 4; j++)
            CHECK(cuMemAlloc(&more[j], 3 << 20));
        CHECK(cuMemAlloc(&p, WORDS * 4 + 4096));
        CHECK(launch_sleep(&k, stream[0], 100));
        CHECK(launch_fill(&k, stream[0], p, 1, WORDS));
        CHECK(cuMemFree(p));
        CHECK(cuMemAlloc(&q, WORDS * 4 + 4096));
        again += p == q;
        CHECK(cuMemcpyPeerAsync(q, context[0], source, context[1], WORDS * 4, stream[1]));
        CHECK(cuStreamSynchronize(stream[1]));
        CHECK(cuStreamSynchronize(stream[0]));
        CHECK(cuMemcpyDtoH(seen, q, WORDS * 4));
        unsigned bad = 0;
        for (unsigned w = 0; w < WORDS; w += 1024)
            bad += seen[w] != 2;
        wrong += bad > 0;
        CHECK(cuMemFree(q));
        for (int j = 0; j < 4; j++)
            CHECK(cuMemFree(more[j]));
    }
    printf("overwritten: %u\n", wrong);
    fprintf(stderr, "the same address again: %u of %u\n", again, ROUNDS);
    return wrong != 0;
}
