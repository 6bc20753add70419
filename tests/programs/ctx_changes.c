/*
 * ctx_changes CASE [ROUNDS]: runs a program whose contexts or streams change while memory is in
 * use. A case prints the same lines natively and under the library. A case that hangs prints
 * nothing.
 *
 *   | case                  | program                                                             |
 *   | --------------------- | ------------------------------------------------------------------- |
 *   | launches_during_pairs | one thread allocates and frees, while another one launches          |
 *   |                       | kernels that wait for its next launch                               |
 *   | growth_during_spinner | a block that fits only if idle memory is released, while a kernel   |
 *   |                       | waits for later work                                                |
 *   | late_context          | memory is handed out during old work; then a context appears that   |
 *   |                       | can reach it                                                        |
 *   | late_switch           | the same, and an existing context of another device becomes current |
 *   | late_stream           | the same, and a stream of such a context is used                    |
 *   | blocked               | pairs, while another context accepts no work                        |
 *   | peer                  | the same, with peer access                                          |
 *   | came_back             | the same, but another thread still has the handle current, from an  |
 *   |                       | earlier context                                                     |
 *   | late_cpu              | the same, and the CPU can reach the memory (SYNC_MEMOPS); simulator |
 *   |                       | only                                                                |
 *   | host_function         | a call that the driver refuses inside a host function, and later    |
 *   |                       | calls                                                               |
 *   | dead_current          | a context that was destroyed while another thread had it current    |
 *   | refused_first         | memory that a second context takes from the first device, which has |
 *   |                       | no pool                                                             |
 *   | green_twice           | the context of a green context is asked for again, during a free in |
 *   |                       | a stream                                                            |
 *   | green_managed         | managed memory of a green context, up to the limit, and a reset     |
 *   | green_last            | a green context holds the last reference of the primary one         |
 *   | streams_ended         | eight streams end with their context, then one stream works         |
 *   | reset_during_pairs    | one thread resets the primary context while another one allocates   |
 *   | reset_during_large_   | the same: the other thread allocates more than half of the device   |
 *   | pairs                 | in that context                                                     |
 */
#include "program.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);

static struct kernels kernels;
static CUcontext context;
static int rounds = 200;

static CUstream stream_of_its_own(void) {
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

static uint32_t *host_flag(void) {
    uint32_t *flag;
    CHECK(cuMemAllocHost((void **)&flag, sizeof *flag));
    *flag = 0;
    return flag;
}

/* ---- freed memory ---- */

static atomic_bool stop;
static pthread_mutex_t pair = PTHREAD_MUTEX_INITIALIZER;

/* Launches between pairs, never between the two calls of a pair: a native free waits for
 * launched kernels. */
static void *launch_pairs(void *flags) {
    CHECK(cuCtxSetCurrent(context));
    CUstream a = stream_of_its_own(), b = stream_of_its_own();
    for (unsigned i = 0; !stop && i < 1000000; i++) {
        CUdeviceptr flag = *(CUdeviceptr *)flags + 4 * i;
        pthread_mutex_lock(&pair);
        CHECK(launch_spin(&kernels, a, flag, 1));
        for (volatile int delay = 0; delay < 200; delay++) {
        }
        CHECK(launch_set(&kernels, b, flag, 1));
        pthread_mutex_unlock(&pair);
        if (i % 4 == 0)
            CHECK(cuStreamSynchronize(a));
    }
    return NULL;
}

static void launches_during_pairs(void) {
    CUdeviceptr flags, p;
    pthread_t thread;
    CHECK(cuMemAlloc(&flags, 4000000));
    CHECK(cuMemsetD32(flags, 0, 1000000));
    CHECK(cuCtxSynchronize());
    CHECK(pthread_create(&thread, NULL, launch_pairs, &flags));
    for (int round = 0; round < 2; round++)
        for (size_t size = 40 * MIB; size < 3000 * MIB; size += 4 * MIB) {
            CHECK(cuMemAlloc(&p, size));
            pthread_mutex_lock(&pair);
            CHECK(cuMemFree(p));
            pthread_mutex_unlock(&pair);
        }
    stop = true;
    pthread_join(thread, NULL);
}

/* Needs a device of 512 MiB. */
static void growth_during_spinner(void) {
    CUstream a = stream_of_its_own(), b = stream_of_its_own();
    CUdeviceptr flag, p, q;
    CHECK(cuMemAlloc(&flag, 4));
    CHECK(cuMemsetD32(flag, 0, 1));
    CHECK(cuMemAlloc(&p, 300 * MIB));
    CHECK(launch_fill(&kernels, a, p, 1, 100));
    CHECK(cuMemFree(p));
    CHECK(cuCtxSynchronize());
    CHECK(launch_spin(&kernels, a, flag, 1));
    printf("alloc %d\n", cuMemAlloc(&q, 400 * MIB));
    CHECK(launch_fill(&kernels, b, q, 2, 100));
    CHECK(launch_set(&kernels, b, flag, 1));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFree(q));
}

