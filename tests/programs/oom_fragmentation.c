/*
 * Draws allocations and frees from a seed until a device is nearly full. `oom_fragmentation SEED`
 * asks the driver alone and prints its answers. `oom_fragmentation SEED ANSWERS`, under the
 * library, makes the requests that the driver served and prints how many are refused. One to eight
 * threads alternate in one to three contexts, on busy or idle streams. For the simulator, whose
 * memory is GPUCACHE_SIM_MEMORY.
 */
#include "program.h"

#include <math.h>
#include <pthread.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define STEPS 2500
#define MOST 16384
#define LEVELS 4 /* by live memory: below 80 % of the device, 90 %, 95 %, above */

struct block {
    CUdeviceptr at;
    size_t bytes;
    int context;
};

static uint64_t seed;
static int threads, contexts, mix;
static bool busy;
static size_t memory;
static CUcontext context[3];
static struct kernels kernels[3];
static CUstream streams[3][4];

static struct block blocks[MOST];
static unsigned count;
static size_t live, aim;
static const char *given; /* the driver's answers */
static char answers[2 * STEPS + 1];
static unsigned asked;
static struct {
    unsigned served, refused;
    double served_mib, refused_mib;
} level[LEVELS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t moved = PTHREAD_COND_INITIALIZER;
static int turn; /* number of the running thread; -1: none */
static unsigned step;

/* Returns the device memory that a block takes natively. Small blocks share pages. */
static size_t taken(size_t bytes) {
    return bytes < 2 * MIB ? bytes : (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

static size_t between(size_t low, size_t high) {
    double u = (double)(draw(&seed) >> 11) * 0x1p-53;
    return (size_t)((double)low * exp(u * log((double)high / (double)low)));
}

static size_t least(void) {
    size_t share = memory >> 12;
    return share < 512 ? 512 : share;
}

static size_t next_size(void) {
    static size_t one;
    switch (mix) {
    case 0: /* one size */
        one = one ? one : between(least(), memory / 16);
        return one;
    case 1: /* small blocks */
        return between(least(), least() < MIB ? MIB : 4 * least());
    case 2: /* large blocks */
        return between(MIB + 1, memory / 8);
    case 3: /* multiples of 2 MiB */
        return between(1, memory / 8 / (2 * MIB)) * 2 * MIB;
    default:
        return between(least(), memory / 8);
    }
}

static void be_in(int which) {
    CHECK(cuCtxSetCurrent(context[which]));
}

static void use(const struct block *block) {
    if (busy && block->bytes >= 64)
        CHECK(launch_fill(&kernels[block->context], streams[block->context][pick(&seed, 4)],
                          block->at, 1, 16));
}

static void record(bool served, size_t bytes) {
    double full = (double)live / (double)memory, mib = (double)bytes / MIB;
    int i = full < .8 ? 0 : full < .9 ? 1 : full < .95 ? 2 : 3;
    level[i].served += served;
    level[i].refused += !served;
    level[i].served_mib += served ? mib : 0;
    level[i].refused_mib += served ? 0 : mib;
}

/* Draws the same numbers for any answer. */
static void ask(size_t bytes) {
    struct block block = {.bytes = bytes, .context = (int)pick(&seed, (unsigned)contexts)};
    uint64_t after = seed;
    bool served = false;
    if (count == MOST || asked == sizeof answers - 1)
        return;
    be_in(block.context);
    bool wanted = !given || given[asked] == '1';
    if (wanted)
        served = cuMemAlloc(&block.at, bytes) == CUDA_SUCCESS;
    if (wanted)
        record(served, bytes);
    answers[asked++] = served ? '1' : '0';
    if (served)
        use(&block);
    seed = after + 1;
    if (wanted) { /* a block that is refused here keeps its slot without memory */
        block.at = served ? block.at : 0;
        blocks[count++] = block;
        live += taken(bytes);
    }
    if (!given && !served) {
        count--;
        live -= taken(bytes);
    }
}

static void drop(unsigned i) {
    struct block block = blocks[i];
    be_in(block.context);
    uint64_t after = seed;
    if (block.at) {
        use(&block);
        CHECK(cuMemFree(block.at));
    }
    seed = after + 1;
    live -= taken(block.bytes);
    blocks[i] = blocks[--count];
}

static void move(void) {
    if (step % 200 == 0)
        aim = memory / 100 * (60 + pick(&seed, 50));
    if (pick(&seed, 400) == 0) { /* a few blocks stay, and pin their pages */
        for (unsigned i = count; i-- > 0;)
            if (i % 16)
                drop(i);
        ask((memory - live) / 100 * 90);
    } else if (count > 0 && live >= aim) {
        drop(pick(&seed, count));
    } else {
        ask(next_size());
    }
}

static void *take_turns(void *me) {
    pthread_mutex_lock(&lock);
    for (;;) {
        while (turn >= 0 && turn != (int)(intptr_t)me)
            pthread_cond_wait(&moved, &lock);
        if (turn < 0)
            break;
        move();
        turn = ++step < STEPS ? (int)pick(&seed, (unsigned)threads) : -1;
        pthread_cond_broadcast(&moved);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void set_up(void) {
    CUdevice device;
    size_t unused;
    context[0] = begin();
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuMemGetInfo(&unused, &memory));
    for (int i = 0; i < contexts; i++) {
        if (i > 0)
            CHECK(cuCtxCreate_v4(&context[i], NULL, 0, device));
        be_in(i);
        kernels_load(&kernels[i]);
        for (int j = 0; j < 4; j++)
            CHECK(cuStreamCreate(&streams[i][j], CU_STREAM_NON_BLOCKING));
    }
}

int main(int argc, char **argv) {
    pthread_t others[8];
    if (argc < 2)
        return 2;
    seed = strtoull(argv[1], NULL, 10);
    given = argc > 2 ? argv[2] : NULL;
    mix = (int)(seed % 5);
    threads = 1 + (int)pick(&seed, 8);
    contexts = 1 + (int)pick(&seed, 3);
    busy = pick(&seed, 2);
    set_up();
    for (int i = 0; i < threads; i++)
        if (pthread_create(&others[i], NULL, take_turns, (void *)(intptr_t)i))
            return 3;
    for (int i = 0; i < threads; i++)
        pthread_join(others[i], NULL);
    printf("%d threads, %d contexts, %s, mix %d\n", threads, contexts, busy ? "busy" : "idle", mix);
    printf("answers %s\n", answers);
    for (int i = 0; i < LEVELS; i++)
        printf("level %d %u %u %.0f %.0f\n", i, level[i].served, level[i].refused,
               level[i].served_mib, level[i].refused_mib);
    return 0;
}
