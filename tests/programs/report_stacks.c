/*
 * report_stacks PART: makes allocations whose call stacks a report must name. The output is the
 * same natively and under the library. report_stacks.py looks for the names of the functions.
 */
#include "program.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#if defined(__clang__)
#define OWN __attribute__((noinline))
#else
#define OWN __attribute__((noinline, noclone)) /* the compiler keeps its name */
#endif

static CUdeviceptr kept[4096];
static unsigned kept_count;

/* The statement after the call prevents a tail call, which would leave no frame. */
#define STAY __asm__ volatile("" ::: "memory")

static OWN CUdeviceptr get(size_t bytes) {
    CUdeviceptr p = 0;
    CHECK(cuMemAlloc(&p, bytes));
    STAY;
    return p;
}

static OWN void keep(size_t bytes) {
    CUdeviceptr p = get(bytes);
    unsigned at = __atomic_fetch_add(&kept_count, 1, __ATOMIC_RELAXED);
    kept[at] = p;
    STAY;
}

static volatile unsigned many = 8; /* so that no loop is unrolled into several calls */

static OWN void weights(void) {
    for (unsigned i = 0; i < many; i++)
        keep(3 * MIB);
    STAY;
}

static OWN void activations(void) {
    CUdeviceptr p[8];
    for (unsigned i = 0; i < many; i++)
        p[i] = get(100 * KIB + i);
    for (unsigned i = 0; i < many; i++)
        CHECK(cuMemFree(p[i]));
    STAY;
}

#define TWICE(call) (call, call) /* two addresses of one line */

static OWN void little_things(void) {
    for (unsigned i = 2; i < many; i++)
        keep(1000);
    TWICE(keep(1000));
    STAY;
}

static OWN void leak(void) {
    weights();
    for (unsigned i = 0; i < many; i++)
        activations();
    little_things();
}

/* --- bytes x time, between the times measured just outside and just inside --- */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static OWN CUdeviceptr tenant(size_t bytes, double *before, double *after) {
    CUdeviceptr p;
    *before = seconds();
    CHECK(cuMemAlloc(&p, bytes));
    *after = seconds();
    return p;
}

static OWN void rent(void) {
    double least = 0, most = 0, before, after;
    for (unsigned i = 0; i < many; i++) {
        CUdeviceptr p = tenant(64 * MIB, &before, &after);
        usleep(3000);
        double end = seconds();
        CHECK(cuMemFree(p));
        least += (double)(64 * MIB) * (end - after);
        most += (double)(64 * MIB) * (seconds() - before);
    }
    fprintf(stderr, "rent %.6f %.6f\n", least, most);
}

/* --- threads: others free, stacks are small --- */

static CUcontext everybodys;

static void *make_and_leave(void *bytes) {
    CHECK(cuCtxSetCurrent(everybodys));
    for (unsigned i = 0; i < 200; i++) {
        CUdeviceptr p = get((size_t)bytes);
        keep(512 + i);
        CHECK(cuMemFree(p));
    }
    return NULL;
}

static OWN void threads(CUcontext context) {
    pthread_t thread[8];
    pthread_attr_t small;
    everybodys = context;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 * KIB);
    for (unsigned i = 0; i < 8; i++)
        pthread_create(&thread[i], i % 2 ? &small : NULL, make_and_leave,
                       (void *)(size_t)(i * 700 + 100));
    for (unsigned i = 0; i < 8; i++)
        pthread_join(thread[i], NULL);
    for (unsigned i = 0; i < kept_count; i++) /* other threads allocated all of them */
        if (i % 2)
            CHECK(cuMemFree(kept[i]));
    printf("%u\n", kept_count);
}

/* --- frees of all kinds --- */

static OWN void frees(void) {
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUdeviceptr a = get(MIB), b = get(5 * MIB), c = get(4 * KIB);
    CHECK(cuMemFreeAsync(a, stream));
    printf("again %d\n", (int)cuMemFree(a));
    printf("inside %d\n", (int)cuMemFree(b + 512));
    printf("nothing %d\n", (int)cuMemFree(0x1234));
    CHECK(cuMemFree(c));
    printf("twice %d\n", (int)cuMemFree(c));
    CHECK(cuStreamSynchronize(stream));
    CHECK(cuStreamDestroy(stream));
    printf("in no stream %d\n",
           cuMemFreeAsync(b, stream) != CUDA_SUCCESS); /* the block stays live */
    errno = 77;
    weights();
    printf("errno %d\n", errno);
}

/* --- a peak that is reset --- */

