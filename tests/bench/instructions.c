/*
 * instructions PATTERN PAIRS: so many allocations and their frees, for instructions.py to count what
 * the library executes. Nothing in it depends on time or chance.
 *
 *   fixed       64 KiB, freed at once
 *   mixed       512 bytes to 128 KiB, 32 blocks live, replaced at random
 *   large       4 MiB, freed at once
 *   handover    mixed sizes; one thread allocates 64, the other frees them, in turns
 *
 * A warm-up of WARM pairs comes before them in every run.
 */
#include "../programs/program.h"

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
    for (long i = 0; i < WARM + pairs; i++) {
        CHECK(cuMemFree(allocate(bytes)));
    }
}

static void run_mixed(long pairs) {
    uint64_t random = 5;
    CUdeviceptr held[LIVE];
    for (unsigned i = 0; i < LIVE; i++) {
        held[i] = allocate(mixed_size(&random));
    }
    for (long i = 0; i < WARM + pairs; i++) {
        CUdeviceptr *p = &held[pick(&random, LIVE)];
        CHECK(cuMemFree(*p));
        *p = allocate(mixed_size(&random));
    }
    for (unsigned i = 0; i < LIVE; i++) {
        CHECK(cuMemFree(held[i]));
    }
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
        for (unsigned i = 0; i < TURN; i++) {
            CHECK(cuMemFree(h->blocks[i]));
        }
        sem_post(&h->empty);
    }
    return NULL;
}

/* In turns, not at once: the order of the calls is the same in every run. */
static void run_handover(long pairs) {
    struct handover h = {.turns = (WARM + pairs) / TURN};
    uint64_t random = 5;
    pthread_t thread;
    sem_init(&h.full, 0, 0);
    sem_init(&h.empty, 0, 1);
    if (pthread_create(&thread, NULL, consumer, &h) != 0) {
        exit(1);
    }
    for (long t = 0; t < h.turns; t++) {
        sem_wait(&h.empty);
        for (unsigned i = 0; i < TURN; i++) {
            h.blocks[i] = allocate(mixed_size(&random));
        }
        sem_post(&h.full);
    }
    pthread_join(thread, NULL);
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
    } else {
        fprintf(stderr, "no pattern %s\n", argv[1]);
        return 2;
    }
    return 0;
}
