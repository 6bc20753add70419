/* Rows of mem_overhead.txt: memory that is reserved without use. For the simulator alone. */
#include "mem_overhead.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* ---- threads that made one pair, and a device with unfinished work ---- */

#define IDLE_MOST 8
static CUcontext context;
static pthread_t idle_threads[IDLE_MOST];
static atomic_int idle_now;
static atomic_bool over;

static void *make_a_pair_and_stay(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    free_block(alloc_block(4096));
    idle_now++;
    while (!over)
        usleep(1000);
    return unused;
}

static void begin_beside(int idle) {
    context = begin();
    for (int i = 0; i < idle; i++)
        CHECK(pthread_create(&idle_threads[i], NULL, make_a_pair_and_stay, NULL) == 0
                  ? CUDA_SUCCESS
                  : CUDA_ERROR_UNKNOWN);
    while (idle_now < idle)
        usleep(100);
}

static void end_beside(int idle) {
    over = true;
    for (int i = 0; i < idle; i++)
        pthread_join(idle_threads[i], NULL);
}

static uint64_t us_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Keeps the device busy for two milliseconds. */
static int stay(struct sim_launch *launch, void **params) {
    (void)params;
    launch->progress = launch->progress ? launch->progress : us_now();
    return us_now() - launch->progress < 2000 ? SIM_SPIN : SIM_DONE;
}

/* ---- values ---- */

static double live, most_live, most;

static CUdeviceptr get_live(size_t bytes) {
    CUdeviceptr p = alloc_block(bytes);
    live += (double)bytes / MIB;
    most_live = live > most_live ? live : most_live;
    most = peak_held(most);
    return p;
}

static void put_live(CUdeviceptr p, size_t bytes) {
    live -= (double)bytes / MIB;
    free_block(p);
}

static void print_figures(long allocations) {
    uint64_t calls =
        sim_calls("cuMemAlloc_v2") + sim_calls("cuMemFree_v2") + sim_calls("cuMemFreeAsync");
    printf("held_mib=%.0f live_mib=%.0f ratio=%.2f calls=%.3f\n", most, most_live, most / most_live,
           (double)calls /
               (double)allocations); /* calls that take or return memory, for one allocation */
}

/* ---- rows ---- */

/* growing PERCENT FROM TO IDLE BUSY: a buffer grows from FROM MiB to TO MiB, by PERCENT at each
 * step. */
static void growing(char **arguments) {
    double by = 1 + atof(arguments[0]) / 100;
    size_t bytes = (size_t)atof(arguments[1]) * MIB, end = (size_t)atof(arguments[2]) * MIB;
    int idle = atoi(arguments[3]), busy = atoi(arguments[4]);
    long steps = 0;
    struct kernels k;
    CUfunction stays;
    CUstream stream;
    begin_beside(idle);
    kernels_load(&k);
    sim_register_kernel("stay", stay, 0, NULL);
    CHECK(cuModuleGetFunction(&stays, k.module, "stay"));
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr at = get_live(bytes);
    for (; bytes < end; steps++) {
        size_t more = (size_t)((double)bytes * by);
        CUdeviceptr to = get_live(more);
        if (busy)
            CHECK(launch(stays, stream, 1, NULL));
        CHECK(cuMemcpyDtoDAsync(to, at, 256, 0));
        put_live(at, bytes);
        CHECK(cuStreamSynchronize(0));
        most = peak_held(most);
        at = to;
        bytes = more;
    }
    print_figures(steps);
    end_beside(idle);
}

/* kept_idle BIG KEPT EACH COUNT IDLE: uses and frees BIG GiB, then KEPT GiB, then EACH GiB COUNT
 * times. */
static void kept_idle(char **arguments) {
    size_t big = (size_t)(atof(arguments[0]) * (double)GIB);
    size_t kept = (size_t)(atof(arguments[1]) * (double)GIB);
    size_t each = (size_t)(atof(arguments[2]) * (double)GIB);
    int count = atoi(arguments[3]), idle = atoi(arguments[4]);
    begin_beside(idle);
    put_live(get_live(big), big);
    CHECK(cuCtxSynchronize());
    if (kept > 0)
        get_live(kept);
    for (int i = 0; i < count; i++)
        get_live(each);
    most = held_mib();
    print_figures(count);
    end_beside(idle);
}

/* in_turn LIVE SIZES BASE PHASES IDLE: in each phase allocates LIVE MiB of one size and frees
 * all of it. The SIZES sizes begin at BASE MiB and take turns. */
static void in_turn(char **arguments) {
    size_t total = (size_t)atof(arguments[0]) * MIB;
    int sizes = atoi(arguments[1]), phases = atoi(arguments[3]), idle = atoi(arguments[4]);
    double base = atof(arguments[2]);
    long allocations = 0;
    CUdeviceptr *blocks = calloc(total / MIB, sizeof *blocks);
    begin_beside(idle);
    for (int phase = 0; phase < phases; phase++) {
        size_t bytes = (size_t)(base * (1 + 0.37 * (phase * 7 % sizes)) * (double)MIB);
        size_t count = total / bytes;
        for (size_t i = 0; i < count; i++)
            blocks[i] = get_live(bytes);
        for (size_t i = 0; i < count; i++)
            put_live(blocks[i], bytes);
        allocations += (long)count;
        CHECK(cuStreamSynchronize(0));
    }
    print_figures(allocations);
    end_beside(idle);
    free(blocks);
}

/* drifting FROM LIVE COUNT: keeps about LIVE MiB live in blocks of random sizes, from FROM MiB
 * to four times as much. This range rises to eight times as much and falls again. */
static void drifting(char **arguments) {
    double from = atof(arguments[0]), target = atof(arguments[1]);
    long count = atol(arguments[2]);
    struct {
        CUdeviceptr p;
        size_t bytes;
    } *blocks = calloc((size_t)count, sizeof *blocks);
    size_t used = 0;
    uint64_t random = 77;
    begin();
    for (long i = 0; i < count; i++) {
        int phase = (int)(i * 14 / count) % 7, doublings = phase < 4 ? phase : 6 - phase;
        size_t low = (size_t)(from * (double)MIB) << doublings;
        size_t bytes = low + draw(&random) % (3 * low);
        while (used > 0 && live + (double)bytes / MIB > target) {
            size_t gone = pick(&random, (unsigned)used);
            put_live(blocks[gone].p, blocks[gone].bytes);
            blocks[gone] = blocks[--used];
        }
        blocks[used].p = get_live(bytes);
        blocks[used++].bytes = bytes;
    }
    print_figures(count);
    free(blocks);
}

static const struct row rows[] = {{"growing", growing},
                                  {"kept_idle", kept_idle},
                                  {"in_turn", in_turn},
                                  {"drifting", drifting},
                                  {NULL, NULL}};

int main(int argc, char **argv) {
    return run_row(rows, argc, argv);
}
