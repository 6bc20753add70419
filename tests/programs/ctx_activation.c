/*
 * ctx_activation: several threads create or activate a context of a second device at once, while
 * memory of the first context is handed out behind a barrier. Work of the first context still
 * writes to that memory, and only later work of the same context waits at the barrier. Therefore no
 * thread may continue with the second context before that work has finished. A thread that uses the
 * first context waits for nothing. Prints which threads continued while that work could not finish.
 */
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define BYTES (3 << 20)
#define WAIT_US 150000

static CUdevice device[2];
static CUcontext context[2];
static struct kernels k;
static CUstream stream;
static volatile uint32_t *flag;
static CUdeviceptr held;

/* Hands out memory behind a barrier. Before the barrier the device spins until the flag is set. */
static void hand_out(void) {
    CUdeviceptr freed;
    *flag = 0;
    CHECK(cuMemAlloc(&freed, BYTES));
    CHECK(launch_spin(&k, stream, (CUdeviceptr)flag, 1));
    CHECK(launch_fill(&k, stream, freed, 1, BYTES / 4));
    CHECK(cuMemFree(freed));
    CHECK(cuMemAlloc(&held, BYTES));
    fprintf(stderr, "the same address again: %d\n", held == freed);
}

static void take_back(void) {
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemFree(held));
}

static void retain(void) {
    CUcontext same;
    CHECK(cuDevicePrimaryCtxRetain(&same, device[1]));
    context[1] = same;
}

static void activate(void) {
    CHECK(cuCtxSetCurrent(context[1]));
}

static void go_on(void) {
    CHECK(cuCtxSetCurrent(context[0]));
}

/* If set, release() ends. */
static atomic_bool over;

/* Retains and releases the first context in turn. It never releases the last reference. */
static void release(void) {
    CUcontext same;
    while (!over) {
        CHECK(cuDevicePrimaryCtxRetain(&same, device[0]));
        CHECK(cuDevicePrimaryCtxRelease(device[0]));
    }
}

struct actor {
    void (*act)(void);
    atomic_bool through;
    pthread_t thread;
};

static void *run(void *actor) {
    struct actor *a = actor;
    a->act();
    atomic_store(&a->through, true);
    go_on(); /* makes the second context inactive again */
    return NULL;
}

static void together(const char *what, void (*first)(void), void (*second)(void)) {
    void (*acts[3])(void) = {first, second, go_on};
    static struct actor actors[3];
    hand_out();
    over = false;
    for (unsigned i = 0; i < 3; i++) {
        actors[i].act = acts[i];
        actors[i].through = false;
        pthread_create(&actors[i].thread, NULL, run, &actors[i]);
        usleep(WAIT_US);
    }
    for (unsigned i = 0; i < 1000 && !actors[2].through; i++)
        usleep(10000);
    bool early[3] = {actors[0].through, actors[1].through, actors[2].through};
    *flag = 1;
    for (unsigned i = 0; i < 1000 && !actors[1].through; i++)
        usleep(10000);
    over = true;
    for (unsigned i = 0; i < 3; i++)
        pthread_join(actors[i].thread, NULL);
    printf("%s: %d %d, in the first context: %d\n", what, early[0], early[1], early[2]);
    take_back();
}

int main(void) {
    CUdeviceptr more[4];
    CHECK(cuInit(0));
    for (int i = 0; i < 2; i++)
        CHECK(cuDeviceGet(&device[i], i));
    CHECK(cuDevicePrimaryCtxRetain(&context[0], device[0]));
    CHECK(cuCtxSetCurrent(context[0]));
    kernels_load(&k);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemHostAlloc((void **)&flag, 4, CU_MEMHOSTALLOC_DEVICEMAP));
    for (int i = 0; i < 4; i++)
        CHECK(cuMemAlloc(&more[i], BYTES));
    together("retained by two", retain, retain);
    together("activated by two", activate, activate);
    together("activated during a release of the first", release, activate);
    return 0;
}
