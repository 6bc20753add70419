/*
 * Creates and ends contexts in some threads while other threads allocate, use and free.
 *
 * In each round a thread creates and ends its own context, the primary context of a device (retain
 * and release, sometimes a reset) or a green context. Or it enters another thread's context, works
 * in one that stays, or uses memory of a graph there. Streams and the CPU fill and check the
 * blocks. Threads pass blocks on and free them with another context current. Some blocks and some
 * queued work end with their context.
 *
 *      thread 1   create A ... fill, check, free ............ destroy A
 *      thread 2                    enter A: allocate, free |  create B (its handle was A's, its
 *      thread 3   retain P ... free a block of C, release P   addresses too) ...
 *      thread 4   works in C all the time
 *
 * The program is correct CUDA: no thread uses a context after its end, and a primary context is
 * reset only while no thread is between its retain and the end of its work. Natively no call fails
 * and no word is wrong.
 *
 *   ctx_lifecycles ROUNDS [SEEDS [FIRST [THREADS [KINDS]]]]
 *
 * ROUNDS is for each seed. KINDS selects the actions of a round: o own contexts, v entries into
 * others, p primary contexts, r resets, g green contexts, s contexts that stay, n nodes of graphs;
 * all by default. On the simulator GPUCACHE_SIM_SWITCH makes calls of threads overlap.
 */
#include "program.h"
#include "sim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define MOST_THREADS 16
#define MOST_DEVICES 4
#define BLOCKS 12    /* blocks of one thread in one context */
#define SHARED 3     /* contexts that other threads may enter */
#define STAYERS 2    /* threads that mostly work in contexts that stay */
#define STAYING 2    /* contexts that stay for one seed */
#define GIFTS 8      /* blocks that wait for another thread in a context that stays */
#define END_WORDS 64 /* at both ends of a block, filled and checked */

/* The version that every driver has. cuda.h declares only the newest one. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);

/* Functions that a GPU's driver or an older driver may lack. */
#pragma weak sim_set_eager
#pragma weak sim_set_seed
#pragma weak cuGreenCtxCreate
#pragma weak cuGreenCtxDestroy
#pragma weak cuCtxFromGreenCtx
#pragma weak cuDeviceGetDevResource
#pragma weak cuDevResourceGenerateDesc

struct block {
    CUdeviceptr address; /* 0: none */
    size_t bytes;
    uint32_t value;
    bool finished; /* its work has finished: any thread may check it */
};

/* A context as one thread uses it. */
struct place {
    CUcontext context;
    CUstream stream;
    bool loaded;
    struct kernels kernels;
    uint32_t *errors; /* pinned: check kernels add to it */
    struct block blocks[BLOCKS];
};

/* A context that other threads may enter before its maker destroys it. */
struct shared_context {
    pthread_mutex_t lock;
    pthread_cond_t left;
    CUcontext context; /* NULL: no context to enter */
    unsigned guests;
};

struct worker {
    uint64_t random;
    unsigned number;
    struct place staying[STAYING];
};

static CUdevice devices[MOST_DEVICES];
static int device_count;
/* A reset takes the lock for writing, a use for reading. Waiting writers come first. */
static pthread_rwlock_t resets[] = {[0 ... MOST_DEVICES - 1] =
                                        PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP};
static struct shared_context shared_contexts[] = {
    [0 ... SHARED - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER, .left = PTHREAD_COND_INITIALIZER}};
static CUcontext staying[STAYING];
static struct {
    pthread_mutex_t lock;
    struct block block;
} gifts[] = {[0 ... GIFTS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static const struct block none;
static _Atomic uint32_t next_value = 1;
static _Atomic int64_t rounds_left;
static uint64_t this_seed;

/* ---- failures ---- */

/* Ends the process at once, because the other threads prove nothing after a wrong answer. */
static void broken(const char *what, long long code, const struct block *b) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&once);
    fprintf(stderr, "ctx_lifecycles: seed %llu: %s: %lld", (unsigned long long)this_seed, what,
            code);
    if (b)
        fprintf(stderr, " (a block of %zu bytes at %llx)", b->bytes,
                (unsigned long long)b->address);
    fputs("\n", stderr);
    _exit(1);
}

