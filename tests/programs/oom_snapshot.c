/*
 * oom_snapshot PART...: memory of all kinds, and out-of-memory errors. Parts are done in order.
 *
 *      fill=SEED     small and large blocks, every third of them freed
 *      gone          a block in a segment of its own, which the driver gets back
 *      pairs=N       N allocations, each with its free
 *      pinned        pinned host memory; a part of it is freed
 *      threads=N     N threads that all ask for too much at once; the process ends with the first
 *                    error that one of them gets, in the middle of whatever the others do
 *      leave         a request for too much in a thread; the process exits as soon as the file
 *                    of the snapshot has bytes
 *      file=BYTES    no file may grow larger from now on
 *      oom           a request for too much
 *      fork          the parts behind it are done by a child and by its parent
 */
#define GPUCACHE_API __attribute__((weak))
#include "gpucache.h"
#include "program.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define BLOCKS 600
#define TOO_MUCH ((size_t)1 << 40)

static pthread_barrier_t together;
static CUcontext context;

static void fill(uint64_t seed) {
    static CUdeviceptr blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++)
        CHECK(cuMemAlloc(&blocks[i], i % 8 ? 1 + pick(&seed, 40000) : 1 + pick(&seed, 3 << 20)));
    for (int i = 0; i < BLOCKS; i += 3)
        CHECK(cuMemFree(blocks[i]));
}

static void pairs(uint64_t count) {
    CUdeviceptr block;
    for (uint64_t i = 0; i < count; i++) {
        CHECK(cuMemAlloc(&block, 512 << i % 4));
        CHECK(cuMemFree(block));
    }
}

static void gone(void) {
    CUdeviceptr block;
    CHECK(cuMemAlloc(&block, 200 * MIB));
    CHECK(cuMemFree(block));
    CHECK(cuCtxSynchronize());
    if (gpucache_empty_cache)
        gpucache_empty_cache(-1);
}

static void pinned(void) {
    void *host[3];
    for (size_t i = 0; i < 3; i++)
        CHECK(cuMemHostAlloc(&host[i], (i + 1) * MIB + 512, 0));
    CHECK(cuMemFreeHost(host[1]));
}

static CUresult ask(void) {
    CUdeviceptr none;
    return cuMemAlloc(&none, TOO_MUCH);
}

static void *ask_together(void *unused) {
    (void)unused;
    CHECK(cuCtxSetCurrent(context));
    pthread_barrier_wait(&together);
    _exit(ask() == CUDA_ERROR_OUT_OF_MEMORY ? 0 : 1);
}

static void threads(unsigned count) {
    pthread_t all[64];
    pthread_barrier_init(&together, NULL, count);
    for (unsigned i = 0; i < count; i++)
        pthread_create(&all[i], NULL, ask_together, NULL);
    for (unsigned i = 0; i < count; i++)
        pthread_join(all[i], NULL);
}

static void *ask_alone(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    ask();
    pause();
    return unused;
}

static void leave(void) {
    const char *path = getenv("GPUCACHE_OOM_SNAPSHOT");
    struct stat file = {0};
    pthread_t thread;
    CUdeviceptr block;
    for (unsigned i = 0; i < 100000; i++) /* writing takes long enough */
        CHECK(cuMemAlloc(&block, 512));
    pthread_create(&thread, NULL, ask_alone, NULL);
    while (path && (stat(path, &file) != 0 || file.st_size == 0))
        usleep(100);
    exit(0);
}

static void do_part(const char *part, const char *value) {
    if (!context && strcmp(part, "fork") != 0)
        context = begin();
    if (strcmp(part, "fill") == 0)
        fill(strtoull(value, NULL, 10));
    else if (strcmp(part, "gone") == 0)
        gone();
    else if (strcmp(part, "pairs") == 0)
        pairs(strtoull(value, NULL, 10));
    else if (strcmp(part, "pinned") == 0)
        pinned();
    else if (strcmp(part, "threads") == 0)
        threads((unsigned)strtoul(value, NULL, 10));
    else if (strcmp(part, "file") == 0)
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){strtoull(value, NULL, 10), RLIM_INFINITY});
    else if (strcmp(part, "leave") == 0)
        leave();
    else if (strcmp(part, "oom") == 0)
        printf("%d\n", (int)ask());
}

int main(int count, char **parts) {
    pid_t child = 0;
    for (int i = 1; i < count; i++) {
        char *value = strchr(parts[i], '=');
        if (value)
            *value++ = '\0';
        if (strcmp(parts[i], "fork") == 0) {
            fflush(stdout);
            child = fork();
        } else {
            do_part(parts[i], value);
        }
    }
    int status = 0;
    if (child > 0 && (waitpid(child, &status, 0) != child || status != 0))
        return 1;
    return 0;
}
