/*
 * Tests law 3: a program that ends natively does not hang under the library.
 *
 * The programs have kernels that spin on a flag which later work sets, as persistent kernels and
 * collectives do. If new work waits for such a kernel, or the CPU waits for it, the program hangs:
 * the setter queues behind its own spinner. A free may wait so, because it does natively; an
 * allocation may not.
 *
 *   reuse_never_hanging NAME                     one of the scenes below; "all": one after another
 *   reuse_never_hanging random COUNT SEED N      random programs of N threads
 *
 * Random programs end natively by construction. A setter goes only to a stream without an open
 * spinner, that is, one whose setter is not yet launched. There are no frees and no waits for the
 * whole context while a spinner is open. The programs run on a GPU too, with
 * CUDA_DEVICE_MAX_CONNECTIONS=32: two of the 16 streams must not share a hardware queue, because
 * work behind a spinner in one of them would delay the other.
 */
#include "program.h"

#include "gpucache.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>

#define MIB ((size_t)1 << 20)
#define FLAGS 65536

static CUcontext context;
static struct kernels kernels;
static CUdeviceptr flags, errors;
static CUstream streams[16];

/* Returns a flag that no kernel has used. A spinner could miss a value that is set and reset. */
static CUdeviceptr new_flag(void) {
    static unsigned used;
    unsigned at = __atomic_fetch_add(&used, 1, __ATOMIC_RELAXED);
    if (at >= FLAGS) {
        fprintf(stderr, "reuse_never_hanging: out of flags\n");
        exit(1);
    }
    return flags + 4 * (CUdeviceptr)at;
}

/* Loads all code before the first kernel spins, because loading waits for the device. */
static void set_up(void) {
    context = begin();
    kernels_load(&kernels);
    CHECK(cuMemAlloc(&flags, FLAGS * 4));
    CHECK(cuMemAlloc(&errors, 4));
    CHECK(cuMemsetD32(flags, 0, FLAGS));
    CHECK(cuMemsetD32(errors, 0, 1));
    for (unsigned i = 0; i < 16; i++)
        CHECK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    CUdeviceptr flag = new_flag();
    CHECK(cuMemcpyHtoD(flag, &(uint32_t){0}, 4));
    CHECK(launch_fill(&kernels, streams[0], flag, 0, 1));
    CHECK(launch_check(&kernels, streams[0], flag, 0, 1, errors));
    CHECK(launch_set(&kernels, streams[0], flag, 1));
    CHECK(launch_spin(&kernels, streams[0], flag, 1));
    CHECK(cuCtxSynchronize());
}

static CUdeviceptr take(size_t bytes) {
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, bytes));
    return p;
}

static void fill(CUdeviceptr p, size_t bytes, unsigned stream) {
    CHECK(launch_fill(&kernels, streams[stream], p, (uint32_t)p, bytes / 4));
    CHECK(launch_check(&kernels, streams[stream], p, (uint32_t)p, bytes / 4, errors));
}

static void finish(void) {
    uint32_t wrong = 0;
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(&wrong, errors, 4));
    if (wrong) {
        fprintf(stderr, "reuse_never_hanging: %u words were not what was written\n", wrong);
        exit(1);
    }
}

/* ---- scenes ---- */

/* The sequences of docs/cuda-facts.md, "When a wait can hang a program", for small and large
 * blocks. */
static void free_spin_alloc_set(void) {
    static const size_t sizes[] = {512, 100000, MIB, 3 * MIB, 20 * MIB};
    for (unsigned i = 0; i < 5; i++) {
        CUdeviceptr flag = new_flag(), p = take(sizes[i]);
        fill(p, 512, 0);
        CHECK(cuMemFree(p));
        CHECK(launch_spin(&kernels, streams[1], flag, 1));
        p = take(sizes[i]);
        fill(p, 512, 2);
        CHECK(launch_set(&kernels, streams[3], flag, 1));
        CHECK(cuMemFree(p));
    }
}

