/*
 * ctx_forked MODE: forks a process that uses CUDA. A child has no driver, and every entry must
 * return the native error, at any state of the parent's other threads.
 *
 *   | mode           | children                                                                   |
 *   | -------------- | -------------------------------------------------------------------------- |
 *   | answers        | one child for each entry; prints the answers                               |
 *   | busy N         | N children call all entries and all functions of gpucache.h, while threads |
 *   |                | of the parent never stop                                                   |
 *   | functions      | prints the answers of these functions in a child (only under the library)  |
 *   | load LIBRARY N | N children load a library while a thread of the parent maps pages          |
 *   | thread         | the child's only thread ends while a thread of the parent holds locks      |
 */
#include "program.h"

#include "gpucache.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define PATIENCE 30 /* seconds */

typedef CUresult any(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                     uint64_t);

static struct {
    const char *symbol;
    any *call;
} entries[] = {
#define ENTRY(symbol, since, parameters, arguments, effect, test) {#symbol, NULL},
#include "driver/table/entry_points.def"
};
#define ENTRIES (sizeof entries / sizeof *entries)

static CUcontext context;
static CUdeviceptr live;
static uint64_t zeros[512]; /* zeros for entries that read through a pointer */

/* Calls an entry four times: with zeros, with a pointer of this process, with addresses to write
 * to, and with both. */
static void ask(unsigned i, int answers[4]) {
    any *call = entries[i].call;
    uint64_t z = (uint64_t)(uintptr_t)zeros, p = live;
    answers[0] = answers[1] = answers[2] = answers[3] = -1;
    if (!call)
        return;
#ifdef __aarch64__
    /* An IPC handle is passed by value: as the address of a copy, which has to be readable. */
    if (strstr(entries[i].symbol, "IpcOpen")) {
        answers[2] = (int)call(z, z, z, z, z, z, z, z);
        return;
    }
#endif
    answers[0] = (int)call(0, 0, 0, 0, 0, 0, 0, 0);
    answers[1] = (int)call(p, 0, 0, 0, 0, 0, 0, 0);
    answers[2] = (int)call(z, z, z, z, z, z, z, z);
    answers[3] = (int)call(z, 5, p, p, 0, 0, 0, 0);
}

static void find_entries(void) {
    void *libcuda = dlopen("libcuda.so.1", RTLD_NOW);
    for (unsigned i = 0; i < ENTRIES; i++)
        entries[i].call = (any *)dlsym(libcuda, entries[i].symbol);
}

/* 0, or what became of it. */
static int end_of(pid_t child) {
    int status = -1;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static int answers(void) {
    for (unsigned i = 0; i < ENTRIES; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            int said[4];
            alarm(PATIENCE);
            ask(i, said);
            printf("%s: %d %d %d %d\n", entries[i].symbol, said[0], said[1], said[2], said[3]);
            fflush(stdout);
            _exit(0);
        }
        int end = end_of(child);
        if (end != 0)
            printf("%s: the child ends with %d\n", entries[i].symbol, end);
    }
    printf("the parent: %d\n", cuMemFree(live));
    return 0;
}

/* ---- threads that hold every lock in turn ---- */

static volatile int stop;

static void *allocate(void *unused) {
    CUdeviceptr p[6];
    size_t bytes, total;
    cuCtxSetCurrent(context);
    while (!stop) {
        for (unsigned i = 0; i < 6; i++)
            CHECK(cuMemAlloc(&p[i], i % 2 ? 3000 * i : (2 + i) * MIB));
        cuMemGetInfo(&bytes, &total);
        cuMemGetAddressRange(NULL, &bytes, p[1] + 1);
        for (unsigned i = 0; i < 6; i++)
            cuMemFree(p[i]);
    }
    return unused;
}

