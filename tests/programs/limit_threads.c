/*
 * limit_threads MODE ARGUMENTS: checks that threads at a limit are refused nothing that fits.
 *
 *   | mode                              | threads                                                 |
 *   | --------------------------------- | ------------------------------------------------------- |
 *   | full MIB...                       | each thread takes blocks of one of the sizes until it   |
 *   |                                   | is refused; no thread frees. At the end nothing more    |
 *   |                                   | may fit                                                 |
 *   | turns ROUNDS WHO...               | each thread takes and frees blocks again and again. WHO |
 *   |                                   | is KIND:MIB or KIND:MIB:COUNT. All sizes fit at once,   |
 *   |                                   | except those of the kinds "more" and "moreasync", which |
 *   |                                   | must be refused                                         |
 *   | refused MIB HELD KIND...          | each thread requests more than HELD leaves, again and   |
 *   |                                   | again. No thread may wait for another refused one       |
 *   | mixed SEED COUNT MOST MIB KIND... | each thread takes and frees blocks of MIB, COUNT times, |
 *   |                                   | in random order. Together the threads never request     |
 *   |                                   | more than MOST                                          |
 *   | behind KIND MIB US                | a block of MIB is freed during work of US microseconds. |
 *   |                                   | A request of KIND must be served                        |
 *   | two_contexts KIND MIB IDLE USED   | IDLE MiB are freed, and in another context USED MiB in  |
 *   |                                   | use by work that ends only after the request. The       |
 *   |                                   | request of MIB must be served                           |
 *
 * Kinds: pool, other (as pool, in another context of the device), async, create, array, managed;
 * held: once, before the others begin; module: of GPUCACHE_SIM_MODULE_BYTES.
 */
#include "program.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#define MIB ((size_t)1 << 20)
#define THREADS 64
#define BLOCKS 64

struct block {
    CUdeviceptr address;
    CUarray array;
};

static struct one {
    pthread_t thread;
    char kind[16];
    size_t bytes;
    unsigned count, had, refused, late;
    CUresult odd;
} all[THREADS];

static CUcontext context, other;
static unsigned rounds;
static pthread_barrier_t start;

static CUresult take(const char *kind, size_t bytes, CUstream stream, struct block *to) {
    if (strcmp(kind, "async") == 0 || strcmp(kind, "moreasync") == 0) {
        CUresult r = cuMemAllocAsync(&to->address, bytes, stream);
        return r == CUDA_SUCCESS ? cuStreamSynchronize(stream) : r;
    }
    if (strcmp(kind, "create") == 0) {
        CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
        return cuMemCreate((CUmemGenericAllocationHandle *)&to->address, bytes, &prop, 0);
    }
    if (strcmp(kind, "array") == 0) {
        CUDA_ARRAY_DESCRIPTOR like = {4096, bytes / 16384, CU_AD_FORMAT_FLOAT, 1};
        return cuArrayCreate(&to->array, &like);
    }
    if (strcmp(kind, "module") == 0)
        return cuModuleLoadData((CUmodule *)&to->address, kernels_ptx);
    return strcmp(kind, "managed") == 0
               ? cuMemAllocManaged(&to->address, bytes, CU_MEM_ATTACH_GLOBAL)
               : cuMemAlloc(&to->address, bytes);
}

static void give(const char *kind, CUstream stream, const struct block *block) {
    if (strcmp(kind, "async") == 0 || strcmp(kind, "moreasync") == 0) {
        CHECK(cuMemFreeAsync(block->address, stream));
        CHECK(cuStreamSynchronize(stream));
    } else if (strcmp(kind, "create") == 0) {
        CHECK(cuMemRelease(block->address));
    } else if (strcmp(kind, "array") == 0) {
        CHECK(cuArrayDestroy(block->array));
    } else if (strcmp(kind, "module") == 0) {
        CHECK(cuModuleUnload((CUmodule)block->address));
    } else {
        CHECK(cuMemFree(block->address));
    }
}

static bool is_refused(struct one *one, CUresult r) {
    one->refused += r == CUDA_ERROR_OUT_OF_MEMORY;
    one->odd = r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY ? one->odd : r;
    return r != CUDA_SUCCESS;
}

static void *fill(void *argument) {
    struct one *one = argument;
    struct block block;
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&start);
    while (!is_refused(one, take("pool", one->bytes, NULL, &block)))
        one->had++;
    return NULL;
}

