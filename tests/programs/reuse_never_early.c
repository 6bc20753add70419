/*
 * Tests law 2: no work submitted before a free touches the memory after it is handed out again.
 *
 * Runs random schedules. Threads allocate, let streams of every kind write and check patterns,
 * copy, pass blocks on, and free without a wait. A schedule is a correct CUDA program: its stream
 * or events order the work on a block, and no work for a block is submitted after its free.
 * Natively a free waits, and no check fails. If the library hands a block out too early, a late
 * write or check of the old work fails:
 *
 *      stream A   fill(old)......check(old)            both still queued when old is freed
 *      stream B                            fill(new)...check(new)      same memory: one check fails
 *
 * One word in every 512 bytes of a block is written and checked: blocks of the pool cannot overlap
 * by less. The simulator's scheduler runs work late, and its memory reports accesses to memory that
 * the driver has got back. On a GPU the kernels below start with a delay.
 *
 *   reuse_never_early SCHEDULES SEED THREADS [EAGER]
 *
 * THREADS: the most threads, 1 to 4; with 1 a run repeats exactly. EAGER: the least per cent of
 * calls that run queued work; more if the library waits by queries.
 */
#include "program.h"
#include "sim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#define UNIT 512
#define SLOTS 20
#define STREAMS 7
#define WORLDS 2

struct block {
    pthread_mutex_t lock;
    CUdeviceptr address; /* 0: a free slot */
    size_t bytes;
    uint32_t value;
    unsigned stream; /* stream of its latest work */
    uint64_t thread; /* thread of a per-thread stream */
    CUevent event;   /* recorded behind that work */
};

/* A context with its streams and blocks. */
struct world {
    CUcontext context;
    CUfunction fill, check;
    CUstream streams[STREAMS];
    unsigned stream_count;
    CUdeviceptr errors; /* pinned: one word that the check kernels add to */
    uint32_t *error_count;
    struct block blocks[SLOTS];
};

/* A function of the simulator; NULL on a GPU. */
#pragma weak sim_accessible
#pragma weak sim_register_kernel
#pragma weak sim_set_eager
#pragma weak sim_set_seed
#pragma weak sim_step

/* The version that every driver has. cuda.h declares only the newest one. */
CUresult CUDAAPI cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);

static struct world worlds[WORLDS];
static unsigned world_count;
static _Atomic uint32_t next_value = 1;
static _Atomic uint64_t refused;
static bool failed;
static bool can_capture;
static unsigned least_eager = 3; /* percent of the calls that run some work */
static uint64_t this_seed;

/* The values that a schedule draws once. */
static struct {
    size_t sizes[4];
    unsigned steps, threads, free_weight, async_weight, sync_weight, copy_weight;
    bool captures;
} plan;

struct worker {
    uint64_t random, number;
    struct world *world;
};

/* ---- kernels ---- */

/*
 * For a GPU. Made by nvcc -ptx -arch=compute_75 from:
 *
 *   #define EACH(i) i = threadIdx.x; i < (bytes + 511) / 512; i += blockDim.x
 *   late(value)                          globaltimer until value * 2654435761 >> 25 us have passed
 *   laws_fill(to, bytes, value, bad)     late(value); for (EACH(i)) to[i * 512] = value;
 *   laws_check(from, bytes, value, bad)  late(value); for (EACH(i)) if (from[i * 512] != value)
 *                                        *bad = 1;
 */