/* ---- memory that other contexts reach ---- */

static void *set_later(void *flag) {
    usleep(150000); /* the calls that must not wait for the flag return long before */
    __atomic_store_n((uint32_t *)flag, 1, __ATOMIC_SEQ_CST);
    return NULL;
}

/* Frees a block during its work and allocates again. Returns a block that the earlier work still
 * writes to, if it was handed out at once. */
static CUdeviceptr handed_out_early(size_t bytes, pthread_t *thread) {
    CUstream stream = stream_of_its_own();
    uint32_t *flag = host_flag();
    CUdeviceptr x, y;
    CHECK(cuMemAlloc(&x, bytes));
    CHECK(launch_spin(&kernels, stream, (CUdeviceptr)flag, 1));
    CHECK(launch_fill(&kernels, stream, x, 0xdead, bytes / 4));
    CHECK(pthread_create(thread, NULL, set_later, flag));
    CHECK(cuMemFree(x));
    CHECK(cuMemAlloc(&y, bytes));
    return y;
}

static void print_value(CUdeviceptr at, pthread_t thread) {
    uint32_t value = 0;
    pthread_join(thread, NULL);
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(&value, at, 4));
    printf("value %u\n", value);
}

static void late_context(void) {
    pthread_t thread;
    CUcontext other;
    struct kernels theirs;
    int count = 0;
    CHECK(cuDeviceGetCount(&count));
    CUdeviceptr y = handed_out_early(64 * MIB, &thread);
    CHECK(cuCtxCreate_v2(&other, 0, count > 1));
    cuCtxEnablePeerAccess(context, 0);
    kernels_load(&theirs);
    CUstream stream = stream_of_its_own();
    CHECK(launch_fill(&theirs, stream, y, 7, 64 * MIB / 4));
    CHECK(cuStreamSynchronize(stream));
    print_value(y, thread);
}

/* Creates the second device's context, with memory full of sevens. The first device's context is
 * current afterwards. */
static CUcontext second_context(CUdeviceptr *sevens, size_t bytes) {
    CUcontext other;
    CHECK(cuDevicePrimaryCtxRetain(&other, 1));
    CHECK(cuCtxSetCurrent(other));
    CHECK(cuMemAlloc(sevens, bytes));
    CHECK(cuMemsetD32(*sevens, 7, bytes / 4));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxSetCurrent(context));
    return other;
}

static void late_switch(void) {
    pthread_t thread;
    CUdeviceptr sevens, y;
    CUcontext other = second_context(&sevens, 64 * MIB);
    y = handed_out_early(64 * MIB, &thread);
    CHECK(cuCtxSetCurrent(other));
    CHECK(cuMemcpyDtoD(y, sevens, 64 * MIB));
    CHECK(cuCtxSynchronize());
    print_value(y, thread);
}

static void late_stream(void) {
    pthread_t thread;
    CUdeviceptr sevens, y;
    CUcontext other = second_context(&sevens, 64 * MIB);
    CHECK(cuCtxSetCurrent(other));
    CUstream stream = stream_of_its_own();
    CHECK(cuCtxSetCurrent(context));
    y = handed_out_early(64 * MIB, &thread);
    CHECK(cuMemcpyPeerAsync(y, context, sevens, other, 64 * MIB, stream));
    CHECK(cuStreamSynchronize(stream));
    print_value(y, thread);
}

/* Makes pairs. The counter `barriers` of the report tells whether the library orders them by
 * barriers. */
static void pairs_in_a_stream(void) {
    CUstream stream = stream_of_its_own();
    CUdeviceptr p;
    for (int i = 0; i < 50; i++) {
        CHECK(cuMemAlloc(&p, 20 * MIB));
        CHECK(launch_fill(&kernels, stream, p, 1, 1000));
        CHECK(cuMemFree(p));
    }
}

static void blocked(void) {
    CUdeviceptr sevens;
    second_context(&sevens, 4096);
    pairs_in_a_stream();
}

