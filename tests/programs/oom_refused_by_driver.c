/*
 * oom_refused_by_driver CASE: prints a program's results while the driver or the system refuses
 * calls of the library. The lines must be the native ones. oom_refused_by_driver.py sets the
 * refusals.
 */
#include "../sandbox.h"
#include "diff.h"

#include "gpucache.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#define GIB (MIB << 10)

static struct kernels kernels;
static CUstream stream;

/* Allocates blocks of one size, one at a time, writes each late and reads it back. Returns the
 * number of right ones. */
static unsigned pairs(unsigned count, size_t bytes) {
    unsigned good = 0;
    for (unsigned i = 0; i < count; i++) {
        CUdeviceptr p;
        uint32_t first = 0;
        if (cuMemAlloc(&p, bytes) == CUDA_SUCCESS) {
            CHECK(launch_fill(&kernels, stream, p, i + 1, 100));
            CHECK(cuMemcpyDtoHAsync(&first, p, 4, stream));
            if (i % 2 == 0)
                CHECK(cuStreamSynchronize(stream));
            good += i % 2 != 0 || first == i + 1;
            CHECK(cuMemFree(p));
            CHECK(cuStreamSynchronize(stream));
        }
    }
    return good;
}

/* ---- records of the context's work, all of them or some ---- */

static void records(void) {
    line("records: 10 GiB: %u of 10", pairs(10, 10 * GIB));
    line("records: 1 GiB: %u of 100", pairs(100, GIB));
    line("records: 64 KiB: %u of 1000", pairs(1000, 64 * KIB));
    line("records: 7 GiB: %u of 20", pairs(20, 7 * GIB));
}

/* 512 MiB have space for one block, and the reserve is a small part of the budget. */
static void records_small(void) {
    line("records: 300 MiB: %u of 10", pairs(10, 300 * MIB));
}

/* ---- memory at an address that is no multiple of 2 MiB ---- */

/* The second allocation must not wait for the device, whose kernel waits for later work. */
static void unaligned(void) {
    uint32_t *flag;
    CUstream other;
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(cuMemAllocHost((void **)&flag, 4));
    *flag = 0;
    CUdeviceptr first = take(3 * MIB);
    CHECK(launch_spin(&kernels, stream, (CUdeviceptr)flag, 1));
    CUdeviceptr second = take(3 * MIB), small = take(100);
    CHECK(launch_set(&kernels, other, (CUdeviceptr)flag, 1));
    CHECK(cuCtxSynchronize());
    CODES("unaligned", cuMemFree(first), cuMemFree(second), cuMemFree(small), cuMemFree(small));
}

/* ---- address space of the host ---- */

#define BLOCKS 400

/* Allocates, writes and reads many blocks at a time. Returns the number of right ones. */
static unsigned blocks(size_t bytes) {
    static CUdeviceptr p[BLOCKS];
    unsigned good = 0;
    for (unsigned i = 0; i < BLOCKS; i++)
        if (cuMemAlloc(&p[i], bytes) != CUDA_SUCCESS ||
            cuMemsetD32(p[i] + bytes - 4, i, 1) != CUDA_SUCCESS)
            p[i] = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        uint32_t last = 0;
        if (p[i]) {
            CHECK(cuMemcpyDtoH(&last, p[i] + bytes - 4, 4));
            CHECK(cuMemFree(p[i]));
            good += last == i;
        }
    }
    return good;
}

static size_t address_space(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%lu", &pages) != 1)
        exit(1);
    fclose(file);
    return pages * 4096;
}

/* Limits the address space to little more than now, then restores it. */
static void host_memory(void) {
    struct rlimit before, less;
    CHECK(cuMemFree(take(3 * MIB)));
    getrlimit(RLIMIT_AS, &before);
    less = before;
    less.rlim_cur = address_space() + 2 * MIB;
    line("limit: %d", setrlimit(RLIMIT_AS, &less));
    line("without host memory: %u of 4 KiB", blocks(4 * KIB));
    line("without host memory: %u of 2 MiB", blocks(2 * MIB));
    line("limit: %d", setrlimit(RLIMIT_AS, &before));
    line("with it: %u of 4 KiB, %u of 2 MiB", blocks(4 * KIB), blocks(2 * MIB));
}

/* ---- membarrier, refused from a later moment on ---- */

#define SWAPS 20000
#define PLACES 32

static CUcontext context;
static _Atomic uint64_t places[PLACES];

/* Passes blocks to another thread, which frees them. */
static void *swap(void *seed) {
    uint64_t random = (uint64_t)(uintptr_t)seed, failures = 0;
    CHECK(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < SWAPS; i++) {
        CUdeviceptr fresh = 0;
        failures += cuMemAlloc(&fresh, 1 + pick(&random, i % 64 ? 20000 : 3 << 20)) != CUDA_SUCCESS;
        uint64_t old = atomic_exchange(&places[pick(&random, PLACES)], fresh);
        failures += old && cuMemFree(old) != CUDA_SUCCESS;
    }
    return (void *)(uintptr_t)failures;
}

static void sandbox(void) {
    pthread_t threads[3];
    void *failures;
    for (uintptr_t i = 0; i < 3; i++)
        if (pthread_create(&threads[i], NULL, swap, (void *)(i + 1)) != 0)
            exit(1);
    usleep(2000);
    bool refused = refuse_membarrier();
    for (unsigned i = 0; i < 20 && gpucache_empty_cache; i++) {
        gpucache_empty_cache(-1);
        usleep(500);
    }
    for (uintptr_t i = 0; i < 3; i++) {
        pthread_join(threads[i], &failures);
        line("sandbox: %d, failures: %lu", refused, (unsigned long)(uintptr_t)failures);
    }
    for (unsigned i = 0; i < PLACES; i++)
        if (places[i])
            CHECK(cuMemFree(places[i]));
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {
        {"records", records}, {"records_small", records_small}, {"host_memory", host_memory},
        {"sandbox", sandbox}, {"unaligned", unaligned},
    };
    if (argc < 2) {
        fprintf(stderr, "usage: oom_refused_by_driver CASE\n");
        return 2;
    }
    context = begin();
    kernels_load(&kernels);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(cases[i].name, argv[1]) == 0) {
            cases[i].run();
            return 0;
        }
    }
    fprintf(stderr, "no case %s\n", argv[1]);
    return 2;
}
