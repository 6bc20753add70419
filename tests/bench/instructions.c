/*
 * instructions PATTERN PAIRS: makes PAIRS allocations and frees. instructions.py counts the
 * library's instructions. Every run makes the same calls, independent of time.
 *
 *   fixed       64 KiB, freed at once
 *   mixed       512 bytes to 128 KiB, 32 blocks live, replaced at random
 *   large       4 MiB, freed at once
 *   handover    mixed sizes; one thread allocates 64, the other frees them, in turns
 *   inside      no pair: a look-up of the last byte of a block of 1 MiB, and of one of 64 MiB
 *   statistics  no pair: once in 64, the statistics of 20 000 live blocks
 *   growing     no pair: an allocation of 256 bytes that stays live
 *   pinned      once in 32, a pinned block of one size, freed at once, while 2000 others are free
 *   ordered     64 KiB of the driver's own pool, by cuMemAllocAsync, freed at once
 *
 * A warm-up of WARM pairs comes before them in every run.
 */
#include "../programs/program.h"

#include "gpucache.h"

#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>

#define WARM 8192
#define LIVE 32
#define TURN 64

static CUcontext context;

static CUdeviceptr allocate(size_t bytes) {
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, bytes));
    return p;
}

static size_t mixed_size(uint64_t *random) {
    size_t least = (size_t)512 << pick(random, 8);
    return least + pick(random, (unsigned)least);
}

static void run_same(size_t bytes, long pairs) {
    for (long i = 0; i < WARM + pairs; i++)
        CHECK(cuMemFree(allocate(bytes)));
}

static void run_mixed(long pairs) {
    uint64_t random = 5;
    CUdeviceptr held[LIVE];
    for (unsigned i = 0; i < LIVE; i++)
        held[i] = allocate(mixed_size(&random));
    for (long i = 0; i < WARM + pairs; i++) {
        CUdeviceptr *p = &held[pick(&random, LIVE)];
        CHECK(cuMemFree(*p));
        *p = allocate(mixed_size(&random));
    }
    for (unsigned i = 0; i < LIVE; i++)
        CHECK(cuMemFree(held[i]));
}

struct handover {
    sem_t full, empty;
    CUdeviceptr blocks[TURN];
    long turns;
};

static void *consumer(void *arg) {
    struct handover *h = arg;
    CHECK(cuCtxSetCurrent(context));
    for (long t = 0; t < h->turns; t++) {
        sem_wait(&h->full);
        for (unsigned i = 0; i < TURN; i++)
            CHECK(cuMemFree(h->blocks[i]));
        sem_post(&h->empty);
    }
    return NULL;
}

/* The two threads alternate, so that the order of the calls is the same in every run. */
static void run_handover(long pairs) {
    struct handover h = {.turns = (WARM + pairs) / TURN};
    uint64_t random = 5;
    pthread_t thread;
    sem_init(&h.full, 0, 0);
    sem_init(&h.empty, 0, 1);
    if (pthread_create(&thread, NULL, consumer, &h) != 0)
        exit(1);
    for (long t = 0; t < h.turns; t++) {
        sem_wait(&h.empty);
        for (unsigned i = 0; i < TURN; i++)
            h.blocks[i] = allocate(mixed_size(&random));
        sem_post(&h.full);
    }
    pthread_join(thread, NULL);
}

static void run_inside(long pairs) {
    CUdeviceptr small = allocate((size_t)1 << 20), large = allocate((size_t)64 << 20), base;
    size_t bytes;
    for (long i = 0; i < WARM + pairs; i++) {
        CHECK(cuMemGetAddressRange(&base, &bytes, small + ((size_t)1 << 20) - 1));
        CHECK(cuMemGetAddressRange(&base, &bytes, large + ((size_t)64 << 20) - 1));
    }
}

static void run_statistics(long pairs) {
    int (*get)(int, struct gpucache_stats *) =
        (int (*)(int, struct gpucache_stats *))dlsym(RTLD_DEFAULT, "gpucache_get_stats");
    struct gpucache_stats stats = {.size = sizeof stats};
    for (unsigned i = 0; i < 20000; i++)
        allocate(1000);
    for (long i = 0; i < WARM + pairs; i++)
        if (i % 64 == 0 && (!get || get(0, &stats) != 0))
            exit(1);
}

static void run_growing(long pairs) {
    for (long i = 0; i < WARM + pairs; i++)
        allocate(256);
}

static void run_pinned(long pairs) {
    static void *kept[2000];
    void *host;
    for (unsigned i = 0; i < 2000; i++)
        CHECK(cuMemAllocHost(&kept[i], 8192 + 8 * i));
    for (unsigned i = 0; i < 2000; i++)
        CHECK(cuMemFreeHost(kept[i]));
    CHECK(cuCtxSynchronize());
    for (long i = 0; i < (WARM + pairs) / 32; i++) { /* too few for a release of the others */
        CHECK(cuMemAllocHost(&host, 4096));
        CHECK(cuMemFreeHost(host));
    }
}

static void run_ordered(long pairs) {
    CUdeviceptr p;
    for (long i = 0; i < WARM + pairs; i++) {
        CHECK(cuMemAllocAsync(&p, 65536, 0));
        CHECK(cuMemFreeAsync(p, 0));
    }
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: instructions PATTERN PAIRS\n");
        return 2;
    }
    long pairs = atol(argv[2]);
    context = begin();
    if (strcmp(argv[1], "fixed") == 0) {
        run_same(65536, pairs);
    } else if (strcmp(argv[1], "mixed") == 0) {
        run_mixed(pairs);
    } else if (strcmp(argv[1], "large") == 0) {
        run_same((size_t)4 << 20, pairs);
    } else if (strcmp(argv[1], "handover") == 0) {
        run_handover(pairs);
    } else if (strcmp(argv[1], "inside") == 0) {
        run_inside(pairs);
    } else if (strcmp(argv[1], "statistics") == 0) {
        run_statistics(pairs);
    } else if (strcmp(argv[1], "growing") == 0) {
        run_growing(pairs);
    } else if (strcmp(argv[1], "pinned") == 0) {
        run_pinned(pairs);
    } else if (strcmp(argv[1], "ordered") == 0) {
        run_ordered(pairs);
    } else {
        fprintf(stderr, "no pattern %s\n", argv[1]);
        return 2;
    }
    return 0;
}