static void peer(void) {
    CUdeviceptr sevens;
    CHECK(cuCtxSetCurrent(second_context(&sevens, 4096)));
    CHECK(cuCtxEnablePeerAccess(context, 0));
    CHECK(cuCtxSetCurrent(context));
    pairs_in_a_stream();
}

static pthread_barrier_t twice;

static void *stays_in(void *handle) {
    CHECK(cuCtxSetCurrent(*(CUcontext *)handle));
    pthread_barrier_wait(&twice);
    pthread_barrier_wait(&twice);
    return NULL;
}

static void came_back(void) {
    CUcontext other;
    pthread_t thread;
    CHECK(cuDevicePrimaryCtxRetain(&other, 1));
    pthread_barrier_init(&twice, NULL, 2);
    CHECK(pthread_create(&thread, NULL, stays_in, &other));
    pthread_barrier_wait(&twice);
    CHECK(cuDevicePrimaryCtxRelease(1));
    CHECK(cuDevicePrimaryCtxRetain(&other, 1));
    pairs_in_a_stream();
    pthread_barrier_wait(&twice);
    pthread_join(thread, NULL);
}

static void late_cpu(void) {
    pthread_t thread;
    int one = 1;
    CUdeviceptr y = handed_out_early(64 * MIB, &thread);
    CHECK(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, y));
    for (size_t i = 0; i < 64 * MIB / 4; i++)
        ((volatile uint32_t *)y)[i] = 7;
    print_value(y, thread);
}

/* ---- codes, contexts ---- */

static int in_host_function[6];
static CUdeviceptr small, large;
static void *pinned;

static void CUDA_CB allocate_and_free(void *unused) {
    CUdeviceptr p;
    void *host;
    (void)unused;
    in_host_function[0] = (int)cuMemAlloc(&p, 3 * MIB);
    in_host_function[1] = (int)cuMemFree(small);
    in_host_function[2] = (int)cuMemFree(large);
    in_host_function[3] = (int)cuMemFreeHost(pinned);
    in_host_function[4] = (int)cuMemAllocHost(&host, 5000);
    in_host_function[5] = (int)cuMemFreeAsync(large, 0);
}

static void *allocate_without_context(void *unused) {
    CUdeviceptr p;
    (void)unused;
    printf("without a context: %d %d\n", cuMemAlloc(&p, 3 * MIB), cuMemAlloc(&p, 100));
    return NULL;
}

static void host_function(void) {
    CUstream stream = stream_of_its_own();
    CUdeviceptr p, q;
    pthread_t thread;
    CHECK(cuMemAlloc(&p, 3 * MIB));
    CHECK(cuMemAlloc(&small, 1000));
    CHECK(cuMemAlloc(&large, 30 * MIB));
    CHECK(cuMemAllocHost(&pinned, 1000));
    CHECK(cuLaunchHostFunc(stream, allocate_and_free, NULL));
    CHECK(cuCtxSynchronize());
    printf("in a host function:");
    for (unsigned i = 0; i < 6; i++)
        printf(" %d", in_host_function[i]);
    printf("\nfreed later: %d", cuMemFree(small));
    printf(" %d", cuMemFree(large));
    printf(" %d\n", cuMemFreeHost(pinned));
    CHECK(pthread_create(&thread, NULL, allocate_without_context, NULL));
    pthread_join(thread, NULL);
    printf("later: %d", cuMemAlloc(&q, 5 * MIB));
    printf(" %d", cuMemAlloc(&q, 512));
    printf(" %d", cuMemsetD32(p, 0, 1));
    printf(" %d\n", cuMemFree(p));
}

static pthread_barrier_t meet;

static void *keeps_current(void *handle) {
    CUdeviceptr p;
    CHECK(cuCtxSetCurrent(*(CUcontext *)handle));
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet); /* destroyed at the same time */
    printf("with a destroyed context current: %d\n", cuMemAlloc(&p, 4096));
    return NULL;
}

/* Destroys a context while another thread has it current. The counter `barriers` of the report
 * tells whether the remaining context has barriers again. */
static void dead_current(void) {
    CUcontext other;
    CUdeviceptr x;
    pthread_t thread;
    for (int i = 0; i < 3; i++) {
        pthread_barrier_init(&meet, NULL, 2);
        CHECK(cuCtxCreate_v2(&other, 0, 0));
        CHECK(cuMemAlloc(&x, 4096));
        CHECK(pthread_create(&thread, NULL, keeps_current, &other));
        pthread_barrier_wait(&meet);
        CHECK(cuCtxDestroy(other));
        pthread_barrier_wait(&meet);
        pthread_join(thread, NULL);
        CHECK(cuCtxSetCurrent(context));
    }
    pairs_in_a_stream();
}

