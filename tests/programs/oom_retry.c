/*
 * Makes calls that take driver memory, after 48 MiB were freed. Natively these bytes are available
 * to the calls.
 *
 *   | oom_retry ...    | each entry                                                             |
 *   | ---------------- | ---------------------------------------------------------------------- |
 *   | refused ENTRY... | always answers out of memory; prints how often the driver was asked,   |
 *   |                  | and whether it got memory back before                                  |
 *   | served           | is refused once; prints whether the program's call succeeds            |
 *
 * For the simulator alone.
 */
#include "program.h"
#include "sim.h"

#include <dlfcn.h>

#define MIB ((size_t)1 << 20)

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device);

typedef CUresult any_entry(const void *a, const void *b, const void *c, const void *d, size_t e,
                           size_t f, size_t g, size_t h, size_t i, size_t j, size_t k);

/* Frees the memory, every second time in a stream. */
static void leave_idle(void) {
    static unsigned turn;
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, 48 * MIB));
    CHECK(turn++ % 2 ? cuMemFreeAsync(p, NULL) : cuMemFree(p));
    CHECK(cuCtxSynchronize());
}

/* The arguments that the library reads before it calls the driver have to be valid. */
static CUresult ask(const char *symbol) {
    static char out[4096] __attribute__((aligned(4096)));
    static const CUDA_ARRAY3D_DESCRIPTOR deep = {64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 0};
    static const CUDA_ARRAY_DESCRIPTOR flat = {64, 64, CU_AD_FORMAT_FLOAT, 1};
    static const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                             .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    const void *arguments[4] = {out, NULL, NULL, NULL};
    CUmemoryPool pool;
    CHECK(cuDeviceGetDefaultMemPool(&pool, 0));
    any_entry *entry = (any_entry *)dlsym(RTLD_DEFAULT, symbol);
    if (!entry) {
        fprintf(stderr, "no entry %s\n", symbol);
        exit(1);
    }
    if (strstr(symbol, "Array3DCreate") || strstr(symbol, "MipmappedArrayCreate")) {
        arguments[1] = &deep;
    } else if (strstr(symbol, "ArrayCreate")) {
        arguments[1] = &flat;
    } else if (strstr(symbol, "MemAlloc") || strstr(symbol, "MemHost") ||
               strcmp(symbol, "cuMemCreate") == 0) {
        arguments[1] = (const void *)(uintptr_t)4096;
        arguments[2] = strstr(symbol, "FromPool") ? (const void *)pool : NULL;
        arguments[2] = strcmp(symbol, "cuMemCreate") == 0 ? (const void *)&prop : arguments[2];
    } else if (strstr(symbol, "IpcOpen")) {
        arguments[1] = out; /* on aarch64 the address of the handle, which is passed by value */
    }
    return entry(arguments[0], arguments[1], arguments[2], arguments[3], 0, 0, 0, 0, 0, 0, 0);
}

static void refused(const char *symbol) {
    leave_idle();
    uint64_t used = sim_used_memory(0), calls = sim_calls(symbol);
    CHECK(sim_fail(symbol, 0, CUDA_ERROR_OUT_OF_MEMORY, -1) == 0 ? CUDA_SUCCESS
                                                                 : CUDA_ERROR_UNKNOWN);
    CUresult r = ask(symbol);
    calls = sim_calls(symbol) - calls;
    sim_fail(symbol, 0, CUDA_SUCCESS, 0);
    printf("%s: %d, asked %d, %s back\n", symbol, (int)r, (int)calls,
           sim_used_memory(0) + 48 * MIB <= used ? "memory" : "nothing");
}

static void once(const char *symbol) {
    leave_idle();
    sim_fail(symbol, 0, CUDA_ERROR_OUT_OF_MEMORY, 1);
}

#define SAY(symbol, call)                                                                          \
    do {                                                                                           \
        once(symbol);                                                                              \
        printf("%s: %d\n", symbol, (int)(call));                                                   \
    } while (0)

static void served(void) {
    struct kernels k;
    CUmodule module;
    CUlibrary library;
    CUcontext context = NULL;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec = NULL;
    CUevent event;
    CUdeviceptr p = 0, words;
    void *host = NULL;
    uint32_t value = 0;
    kernels_load(&k);
    CHECK(cuMemAlloc(&words, 4096));
    SAY("cuModuleLoadData", cuModuleLoadData(&module, kernels_ptx));
    SAY("cuModuleLoadDataEx", cuModuleLoadDataEx(&module, kernels_ptx, 0, NULL, NULL));
    SAY("cuLibraryLoadData",
        cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    SAY("cuLaunchKernel", launch_fill(&k, 0, words, 9, 1024));
    CHECK(cuMemcpyDtoH(&value, words + 4092, 4));
    printf("launched: %u\n", value);
    SAY("cuCtxSetLimit", cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 * MIB));
    SAY("cuStreamCreate", cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    SAY("cuEventCreate", cuEventCreate(&event, 0));
    CHECK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CHECK(launch_fill(&k, stream, words, 11, 1024));
    CHECK(cuStreamEndCapture(stream, &graph));
    SAY("cuGraphInstantiateWithFlags", cuGraphInstantiateWithFlags(&exec, graph, 0));
    if (exec)
        SAY("cuGraphLaunch", cuGraphLaunch(exec, stream));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(&value, words + 4092, 4));
    printf("launched: %u\n", value);
    SAY("cuMemAllocAsync", cuMemAllocAsync(&p, 4096, 0));
    SAY("cuMemAllocManaged", cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL));
    SAY("cuMemHostAlloc", cuMemHostAlloc(&host, 4096, 0));
    SAY("cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain(&context, 0));
    SAY("cuCtxCreate_v2", cuCtxCreate_v2(&context, 0, 0));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    begin();
    if (strcmp(what, "served") == 0)
        served();
    else if (strcmp(what, "refused") == 0)
        for (int i = 2; i < argc; i++)
            refused(argv[i]);
    else
        return 2;
    return 0;
}
