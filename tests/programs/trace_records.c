/*
 * trace_records ACTION...: makes events for a trace. Runs its arguments one after another:
 *
 *   | action                       | events                                                       |
 *   | ---------------------------- | ------------------------------------------------------------ |
 *   | mix=EVENTS,LIVE,THREADS,SEED | each thread keeps about LIVE blocks of all sizes and         |
 *   |                              | replaces them at random; live blocks stay at the end. Some   |
 *   |                              | are freed in stream order, some by the next thread           |
 *   | pairs=N                      | N pairs of allocation and free of 64 KiB; prints nanoseconds |
 *   |                              | for both                                                     |
 *   | churn=N                      | N threads, one after another, which allocate and free a few  |
 *   |                              | blocks each                                                  |
 *   | mark=TEXT                    | gpucache_mark()                                              |
 *   | hold=COUNT,BYTES             | COUNT blocks that stay                                       |
 *   | drop                         | frees all blocks that stay                                   |
 *   | oom=BYTES                    | an allocation that fails                                     |
 *   | empty                        | gpucache_empty_cache(-1)                                     |
 *   | outside                      | unpooled memory of each kind, of which a part stays          |
 *   | context                      | a context with blocks, which is destroyed                    |
 *   | fork                         | a child that allocates, frees, marks and exits               |
 *   | vfork                        | a child that only exits                                      |
 *   | sync, kill                   | cuCtxSynchronize(), SIGKILL                                  |
 *   | bus                          | an access behind the end of a mapped file                    |
 *   | wait                         | prints a line and waits for the end of its standard input    |
 *   | stir                         | the same, while a thread continues as in mix                 |
 */
#define GPUCACHE_API __attribute__((weak))
#include "gpucache.h"
#include "program.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 200000
#define THREADS 16
#define HANDED 64

static CUcontext context;
static CUdeviceptr stay[MOST];
static _Atomic unsigned staying;
static _Atomic CUdeviceptr handed[HANDED]; /* blocks that any thread may free */
static atomic_bool stop;

struct mix {
    long events;
    unsigned live;
    uint64_t state;
    bool until_stopped;
};

static void keep(CUdeviceptr p) {
    unsigned at = atomic_fetch_add(&staying, 1);
    if (at >= MOST)
        exit(3);
    stay[at] = p;
}

static size_t some_size(uint64_t *state) {
    switch (pick(state, 12)) {
    case 0:
        return ((size_t)1 + pick(state, 7)) << 20;
    case 1:
        return 1 + pick(state, 3000000);
    default:
        return 1 + pick(state, 40000);
    }
}

static void give(CUdeviceptr p, uint64_t *state) {
    unsigned how = pick(state, 16);
    if (how == 0) {
        CHECK(cuMemFreeAsync(p, NULL));
    } else if (how == 1) {
        p = atomic_exchange(&handed[pick(state, HANDED)], p);
        if (p)
            CHECK(cuMemFree(p));
    } else {
        CHECK(cuMemFree(p));
    }
}

static void *mix(void *arg) {
    struct mix *of = arg;
    CUdeviceptr *blocks = calloc(of->live, sizeof *blocks);
    CHECK(cuCtxSetCurrent(context));
    for (long i = 0; of->until_stopped ? !stop : i < of->events / 2; i++) {
        unsigned at = pick(&of->state, of->live);
        if (blocks[at])
            give(blocks[at], &of->state);
        CHECK(cuMemAlloc(&blocks[at], some_size(&of->state)));
        if (i % 5000 == 4999)
            CHECK(cuCtxSynchronize());
    }
    for (unsigned i = 0; i < of->live; i++)
        if (blocks[i])
            keep(blocks[i]);
    free(blocks);
    return NULL;
}

static void run_mix(const char *how) {
    long events = 0;
    unsigned live = 1, threads = 1, seed = 1;
    sscanf(how, "%ld,%u,%u,%u", &events, &live, &threads, &seed);
    pthread_t ids[THREADS];
    struct mix jobs[THREADS];
    for (unsigned i = 0; i < threads; i++) {
        jobs[i] = (struct mix){events, live, seed * 100 + i, false};
        if (threads == 1)
            mix(&jobs[i]);
        else if (pthread_create(&ids[i], NULL, mix, &jobs[i]) != 0)
            exit(1);
    }
    for (unsigned i = 0; i < threads && threads > 1; i++)
        pthread_join(ids[i], NULL);
    for (unsigned i = 0; i < HANDED; i++) {
        CUdeviceptr p = atomic_exchange(&handed[i], 0);
        if (p)
            keep(p);
    }
}

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

/* Prints the lower quartile of short runs, because the machine is shared. */
static void pairs(long count) {
    enum { RUN = 10000 };
    long runs = count / RUN;
    double *cost = calloc((size_t)runs + 1, sizeof *cost);
    for (long run = 0; run < runs; run++) {
        uint64_t begun = now();
        for (int i = 0; i < RUN; i++) {
            CUdeviceptr p;
            CHECK(cuMemAlloc(&p, 65536));
            CHECK(cuMemFree(p));
        }
        cost[run] = (double)(now() - begun) / RUN;
    }
    qsort(cost, (size_t)runs, sizeof *cost, by_value);
    printf("%.1f ns a pair\n", cost[runs / 4]);
    free(cost);
}

static void *few(void *arg) {
    CUdeviceptr p[4];
    CHECK(cuCtxSetCurrent(context));
    for (size_t i = 0; i < 4; i++)
        CHECK(cuMemAlloc(&p[i], (i + 1) * (1 + (size_t)(uintptr_t)arg % 1000)));
    for (size_t i = 0; i < 4; i++)
        CHECK(cuMemFree(p[i]));
    return NULL;
}