static void green_last(void) {
    for (int i = 0; i < 3; i++) {
        CUdevResource sm;
        CUdevResourceDesc description;
        CUgreenCtx green;
        CUcontext view;
        CUdeviceptr p, q;
        uint32_t value = 0;
        CHECK(cuDeviceGetDevResource(0, &sm, CU_DEV_RESOURCE_TYPE_SM));
        CHECK(cuDevResourceGenerateDesc(&description, &sm, 1));
        CHECK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        CHECK(cuCtxFromGreenCtx(&view, green));
        CHECK(cuCtxSetCurrent(view));
        CHECK(cuMemAlloc(&p, 3 * MIB));
        CHECK(cuMemAlloc(&q, 4096));
        printf("memset %d %d", cuMemsetD32(p, 5, 100), cuMemsetD32(q, 6, 100));
        printf(" copy %d", cuMemcpyDtoH(&value, p, 4));
        printf(" value %u free %d\n", value, cuMemFree(p)); /* q ends with the primary context */
        CHECK(cuCtxSetCurrent(NULL));
        CHECK(cuGreenCtxDestroy(green));
    }
}

static void green_context(CUgreenCtx *green, CUcontext *view) {
    CUdevResource sm;
    CUdevResourceDesc description;
    CHECK(cuDeviceGetDevResource(0, &sm, CU_DEV_RESOURCE_TYPE_SM));
    CHECK(cuDevResourceGenerateDesc(&description, &sm, 1));
    CHECK(cuGreenCtxCreate(green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    CHECK(cuCtxFromGreenCtx(view, *green));
    CHECK(cuCtxSetCurrent(*view));
}

/* The view stays the same, and so do frees that its streams have not reached. */
static void green_twice(void) {
    CUgreenCtx green;
    CUcontext view;
    CUdeviceptr flag, p, q;
    uint32_t value = 0;
    green_context(&green, &view);
    CUstream stream = stream_of_its_own();
    CHECK(cuMemAlloc(&flag, 4));
    CHECK(cuMemsetD32(flag, 0, 1));
    CHECK(cuMemAlloc(&p, 24 * MIB));
    CHECK(launch_spin(&kernels, stream, flag, 1));
    CHECK(launch_fill(&kernels, stream, p, 5, 24 * MIB / 4));
    CHECK(cuMemFreeAsync(p, stream));
    CHECK(cuCtxFromGreenCtx(&view, green));
    CHECK(cuMemAlloc(&q, 24 * MIB));
    CHECK(cuMemsetD32(q, 7, 24 * MIB / 4));
    CUstream other = stream_of_its_own();
    CHECK(launch_set(&kernels, other, flag, 1));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuMemcpyDtoH(&value, q, 4));
    printf("value %u\n", value);
}

/* Needs a limit of 100 MiB: memory of the green context ends with the primary context. */
static void green_managed(void) {
    CUgreenCtx green;
    CUcontext view;
    CUdeviceptr p;
    green_context(&green, &view);
    CHECK(cuMemAllocManaged(&p, 80 * MIB, CU_MEM_ATTACH_GLOBAL));
    printf("reset %d", cuDevicePrimaryCtxReset(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    printf(", allocation %d\n", cuMemAllocManaged(&p, 80 * MIB, CU_MEM_ATTACH_GLOBAL));
}

static void *reset_again_and_again(void *unused) {
    (void)unused;
    for (int i = 0; i < rounds; i++) {
        CUdeviceptr p;
        CHECK(cuDevicePrimaryCtxRetain(&context, 0));
        CHECK(cuCtxSetCurrent(context));
        CHECK(cuMemAlloc(&p, i % 2 ? 4096 : 3 * MIB));
        CHECK(cuMemsetD32(p, 1, 100));
        CHECK(cuCtxSetCurrent(NULL));
        CHECK(i % 3 ? cuDevicePrimaryCtxReset(0) : cuDevicePrimaryCtxRelease(0));
    }
    stop = true;
    return NULL;
}

static void reset_during_pairs(void) {
    CUcontext mine;
    pthread_t thread;
    unsigned wrong = 0;
    CHECK(cuCtxCreate_v2(&mine, 0, 0));
    CHECK(pthread_create(&thread, NULL, reset_again_and_again, NULL));
    while (!stop) {
        CUdeviceptr p[8];
        for (uint32_t i = 0; i < 8; i++) {
            if (i % 4 == 0)
                CHECK(cuMemAllocManaged(&p[i], 3 * MIB, CU_MEM_ATTACH_GLOBAL));
            else
                CHECK(cuMemAlloc(&p[i], i % 2 ? 4096 : 3 * MIB));
            CHECK(cuMemsetD32(p[i], i, 100));
        }
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t value = 99;
            CHECK(cuMemcpyDtoH(&value, p[i], 4));
            wrong += value != i;
            CHECK(cuMemFree(p[i]));
        }
    }
    pthread_join(thread, NULL);
    printf("wrong %u\n", wrong);
}

static atomic_uint contexts_used; /* contexts in which large_pairs() has got memory */
static atomic_uint contexts_left; /* contexts that large_pairs() uses no more */

/* Allocates and frees more than half of the device's memory, until a call finds the context ended.
 * Then does the same in the next context. */
static void *large_pairs(void *unused) {
    (void)unused;
    for (int i = 0; i < rounds; i++) {
        CUdeviceptr p;
        CHECK(cuDevicePrimaryCtxRetain(&context, 0));
        CHECK(cuCtxSetCurrent(context));
        CHECK(cuMemAlloc(&p, 300 * MIB));
        contexts_used++;
        while (cuMemsetD8(p, 1, MIB) == CUDA_SUCCESS && cuMemFree(p) == CUDA_SUCCESS &&
               cuMemAlloc(&p, 300 * MIB) == CUDA_SUCCESS) {
        }
        CHECK(cuCtxSetCurrent(NULL));
        contexts_left++;
    }
    return NULL;
}

/* An allocation during a reset must not leave memory in the pool, where the next context would lack
 * it. */
static void reset_during_large_pairs(void) {
    pthread_t thread;
    rounds /= 3; /* each takes the simulator some 10 ms, to map the memory */
    CHECK(pthread_create(&thread, NULL, large_pairs, NULL));
    for (unsigned i = 1; i <= (unsigned)rounds; i++) {
        while (contexts_used < i)
            sched_yield();
        CHECK(cuDevicePrimaryCtxReset(0));
        while (contexts_left < i)
            sched_yield();
    }
    pthread_join(thread, NULL);
}

/* On the simulated driver the library's first events fail, so the first device gets no pool. */
static void refused_first(void) {
    CUdeviceptr p, q;
    size_t before, after, total;
    CHECK(cuMemAlloc(&p, 8 * MIB));
    CHECK(cuMemGetInfo(&before, &total));
    second_context(&q, 64 * MIB);
    CHECK(cuMemGetInfo(&after, &total));
    printf("taken from the first device: %zu\n", before - after);
}

static void streams_ended(void) {
    CUstream stream;
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < 8; i++)
        CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuDevicePrimaryCtxReset(0));
    CHECK(cuDevicePrimaryCtxRetain(&context, 0));
    CHECK(cuCtxSetCurrent(context));
    kernels_load(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < 500; i++) {
        CUdeviceptr p;
        CHECK(cuMemAlloc(&p, 16 * MIB));
        CHECK(launch_fill(&kernels, stream, p, i, 4096));
        CHECK(launch_sleep(&kernels, stream, 50));
        CHECK(cuMemFree(p));
    }
    CHECK(cuCtxSynchronize());
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
        bool in_primary;
    } cases[] = {
        {"launches_during_pairs", launches_during_pairs, true},
        {"growth_during_spinner", growth_during_spinner, true},
        {"late_context", late_context, true},
        {"late_cpu", late_cpu, true},
        {"late_switch", late_switch, true},
        {"late_stream", late_stream, true},
        {"blocked", blocked, true},
        {"peer", peer, true},
        {"came_back", came_back, true},
        {"host_function", host_function, true},
        {"refused_first", refused_first, true},
        {"dead_current", dead_current, true},
        {"green_last", green_last, false},
        {"green_twice", green_twice, true},
        {"green_managed", green_managed, true},
        {"streams_ended", streams_ended, false},
        {"reset_during_pairs", reset_during_pairs, false},
        {"reset_during_large_pairs", reset_during_large_pairs, false},
    };
    rounds = argc > 2 ? atoi(argv[2]) : rounds;
    for (unsigned i = 0; argc > 1 && i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[1], cases[i].name) != 0)
            continue;
        if (cases[i].in_primary) {
            context = begin();
            kernels_load(&kernels);
        } else {
            CHECK(cuInit(0));
        }
        cases[i].run();
        puts("done");
        return 0;
    }
    fprintf(stderr, "ctx_changes CASE\n");
    return 2;
}