/* Makes enough frees for pressure and events recorded in frees, then does the same as above. */
static void many_frees_spin_alloc_set(void) {
    CUdeviceptr p[200], flag = new_flag();
    for (unsigned round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 200; i++) {
            p[i] = take(i % 10 ? 4096 + i * 512 : 2 * MIB);
            fill(p[i], 512, i % 4);
        }
        for (unsigned i = 0; i < 200; i++)
            CHECK(cuMemFree(p[i]));
    }
    CHECK(launch_spin(&kernels, streams[1], flag, 1));
    for (unsigned i = 0; i < 200; i++) {
        p[i] = take(i % 10 ? 4096 + i * 512 : 2 * MIB);
        fill(p[i], 512, 2 + i % 4);
    }
    CHECK(launch_set(&kernels, streams[6], flag, 1));
    for (unsigned i = 0; i < 200; i++)
        CHECK(cuMemFree(p[i]));
}

/* A kernel runs until the program stops it, while other calls continue. */
static void persistent(void) {
    CUdeviceptr stop = new_flag(), p[64] = {0};
    for (unsigned i = 0; i < 64; i++) {
        p[i] = take((i % 8 + 1) * 65536);
        fill(p[i], 1024, i % 3);
    }
    for (unsigned i = 0; i < 64; i++)
        CHECK(cuMemFree(p[i]));
    CHECK(launch_spin(&kernels, streams[8], stop, 1));
    for (unsigned i = 0; i < 64; i++) {
        p[i] = take((i % 8 + 1) * 65536);
        fill(p[i], 1024, i % 3);
        if (i % 16 == 0)
            CHECK(cuStreamSynchronize(streams[i % 3]));
    }
    size_t free_bytes, total, bytes;
    CUdeviceptr base;
    CHECK(cuMemGetInfo(&free_bytes, &total));
    CHECK(cuMemGetAddressRange(&base, &bytes, p[5]));
    CHECK(cuMemcpyHtoD(p[6], &base, sizeof base));
    CHECK(launch_set(&kernels, streams[9], stop, 1));
    for (unsigned i = 0; i < 64; i++)
        CHECK(cuMemFree(p[i]));
}

/* The setter is submitted before the free: natively the free waits for both. */
static void spin_set_free_alloc(void) {
    for (unsigned i = 0; i < 40; i++) {
        CUdeviceptr flag = new_flag(), p = take(i % 2 ? 4096 : 2 * MIB);
        fill(p, 512, 0);
        CHECK(launch_spin(&kernels, streams[1], flag, 1));
        CHECK(launch_set(&kernels, streams[2], flag, 1));
        CHECK(cuMemFree(p));
        p = take(i % 2 ? 4096 : 2 * MIB);
        fill(p, 512, 3);
        CHECK(cuMemFree(p));
    }
}

static pthread_barrier_t meet;

static void *set_in_thread(void *flag) {
    CHECK(cuCtxSetCurrent(context));
    CUdeviceptr p = take(8192);
    fill(p, 8192, 5);
    CHECK(cuMemFree(p));
    pthread_barrier_wait(&meet); /* main launches its spinner between the two */
    pthread_barrier_wait(&meet);
    p = take(8192);
    fill(p, 8192, 5);
    p = take(2 * MIB);
    CHECK(launch_set(&kernels, streams[6], *(CUdeviceptr *)flag, 1));
    return NULL;
}

/* Spinner of one thread, setter of another; both allocate in between, and the thread ends. */
static void two_threads(void) {
    pthread_t thread;
    CUdeviceptr flag = new_flag(), p = take(2 * MIB);
    fill(p, 512, 0);
    CHECK(cuMemFree(p));
    pthread_barrier_init(&meet, NULL, 2);
    pthread_create(&thread, NULL, set_in_thread, &flag);
    pthread_barrier_wait(&meet);
    CHECK(launch_spin(&kernels, streams[4], flag, 1));
    p = take(2 * MIB);
    pthread_barrier_wait(&meet);
    fill(take(8192), 8192, 1);
    pthread_join(thread, NULL);
    CHECK(cuMemFree(p));
}

