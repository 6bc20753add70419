/* Rows of mem_overhead.txt: memory and cost of thread caches. For the simulator alone. */
#include "mem_overhead.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#define THREADS_MAX 1024

static CUcontext context;
static pthread_t threads[THREADS_MAX];

static void start_thread(unsigned i, void *(*run)(void *), uintptr_t argument) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 128 * KIB);
    if (pthread_create(&threads[i], &small, run, (void *)argument) != 0)
        exit(1);
    pthread_attr_destroy(&small);
}

static void join_threads(unsigned count) {
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

/* --- threads that made one pair each --- */

static pthread_mutex_t staying =
    PTHREAD_MUTEX_INITIALIZER; /* held by main() until the idle threads may end */
static atomic_uint up;

static void *pair_and_stay(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    free_block(alloc_block(4096));
    up++;
    pthread_mutex_lock(&staying);
    pthread_mutex_unlock(&staying);
    return unused;
}

static int slow(struct sim_launch *launch, void **parameters) {
    (void)parameters;
    return launch->progress++ < 400 ? SIM_MORE : SIM_DONE;
}

/* behind THREADS ENDED MIB: THREADS threads make one pair each, then end (ENDED 1) or idle (0).
 * After that, one thread allocates and frees blocks of MIB, whose work the device has not
 * reached yet. */
static void behind(char **arguments) {
    unsigned count = (unsigned)atoi(arguments[0]);
    bool ended = atoi(arguments[1]);
    size_t bytes = (size_t)atoi(arguments[2]) * MIB, sizes[1] = {8};
    double most = 0;
    struct kernels kernels;
    CUfunction function;
    context = begin();
    kernels_load(&kernels);
    sim_register_kernel("slow", slow, 1, sizes);
    CHECK(cuModuleGetFunction(&function, kernels.module, "slow"));
    pthread_mutex_lock(&staying);
    for (unsigned i = 0; i < count; i++)
        start_thread(i, pair_and_stay, 0);
    while (up < count)
        usleep(1000);
    if (ended) {
        pthread_mutex_unlock(&staying);
        join_threads(count);
    }
    CHECK(cuCtxSynchronize());
    for (int i = 0; i < 600; i++) {
        CUdeviceptr p = alloc_block(bytes);
        void *parameters[] = {&p};
        CHECK(launch(function, 0, 1, parameters));
        free_block(p);
        most = peak_held(most);
    }
    CHECK(cuCtxSynchronize());
    if (!ended) {
        pthread_mutex_unlock(&staying);
        join_threads(count);
    }
    printf("held_mib=%.0f\n", most);
}

/* --- threads in turn --- */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static size_t live_bytes, large_bytes;
static long rounds;
static double most_in_turn;
static pthread_barrier_t all_done;

static void *take_turns(void *unused) {
    size_t small = live_bytes / 2 / (64 * KIB), count = small + live_bytes / 2 / large_bytes;
    CUdeviceptr *blocks = calloc(count, sizeof *blocks);
    CHECK(cuCtxSetCurrent(context));
    for (long round = 0; round < rounds; round++) {
        pthread_mutex_lock(&turn);
        for (size_t i = 0; i < count; i++) {
            blocks[i] = alloc_block(i < small ? 64 * KIB : large_bytes);
            if (i % 16 == 0) /* a turn takes 10 milliseconds or more */
                usleep(250);
        }
        for (size_t i = 0; i < count; i++)
            free_block(blocks[i]);
        most_in_turn = peak_held(most_in_turn);
        pthread_mutex_unlock(&turn);
    }
    free(blocks);
    pthread_barrier_wait(&all_done);
    return unused;
}

/* in_turn THREADS MIB LARGE ROUNDS: one thread at a time has MIB live, half of it in blocks of
 * 64 KiB and half in blocks of LARGE MiB. */
static void in_turn(char **arguments) {
    unsigned count = (unsigned)atoi(arguments[0]);
    live_bytes = (size_t)atoi(arguments[1]) * MIB;
    large_bytes = (size_t)atoi(arguments[2]) * MIB;
    rounds = atol(arguments[3]);
    context = begin();
    pthread_barrier_init(&all_done, NULL, count);
    for (unsigned i = 0; i < count; i++)
        start_thread(i, take_turns, 0);
    join_threads(count);
    printf("held_mib=%.0f\n", most_in_turn);
}

/* --- threads that swap roles --- */

#define RING 1024

struct ring {
    CUdeviceptr blocks[RING];
    size_t bytes[RING];
    _Atomic size_t in_it;
    atomic_long head, tail;
};

static struct ring *rings;
static unsigned pairs;
static size_t depth_bytes;
static _Atomic size_t live, live_peak;
static long phases, blocks_each;

static void produce(struct ring *ring, uint64_t *seed) {
    for (long i = 0; i < blocks_each; i++) {
        size_t bytes = (size_t)4096 << pick(seed, 9);
        while ((ring->in_it > 0 && ring->in_it + bytes > depth_bytes) ||
               ring->head - ring->tail >= RING - 1)
            sched_yield();
        long at = ring->head % RING;
        ring->blocks[at] = alloc_block(bytes);
        ring->bytes[at] = bytes;
        ring->in_it += bytes;
        size_t now = atomic_fetch_add(&live, bytes) + bytes, peak = atomic_load(&live_peak);
        while (now > peak && !atomic_compare_exchange_weak(&live_peak, &peak, now)) {
        }
        ring->head++;
    }
}

static void consume(struct ring *ring) {
    for (long i = 0; i < blocks_each; i++) {
        while (ring->head == ring->tail)
            sched_yield();
        long at = ring->tail % RING;
        free_block(ring->blocks[at]);
        live -= ring->bytes[at];
        ring->in_it -= ring->bytes[at];
        ring->tail++;
    }
}

static void *swap_roles(void *argument) {
    uintptr_t i = (uintptr_t)argument;
    uint64_t seed = i * 31 + 7;
    CHECK(cuCtxSetCurrent(context));
    for (long phase = 0; phase < phases; phase++) {
        if ((i >= pairs) ^ (phase & 1))
            consume(&rings[i % pairs]);
        else
            produce(&rings[i % pairs], &seed);
        pthread_barrier_wait(&all_done);
    }
    return NULL;
}

/* roles PAIRS DEPTH PHASES BLOCKS: in each of PAIRS pairs of threads, one thread frees the
 * blocks that the other one allocates. At most DEPTH MiB are live. The threads swap roles with
 * each phase. */
static void roles(char **arguments) {
    pairs = (unsigned)atoi(arguments[0]);
    depth_bytes = (size_t)atoi(arguments[1]) * MIB;
    phases = atol(arguments[2]);
    blocks_each = atol(arguments[3]);
    context = begin();
    rings = calloc(pairs, sizeof *rings);
    pthread_barrier_init(&all_done, NULL, 2 * pairs);
    for (unsigned i = 0; i < 2 * pairs; i++)
        start_thread(i, swap_roles, i);
    join_threads(2 * pairs);
    printf("held_mib=%.0f peak_mib=%.0f\n", held_mib(), (double)live_peak / MIB);
}

static const struct row rows[] = {
    {"behind", behind}, {"in_turn", in_turn}, {"roles", roles}, {NULL, NULL}};

int main(int argc, char **argv) {
    return run_row(rows, argc, argv);
}
