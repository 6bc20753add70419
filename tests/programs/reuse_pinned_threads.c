/*
 * reuse_pinned_threads ROUNDS: two threads free the same pinned memory at once, and one succeeds;
 * and one thread frees pinned memory while another one ends its context. Memory that is kept for
 * the next request must exist.
 */
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>

#define BYTES 8192
#define BLOCKS 8

static CUdevice device;
static CUcontext context;
static unsigned rounds;
static pthread_barrier_t turn;
static void *shared;
static atomic_uint freed;

static bool is_gone(void *host) {
    unsigned flags;
    return cuMemHostGetFlags(&flags, host) != CUDA_SUCCESS;
}

/* --- by two threads --- */

static void free_shared(void) {
    pthread_barrier_wait(&turn);
    freed += cuMemFreeHost(shared) == CUDA_SUCCESS;
    pthread_barrier_wait(&turn);
}

static void *free_too(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < rounds; i++)
        free_shared();
    return unused;
}

static void by_two(void) {
    unsigned wrong = 0, same = 0, gone = 0;
    for (unsigned i = 0; i < rounds; i++) {
        void *a, *b;
        CHECK(cuMemHostAlloc(&shared, BYTES, 0));
        freed = 0;
        free_shared();
        wrong += freed != 1;
        CHECK(cuMemHostAlloc(&a, BYTES, 0));
        CHECK(cuMemHostAlloc(&b, BYTES, 0));
        same += a == b;
        gone += is_gone(a) || is_gone(b);
        cuMemFreeHost(a);
        cuMemFreeHost(b);
    }
    printf("freed by two: not once: %u, handed out twice: %u, gone: %u\n", wrong, same, gone);
}

/* --- at the end of the context --- */

static void *free_meanwhile(void *unused) {
    unsigned gone = 0;
    for (unsigned i = 0; i < rounds; i++) {
        void *host[BLOCKS];
        CHECK(cuCtxSetCurrent(context));
        for (unsigned j = 0; j < BLOCKS; j++)
            CHECK(cuMemHostAlloc(&host[j], BYTES, 0));
        pthread_barrier_wait(&turn);
        for (unsigned j = 0; j < BLOCKS; j++)
            cuMemFreeHost(host[j]);
        pthread_barrier_wait(&turn);
        CHECK(cuCtxSetCurrent(context));
        for (unsigned j = 0; j < BLOCKS; j++) {
            CHECK(cuMemHostAlloc(&host[j], BYTES, 0));
            gone += is_gone(host[j]);
        }
        for (unsigned j = 0; j < BLOCKS; j++)
            cuMemFreeHost(host[j]);
    }
    printf("freed during the end: gone: %u\n", gone);
    return unused;
}

static void end_and_begin(void) {
    for (unsigned i = 0; i < rounds; i++) {
        CUdeviceptr any;
        CHECK(cuMemAlloc(&any, BYTES));
        pthread_barrier_wait(&turn);
        CHECK(cuDevicePrimaryCtxRelease(device));
        CHECK(cuDevicePrimaryCtxRetain(&context, device));
        CHECK(cuCtxSetCurrent(context));
        pthread_barrier_wait(&turn);
    }
}

int main(int argc, char **argv) {
    CUdeviceptr any;
    pthread_t thread;
    rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 300;
    context = begin();
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuMemAlloc(&any, BYTES));
    pthread_barrier_init(&turn, NULL, 2);
    pthread_create(&thread, NULL, free_too, NULL);
    by_two();
    pthread_join(thread, NULL);
    pthread_create(&thread, NULL, free_meanwhile, NULL);
    end_and_begin();
    pthread_join(thread, NULL);
    return 0;
}