static void *alloc_and_end(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet);
    return unused;
}

static void *cache_and_end(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < 100; i++)
        CHECK(cuMemFree(take(512 * (i + 1))));
    return alloc_and_end(unused);
}

/* A thread ends with freed memory of its own while a kernel spins. */
static void thread_ends(void) {
    pthread_t thread;
    CUdeviceptr flag = new_flag();
    pthread_barrier_init(&meet, NULL, 2);
    pthread_create(&thread, NULL, cache_and_end, NULL);
    pthread_barrier_wait(&meet);
    CHECK(launch_spin(&kernels, streams[4], flag, 1));
    pthread_barrier_wait(&meet);
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < 100; i++)
        fill(take(512 * (i + 1)), 512, 1);
    CHECK(launch_set(&kernels, streams[6], flag, 1));
}

/* Frees of another context do not wait for this context's kernels. Reuse of their memory must not
 * wait either. */
static void other_context(void) {
    CUcontext other, popped;
    CUdeviceptr flag = new_flag(), q;
    CHECK(cuCtxCreate_v2(&other, 0, 0));
    q = take(2 * MIB); /* the first allocation loads code */
    CHECK(cuMemFree(q));
    CHECK(cuCtxSetCurrent(context));
    CHECK(launch_spin(&kernels, streams[4], flag, 1));
    CHECK(cuCtxPushCurrent(other));
    for (unsigned i = 0; i < 60; i++) {
        q = take(i % 2 ? 4096 : 2 * MIB);
        CHECK(cuMemFree(q));
    }
    CHECK(cuCtxPopCurrent(&popped));
    CHECK(launch_set(&kernels, streams[6], flag, 1));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxDestroy(other));
    CHECK(cuCtxSetCurrent(context));
}

/* A free in the order of a stream waits for that stream alone. */
static void free_async(void) {
    CUdeviceptr flag = new_flag(), p = take(2 * MIB), q = take(4096);
    CHECK(launch_spin(&kernels, streams[1], flag, 1));
    fill(p, 512, 2);
    CHECK(cuMemFreeAsync(p, streams[2]));
    CHECK(cuMemFreeAsync(q, streams[1])); /* behind the spinner */
    p = take(2 * MIB);
    fill(p, 512, 3);
    q = take(4096);
    fill(q, 512, 3);
    CHECK(cuStreamSynchronize(streams[3]));
    CHECK(launch_set(&kernels, streams[6], flag, 1));
    CHECK(cuMemFree(p));
    CHECK(cuMemFree(q));
}

typedef CUresult context_event(CUcontext, CUevent);

/*
 * The program makes a barrier of its own, as early as possible. A barrier waits for every earlier
 * record, also for records that allocations make in that time.
 */
static void own_barrier(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    context_event *record = (context_event *)dlsym(driver, "cuCtxRecordEvent");
    context_event *wait = (context_event *)dlsym(driver, "cuCtxWaitEvent");
    CUevent event;
    if (!record || !wait)
        return; /* a driver before 12.5 */
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < 8; i++) {
        size_t bytes = i % 2 ? 4096 : 2 * MIB;
        CUdeviceptr flag = new_flag(), p = take(bytes), q;
        fill(p, 512, 0);
        CHECK(record(context, event));
        CHECK(cuMemFree(p));
        CHECK(launch_spin(&kernels, streams[1], flag, 1));
        p = take(bytes);
        q = take(bytes);
        CHECK(wait(context, event));
        fill(p, 512, 2);
        CHECK(launch_set(&kernels, streams[3], flag, 1));
        CHECK(cuMemFree(p));
        CHECK(cuMemFree(q));
    }
    CHECK(cuEventDestroy(event));
    CHECK(cuCtxSynchronize());
}

