/*
 * api_requests CASE: calls functions of gpucache.h during changes, in signal handlers, and before
 * first use. Every case prints the results; api_requests.py has the expected lines.
 */
#include "program.h"

#include "gpucache.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static CUcontext context;
static atomic_bool stop, ready;
static atomic_ulong asked, disagree, wrapped;

/* ---- values while everything changes ---- */

static void check_stats(void) {
    struct gpucache_stats s = {.size = sizeof s};
    int r = gpucache_get_stats(-1, &s);
    uint64_t most = (uint64_t)1 << 50;
    atomic_fetch_add(&asked, 1);
    if (r != 0 || s.requested > s.allocated || s.allocated > s.active || s.active > s.reserved)
        atomic_fetch_add(&disagree, 1);
    if (s.outside > most || s.outside_peak > most || s.reserved_peak > most || s.hits > most ||
        s.misses > most || s.largest_free > most)
        atomic_fetch_add(&wrapped, 1);
}

static void check_report(int fd, char *text, size_t capacity) {
    if (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0)
        exit(1);
    gpucache_write_report(fd, GPUCACHE_REPORT_JSON);
    ssize_t n = pread(fd, text, capacity - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    if (strstr(text, ":18446744073"))
        atomic_fetch_add(&wrapped, 1);
}

static void *work(void *arg) {
    uint64_t state = (uintptr_t)arg;
    CHECK(cuCtxSetCurrent(context));
    while (!stop) {
        CUdeviceptr p[48];
        unsigned n = 0;
        while (n < 48 && cuMemAlloc(&p[n], pick(&state, 3000000) + 1) == CUDA_SUCCESS)
            n++;
        CUdeviceptr q = 0;
        if (cuMemAllocManaged(&q, 4096, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS)
            CHECK(cuMemFree(q));
        while (n > 0)
            CHECK(cuMemFree(p[--n]));
    }
    return NULL;
}

static void *ask(void *arg) {
    static char text[2][65536];
    unsigned id = (unsigned)(uintptr_t)arg;
    int fd = memfd_create("report", 0);
    for (unsigned n = 0; !stop; n++) {
        check_stats();
        if (n % 16 == 0)
            check_report(fd, text[id], sizeof text[id]);
        if (n % 128 == 0)
            gpucache_empty_cache(-1);
    }
    close(fd);
    return NULL;
}

static void values(void) {
    pthread_t threads[6];
    for (uintptr_t i = 0; i < 6; i++)
        pthread_create(&threads[i], NULL, i < 2 ? ask : work, (void *)i);
    /* Runs until both threads have queried often enough to see every change, on any machine. */
    for (unsigned i = 0; i < 30000 && atomic_load(&asked) < 20000; i++)
        usleep(1000);
    stop = true;
    for (unsigned i = 0; i < 6; i++)
        pthread_join(threads[i], NULL);
    printf("asked: %d, disagree: %lu, wrapped: %lu\n", asked > 100, disagree, wrapped);
}

/* ---- in a signal handler ---- */

static void handle(int signal) {
    (void)signal;
    check_stats();
}

static void signals(void) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    struct itimerval every = {{0, 200}, {0, 200}};
    CUdeviceptr p, q;
    CHECK(cuMemAllocAsync(&q, 1000, 0));
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
    for (unsigned i = 0; i < 30000 && asked < 2000; i++) {
        CHECK(cuMemAllocAsync(&p, 5000, 0));
        CHECK(cuMemFreeAsync(p, 0));
        CHECK(cuMemAlloc(&p, ((size_t)1000 << i % 14)));
        CHECK(cuMemFree(p));
        CHECK(cuMemAllocManaged(&p, 5000, CU_MEM_ATTACH_GLOBAL));
        CHECK(cuMemFree(p));
    }
    every = (struct itimerval){{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &every, NULL);
    printf("asked: %d, disagree: %lu, wrapped: %lu\n", asked > 100, disagree, wrapped);
}

/* ---- on a small stack ---- */

static int null_fd, format, result;
static uintptr_t entered;

static void report(int signal) {
    char here = (char)signal;
    struct gpucache_stats s = {.size = sizeof s};
    entered = (uintptr_t)&here;
    result = format < 0 ? gpucache_get_stats(0, &s) : gpucache_write_report(null_fd, format);
}

/* Measures the stack that a function takes below the frame of a signal handler. SIGSTKSZ is 8 KiB,
 * of which the kernel's own frame takes up to 3.5 KiB (AVX-512): 4 KiB must be enough. */
static void stack(void) {
    size_t bytes = 65536;
    CUdeviceptr p;
    null_fd = open("/dev/null", O_WRONLY);
    for (size_t i = 0; i < 300; i++)
        CHECK(cuMemAlloc(&p, 100 + 512 * i)); /* as many sizes as a report names */
    for (format = -1; format <= 1; format++) {
        char *low = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        stack_t alternate = {.ss_sp = low, .ss_size = bytes};
        struct sigaction action = {.sa_handler = report, .sa_flags = SA_ONSTACK};
        sigaltstack(&alternate, NULL);
        sigaction(SIGUSR1, &action, NULL);
        memset(low, 0x5a, bytes - 16384);
        raise(SIGUSR1);
        size_t i = 0;
        while (i < bytes - 16384 && low[i] == 0x5a)
            i++;
        while (i >= bytes - 16384 && i < bytes && low[i] == 0)
            i++;
        printf("%d: at most 4 KiB: %d\n", result, entered - (uintptr_t)(low + i) <= 4096);
    }
}

/* ---- limits ---- */

static uint64_t limit(int device) {
    struct gpucache_stats s = {.size = sizeof s};
    int r = gpucache_get_stats(device, &s);
    return r ? (uint64_t)-r : s.limit;
}

static void limits(void) {
    CUcontext other;
    CUdeviceptr p;
    size_t free_bytes, total;
    printf("for all, before the first use: %d %llu\n", gpucache_set_memory_limit(-1, 64 * MIB),
           (unsigned long long)limit(-1));
    context = begin();
    CHECK(cuDeviceTotalMem(&total, 0));
    printf("told: %zu MiB\n", total / MIB);
    CHECK(cuMemAlloc(&p, 1 * MIB));
    CHECK(cuMemFree(p));
    printf("in force: %llu, 65 MiB: %d\n", (unsigned long long)limit(0),
           (int)cuMemAlloc(&p, 65 * MIB));
    int r = gpucache_set_memory_fraction(0, 1e-12);
    printf("a share below a byte: %d, in force: %llu\n", r, (unsigned long long)limit(0));
    r = gpucache_set_memory_fraction(-1, 1.0 / 128);
    printf("for all: %d, in force: %llu\n", r, (unsigned long long)limit(0));
    CHECK(cuDevicePrimaryCtxRetain(&other, 1));
    CHECK(cuCtxSetCurrent(other));
    CHECK(cuMemGetInfo(&free_bytes, &total));
    printf("on a device used later: %llu, told: %zu MiB\n", (unsigned long long)limit(1),
           total / MIB);
    double bad[] = {NAN, -1, 0, -0.0, 1.001, INFINITY, -INFINITY};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++)
        printf("%d ", gpucache_set_memory_fraction(0, bad[i]));
    printf("%d %d %d %d\n", gpucache_set_memory_fraction(-2, 0.5), gpucache_set_memory_limit(-2, 5),
           gpucache_set_memory_limit(99, 5), gpucache_set_memory_fraction(99, 0.5));
    printf("nothing changed: %llu\n", (unsigned long long)limit(1));
    r = gpucache_set_memory_limit(-1, 0);
    printf("lifted: %d %llu\n", r, (unsigned long long)limit(1));
}

static void raised(void) {
    CUdeviceptr p, q, r = 0;
    CHECK(cuMemAlloc(&p, 4096));
    printf("set: %d\n", gpucache_set_memory_limit(0, 1024 * MIB));
    CHECK(cuMemAlloc(&q, 800 * MIB));
    printf("over it: %d\n", (int)cuMemAlloc(&r, 800 * MIB));
    printf("far over it: %d\n", (int)cuMemAlloc(&r, 2048 * MIB));
    printf("raised: %d\n", gpucache_set_memory_limit(0, 8192 * MIB));
    printf("then: %d\n", (int)cuMemAlloc(&r, 800 * MIB));
    printf("more: %d\n", (int)cuMemAlloc(&r, 2048 * MIB));
}

/* Another thread raises the limit during the first allocation, which makes the pool. */
static void *raise_limit(void *unused) {
    ready = true;
    while (!stop) {
    }
    gpucache_set_memory_limit(0, 8192 * MIB);
    return unused;
}

static void first(void) {
    CUdeviceptr p;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, raise_limit, NULL));
    while (!ready) {
    }
    stop = true;
    CHECK(cuMemAlloc(&p, 100));
    pthread_join(thread, NULL);
    printf("over the first limit: %d\n", (int)cuMemAlloc(&p, 2048 * MIB));
}