static void *turn(void *argument) {
    struct one *one = argument;
    CUstream stream;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_barrier_wait(&start);
    for (unsigned round = 0; round < rounds; round++) {
        struct block blocks[BLOCKS];
        unsigned had = 0;
        for (unsigned i = 0; i < one->count; i++)
            had += !is_refused(one, take(one->kind, one->bytes, stream, &blocks[had]));
        while (had > 0)
            give(one->kind, stream, &blocks[--had]);
    }
    return NULL;
}

static void run(int threads, void *(*what)(void *)) {
    pthread_barrier_init(&start, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&all[i].thread, NULL, what, &all[i]) != 0)
            exit(1);
    for (int i = 0; i < threads; i++)
        pthread_join(all[i].thread, NULL);
    for (int i = 0; i < threads; i++)
        if (all[i].odd != CUDA_SUCCESS)
            printf("a thread was answered %d\n", (int)all[i].odd);
}

static void full(int count, char **sizes) {
    size_t held = 0, more = 0;
    for (int i = 0; i < 16; i++)
        all[i].bytes = (size_t)(atof(sizes[i % count]) * (double)MIB);
    run(16, fill);
    for (int i = 0; i < 16; i++) {
        struct block block;
        held += all[i].had * all[i].bytes;
        while (take("pool", all[i].bytes, NULL, &block) == CUDA_SUCCESS)
            more += all[i].bytes;
    }
    printf("held %zu KiB, would have fitted %zu KiB\n", held >> 10, more >> 10);
}

static void turns(int count, char **who) {
    int threads = 0;
    unsigned refused = 0;
    for (int i = 0; i < count; i++) {
        struct one *one = &all[threads++];
        double mib;
        one->count = 1;
        if (threads == THREADS ||
            sscanf(who[i], "%15[a-z]:%lf:%u", one->kind, &mib, &one->count) < 2 ||
            one->count > BLOCKS)
            exit(2);
        one->bytes = (size_t)(mib * (double)MIB);
        if (strcmp(one->kind, "held") == 0) {
            struct block block;
            CHECK(take("pool", one->bytes, NULL, &block));
            threads--;
        }
    }
    run(threads, turn);
    for (int i = 0; i < threads; i++)
        refused += strncmp(all[i].kind, "more", 4) == 0 ? 0 : all[i].refused;
    printf("refused %u\n", refused);
}

/* The bytes that all threads hold or request. A block counts from before its request until after
 * its free. */
static size_t most;
static _Atomic size_t booked;

static bool may_have(size_t bytes) {
    bool may = atomic_fetch_add(&booked, bytes) + bytes <= most;
    if (!may)
        atomic_fetch_sub(&booked, bytes);
    return may;
}

