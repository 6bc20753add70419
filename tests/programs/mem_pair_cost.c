/*
 * Measures how many epochs pairs of allocation and free close, in states of the pool that programs
 * cause.
 *
 *   mem_pair_cost drawn SEED THREADS     phases drawn from SEED (0: none), then pairs
 *   mem_pair_cost thrust TURNS THREADS   TURNS loops of thrust's requests, then pairs
 *
 * THREADS threads make the pairs, among them the thread of the phases. All pairs of one
 * measurement have one size. Prints the epochs closed for 100 pairs of each size, and the maximum
 * over all sizes up to each bound. For the simulator alone.
 */
#include "mem_overhead.h"

#include <pthread.h>

#define BLOCKS_MAX 4096
#define PAIRS 4096

static CUcontext context;
static pthread_barrier_t step;
static unsigned threads;

static size_t draw_size(uint64_t *seed) {
    size_t least = (size_t)512 << pick(seed, 14); /* 512 bytes to 8 MiB */
    return least + pick(seed, (unsigned)least);
}

/* Allocates up to 576 MiB, then frees all of it: the oldest block first, the newest block first,
 * or in random order. */
static void allocate_then_free(uint64_t *seed) {
    static CUdeviceptr blocks[BLOCKS_MAX];
    size_t bytes = draw_size(seed), most = (size_t)(64 + pick(seed, 512)) * MIB;
    bool same = pick(seed, 2);
    unsigned count = 0, order = pick(seed, 3);
    for (size_t sum = 0; count < BLOCKS_MAX && sum < most; count++) {
        size_t one = same ? bytes : draw_size(seed);
        blocks[count] = alloc_block(one);
        sum += one;
    }
    for (unsigned i = 0; i < count; i++) {
        unsigned at = order == 0 ? i : count - 1 - i;
        if (order == 2) {
            unsigned other = i + pick(seed, count - i);
            CUdeviceptr p = blocks[other];
            blocks[other] = blocks[i];
            blocks[at = i] = p;
        }
        free_block(blocks[at]);
    }
}

/* Replaces up to 16 live blocks at random by blocks of up to 32 sizes, then frees them. */
static void replace_at_random(uint64_t *seed) {
    CUdeviceptr held[16] = {0};
    unsigned kinds = 1 + pick(seed, 32), turns = 100 + pick(seed, 4000);
    size_t sizes[32];
    for (unsigned i = 0; i < kinds; i++)
        sizes[i] = draw_size(seed);
    for (unsigned i = 0; i < turns; i++) {
        CUdeviceptr *at = &held[pick(seed, 16)];
        if (*at)
            free_block(*at);
        *at = alloc_block(sizes[pick(seed, kinds)]);
    }
    for (unsigned i = 0; i < 16; i++)
        if (held[i])
            free_block(held[i]);
}

/* Repeats the requests of a sort, a scan and a reduction for three lengths of arrays: two
 * arrays, and a temporary for each algorithm. */
static void run_thrust(uint64_t turns) {
    static const size_t loops[][5] = {{4000, 4000, 4097, 1023, 9},
                                      {400000, 400000, 423039, 1279, 42503},
                                      {16000000, 16000000, 16570879, 11263, 42503}};
    for (unsigned loop = 0; loop < sizeof loops / sizeof *loops; loop++) {
        const size_t *sizes = loops[loop];
        for (uint64_t turn = 0; turn < turns; turn++) {
            CUdeviceptr keys = alloc_block(sizes[0]), values = alloc_block(sizes[1]);
            for (unsigned i = 2; i < 5; i++)
                free_block(alloc_block(sizes[i]));
            free_block(values);
            free_block(keys);
        }
    }
}

static void run_phases(uint64_t *seed) {
    for (unsigned phases = *seed > 0 ? pick(seed, 8) : 0; phases > 0; phases--)
        if (pick(seed, 2))
            allocate_then_free(seed);
        else
            replace_at_random(seed);
}

/* ---- pairs ---- */

static size_t pair_bytes;

static void make_pairs(void) {
    for (unsigned i = 0; i < PAIRS; i++)
        free_block(alloc_block(pair_bytes));
    /* count_records() begins here: the epochs of the first PAIRS pairs do not count. */
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    for (unsigned i = 0; i < PAIRS; i++)
        free_block(alloc_block(pair_bytes));
    pthread_barrier_wait(&step);
}

static void *make_pairs_in_thread(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    make_pairs();
    return unused;
}

static uint64_t records;

static void *count_records(void *unused) {
    pthread_barrier_wait(&step);
    records = sim_calls("cuCtxRecordEvent");
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    records = sim_calls("cuCtxRecordEvent") - records;
    return unused;
}

static pthread_t start(void *(*body)(void *)) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, body, NULL) == 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN);
    return thread;
}

static double epochs_per_100(size_t bytes) {
    pthread_t others[64] = {start(count_records)};
    pair_bytes = bytes;
    for (unsigned i = 1; i < threads; i++)
        others[i] = start(make_pairs_in_thread);
    make_pairs();
    for (unsigned i = 0; i < threads; i++)
        pthread_join(others[i], NULL);
    return 100.0 * (double)records / PAIRS / threads;
}

/* Below each bound the sizes are some powers of two and one drawn size. They are measured in
 * random order. */
#define SIZES 8
static const size_t bounds[] = {64 * KIB, 256 * KIB, MIB};

static void measure(uint64_t *seed) {
    double most[3] = {0};
    size_t sizes[SIZES] = {4 * KIB, 16 * KIB, bounds[0], bounds[1], bounds[2]};
    for (unsigned i = 0; i < 3; i++)
        sizes[5 + i] = 1 + (i > 0 ? bounds[i - 1] : 0) +
                       pick(seed, (unsigned)(bounds[i] - (i > 0 ? bounds[i - 1] : 0)));
    for (unsigned i = 0; i < SIZES; i++) {
        unsigned other = i + pick(seed, SIZES - i), bound = 0;
        size_t bytes = sizes[other];
        sizes[other] = sizes[i];
        double epochs = epochs_per_100(bytes);
        while (bytes > bounds[bound])
            bound++;
        most[bound] = epochs > most[bound] ? epochs : most[bound];
        printf("b%zu=%.2f ", bytes, epochs);
    }
    printf("to_64k=%.2f to_256k=%.2f to_1m=%.2f held_mib=%.0f\n", most[0], most[1], most[2],
           held_mib());
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr,
                "usage: mem_pair_cost drawn SEED THREADS | mem_pair_cost thrust TURNS THREADS\n");
        return 2;
    }
    uint64_t number = strtoull(argv[2], NULL, 10), seed = number;
    threads = (unsigned)atoi(argv[3]);
    context = begin();
    pthread_barrier_init(&step, NULL, threads + 1);
    if (strcmp(argv[1], "thrust") == 0)
        run_thrust(number);
    else
        run_phases(&seed);
    measure(&seed);
    return 0;
}