static void churn(long count) {
    for (long i = 0; i < count; i++) {
        pthread_t id;
        if (pthread_create(&id, NULL, few, (void *)(uintptr_t)i) != 0)
            exit(1);
        pthread_join(id, NULL);
    }
}

static void outside(void) {
    CUdeviceptr managed[2], ordered[2];
    void *pinned[2];
    CUarray array[2];
    CUDA_ARRAY_DESCRIPTOR of = {
        .Width = 1024, .Height = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    for (int i = 0; i < 2; i++) {
        CHECK(cuMemAllocManaged(&managed[i], 3 << 20, CU_MEM_ATTACH_GLOBAL));
        CHECK(cuMemAllocAsync(&ordered[i], 5 << 20, NULL));
        CHECK(cuMemAllocHost(&pinned[i], 1 << 20));
        CHECK(cuArrayCreate(&array[i], &of));
    }
    CHECK(cuMemFree(managed[0]));
    CHECK(cuMemFreeAsync(ordered[0], NULL));
    CHECK(cuMemFreeHost(pinned[0]));
    CHECK(cuArrayDestroy(array[0]));
    CHECK(cuCtxSynchronize());
}

static void end_context(void) {
    CUcontext other;
    CUdevice device;
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate_v2(&other, 0, device));
    for (size_t i = 0; i < 40; i++) {
        CUdeviceptr p;
        CHECK(cuMemAlloc(&p, 1000 + i * 70000));
    }
    CHECK(cuCtxDestroy(other));
    CHECK(cuCtxSetCurrent(context));
}

static void fork_child(void) {
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr p;
        for (int i = 0; i < 1000; i++)
            if (cuMemAlloc(&p, 4096) == CUDA_SUCCESS)
                cuMemFree(p);
        if (gpucache_mark)
            gpucache_mark("child");
        exit(0);
    }
    waitpid(child, NULL, 0);
}

static void vfork_child(void) {
    pid_t child = vfork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
}

static void touch_missing_page(void) {
    FILE *empty = tmpfile();
    char *page = empty ? mmap(NULL, 4096, PROT_READ, MAP_SHARED, fileno(empty), 0) : MAP_FAILED;
    if (page == MAP_FAILED)
        exit(1);
    printf("%d\n", *(volatile char *)page);
}

static void wait_for_end(bool stirring) {
    pthread_t id;
    struct mix job = {.live = 500, .state = 7, .until_stopped = true};
    if (stirring && pthread_create(&id, NULL, mix, &job) != 0)
        exit(1);
    printf("waiting\n");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    stop = true;
    if (stirring)
        pthread_join(id, NULL);
}

static void hold(const char *how) {
    unsigned count = 0;
    unsigned long bytes = 1;
    sscanf(how, "%u,%lu", &count, &bytes);
    for (unsigned i = 0; i < count; i++) {
        CUdeviceptr p;
        CHECK(cuMemAlloc(&p, bytes));
        keep(p);
    }
}

static void drop(void) {
    for (unsigned i = 0; i < staying; i++)
        CHECK(cuMemFree(stay[i]));
    staying = 0;
}

/* Takes a signal on a signal stack that is a file: "NUMBER,PATH". Its bytes stay after the end. */
static void raise_on_stack(const char *how) {
    const char *path = strchr(how, ',') + 1;
    size_t bytes = 65536;
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    if (ftruncate(fd, (off_t)bytes) != 0)
        exit(2);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    stack_t signal_stack = {.ss_sp = memory, .ss_size = bytes};
    sigaltstack(&signal_stack, NULL);
    raise(atoi(how));
}

static bool act(const char *what, const char *how) {
    CUdeviceptr p;
    if (strcmp(what, "mix") == 0)
        run_mix(how);
    else if (strcmp(what, "pairs") == 0)
        pairs(atol(how));
    else if (strcmp(what, "churn") == 0)
        churn(atol(how));
    else if (strcmp(what, "mark") == 0)
        return !gpucache_mark || gpucache_mark(how) == 0;
    else if (strcmp(what, "hold") == 0)
        hold(how);
    else if (strcmp(what, "drop") == 0)
        drop();
    else if (strcmp(what, "oom") == 0)
        return cuMemAlloc(&p, strtoull(how, NULL, 10)) == CUDA_ERROR_OUT_OF_MEMORY;
    else if (strcmp(what, "bus") == 0)
        touch_missing_page();
    else if (strcmp(what, "empty") == 0)
        return !gpucache_empty_cache || gpucache_empty_cache(-1) == 0;
    else if (strcmp(what, "outside") == 0)
        outside();
    else if (strcmp(what, "context") == 0)
        end_context();
    else if (strcmp(what, "fork") == 0)
        fork_child();
    else if (strcmp(what, "vfork") == 0)
        vfork_child();
    else if (strcmp(what, "sync") == 0)
        CHECK(cuCtxSynchronize());
    else if (strcmp(what, "kill") == 0)
        kill(getpid(), SIGKILL);
    else if (strcmp(what, "raise") == 0)
        raise_on_stack(how);
    else if (strcmp(what, "wait") == 0 || strcmp(what, "stir") == 0)
        wait_for_end(*what == 's');
    else
        return false;
    return true;
}

int main(int argc, char **argv) {
    CUdevice device;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    for (int i = 1; i < argc; i++) {
        char what[16] = "";
        size_t length = strcspn(argv[i], "=");
        snprintf(what, sizeof what, "%.*s", (int)length, argv[i]);
        if (!act(what, argv[i][length] == '=' ? argv[i] + length + 1 : "")) {
            fprintf(stderr, "trace_records: %s failed\n", argv[i]);
            return 2;
        }
    }
    return 0;
}