static const char laws_ptx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n.visible .entry laws_fill(\n"
    ".param .u64 laws_fill_param_0,\n.param .u64 laws_fill_param_1,\n"
    ".param .u32 laws_fill_param_2,\n.param .u64 laws_fill_param_3\n)\n{\n.reg .pred %p<4>;\n"
    ".reg .b32 %r<7>;\n.reg .b64 %rd<18>;\nld.param.u64 %rd11, [laws_fill_param_0];\n"
    "ld.param.u64 %rd9, [laws_fill_param_1];\nld.param.u32 %r1, [laws_fill_param_2];\n"
    "cvta.to.global.u64 %rd1, %rd11;\nmul.lo.s32 %r2, %r1, -1640531535;\n"
    "shr.u32 %r3, %r2, 25;\nmov.u64 %rd10, %globaltimer;\nmul.lo.s32 %r4, %r3, 1000;\n"
    "cvt.u64.u32 %rd3, %r4;\n$L__BB1_1:\nmov.u64 %rd12, %globaltimer;\n"
    "sub.s64 %rd13, %rd12, %rd10;\nsetp.lt.u64 %p1, %rd13, %rd3;\n@%p1 bra $L__BB1_1;\n"
    "mov.u32 %r5, %tid.x;\ncvt.u64.u32 %rd17, %r5;\nadd.s64 %rd14, %rd9, 511;\n"
    "shr.u64 %rd5, %rd14, 9;\nsetp.le.u64 %p2, %rd5, %rd17;\n@%p2 bra $L__BB1_5;\n"
    "mov.u32 %r6, %ntid.x;\ncvt.u64.u32 %rd6, %r6;\n$L__BB1_4:\nshl.b64 %rd15, %rd17, 9;\n"
    "add.s64 %rd16, %rd1, %rd15;\nst.volatile.global.u32 [%rd16], %r1;\n"
    "add.s64 %rd17, %rd17, %rd6;\nsetp.lt.u64 %p3, %rd17, %rd5;\n@%p3 bra $L__BB1_4;\n"
    "$L__BB1_5:\nret;\n}\n.visible .entry laws_check(\n.param .u64 laws_check_param_0,\n"
    ".param .u64 laws_check_param_1,\n.param .u32 laws_check_param_2,\n"
    ".param .u64 laws_check_param_3\n)\n{\n.reg .pred %p<5>;\n.reg .b32 %r<9>;\n"
    ".reg .b64 %rd<20>;\nld.param.u64 %rd12, [laws_check_param_0];\n"
    "ld.param.u64 %rd10, [laws_check_param_1];\nld.param.u32 %r1, [laws_check_param_2];\n"
    "ld.param.u64 %rd13, [laws_check_param_3];\ncvta.to.global.u64 %rd1, %rd13;\n"
    "cvta.to.global.u64 %rd2, %rd12;\nmul.lo.s32 %r2, %r1, -1640531535;\n"
    "shr.u32 %r3, %r2, 25;\nmov.u64 %rd11, %globaltimer;\nmul.lo.s32 %r4, %r3, 1000;\n"
    "cvt.u64.u32 %rd4, %r4;\n$L__BB2_1:\nmov.u64 %rd14, %globaltimer;\n"
    "sub.s64 %rd15, %rd14, %rd11;\nsetp.lt.u64 %p1, %rd15, %rd4;\n@%p1 bra $L__BB2_1;\n"
    "mov.u32 %r5, %tid.x;\ncvt.u64.u32 %rd19, %r5;\nadd.s64 %rd16, %rd10, 511;\n"
    "shr.u64 %rd6, %rd16, 9;\nsetp.le.u64 %p2, %rd6, %rd19;\n@%p2 bra $L__BB2_7;\n"
    "mov.u32 %r6, %ntid.x;\ncvt.u64.u32 %rd7, %r6;\n$L__BB2_4:\nshl.b64 %rd17, %rd19, 9;\n"
    "add.s64 %rd18, %rd2, %rd17;\nld.volatile.global.u32 %r7, [%rd18];\n"
    "setp.eq.s32 %p3, %r7, %r1;\n@%p3 bra $L__BB2_6;\nmov.u32 %r8, 1;\n"
    "st.volatile.global.u32 [%rd1], %r8;\n$L__BB2_6:\nadd.s64 %rd19, %rd19, %rd7;\n"
    "setp.lt.u64 %p4, %rd19, %rd6;\n@%p4 bra $L__BB2_4;\n$L__BB2_7:\nret;\n}\n";

static uint64_t piece(struct sim_launch *l, uint64_t units, uint32_t value) {
    uint64_t rest = units - l->progress;
    uint64_t state = value * 2654435761u + l->progress;
    return rest > 1 && draw(&state) % 3 == 0 ? l->progress + 1 + draw(&state) % (rest - 1) : units;
}

static int fill_kernel(struct sim_launch *l, void **p) {
    CUdeviceptr to = *(CUdeviceptr *)p[0];
    uint64_t bytes = *(uint64_t *)p[1], units = (bytes + UNIT - 1) / UNIT;
    uint32_t value = *(uint32_t *)p[2];
    if (!sim_accessible(l, to, bytes))
        return SIM_FAULT;
    uint64_t end = piece(l, units, value);
    for (; l->progress < end; l->progress++)
        *(uint32_t *)(to + l->progress * UNIT) = value;
    return end == units ? SIM_DONE : SIM_MORE;
}

static int check_kernel(struct sim_launch *l, void **p) {
    CUdeviceptr from = *(CUdeviceptr *)p[0];
    uint64_t bytes = *(uint64_t *)p[1], units = (bytes + UNIT - 1) / UNIT;
    uint32_t value = *(uint32_t *)p[2];
    if (!sim_accessible(l, from, bytes))
        return SIM_FAULT;
    uint64_t end = piece(l, units, value);
    for (; l->progress < end; l->progress++)
        if (*(uint32_t *)(from + l->progress * UNIT) != value)
            __atomic_fetch_add(*(uint32_t **)p[3], 1, __ATOMIC_SEQ_CST);
    return end == units ? SIM_DONE : SIM_MORE;
}

static void run_kernel(CUfunction kernel, struct world *w, struct block *b, CUstream stream) {
    void *params[] = {&b->address, &b->bytes, &b->value, &w->errors};
    CHECK(launch(kernel, stream, 128, params));
}

/* ---- a block's work, in order ---- */

/* Work on the block may now be submitted to the stream of this number. */
static CUstream order(struct worker *me, struct block *b, unsigned stream) {
    CUstream handle = me->world->streams[stream];
    bool same = b->stream == stream && (stream != 1 || b->thread == me->number);
    if (b->event && !same)
        CHECK(cuStreamWaitEvent(handle, b->event, 0));
    return handle;
}

static void mark(struct worker *me, struct block *b, unsigned stream) {
    if (!b->event)
        CHECK(cuEventCreate(&b->event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventRecord(b->event, me->world->streams[stream]));
    b->stream = stream;
    b->thread = me->number;
}

static void verify_on_host(struct block *b) {
    uint32_t first = 0, last = 0;
    CHECK(cuMemcpyDtoH(&first, b->address, 4));
    CHECK(cuMemcpyDtoH(&last, b->address + (b->bytes - 1) / UNIT * UNIT, 4));
    if (first != b->value || last != b->value) {
        fprintf(stderr,
                "reuse_never_early: seed %llu: a block of %zu bytes holds %08x..%08x for %08x\n",
                (unsigned long long)this_seed, b->bytes, first, last, b->value);
        failed = true;
    }
}

/* ---- steps ---- */

/* Draws a slot with (`taken`) or without a block. Returns it locked; NULL: none was found. */
static struct block *lock_slot(struct worker *me, bool taken) {
    unsigned at = pick(&me->random, SLOTS);
    for (unsigned i = 0; i < SLOTS; i++) {
        struct block *b = &me->world->blocks[(at + i) % SLOTS];
        if (pthread_mutex_trylock(&b->lock) != 0)
            continue;
        if ((b->address != 0) == taken)
            return b;
        pthread_mutex_unlock(&b->lock);
    }
    return NULL;
}

static void renew(struct worker *me, struct block *b) {
    unsigned stream = pick(&me->random, me->world->stream_count);
    b->value = atomic_fetch_add(&next_value, 1);
    run_kernel(me->world->fill, me->world, b, order(me, b, stream));
    mark(me, b, stream);
}

static void step_alloc(struct worker *me) {
    struct block *b = lock_slot(me, false);
    if (!b)
        return;
    size_t bytes = plan.sizes[pick(&me->random, 4)];
    if (pick(&me->random, 8) == 0)
        bytes = 4 + draw(&me->random) % bytes / 4 * 4;
    CUresult r = cuMemAlloc(&b->address, bytes);
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        b->address = 0;
        refused++;
    } else {
        CHECK(r);
        b->bytes = bytes;
        b->stream = STREAMS;
        if (b->event)
            CHECK(cuEventDestroy(b->event));
        b->event = NULL;
        renew(me, b);
    }
    pthread_mutex_unlock(&b->lock);
}

static void step_check(struct worker *me, struct block *b) {
    unsigned stream = pick(&me->random, me->world->stream_count);
    run_kernel(me->world->check, me->world, b, order(me, b, stream));
    mark(me, b, stream);
}

static void step_use(struct worker *me) {
    struct block *b = lock_slot(me, true);
    if (!b)
        return;
    if (pick(&me->random, 100) < plan.copy_weight && b->bytes <= 65536) {
        static const uint32_t zeros[16384];
        uint32_t value = atomic_fetch_add(&next_value, 1);
        unsigned stream = pick(&me->random, me->world->stream_count);
        order(me, b, pick(&me->random, 2) ? 0 : stream);
        if (b->stream != 0)
            CHECK(cuStreamWaitEvent(CU_STREAM_LEGACY, b->event, 0));
        CHECK(cuMemcpyHtoD(b->address, zeros, b->bytes));
        CHECK(cuMemsetD32Async(b->address, value, b->bytes / 4, CU_STREAM_LEGACY));
        b->value = value;
        mark(me, b, 0);
        if (pick(&me->random, 4) == 0)
            verify_on_host(b);
    } else if (pick(&me->random, 3) == 0) {
        renew(me, b);
    } else {
        step_check(me, b);
    }
    pthread_mutex_unlock(&b->lock);
}

static void step_free(struct worker *me) {
    struct block *b = lock_slot(me, true);
    if (!b)
        return;
    if (pick(&me->random, 3) != 0)
        step_check(me, b);
    if (pick(&me->random, 100) < plan.async_weight) {
        unsigned stream = pick(&me->random, me->world->stream_count);
        CHECK(cuMemFreeAsync(b->address, order(me, b, stream)));
    } else {
        CHECK(cuMemFree(b->address));
    }
    b->address = 0;
    pthread_mutex_unlock(&b->lock);
}

static void step_sync(struct worker *me) {
    switch (plan.captures ? 1 + pick(&me->random, 2) : pick(&me->random, 3)) {
    case 0: /* would invalidate any capture of the context */
        CHECK(cuCtxSynchronize());
        break;
    case 1:
        CHECK(cuStreamSynchronize(me->world->streams[pick(&me->random, me->world->stream_count)]));
        break;
    default:
        if (sim_step)
            sim_step(pick(&me->random, 20));
        else
            usleep(pick(&me->random, 20));
    }
}

/* Captures a graph that writes a block, while other threads allocate and free. */
static void step_graph(struct worker *me) {
    struct block *b = lock_slot(me, true);
    if (!b)
        return;
    CUgraph graph;
    CUgraphExec exec;
    CUstream own;
    uint32_t value = atomic_fetch_add(&next_value, 1);
    CHECK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamWaitEvent(own, b->event, 0));
    CHECK(cuStreamBeginCapture(own, CU_STREAM_CAPTURE_MODE_RELAXED));
    b->value = value;
    run_kernel(me->world->fill, me->world, b, own);
    for (unsigned i = pick(&me->random, 6); i > 0; i--) {
        step_alloc(me);
        step_free(me);
    }
    run_kernel(me->world->check, me->world, b, own);
    CHECK(cuStreamEndCapture(own, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cuGraphLaunch(exec, own));
    CHECK(cuEventRecord(b->event, own));
    b->stream = STREAMS;
    CHECK(cuGraphExecDestroy(exec));
    CHECK(cuGraphDestroy(graph));
    CHECK(cuStreamDestroy(own));
    pthread_mutex_unlock(&b->lock);
}

static void *work(void *argument) {
    struct worker *me = argument;
    CHECK(cuCtxSetCurrent(me->world->context));
    for (unsigned i = 0; i < plan.steps; i++) {
        unsigned what = pick(&me->random, 100);
        if (what < 36)
            step_alloc(me);
        else if (what < 36 + plan.free_weight)
            step_free(me);
        else if (what < 36 + plan.free_weight + plan.sync_weight)
            step_sync(me);
        else if (what == 99 && plan.captures)
            step_graph(me);
        else
            step_use(me);
    }
    return NULL;
}

/* ---- schedules ---- */

static void world_begin(struct world *w, uint64_t *random) {
    CUmodule module;
    CUdevice device;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate_v2(&w->context, 0, device));
    CHECK(cuModuleLoadData(&module, laws_ptx));
    CHECK(cuModuleGetFunction(&w->fill, module, "laws_fill"));
    CHECK(cuModuleGetFunction(&w->check, module, "laws_check"));
    CHECK(cuMemAllocHost((void **)&w->error_count, 4));
    *w->error_count = 0;
    w->errors = (CUdeviceptr)w->error_count;
    w->streams[0] = CU_STREAM_LEGACY;
    w->streams[1] = CU_STREAM_PER_THREAD;
    w->stream_count = 3 + pick(random, STREAMS - 2);
    for (unsigned i = 2; i < w->stream_count; i++)
        CHECK(cuStreamCreate(&w->streams[i], pick(random, 2) ? CU_STREAM_NON_BLOCKING : 0));
}