/* Records an event of the program behind a spinner. No barrier of the library may wait for that
 * record. */
static void own_record(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    context_event *record = (context_event *)dlsym(driver, "cuCtxRecordEvent");
    CUevent event;
    if (!record)
        return;
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < 8; i++) {
        CUdeviceptr flag = new_flag(), p[3];
        for (unsigned k = 0; k < 3; k++) {
            p[k] = take(20 * MIB);
            fill(p[k], 512, k);
        }
        for (unsigned k = 0; k < 3; k++)
            CHECK(cuMemFree(p[k]));
        CHECK(launch_spin(&kernels, streams[1], flag, 1));
        CHECK(record(context, event));
        for (unsigned k = 0; k < 3; k++) {
            p[k] = take(20 * MIB);
            fill(p[k], 512, 2 + k);
        }
        CHECK(launch_set(&kernels, streams[6], flag, 1));
        for (unsigned k = 0; k < 3; k++)
            CHECK(cuMemFree(p[k]));
    }
    CHECK(cuEventDestroy(event));
    CHECK(cuCtxSynchronize());
}

/* Fills nearly all of the device. Memory that was freed before the spinner started must serve
 * the request. */
static void full_device(void) {
    size_t free_bytes, total;
    CHECK(cuMemGetInfo(&free_bytes, &total));
    if (free_bytes > 1024 * MIB)
        return; /* only on a small simulated device */
    size_t most = free_bytes / 8 * 7 / MIB * MIB;
    CUdeviceptr flag = new_flag(), p = take(most);
    fill(p, 512, 0);
    CHECK(cuMemFree(p));
    CHECK(launch_spin(&kernels, streams[1], flag, 1));
    p = take(most);
    fill(p, 512, 2);
    CHECK(launch_set(&kernels, streams[3], flag, 1));
    CHECK(cuMemFree(p));
}

static const struct {
    const char *name;
    void (*run)(void);
} scenes[] = {
    {"free_spin_alloc_set", free_spin_alloc_set},
    {"many_frees_spin_alloc_set", many_frees_spin_alloc_set},
    {"persistent", persistent},
    {"spin_set_free_alloc", spin_set_free_alloc},
    {"two_threads", two_threads},
    {"thread_ends", thread_ends},
    {"other_context", other_context},
    {"free_async", free_async},
    {"own_barrier", own_barrier},
    {"own_record", own_record},
    {"full_device", full_device},
};
#define SCENES (sizeof scenes / sizeof *scenes)

/* ---- random programs ---- */

#define OWN 4 /* streams of one thread */
#define BLOCKS 24

static pthread_rwlock_t spinning =
    PTHREAD_RWLOCK_INITIALIZER; /* read: a spinner lacks its setter */

struct worker {
    uint64_t random;
    unsigned first; /* number of its first stream */
    unsigned steps;
    CUdeviceptr waits_for[OWN]; /* the flag of the spinner that lacks its setter, or 0 */
    unsigned unset;
    struct {
        CUdeviceptr p;
        size_t bytes;
        unsigned stream;
    } blocks[BLOCKS];
};

/* Returns a stream without such a spinner. There always is one. */
static unsigned clean_stream(struct worker *me) {
    unsigned at = pick(&me->random, OWN);
    while (me->waits_for[at])
        at = (at + 1) % OWN;
    return at;
}

static void set_one(struct worker *me) {
    unsigned at = pick(&me->random, OWN);
    while (!me->waits_for[at])
        at = (at + 1) % OWN;
    CHECK(launch_set(&kernels, streams[me->first + clean_stream(me)], me->waits_for[at], 1));
    me->waits_for[at] = 0;
    if (--me->unset == 0)
        pthread_rwlock_unlock(&spinning);
}

