/*
 * Records and waits for whole contexts in the program, before its first allocation.
 *
 * A wait of a context stands behind all earlier records of the context. After the program's first
 * wait the library may record no event later on the same device. This includes pools that begin
 * later, and the pool of the device to which a green context belongs.
 *
 *   | reuse_program_events ... | program                                                         |
 *   | ------------------------ | --------------------------------------------------------------- |
 *   | first                    | waits before its first allocation; hangs behind a late record   |
 *   | first again              | the same, and records after the allocation                      |
 *   | green WHICH D            | a green context of device D records or waits; on the simulator  |
 *   |                          | prints how many records the next allocation makes there         |
 */
#include "program.h"

#include <dlfcn.h>

#define MIB ((size_t)1 << 20)

typedef CUresult CUDAAPI context_event(CUcontext, CUevent);
typedef CUresult CUDAAPI green_event(CUgreenCtx, CUevent);

/* NULL: the driver lacks it. */
static void *entry(const char *name) {
    return dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name);
}

static CUdeviceptr take(size_t bytes) {
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, bytes));
    return p;
}

static CUstream new_stream(void) {
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* Pinned memory: makes no pool. */
static CUdeviceptr new_flag(void) {
    uint32_t *flag;
    CHECK(cuMemAllocHost((void **)&flag, 4));
    *flag = 0;
    return (CUdeviceptr)(uintptr_t)flag;
}

static int first(bool again) {
    CUcontext context = begin();
    context_event *record = (context_event *)entry("cuCtxRecordEvent");
    context_event *wait = (context_event *)entry("cuCtxWaitEvent");
    struct kernels k;
    CUevent event;
    if (!record || !wait)
        return 0; /* a driver before 12.5 */
    kernels_load(&k);
    CUstream s = new_stream(), t = new_stream();
    CUdeviceptr flag = new_flag();
    CHECK(launch_fill(&k, s, flag, 0, 1)); /* the first launch loads code */
    CHECK(cuStreamSynchronize(s));
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(record(context, event));
    CHECK(wait(context, event));
    CUdeviceptr p = take(2 * MIB);
    if (again)
        CHECK(record(context, event));
    CHECK(launch_fill(&k, s, p, 1, 100));
    if (!again)
        CHECK(cuCtxSynchronize());
    CHECK(cuMemFree(p));
    CHECK(launch_spin(&k, s, flag, 1));
    take(2 * MIB);
    take(2 * MIB);
    CHECK(wait(context, event));
    CHECK(launch_set(&k, t, flag, 1));
    CHECK(cuCtxSynchronize());
    return 0;
}

static CUgreenCtx new_green(CUdevice device) {
    typedef CUresult CUDAAPI get(CUdevice, CUdevResource *, CUdevResourceType);
    typedef CUresult CUDAAPI describe(CUdevResourceDesc *, CUdevResource *, unsigned);
    typedef CUresult CUDAAPI make(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned);
    get *resource = (get *)entry("cuDeviceGetDevResource");
    describe *desc_of = (describe *)entry("cuDevResourceGenerateDesc");
    make *create = (make *)entry("cuGreenCtxCreate");
    CUdevResource all;
    CUdevResourceDesc desc;
    CUgreenCtx green = NULL;
    if (!resource || !desc_of || !create ||
        resource(device, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        desc_of(&desc, &all, 1) != CUDA_SUCCESS ||
        create(&green, desc, device, CU_GREEN_CTX_DEFAULT_STREAM) != CUDA_SUCCESS)
        return NULL;
    return green;
}

/* Returns the number of records that an allocation makes while no freed memory is ready. Its size
 * is too large for thread caches. */
static unsigned late_records(const struct kernels *k, CUdeviceptr flag) {
    uint64_t (*count)(const char *) = (uint64_t(*)(const char *))entry("sim_calls");
    CUstream s = new_stream(), t = new_stream();
    CUdeviceptr p = take(20 * MIB);
    CHECK(launch_fill(k, s, p, 1, 100));
    CHECK(cuMemFree(p));
    CHECK(launch_spin(k, s, flag, 1));
    uint64_t before = count ? count("cuCtxRecordEvent") : 0;
    take(20 * MIB); /* stays live: the next allocation must not reuse it */
    unsigned made = count ? (unsigned)(count("cuCtxRecordEvent") - before) : 0;
    CHECK(launch_set(k, t, flag, 1));
    CHECK(cuCtxSynchronize());
    return made;
}

static int green(const char *which, CUdevice device) {
    green_event *act = (green_event *)entry(which);
    CUgreenCtx green = NULL;
    CUcontext contexts[2];
    struct kernels k[2];
    CUevent event;
    int devices;
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&devices));
    for (int i = 0; i < 2 && i < devices; i++) {
        CHECK(cuDevicePrimaryCtxRetain(&contexts[i], i));
        CHECK(cuCtxSetCurrent(contexts[i]));
        kernels_load(&k[i]);
        CHECK(cuMemFree(take(4096))); /* creates the pool of each device */
    }
    if (!act || device >= devices || !(green = new_green(device)))
        return 0;
    CHECK(cuCtxSetCurrent(contexts[device]));
    printf("late records before: %u\n", late_records(&k[device], new_flag()));
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    printf("%s: %d\n", which, act(green, event));
    printf("late records after: %u\n", late_records(&k[device], new_flag()));
    CHECK(cuCtxSetCurrent(contexts[0]));
    if (device > 0)
        printf("late records elsewhere: %u\n", late_records(&k[0], new_flag()));
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 3 && strcmp(argv[1], "green") == 0)
        return green(argv[2], atoi(argv[3]));
    return first(argc > 2);
}