/* ---- release of memory while a kernel waits for the program ---- */

/* Returns the number of these blocks that the driver still has. */
static unsigned still_there(void *const *host, unsigned count) {
    unsigned there = 0, flags;
    for (unsigned i = 0; i < count; i++)
        there += cuMemHostGetFlags(&flags, host[i]) == CUDA_SUCCESS;
    return there;
}

static void *empty(void *unused) {
    printf("without a context: %d\n", gpucache_empty_cache(-1));
    return unused;
}

/* Calls the functions in a thread without a current context. */
static void in_no_context(void) {
    void *host[8];
    pthread_t thread;
    for (unsigned i = 0; i < 8; i++)
        CHECK(cuMemAllocHost(&host[i], 4096));
    for (unsigned i = 0; i < 8; i++)
        CHECK(cuMemFreeHost(host[i]));
    CHECK(cuCtxSynchronize());
    pthread_create(&thread, NULL, empty, NULL);
    pthread_join(thread, NULL);
    printf("still there: %u\n", still_there(host, 8));
}

static void pinned(void) {
    struct kernels k;
    struct timespec before, after;
    uint32_t *flag;
    void *host;
    CUdeviceptr p;
    CUstream stream;
    kernels_load(&k);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAllocHost((void **)&flag, 4));
    *flag = 0;
    CHECK(cuMemAlloc(&p, 4096));
    CHECK(cuMemAllocHost(&host, MIB));
    CHECK(cuMemFreeHost(host));
    CHECK(cuCtxSynchronize());
    CHECK(launch_spin(&k, stream, (CUdeviceptr)flag, 1));
    clock_gettime(CLOCK_MONOTONIC, &before);
    printf("while a kernel waits: %d\n", gpucache_empty_cache(-1));
    clock_gettime(CLOCK_MONOTONIC, &after);
    printf("within 5 s: %d\n", after.tv_sec - before.tv_sec < 5);
    *(volatile uint32_t *)flag = 1;
    CHECK(cuCtxSynchronize());
    printf("afterwards: %d\n", gpucache_empty_cache(-1));
    in_no_context();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"values", values}, {"signals", signals}, {"stack", stack},  {"limits", limits},
                 {"raised", raised}, {"first", first},     {"pinned", pinned}};
    const char *name = argc > 1 ? argv[1] : "";
    if (!gpucache_get_stats)
        return 3; /* not under the library */
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, name) == 0) {
            CUdeviceptr p;
            if (cases[i].run != limits)
                context = begin();
            if (cases[i].run != limits && cases[i].run != first)
                CHECK(cuMemAlloc(&p, 100));
            cases[i].run();
            return 0;
        }
    }
    return 2;
}