static void spin_one(struct worker *me) {
    if (me->unset == OWN - 1)
        return;
    unsigned at = clean_stream(me);
    if (me->unset++ == 0)
        pthread_rwlock_rdlock(&spinning);
    me->waits_for[at] = new_flag();
    CHECK(launch_spin(&kernels, streams[me->first + at], me->waits_for[at], 1));
}

static void alloc_or_free(struct worker *me) {
    static const size_t sizes[] = {512, 3000, 4096, 65536, 300000, MIB, 2 * MIB, 3 * MIB};
    unsigned at = pick(&me->random, BLOCKS);
    if (!me->blocks[at].p) {
        me->blocks[at].bytes = sizes[pick(&me->random, 8)];
        me->blocks[at].p = take(me->blocks[at].bytes);
        me->blocks[at].stream = me->first + pick(&me->random, OWN);
        fill(me->blocks[at].p, 512, me->blocks[at].stream);
    } else if (me->unset == 0) {
        pthread_rwlock_wrlock(&spinning);
        for (unsigned i = 0; i < 1 + pick(&me->random, BLOCKS); i++, at = (at + 1) % BLOCKS) {
            if (me->blocks[at].p)
                CHECK(cuMemFree(me->blocks[at].p));
            me->blocks[at].p = 0;
        }
        pthread_rwlock_unlock(&spinning);
    }
}

static void *work(void *argument) {
    struct worker *me = argument;
    CHECK(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < me->steps; i++) {
        unsigned what = pick(&me->random, 100);
        if (what < 60)
            alloc_or_free(me);
        else if (what < 75)
            spin_one(me);
        else if (what < 94 && me->unset)
            set_one(me);
        else if (what >= 97)
            CHECK(cuStreamSynchronize(streams[me->first + clean_stream(me)]));
    }
    while (me->unset)
        set_one(me);
    return NULL;
}

static void random_program(uint64_t seed, unsigned thread_count) {
    static struct worker workers[4];
    pthread_t threads[4];
    uint64_t random = seed;
    for (unsigned i = 0; i < thread_count; i++)
        workers[i] = (struct worker){
            .random = draw(&random), .first = i * OWN, .steps = 20 + pick(&random, 150)};
    for (unsigned i = 1; i < thread_count; i++)
        pthread_create(&threads[i], NULL, work, &workers[i]);
    work(&workers[0]);
    for (unsigned i = 1; i < thread_count; i++)
        pthread_join(threads[i], NULL);
    for (unsigned i = 0; i < thread_count; i++)
        for (unsigned b = 0; b < BLOCKS; b++)
            if (workers[i].blocks[b].p)
                CHECK(cuMemFree(workers[i].blocks[b].p));
    /* Every eighth program begins with an empty pool; the others find pending memory of the
     * program before. */
    if (seed % 8 == 0) {
        finish();
        if (gpucache_empty_cache)
            gpucache_empty_cache(-1);
    }
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "all";
    set_up();
    if (strcmp(what, "random") == 0) {
        uint64_t count = argc > 2 ? strtoull(argv[2], NULL, 0) : 100;
        uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 0) : 1;
        unsigned threads = argc > 4 ? (unsigned)strtoul(argv[4], NULL, 0) : 1;
        for (uint64_t i = 0; i < count; i++) {
            if (getenv("SPIN_VERBOSE"))
                fprintf(stderr, "seed %llu\n", (unsigned long long)(seed + i));
            random_program(seed + i, threads < 1 || threads > 4 ? 1 : threads);
        }
        printf("%llu programs, ok\n", (unsigned long long)count);
        return 0;
    }
    for (unsigned i = 0; i < SCENES; i++) {
        if (strcmp(what, "all") != 0 && strcmp(what, scenes[i].name) != 0)
            continue;
        if (!section(scenes[i].name))
            continue;
        scenes[i].run();
        finish();
        printf("%s ok\n", scenes[i].name);
    }
    return 0;
}