/* Some worlds are left tidily, others with all their memory and work. */
static void world_end(struct world *w, uint64_t *random) {
    CHECK(cuCtxSetCurrent(w->context));
    bool tidy = pick(random, 2);
    for (unsigned i = 0; i < SLOTS; i++) {
        struct block *b = &w->blocks[i];
        if (b->address && tidy)
            CHECK(cuMemFree(b->address));
        b->address = 0;
        b->event = NULL;
    }
    if (tidy)
        CHECK(cuCtxSynchronize());
    CHECK(cuCtxDestroy(w->context));
    w->context = NULL;
}

static void make_plan(uint64_t *random, unsigned most_threads) {
    static const size_t small[] = {4, 512, 1000, 4096, 20000, 65536, 200000};
    static const size_t large[] = {1 << 20, (1 << 20) + 4, 3 << 19, 2 << 20, 3 << 20};
    unsigned few = pick(random, 3); /* 0: one size, reused at once; 2: all kinds */
    for (unsigned i = 0; i < 4; i++) {
        bool big = pick(random, 7) == 0;
        plan.sizes[i] = i > 0 && few == 0 ? plan.sizes[0]
                        : big             ? large[pick(random, 5)]
                                          : small[pick(random, 7)];
    }
    plan.steps = 30 + pick(random, 90);
    plan.threads = pick(random, 2) ? 1 : 1 + pick(random, most_threads);
    plan.free_weight = 20 + pick(random, 20);
    plan.sync_weight = pick(random, 3) == 0 ? 3 : 0;
    plan.async_weight = pick(random, 3) == 0 && can_capture ? 20 : 0;
    plan.copy_weight = pick(random, 3) == 0 ? 15 : 0;
    plan.captures = pick(random, 4) == 0 && can_capture;
}