static void *mix(void *argument) {
    struct one *one = argument;
    struct block blocks[BLOCKS];
    size_t sizes[BLOCKS];
    unsigned had = 0;
    uint64_t seed = one->count;
    CUstream stream;
    CHECK(cuCtxSetCurrent(strcmp(one->kind, "other") == 0 ? other : context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    pthread_barrier_wait(&start);
    for (unsigned i = 0; i < rounds; i++) {
        size_t bytes = one->bytes;
        unsigned which = had > 0 ? pick(&seed, had) : 0;
        if (had < BLOCKS && pick(&seed, 2) && may_have(bytes)) {
            if (is_refused(one, take(one->kind, bytes, stream, &blocks[had])))
                atomic_fetch_sub(&booked, bytes);
            else
                sizes[had++] = bytes;
        } else if (had > 0) {
            give(one->kind, stream, &blocks[which]);
            atomic_fetch_sub(&booked, sizes[which]);
            blocks[which] = blocks[--had];
            sizes[which] = sizes[had];
        }
    }
    while (had > 0) {
        give(one->kind, stream, &blocks[--had]);
        atomic_fetch_sub(&booked, sizes[had]);
    }
    return NULL;
}

static void mixed(unsigned seed, size_t bytes, int count, char **kinds) {
    unsigned refused = 0;
    for (int i = 0; i < count; i++) {
        all[i].count = seed * THREADS + (unsigned)i + 1;
        all[i].bytes = bytes;
        snprintf(all[i].kind, sizeof all[i].kind, "%s", kinds[i]);
        if (strcmp(kinds[i], "other") == 0 && !other)
            CHECK(cuCtxCreate_v2(&other, 0, 0));
    }
    run(count, mix);
    for (int i = 0; i < count; i++)
        if (all[i].refused > 0)
            printf("%s %u, ", all[i].kind, all[i].refused);
    for (int i = 0; i < count; i++)
        refused += all[i].refused;
    printf("refused %u\n", refused);
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void *be_refused(void *argument) {
    struct one *one = argument;
    struct block block;
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&start);
    for (int i = 0; i < 40; i++) {
        double began = seconds();
        is_refused(one, take(one->kind, one->bytes, NULL, &block));
        one->late += seconds() - began > 0.9;
    }
    return NULL;
}

static void refused(size_t bytes, size_t held, int count, char **kinds) {
    struct block block;
    unsigned sum = 0, late = 0;
    CHECK(take("pool", held, NULL, &block));
    for (int i = 0; i < count; i++) {
        all[i].bytes = bytes;
        snprintf(all[i].kind, sizeof all[i].kind, "%s", kinds[i]);
    }
    run(count, be_refused);
    for (int i = 0; i < count; i++) {
        sum += all[i].refused;
        late += all[i].late;
    }
    /* a busy machine may refuse some; if threads wait for each other, half or more are refused */
    printf("refused %u, %s\n", sum, late < sum / 3 ? "soon" : "late");
}

static void behind(const char *kind, size_t bytes, uint64_t us) {
    struct kernels k;
    struct block block;
    CUstream stream;
    kernels_load(&k);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(take("pool", bytes, stream, &block));
    CHECK(launch_sleep(&k, stream, us));
    give("pool", stream, &block);
    if (strcmp(kind, "other") == 0)
        CHECK(cuCtxCreate_v2(&other, 0, 0));
    printf("answer %d\n", (int)take(kind, bytes, stream, &block));
}

static volatile uint32_t *flag;

static void *free_in_the_other(void *bytes) {
    struct kernels k;
    struct block block;
    CUstream stream;
    CHECK(cuCtxSetCurrent(other));
    kernels_load(&k);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(take("pool", *(size_t *)bytes, stream, &block));
    CHECK(launch_spin(&k, stream, (CUdeviceptr)flag, 1));
    pthread_barrier_wait(&start);
    give("pool", stream, &block); /* natively only this free waits */
    return NULL;
}

static void two_contexts(const char *kind, size_t bytes, size_t idle, size_t used) {
    struct block block;
    CUstream stream;
    pthread_t thread;
    CHECK(cuMemHostAlloc((void **)&flag, 4096, CU_MEMHOSTALLOC_PORTABLE));
    CHECK(cuCtxCreate_v2(&other, 0, 0));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(take("pool", idle, stream, &block));
    pthread_barrier_init(&start, NULL, 2);
    if (pthread_create(&thread, NULL, free_in_the_other, &used) != 0)
        exit(1);
    pthread_barrier_wait(&start);
    give("pool", stream, &block);
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    printf("answer %d\n", (int)take(kind, bytes, stream, &block));
    fflush(stdout);
    *flag = 1;
    pthread_join(thread, NULL);
}

int main(int argc, char **argv) {
    context = begin();
    if (argc > 2 && strcmp(argv[1], "full") == 0) {
        full(argc - 2, argv + 2);
    } else if (argc > 3 && strcmp(argv[1], "turns") == 0) {
        rounds = (unsigned)atoi(argv[2]);
        turns(argc - 3, argv + 3);
    } else if (argc > 4 && strcmp(argv[1], "refused") == 0 && argc - 4 <= THREADS) {
        refused((size_t)atoi(argv[2]) * MIB, (size_t)atoi(argv[3]) * MIB, argc - 4, argv + 4);
    } else if (argc > 4 && strcmp(argv[1], "behind") == 0) {
        behind(argv[2], (size_t)atoi(argv[3]) * MIB, strtoull(argv[4], NULL, 10));
    } else if (argc > 5 && strcmp(argv[1], "two_contexts") == 0) {
        two_contexts(argv[2], (size_t)atoi(argv[3]) * MIB, (size_t)atoi(argv[4]) * MIB,
                     (size_t)atoi(argv[5]) * MIB);
    } else if (argc > 6 && strcmp(argv[1], "mixed") == 0 && argc - 6 <= THREADS) {
        rounds = (unsigned)atoi(argv[3]);
        most = (size_t)atoi(argv[4]) * MIB;
        mixed((unsigned)atoi(argv[2]), (size_t)atoi(argv[5]) * MIB, argc - 6, argv + 6);
    } else {
        return 2;
    }
    return 0;
}
