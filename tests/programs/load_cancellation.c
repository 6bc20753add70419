/*
 * Cancels a thread that then asks for memory before it reaches its own cancellation point.
 * cuMemAlloc and cuMemFree are no cancellation points (pthreads(7)), however long they take.
 *
 * load_cancellation [ROUNDS]: prints one line for each thread that ended inside a call. Natively
 * only the frees wait.
 */
#include "program.h"

#include <pthread.h>
#include <semaphore.h>

#define MIB ((size_t)1 << 20)
#define BLOCKS 4
#define BYTES (12 * MIB)

static CUcontext context;
static struct kernels kernels;

struct asking {
    sem_t cancelled;
    size_t bytes;
    bool done;
};

static void *ask(void *data) {
    struct asking *own = data;
    CUdeviceptr p = 0;
    CHECK(cuCtxSetCurrent(context));
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    while (sem_wait(&own->cancelled) != 0) {
    }
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    CHECK(cuMemAlloc(&p, own->bytes));
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    CHECK(cuMemFree(p));
    own->done = true;
    return NULL;
}

/* Frees all memory during work, then requests it as one block. */
static bool one_round(CUstream stream, unsigned round) {
    struct asking asking = {.bytes = (BLOCKS - round % 2) * BYTES, .done = false};
    CUdeviceptr blocks[BLOCKS];
    pthread_t thread;
    sem_init(&asking.cancelled, 0, 0);
    if (pthread_create(&thread, NULL, ask, &asking) != 0)
        exit(1);
    for (unsigned i = 0; i < BLOCKS; i++)
        CHECK(cuMemAlloc(&blocks[i], BYTES));
    CHECK(launch_sleep(&kernels, stream, 20000));
    for (unsigned i = 0; i < BLOCKS; i++)
        CHECK(cuMemFree(blocks[i]));
    pthread_cancel(thread);
    sem_post(&asking.cancelled);
    pthread_join(thread, NULL);
    return asking.done;
}

int main(int argc, char **argv) {
    unsigned rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 10;
    CUstream stream;
    context = begin();
    kernels_load(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned round = 0; round < rounds; round++)
        if (!one_round(stream, round)) {
            printf("round %u: ended in a call\n", round);
            return 1;
        }
    CHECK(cuCtxSynchronize());
    puts("end");
    return 0;
}