static void look(struct world *w) {
    CHECK(cuCtxSetCurrent(w->context));
    CHECK(cuCtxSynchronize());
    if (*w->error_count > 0) {
        fprintf(stderr, "reuse_never_early: seed %llu: %u words were not what was written\n",
                (unsigned long long)this_seed, *w->error_count);
        failed = true;
    }
    for (unsigned i = 0; i < SLOTS; i++)
        if (w->blocks[i].address)
            verify_on_host(&w->blocks[i]);
}

static void schedule(uint64_t seed, unsigned most_threads) {
    struct worker workers[4];
    pthread_t threads[4];
    uint64_t random = seed;
    this_seed = seed;
    make_plan(&random, most_threads);
    unsigned eager = least_eager + (pick(&random, 3) == 0 ? 0 : pick(&random, 60));
    if (sim_set_seed) {
        sim_set_seed(seed);
        sim_set_eager(eager);
    }
    while (world_count > 0 && pick(&random, 24) == 0)
        world_end(&worlds[--world_count], &random);
    if (world_count == 0 || (world_count < WORLDS && pick(&random, 48) == 0))
        world_begin(&worlds[world_count++], &random);
    for (unsigned i = 0; i < plan.threads; i++)
        workers[i] = (struct worker){draw(&random), seed * 8 + i, &worlds[i % world_count]};
    for (unsigned i = 1; i < plan.threads; i++)
        pthread_create(&threads[i], NULL, work, &workers[i]);
    work(&workers[0]);
    for (unsigned i = 1; i < plan.threads; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < world_count; i++)
        look(&worlds[i]);
}

static bool captures_work(void) {
    CUstreamCaptureStatus status;
    CUresult r = cuStreamIsCapturing(CU_STREAM_PER_THREAD, &status);
    return r != CUDA_ERROR_NOT_SUPPORTED;
}

int main(int argc, char **argv) {
    uint64_t schedules = argc > 1 ? strtoull(argv[1], NULL, 0) : 100, done = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
    unsigned threads = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 0) : 4;
    if (argc > 4)
        least_eager = (unsigned)strtoul(argv[4], NULL, 0);
    CHECK(cuInit(0));
    can_capture = captures_work();
    if (sim_register_kernel) {
        sim_register_kernel("laws_fill", fill_kernel, 4, (size_t[]){8, 8, 4, 8});
        sim_register_kernel("laws_check", check_kernel, 4, (size_t[]){8, 8, 4, 8});
    }
    for (unsigned w = 0; w < WORLDS; w++)
        for (unsigned i = 0; i < SLOTS; i++)
            pthread_mutex_init(&worlds[w].blocks[i].lock, NULL);
    while (done < schedules && !failed)
        schedule(seed + done++, threads);
    printf("%llu schedules, %s\n", (unsigned long long)done, failed ? "broken" : "ok");
    return failed;
}
