/*
 * Loads a plugin whose calls bypass preloaded libraries (RTLD_DEEPBIND), and which frees the
 * program's blocks at the driver itself. `load_plugin LIBRARY` prints the state of the other
 * blocks.
 *
 * Natively the driver frees just the block. Under the library the block is a part of a larger
 * allocation: the plugin's free may be refused, but must not free other blocks. The same file built
 * with -DDEEP is the plugin.
 */
#include <cuda.h>

#ifdef DEEP

CUresult deep_alloc(CUdeviceptr *p, size_t bytes) {
    return cuMemAlloc(p, bytes);
}

CUresult deep_free(CUdeviceptr p) {
    return cuMemFree(p);
}

#else

#include "program.h"

#include <dlfcn.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define BLOCKS 24

static CUresult (*deep_free)(CUdeviceptr);
static CUresult (*deep_alloc)(CUdeviceptr *, size_t);

static bool holds(CUdeviceptr p, size_t bytes, uint32_t value) {
    uint32_t first = 0, last = 0;
    return cuMemcpyDtoH(&first, p, 4) == CUDA_SUCCESS &&
           cuMemcpyDtoH(&last, p + bytes - 4, 4) == CUDA_SUCCESS && first == value && last == value;
}

static void blocks_of(size_t bytes) {
    CUdeviceptr p[BLOCKS];
    bool gone[BLOCKS] = {false};
    unsigned wrong = 0, freed = 0;
    for (unsigned i = 0; i < BLOCKS; i++) {
        CHECK(cuMemAlloc(&p[i], bytes));
        CHECK(cuMemsetD32(p[i], i, 1));
        CHECK(cuMemsetD32(p[i] + bytes - 4, i, 1));
    }
    for (unsigned i = 0; i < BLOCKS; i++) {
        gone[i] = deep_free(p[i]) == CUDA_SUCCESS;
        for (unsigned j = i; j < BLOCKS; j++)
            wrong += !gone[j] && !holds(p[j], bytes, j);
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        freed += gone[i] || cuMemFree(p[i]) == CUDA_SUCCESS;
    printf("%zu KiB: %u lost, %u freed\n", bytes / KIB, wrong, freed);
}

int main(int argc, char **argv) {
    void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) : NULL;
    if (!plugin) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    deep_free = (CUresult(*)(CUdeviceptr))dlsym(plugin, "deep_free");
    deep_alloc = (CUresult(*)(CUdeviceptr *, size_t))dlsym(plugin, "deep_alloc");
    begin();
    static const size_t sizes[] = {4 * KIB,           512 * KIB, 1 * MIB, 1 * MIB + 4,
                                   2 * MIB - 4 * KIB, 2 * MIB,   3 * MIB, 16 * MIB};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++)
        blocks_of(sizes[i]);
    CUdeviceptr p;
    CHECK(deep_alloc(&p, MIB));
    CHECK(cuMemsetD32(p, 1, MIB / 4));
    printf("the plugin's own, freed by the program: %d\n", (int)cuMemFree(p));
    return 0;
}

#endif