static void *pass_by(void *unused) {
    CUdeviceptr p;
    void *host;
    CUmemoryPool pool;
    CUdevice device;
    cuCtxSetCurrent(context);
    cuCtxGetDevice(&device);
    cuDeviceGetDefaultMemPool(&pool, device);
    while (!stop) {
        if (cuMemAllocManaged(&p, 5000, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS)
            cuMemFree(p);
        if (cuMemAllocAsync(&p, 5000, NULL) == CUDA_SUCCESS)
            cuMemFreeAsync(p, NULL);
        if (cuMemAllocHost(&host, 5000) == CUDA_SUCCESS)
            cuMemFreeHost(host);
        cuMemPoolTrimTo(pool, 0);
        cuIpcCloseMemHandle(5);
        cuCtxSynchronize();
    }
    return unused;
}

static void *mark_and_defer(void *unused) {
    CUdeviceptr p;
    CUcontext again;
    CUdevice device;
    cuCtxSetCurrent(context);
    cuCtxGetDevice(&device);
    while (!stop) {
        unsigned on = 1, value;
        if (cuMemAlloc(&p, 7000) == CUDA_SUCCESS) {
            cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
            cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
            cuMemFreeAsync(p, NULL);
        }
        if (cuDevicePrimaryCtxRetain(&again, device) == CUDA_SUCCESS)
            cuDevicePrimaryCtxRelease(device);
    }
    return unused;
}

static void *capture(void *unused) {
    CUstream stream;
    CUgraph graph;
    cuCtxSetCurrent(context);
    while (!stop) {
        CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
        cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
        if (cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS)
            cuGraphDestroy(graph);
        cuStreamDestroy(stream);
        usleep(100);
    }
    return unused;
}

static pthread_t threads[4];

static void start_threads(void) {
    void *(*const bodies[4])(void *) = {allocate, pass_by, mark_and_defer, capture};
    for (unsigned i = 0; i < 4; i++)
        if (pthread_create(&threads[i], NULL, bodies[i], NULL) != 0)
            exit(2);
}

static void end_threads(void) {
    stop = 1;
    for (unsigned i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

static void call_functions(int said[7]) {
    struct gpucache_stats stats = {.size = sizeof stats};
    said[0] = gpucache_get_stats(0, &stats);
    said[1] = gpucache_reset_peak_stats(-1);
    said[2] = gpucache_empty_cache(-1);
    said[3] = gpucache_set_memory_fraction(0, 0.5);
    said[4] = gpucache_set_memory_limit(0, 1 << 30);
    said[5] = gpucache_write_report(1, GPUCACHE_REPORT_TEXT);
    said[6] = gpucache_mark("child");
}

/* Returns a hash of all answers. Runs in a child. */
static unsigned call_all(void) {
    unsigned sum = 0;
    int said[7];
    for (unsigned i = 0; i < ENTRIES; i++) {
        ask(i, said);
        for (unsigned j = 0; j < 4; j++)
            sum = sum * 31 + (unsigned)said[j];
    }
    if (gpucache_version)
        call_functions(said);
    return sum;
}

static int busy(int forks) {
    int other = 0, broken = 0, ends[2];
    unsigned first = 0, got;
    if (pipe(ends) != 0)
        return 2;
    start_threads();
    for (int i = 0; i < forks; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(PATIENCE);
            unsigned sum = call_all();
            _exit(write(ends[1], &sum, sizeof sum) != sizeof sum);
        }
        int end = end_of(child);
        if (end != 0) {
            printf("a child ends with %d\n", end);
            broken++;
            break;
        }
        if (read(ends[0], &got, sizeof got) != sizeof got)
            return 2;
        first = i == 0 ? got : first;
        other += got != first;
    }
    end_threads();
    printf("%d children broken, %d answer otherwise\n", broken, other);
    return 0;
}

static int functions(void) {
    if (!gpucache_version)
        return 2;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        struct gpucache_stats stats = {.size = sizeof stats, .requested = 1, .allocations = 1};
        int said[7];
        alarm(PATIENCE);
        call_functions(said);
        for (unsigned i = 0; i < 7; i++)
            printf("%d ", said[i]);
        int all = gpucache_get_stats(-1, &stats);
        printf("all %d %d %d\n", all, (int)stats.requested, (int)stats.allocations);
        fflush(stdout);
        _exit(0);
    }
    printf("%d\n", end_of(child));
    return 0;
}

/* Allocates in pages, which reads the list of loaded libraries under the loader's lock. */
static void *remap(void *unused) {
    CUdeviceptr p[4];
    unsigned seed = 1;
    cuCtxSetCurrent(context);
    while (!stop) {
        for (unsigned i = 0; i < 4; i++)
            if (cuMemAlloc(&p[i], (2 + (size_t)rand_r(&seed) % 30) * MIB) != CUDA_SUCCESS)
                p[i] = 0;
        for (unsigned i = 0; i < 4; i++)
            cuMemFree(p[i]);
    }
    return unused;
}

static int load(const char *library, int forks) {
    pthread_t mapper;
    if (pthread_create(&mapper, NULL, remap, NULL) != 0)
        return 2;
    for (int i = 0; i < forks; i++) {
        pid_t child = fork();
        if (child == 0) {
            alarm(PATIENCE);
            _exit(dlopen(library, RTLD_NOW) == NULL);
        }
        int end = end_of(child);
        if (end != 0) {
            printf("a child ends with %d\n", end);
            break;
        }
    }
    stop = 1;
    pthread_join(mapper, NULL);
    printf("the parent goes on\n");
    return 0;
}

/* The thread that forks has a cache, and other threads hold its pool's lock as often as they
 * can. */
static void *fork_and_end(void *unused) {
    CUdeviceptr p;
    cuCtxSetCurrent(context);
    for (int i = 0; i < 200; i++) {
        CHECK(cuMemAlloc(&p, 20000));
        CHECK(cuMemFree(p));
        pid_t child = fork();
        if (child == 0) {
            alarm(PATIENCE);
            pthread_exit(NULL);
        }
        int end = end_of(child);
        if (end != 0) {
            printf("a child ends with %d\n", end);
            break;
        }
    }
    return unused;
}

static int thread(void) {
    pthread_t forking;
    start_threads();
    if (pthread_create(&forking, NULL, fork_and_end, NULL) != 0)
        return 2;
    pthread_join(forking, NULL);
    end_threads();
    printf("the parent goes on\n");
    return 0;
}

/* The parent's calls fail before cuInit(), or set a limit. The child then uses CUDA. */
static int early(bool sets_limit) {
    CUdeviceptr p;
    void *host;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    if (sets_limit)
        printf("parent: %d\n", gpucache_set_memory_limit(-1, 32 << 20));
    else
        printf("parent: %d %d %d %d %d %d\n", cuMemAlloc(&p, 100), cuMemAllocHost(&host, 100),
               cuMemAllocAsync(&p, 100, 0), cuCtxSynchronize(),
               cuMemCreate(&handle, 2 << 20, &prop, 0),
               cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        begin();
        printf("child: %d %d\n", cuMemAlloc(&p, 64 << 20), cuMemAlloc(&p, 16 << 20));
        exit(0);
    }
    return end_of(child);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "early") == 0)
        return early(argc > 2);
    context = begin();
    CHECK(cuMemAlloc(&live, 5000));
    find_entries();
    if (strcmp(mode, "answers") == 0)
        return answers();
    if (strcmp(mode, "busy") == 0 && argc > 2)
        return busy(atoi(argv[2]));
    if (strcmp(mode, "functions") == 0)
        return functions();
    if (strcmp(mode, "load") == 0)
        return load(argv[2], atoi(argv[3]));
    return strcmp(mode, "thread") == 0 ? thread() : 2;
}