#define TRY(call) TRY_OF(call, NULL)
#define TRY_OF(call, block)                                                                        \
    do {                                                                                           \
        CUresult try_result = (call);                                                              \
        if (try_result != CUDA_SUCCESS)                                                            \
            broken(#call, (long long)try_result, block);                                           \
    } while (0)

/* ---- blocks ---- */

static uint64_t end_words(const struct block *b) {
    return b->bytes / 4 < END_WORDS ? b->bytes / 4 : END_WORDS;
}

static CUdeviceptr tail(const struct block *b) {
    return b->address + (b->bytes / 4 - end_words(b)) * 4;
}

static void fill(struct place *p, struct block *b) {
    CUdeviceptr ends[2] = {b->address, tail(b)};
    b->value = atomic_fetch_add(&next_value, 1);
    for (int i = 0; i < 2; i++)
        if (p->loaded)
            TRY_OF(launch_fill(&p->kernels, p->stream, ends[i], b->value, end_words(b)), b);
        else
            TRY_OF(cuMemsetD32Async(ends[i], b->value, end_words(b), p->stream), b);
    b->finished = false;
}

/* Submits a check of the block to its stream, after its fill. */
static void check_later(struct place *p, const struct block *b) {
    CUdeviceptr ends[2] = {b->address, tail(b)};
    for (int i = 0; i < 2 && p->loaded; i++)
        TRY_OF(launch_check(&p->kernels, p->stream, ends[i], b->value, end_words(b),
                            (CUdeviceptr)p->errors),
               b);
}

/* Checks a block by the CPU. Its work must have finished. */
static void check_now(const struct block *b) {
    uint32_t first = ~b->value, last = ~b->value;
    CUdeviceptr base = 0;
    size_t size = 0;
    TRY_OF(cuMemcpyDtoH(&first, b->address, 4), b);
    TRY_OF(cuMemcpyDtoH(&last, tail(b) + 4 * end_words(b) - 4, 4), b);
    if (first != b->value || last != b->value)
        broken("a wrong word", first != b->value ? first : last, b);
    TRY_OF(cuMemGetAddressRange(&base, &size, b->address + b->bytes / 2), b);
    if (base != b->address || size != b->bytes)
        broken("a wrong range", (long long)size, b);
}

static void finish_work(struct place *p) {
    TRY(cuStreamSynchronize(p->stream));
    for (int i = 0; i < BLOCKS; i++)
        p->blocks[i].finished = true;
    if (p->errors && *p->errors > 0)
        broken("words that a kernel found wrong", *p->errors, NULL);
}

static size_t draw_size(struct worker *me) {
    static const size_t sizes[] = {512,       4 * KIB, 5000,    64 * KIB, 200 * KIB,
                                   900 * KIB, MIB + 4, 2 * MIB, 3 * MIB,  5 * MIB};
    unsigned which = pick(&me->random, 24);
    return which == 23 ? MIB * (8 + pick(&me->random, 40)) : sizes[which % 10];
}

static void renew(struct worker *me, struct place *p, struct block *b) {
    b->bytes = draw_size(me);
    TRY_OF(cuMemAlloc(&b->address, b->bytes), b);
    fill(p, b);
}

static void give_up(struct block *b) {
    TRY_OF(cuMemFree(b->address), b);
    b->address = 0;
}

/* Exchanges a block (address 0: none) for the block that another thread put into this slot. */
static struct block exchange(unsigned at, struct block b) {
    pthread_mutex_lock(&gifts[at].lock);
    struct block there = gifts[at].block;
    gifts[at].block = b;
    pthread_mutex_unlock(&gifts[at].lock);
    return there;
}

/* Checks and frees a block of another thread, with any context current. The free waits for the work
 * of the block's own context; no other context's work uses the block. */
static void accept(struct block b) {
    if (b.address == 0)
        return;
    if (b.finished)
        check_now(&b);
    give_up(&b);
}

/* Makes some steps in the current context. Only contexts that stay pass blocks to other threads. */
static void work_in(struct worker *me, struct place *p, unsigned steps, bool stays) {
    while (steps-- > 0) {
        struct block *b = &p->blocks[pick(&me->random, BLOCKS)];
        unsigned what = pick(&me->random, 16);
        if (!b->address)
            renew(me, p, b);
        else if (what < 6)
            give_up(b);
        else if (what < 9)
            check_later(p, b), b->finished = false;
        else if (what < 10)
            check_later(p, b), give_up(b);
        else if (what < 11)
            fill(p, b);
        else if (what < 13 && b->finished)
            check_now(b);
        else if (what < 14)
            finish_work(p);
        else if (stays)
            accept(exchange(pick(&me->random, GIFTS), *b)), b->address = 0;
        else
            accept(exchange(pick(&me->random, GIFTS), none));
    }
}

/* ---- entering and leaving contexts ---- */

/* Begins to work in the current context. */
static void arrive(struct worker *me, struct place *p, bool kernels) {
    *p = (struct place){.loaded = kernels};
    TRY(cuCtxGetCurrent(&p->context));
    TRY(cuStreamCreate(&p->stream, pick(&me->random, 2) ? CU_STREAM_NON_BLOCKING : 0));
    if (kernels) {
        kernels_load(&p->kernels);
        TRY(cuMemAllocHost((void **)&p->errors, 4));
        *p->errors = 0;
    }
}

/* Leaves a context: frees all blocks, or leaves them and their work to the end of the context. */
static void depart(struct worker *me, struct place *p, bool ends) {
    bool tidy = !ends || pick(&me->random, 2);
    if (!ends || pick(&me->random, 2))
        finish_work(p);
    for (int i = 0; i < BLOCKS; i++)
        if (p->blocks[i].address && tidy)
            give_up(&p->blocks[i]);
    if (!tidy)
        return;
    TRY(cuStreamDestroy(p->stream));
    if (p->errors)
        TRY(cuMemFreeHost(p->errors));
    if (p->loaded)
        TRY(cuModuleUnload(p->kernels.module));
}

static int any_device(struct worker *me) {
    return (int)pick(&me->random, (unsigned)device_count);
}

/* ---- begin and end of contexts ---- */

static void share_context(struct shared_context *h, CUcontext context) {
    pthread_mutex_lock(&h->lock);
    if (!h->context)
        h->context = context;
    pthread_mutex_unlock(&h->lock);
}

static void unshare_context(struct shared_context *h, CUcontext context) {
    pthread_mutex_lock(&h->lock);
    if (h->context == context) {
        h->context = NULL;
        while (h->guests > 0)
            pthread_cond_wait(&h->left, &h->lock);
    }
    pthread_mutex_unlock(&h->lock);
}

static void own_context(struct worker *me) {
    struct shared_context *shared_context = &shared_contexts[pick(&me->random, SHARED)];
    CUcontext context, popped;
    struct place place;
    bool kernels = pick(&me->random, 3) == 0;
    TRY(cuCtxCreate_v2(&context, 0, devices[any_device(me)]));
    arrive(me, &place, kernels);
    share_context(shared_context, context);
    work_in(me, &place, 2 + pick(&me->random, 12), false);
    depart(me, &place, true);
    unshare_context(shared_context, context);
    if (pick(&me->random, 2))
        TRY(cuCtxPopCurrent(&popped));
    TRY(cuCtxDestroy(context));
}

static void enter_context(struct worker *me) {
    struct shared_context *h = &shared_contexts[pick(&me->random, SHARED)];
    struct place place;
    CUcontext context, popped;
    pthread_mutex_lock(&h->lock);
    context = h->context;
    h->guests += context != NULL;
    pthread_mutex_unlock(&h->lock);
    if (!context)
        return;
    TRY(cuCtxPushCurrent(context));
    arrive(me, &place, false);
    work_in(me, &place, 1 + pick(&me->random, 6), false);
    depart(me, &place, pick(&me->random, 2));
    TRY(cuCtxPopCurrent(&popped));
    pthread_mutex_lock(&h->lock);
    h->guests--;
    pthread_cond_broadcast(&h->left);
    pthread_mutex_unlock(&h->lock);
}

/* The last thread to release the context ends it; another thread may retain it at that very
 * moment. */
static void primary_context(struct worker *me) {
    int index = any_device(me);
    CUdevice device = devices[index];
    CUcontext context;
    struct place place;
    unsigned flags;
    int active = 0;
    pthread_rwlock_rdlock(&resets[index]);
    TRY(cuDevicePrimaryCtxRetain(&context, device));
    TRY(cuCtxSetCurrent(context));
    arrive(me, &place, pick(&me->random, 4) == 0);
    work_in(me, &place, 1 + pick(&me->random, 10), false);
    TRY(cuDevicePrimaryCtxGetState(device, &flags, &active));
    if (!active)
        broken("a retained context that is not active", index, NULL);
    depart(me, &place, pick(&me->random, 8) == 0);
    bool leave_current = pick(&me->random, 4) == 0;
    if (!leave_current)
        TRY(cuCtxSetCurrent(NULL));
    pthread_rwlock_unlock(&resets[index]);
    TRY(cuDevicePrimaryCtxRelease(device));
    if (leave_current)
        TRY(cuCtxSetCurrent(NULL));
}

static void reset(struct worker *me) {
    int index = any_device(me);
    CUdevice device = devices[index];
    CUcontext context;
    struct place place;
    bool retain = pick(&me->random, 2);
    pthread_rwlock_wrlock(&resets[index]);
    if (retain) {
        TRY(cuDevicePrimaryCtxRetain(&context, device));
        TRY(cuCtxSetCurrent(context));
        arrive(me, &place, false);
        work_in(me, &place, 1 + pick(&me->random, 6), false);
        depart(me, &place, true);
    }
    TRY(cuDevicePrimaryCtxReset(device));
    TRY(cuCtxSetCurrent(NULL));
    pthread_rwlock_unlock(&resets[index]);
    if (retain)
        TRY(cuDevicePrimaryCtxRelease(device));
}

/* Uses a green context, which may have the only or the last reference of the primary context. */
static void green_context(struct worker *me) {
    CUdevResource all;
    CUdevResourceDesc desc;
    CUgreenCtx green;
    CUcontext context;
    struct place place;
    int index = any_device(me);
    CUdevice device = devices[index];
    if (!cuGreenCtxCreate)
        return;
    TRY(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    TRY(cuDevResourceGenerateDesc(&desc, &all, 1));
    pthread_rwlock_rdlock(&resets[index]);
    TRY(cuGreenCtxCreate(&green, desc, device, CU_GREEN_CTX_DEFAULT_STREAM));
    TRY(cuCtxFromGreenCtx(&context, green));
    TRY(cuCtxSetCurrent(context));
    arrive(me, &place, false);
    work_in(me, &place, 1 + pick(&me->random, 6), false);
    depart(me, &place, false);
    TRY(cuCtxSetCurrent(NULL));
    TRY(cuGreenCtxDestroy(green));
    pthread_rwlock_unlock(&resets[index]);
}

static void stay(struct worker *me) {
    unsigned at = pick(&me->random, STAYING);
    struct place *place = &me->staying[at];
    TRY(cuCtxSetCurrent(staying[at]));
    if (!place->context)
        arrive(me, place, true);
    work_in(me, place, 4 + pick(&me->random, 20), true);
    TRY(cuCtxSetCurrent(NULL));
}

/* Uses memory of a graph. The driver hands out its address before it takes memory, and may reuse
 * an address of a context that has just ended. */
static void memory_of_a_graph(struct worker *me) {
    unsigned at = pick(&me->random, STAYING);
    CUdevice device = devices[at % (unsigned)device_count];
    CUDA_MEM_ALLOC_NODE_PARAMS memory = {
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
        .bytesize = draw_size(me)};
    struct block b = {.bytes = memory.bytesize};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    struct place place;
    TRY(cuCtxSetCurrent(staying[at]));
    arrive(me, &place, false);
    TRY(cuGraphCreate(&graph, 0));
    TRY(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &memory));
    TRY(cuGraphInstantiateWithFlags(&exec, graph, 0));
    TRY(cuGraphLaunch(exec, place.stream));
    b.address = memory.dptr;
    fill(&place, &b);
    finish_work(&place);
    check_now(&b);
    TRY_OF(cuMemFreeAsync(b.address, place.stream), &b);
    depart(me, &place, false);
    TRY(cuGraphExecDestroy(exec));
    TRY(cuGraphDestroy(graph));
    TRY(cuDeviceGraphMemTrim(device));
    TRY(cuCtxSetCurrent(NULL));
}

/* ---- rounds ---- */

static const struct kind {
    char letter;
    unsigned weight;
    void (*round)(struct worker *);
} kinds[] = {
    {'o', 30, own_context},       {'v', 15, enter_context}, {'p', 30, primary_context},
    {'g', 10, green_context},     {'r', 5, reset},          {'s', 10, stay},
    {'n', 10, memory_of_a_graph},
};
static const char *kinds_wanted = "ovpgrsn";

static unsigned weight(size_t i) {
    return strchr(kinds_wanted, kinds[i].letter) ? kinds[i].weight : 0;
}

static void one_round(struct worker *me) {
    unsigned total = 0;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        total += weight(i);
    if (total == 0 || (me->number < STAYERS && pick(&me->random, 100) < 85)) {
        stay(me);
        return;
    }
    unsigned what = pick(&me->random, total);
    size_t i = 0;
    for (; what >= weight(i); i++)
        what -= weight(i);
    kinds[i].round(me);
}

static void *run(void *argument) {
    struct worker *me = argument;
    while (atomic_fetch_sub(&rounds_left, 1) > 0)
        one_round(me);
    for (int i = 0; i < STAYING; i++) {
        if (!me->staying[i].context)
            continue;
        TRY(cuCtxSetCurrent(staying[i]));
        depart(me, &me->staying[i], false);
    }
    TRY(cuCtxSetCurrent(NULL));
    return NULL;
}

static void run_seed(uint64_t seed, int64_t rounds, unsigned count) {
    static struct worker workers[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    uint64_t random = seed;
    this_seed = seed;
    if (sim_set_seed) {
        sim_set_seed(seed);
        sim_set_eager(20 + pick(&random, 60));
    }
    for (int i = 0; i < STAYING; i++) {
        TRY(cuCtxCreate_v2(&staying[i], 0, devices[i % device_count]));
        TRY(cuCtxSetCurrent(NULL));
    }
    rounds_left = rounds;
    for (unsigned i = 0; i < count; i++) {
        workers[i] = (struct worker){.random = draw(&random), .number = i};
        pthread_create(&threads[i], NULL, run, &workers[i]);
    }
    for (unsigned i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
    TRY(cuCtxSetCurrent(staying[0]));
    for (unsigned i = 0; i < GIFTS; i++)
        accept(exchange(i, none));
    for (int i = 0; i < STAYING; i++)
        TRY(cuCtxDestroy(staying[i]));
}

int main(int argc, char **argv) {
    int64_t rounds = argc > 1 ? strtoll(argv[1], NULL, 0) : 500;
    uint64_t seeds = argc > 2 ? strtoull(argv[2], NULL, 0) : 20;
    uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
    unsigned threads = argc > 4 ? (unsigned)strtoul(argv[4], NULL, 0) : 6;
    if (argc > 5)
        kinds_wanted = argv[5];
    if (threads < 1 || threads > MOST_THREADS)
        threads = MOST_THREADS;
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&device_count));
    if (device_count > MOST_DEVICES)
        device_count = MOST_DEVICES;
    for (int i = 0; i < device_count; i++)
        CHECK(cuDeviceGet(&devices[i], i));
    for (uint64_t i = 0; i < seeds; i++)
        run_seed(first + i, rounds, threads);
    printf("%llu seeds of %lld rounds, ok\n", (unsigned long long)seeds, (long long)rounds);
    return 0;
}