static OWN void resets(void) {
    int (*reset)(int) = dlsym(RTLD_DEFAULT, "gpucache_reset_peak_stats");
    activations();
    little_things();
    if (reset)
        reset(-1);
    keep(700);
    CHECK(cuMemFree(get(600)));
}

/* --- blocks that end with their context --- */

static OWN void of_a_context(void) {
    CUcontext context;
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    for (unsigned i = 0; i < many; i++)
        get(2 * MIB + i);
    CHECK(cuCtxDestroy(context));
    STAY;
}

static OWN void contexts(CUcontext primary) {
    for (unsigned i = 0; i < many; i++)
        of_a_context();
    CHECK(cuCtxSetCurrent(primary));
    little_things();
}

/* --- a child --- */

static OWN void forks(void) {
    weights();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        CUdeviceptr p;
        int made = (int)cuMemAlloc(&p, KIB);
        printf("child %d %d\n", made != CUDA_SUCCESS, (int)cuMemFree(kept[0]) != CUDA_SUCCESS);
        fflush(stdout);
        exit(3);
    }
    int status;
    waitpid(child, &status, 0);
    printf("status %d\n", WEXITSTATUS(status));
    little_things();
}

/* --- from a constructor, inside dlopen() --- */

static OWN void plugin(const char *path) {
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    CUdeviceptr *of_constructor = dlsym(library, "stacks_plugin_block");
    CHECK(cuMemFree(*of_constructor));
    ((void (*)(void))dlsym(library, "stacks_plugin_keep"))();
    dlclose(library);
    little_things();
}

/* --- a library at the addresses of a closed one --- */

static OWN void replaced(char **paths) {
    for (; *paths; paths++) {
        void *library = dlopen(*paths, RTLD_NOW);
        int (*allocate)(CUresult(*)(CUdeviceptr *, size_t), CUdeviceptr *) =
            library ? (int (*)(CUresult(*)(CUdeviceptr *, size_t), CUdeviceptr *))dlsym(
                          library, "stacks_replaced")
                    : NULL;
        CUdeviceptr p;
        if (!allocate) {
            fprintf(stderr, "%s\n", dlerror());
            exit(2);
        }
        for (unsigned i = 0; i < many; i++)
            CHECK(allocate(cuMemAlloc, &p));
        fprintf(stderr, "replaced at %p\n", (void *)allocate);
        dlclose(library);
    }
}

/* --- from a signal's handler, on a stack of its own; and reports at a signal at the same time
 * --- */

static void on_signal(int number) {
    (void)number;
    keep(7 * KIB);
    STAY;
}

static OWN void signals(void) {
    static char stack_bytes[64 * 1024];
    stack_t stack = {.ss_sp = stack_bytes, .ss_size = sizeof stack_bytes};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaltstack(&stack, NULL);
    sigaction(SIGUSR1, &action, NULL);
    for (unsigned i = 0; i < many; i++) {
        raise(SIGUSR1);
        activations();
    }
    raise(SIGUSR2);
}

/* --- memory runs out --- */

static OWN void oom(void) {
    CUdeviceptr p;
    weights();
    printf("%d\n", (int)cuMemAlloc(&p, (size_t)1 << 50));
    for (unsigned i = 0; i < kept_count; i++)
        CHECK(cuMemFree(kept[i]));
}

int main(int argc, char **argv) {
    const char *part = argc > 1 ? argv[1] : "";
    CUcontext context = NULL;
    signal(SIGUSR2, SIG_IGN); /* natively the signal would end the process */
    if (strcmp(part, "signals") == 0 && argc > 2)
        signal(SIGUSR2, SIG_DFL);
    context = begin();
    const char *error = dlerror();
    printf("%s\n", error ? error : "no error of the loader's");
    if (strcmp(part, "leak") == 0)
        leak();
    else if (strcmp(part, "rent") == 0)
        rent();
    else if (strcmp(part, "threads") == 0)
        threads(context);
    else if (strcmp(part, "frees") == 0)
        frees();
    else if (strcmp(part, "resets") == 0)
        resets();
    else if (strcmp(part, "contexts") == 0)
        contexts(context);
    else if (strcmp(part, "forks") == 0)
        forks();
    else if (strcmp(part, "plugin") == 0)
        plugin(argv[2]);
    else if (strcmp(part, "replaced") == 0)
        replaced(argv + 2);
    else if (strcmp(part, "signals") == 0)
        signals();
    else if (strcmp(part, "oom") == 0)
        oom();
    else
        return 2;
    return 0;
}
