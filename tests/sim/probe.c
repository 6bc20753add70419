/*
 * Asks a CUDA driver several hundred queries and prints the answers, one line each.
 *
 * The file probe-h200.txt has the answers of an H200. If the simulator answers otherwise, the
 * simulator is wrong. Questions that may break the context (a fault, a destroyed context) stand
 * last.
 *
 * The program prints "waits" if a call waits for work in flight, else "returns". No time is
 * measured, so the result does not depend on the machine's load. The work goes on until the call
 * has returned, or until its thread was seen to wait (watch).
 */
#define __CUDA_API_VERSION_INTERNAL
#include "driver/table/cuda_abi.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHANCES 30 /* checks that find a thread sleeping or spinning before it counts as waiting */

static const char ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry sleep_us(.param .u64 us)\n{\n"
    ".reg .u64 %a, %b, %c;\n.reg .pred %p;\n"
    "ld.param.u64 %c, [us];\nmul.lo.u64 %c, %c, 1000;\nmov.u64 %a, %globaltimer;\n"
    "L:\nmov.u64 %b, %globaltimer;\nsub.u64 %b, %b, %a;\nsetp.lt.u64 %p, %b, %c;\n@%p bra "
    "L;\nret;\n}\n"
    ".visible .entry spin_until(.param .u64 flag, .param .u32 value)\n{\n"
    ".reg .u64 %a;\n.reg .u32 %v, %w;\n.reg .pred %p;\n"
    "ld.param.u64 %a, [flag];\nld.param.u32 %w, [value];\ncvta.to.global.u64 %a, %a;\n"
    "M:\nld.volatile.global.u32 %v, [%a];\nsetp.ne.u32 %p, %v, %w;\n@%p bra M;\nret;\n}\n"
    ".visible .entry fault()\n{\n.reg .u64 %a;\n.reg .u32 %v;\nmov.u64 %a, 64;\nmov.u32 %v, 1;\n"
    "st.global.u32 [%a], %v;\nret;\n}\n";

static CUcontext context;
static CUfunction sleep_us, spin_until, fault;
static CUstream a, b, blocking;

#define ASK(call) printf("%-72s %d\n", #call, (int)(call))
#define MUST(call)                                                                                 \
    do {                                                                                           \
        CUresult must = (call);                                                                    \
        if (must) {                                                                                \
            printf("MUST %s: %d\n", #call, (int)must);                                             \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* ---- work in flight, and who waits for it ---------------------------------------------------- */

static uint32_t *done; /* pinned: the work spins until this is 1 */

static void busy(CUstream stream) {
    if (!done)
        MUST(cuMemHostAlloc((void **)&done, sizeof(*done), CU_MEMHOSTALLOC_PORTABLE));
    __atomic_store_n(done, 0, __ATOMIC_SEQ_CST);
    CUdeviceptr flag = (CUdeviceptr)(uintptr_t)done;
    uint32_t value = 1;
    void *params[] = {&flag, &value};

    MUST(cuLaunchKernel(spin_until, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

static void finish(void) {
    __atomic_store_n(done, 1, __ATOMIC_SEQ_CST);
}

/* A thread that may wait in a call. */
struct watched {
    pid_t thread;
    clockid_t clock;
    bool returned, waits; /* true: observed first */
};

static void enter(struct watched *watched) {
    pthread_getcpuclockid(pthread_self(), &watched->clock);
    __atomic_store_n(&watched->thread, (pid_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
}

/* Returns whether the thread sleeps, or has slept since `slept` was counted, as a thread that polls
 * does. */
static bool sleeps(pid_t thread, unsigned long *slept) {
    char path[64], line[256], state = 'R';
    unsigned long count = *slept;
    snprintf(path, sizeof(path), "/proc/self/task/%d/status", (int)thread);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file)) {
        sscanf(line, "State: %c", &state);
        sscanf(line, "voluntary_ctxt_switches: %lu", &count);
    }
    if (file)
        fclose(file);
    bool again = count != *slept;
    *slept = count;
    return again || state != 'R';
}

static uint64_t cpu_ns(clockid_t clock) {
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/*
 * Returns when the thread's call has returned, or when the thread was seen sleeping or spinning so
 * often that it must be waiting. A thread that is ready to run but gets no processor does neither.
 * A thread that sleeps for a lock of the driver gets it: this thread takes and releases them
 * between.
 */
static void watch(struct watched *watched) {
    CUcontext current;

    while (!__atomic_load_n(&watched->thread, __ATOMIC_SEQ_CST))
        usleep(100);
    uint64_t cpu = cpu_ns(watched->clock);
    unsigned long slept = 0;
    for (int chances = 0; chances < CHANCES; usleep(1000)) {
        if (__atomic_load_n(&watched->returned, __ATOMIC_SEQ_CST))
            return;
        (void)cuCtxGetCurrent(&current);
        uint64_t now = cpu_ns(watched->clock);
        chances += sleeps(watched->thread, &slept) || now - cpu > 500000;
        cpu = now;
    }
    watched->waits = !__atomic_load_n(&watched->returned, __ATOMIC_SEQ_CST);
}

/* Watches a call, then ends the work. Stays until the call has returned: without another thread the
 * simulator would report a hang. */
static void *watch_and_finish(void *of) {
    struct watched *watched = of;

    watch(watched);
    if (watched->waits)
        finish();
    while (!__atomic_load_n(&watched->returned, __ATOMIC_SEQ_CST))
        usleep(200);
    return NULL;
}

static pthread_t watcher;

static void watch_me(struct watched *watched) {
    enter(watched);
    pthread_create(&watcher, NULL, watch_and_finish, watched);
}

static const char *waited(struct watched *watched) {
    __atomic_store_n(&watched->returned, true, __ATOMIC_SEQ_CST);
    pthread_join(watcher, NULL);
    return watched->waits ? "waits" : "returns";
}

/* Prints whether the call waits for work in flight on stream a. */
#define DURING(call)                                                                               \
    do {                                                                                           \
        struct watched watched = {0};                                                              \
        MUST(cuCtxSynchronize());                                                                  \
        busy(a);                                                                                   \
        watch_me(&watched);                                                                        \
        int result = (int)(call);                                                                  \
        printf("during work: %-59s %d %s\n", #call, result, waited(&watched));                     \
        finish();                                                                                  \
        MUST(cuCtxSynchronize());                                                                  \
    } while (0)

static void ask_address(const char *name, int version, cuuint64_t flags) {
    void *address = (void *)1;
    CUdriverProcAddressQueryResult status = 77;
    int result = (int)cuGetProcAddress_v2(name, &address, version, flags, &status);

    printf("cuGetProcAddress_v2(\"%s\", %d, %d): %d %s status %d\n", name, version, (int)flags,
           result,
           address == (void *)1 ? "untouched"
           : address            ? "found"
                                : "null",
           (int)status);
}

static void entries(void) {
    ask_address("", 0, 0);
    ask_address("cuNoSuchThing", 12000, 0);
    ask_address("cuMemAlloc_v2", 12000, 0);
    ask_address("cuMemAlloc", 2000, 0);
    ask_address("cuMemAlloc", 1000, 0);
    ask_address("cuMemAlloc", 13000, 0);
    ask_address("cuMemAlloc", 99000, 0);
    ask_address("cuMemAlloc", 12000, 3);
    ask_address("cuMemAlloc", 12000, 4);
    ask_address("cuMemAllocAsync", 11010, 0);
    ask_address("cuMemcpy", 4000, 2);
    ask_address("cuCtxRecordEvent", 12040, 0);
    void *address = &address;
    ASK(cuGetProcAddress("cuNoSuchThing", &address, 12000, 0));
    printf("null: %d\n", address == NULL);
    ASK(cuGetProcAddress("cuMemAlloc", &address, 1000, 0));
    ASK(cuGetProcAddress_v2("cuNoSuchThing", &address, 12000, 0, NULL));
}

static void before_init(void) {
    CUdeviceptr p;
    CUcontext c;
    CUdevice d;
    int n;
    const char *text;

    ASK(cuMemAlloc_v2(&p, 16));
    ASK(cuMemFree_v2(0));
    ASK(cuDeviceGet(&d, 0));
    ASK(cuDeviceGetCount(&n));
    ASK(cuDriverGetVersion(&n));
    ASK(cuCtxGetCurrent(&c));
    ASK(cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &text));
    ASK(cuGetErrorName((CUresult)12345, &text));
    ASK(cuPointerGetAttribute(&n, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 64));
    ASK(cuCtxRecordEvent(NULL, NULL));
    ASK(cuInit(1));
}

static void without_context(void) {
    CUdeviceptr p;
    CUcontext c;
    CUdevice d;
    CUstream s;
    size_t size, total;
    int n;

    ASK(cuMemAlloc_v2(&p, 16));
    ASK(cuMemFree_v2(0));
    ASK(cuMemFree_v2(0x1000));
    ASK(cuMemGetAddressRange_v2(&p, &size, 0x1000));
    ASK(cuPointerGetAttribute(&n, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 0x1000));
    ASK(cuMemGetInfo_v2(&size, &total));
    ASK(cuCtxGetDevice(&d));
    ASK(cuCtxSynchronize());
    ASK(cuCtxPopCurrent_v2(&c));
    ASK(cuStreamCreate(&s, 0));
    ASK(cuStreamSynchronize(NULL));
    ASK(cuMemAllocAsync(&p, 16, NULL));
    ASK(cuDeviceGet(&d, 99));
    ASK(cuCtxCreate_v2(&c, 0, 99));
    ASK(cuDevicePrimaryCtxRelease_v2(0));
}

static void memory(void) {
    CUdeviceptr p, q, r;
    size_t size, pitch, free0, free1, total;
    void *host;

    ASK(cuMemAlloc_v2(&p, 0));
    ASK(cuMemAlloc_v2(NULL, 16));
    ASK(cuMemAlloc_v2(&p, (size_t)1 << 50));
    ASK(cuMemFree_v2(0));
    ASK(cuMemFree_v2(0x1000));
    ASK(cuMemFree_v2((CUdeviceptr)&p));
    MUST(cuMemAlloc_v2(&p, 1000));
    MUST(cuMemAlloc_v2(&q, 1));
    MUST(cuMemAlloc_v2(&r, 1));
    printf("spacing of small blocks %lld %lld\n", (long long)(q - p), (long long)(r - q));
    MUST(cuMemGetAddressRange_v2(&r, &size, p + 500));
    printf("range of 1000 bytes: offset %lld size %zu\n", (long long)(r - p), size);
    ASK(cuMemGetAddressRange_v2(&r, &size, p + 999));
    ASK(cuMemGetAddressRange_v2(&r, &size, p + 1000));
    ASK(cuMemGetAddressRange_v2(NULL, NULL, p));
    ASK(cuMemGetAddressRange_v2(&r, &size, 0x1000));
    ASK(cuMemGetAddressRange_v2(&r, &size, (CUdeviceptr)&p));
    ASK(cuMemFree_v2(p + 512));
    ASK(cuMemFree_v2(p));
    ASK(cuMemFree_v2(p));
    ASK(cuMemGetAddressRange_v2(&r, &size, p));
    MUST(cuMemGetInfo_v2(&free0, &total));
    MUST(cuMemAlloc_v2(&p, 1 << 20));
    MUST(cuMemGetInfo_v2(&free1, &total));
    printf("1 MiB costs %lld, aligned to 2 MiB: %d\n", (long long)(free0 - free1),
           p % (2 << 20) == 0);
    MUST(cuMemFree_v2(p));
    MUST(cuMemAlloc_v2(&p, (1 << 20) + 1));
    MUST(cuMemGetInfo_v2(&free1, &total));
    printf("1 MiB + 1 costs %lld, aligned to 2 MiB: %d\n", (long long)(free0 - free1),
           p % (2 << 20) == 0);
    MUST(cuMemFree_v2(p));
    MUST(cuMemAlloc_v2(&p, (3 << 20) + 1));
    MUST(cuMemGetInfo_v2(&free1, &total));
    printf("3 MiB + 1 costs %lld, aligned to 2 MiB: %d\n", (long long)(free0 - free1),
           p % (2 << 20) == 0);
    ASK(cuMemcpyHtoD_v2(p + (3 << 20), &p, 2));
    ASK(cuMemsetD8_v2(p + (3 << 20), 0, 2));
    MUST(cuMemFree_v2(p));
    ASK(cuMemAllocPitch_v2(&p, &pitch, 1000, 3, 4));
    printf("pitch %zu\n", pitch);
    ASK(cuMemFree_v2(p));
    ASK(cuMemAllocPitch_v2(&p, &pitch, 1000, 3, 5));
    ASK(cuMemAllocPitch_v2(&p, &pitch, 0, 3, 4));
    ASK(cuMemHostAlloc(&host, 5000, 0));
    ASK(cuMemFree_v2((CUdeviceptr)host));
    ASK(cuMemGetAddressRange_v2(&r, &size, (CUdeviceptr)host + 10));
    ASK(cuMemFreeHost((char *)host + 8));
    ASK(cuMemHostRegister_v2(host, 4096, 0));
    unsigned flags = 99;
    ASK(cuMemHostGetFlags(&flags, host));
    printf("host flags %u\n", flags);
    ASK(cuMemHostGetDevicePointer_v2(&r, host, 0));
    ASK(cuMemHostGetDevicePointer_v2(&r, &host, 0));
    ASK(cuMemFreeHost(host));
    ASK(cuMemFreeHost(host));
    ASK(cuMemFreeHost(NULL));
    host = aligned_alloc(4096, 65536);
    memset(host, 0, 65536);
    ASK(cuMemHostRegister_v2(host, 8192, 0));
    ASK(cuMemHostRegister_v2(host, 8192, 0));
    ASK(cuMemHostRegister_v2((char *)host + 4096, 8192, 0));
    ASK(cuMemHostGetFlags(&flags, host));
    printf("registered flags %u\n", flags);
    ASK(cuMemHostUnregister((char *)host + 4096));
    ASK(cuMemHostUnregister(host));
    ASK(cuMemHostUnregister(host));
    ASK(cuMemHostUnregister(NULL));
    ASK(cuMemAllocManaged(&p, 100, CU_MEM_ATTACH_GLOBAL));
    ASK(cuMemGetAddressRange_v2(&r, &size, p));
    ASK(cuMemFree_v2(p));
    ASK(cuMemAllocManaged(&p, 100, 0));
    ASK(cuMemAllocManaged(&p, 0, 1));
    ASK(cuMemcpyDtoH_v2(host, (CUdeviceptr)host, 16));
    ASK(cuMemcpyHtoD_v2((CUdeviceptr)host, host, 16));
    ASK(cuMemcpy((CUdeviceptr)host, (CUdeviceptr)host + 64, 16));
    ASK(cuMemsetD8_v2((CUdeviceptr)host, 0, 16));
    ASK(cuMemcpyHtoD_v2(0, host, 0));
    ASK(cuMemcpyHtoD_v2(0, host, 1));
    free(host);
    MUST(cuMemFree_v2(q));
}

static void pools(void) {
    CUdeviceptr p, q;
    CUmemoryPool pool;
    cuuint64_t used = 0, reserved = 0;

    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    ASK(cuMemAllocAsync(&p, 0, a));
    ASK(cuMemAllocAsync(&p, 1000, a));
    ASK(cuMemAllocAsync(&q, 1000, a));
    printf("pool block aligned to 512: %d, neighbours %lld apart\n", p % 512 == 0,
           (long long)(q > p ? q - p : p - q));
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    printf("pool used %llu reserved %llu\n", (unsigned long long)used,
           (unsigned long long)reserved);
    ASK(cuMemFreeAsync(0, a));
    ASK(cuMemFreeAsync(0x1000, a));
    ASK(cuMemFreeAsync(p + 256, a));
    ASK(cuMemFreeAsync(p, a));
    ASK(cuMemFreeAsync(p, a));
    ASK(cuMemFree_v2(p));
    ASK(cuMemFree_v2(q));
    ASK(cuMemFree_v2(q));
    MUST(cuStreamSynchronize(a));
    MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
    printf("pool reserved after synchronisation %llu\n", (unsigned long long)reserved);
    ASK(cuMemAlloc_v2(&p, 1000));
    ASK(cuMemFreeAsync(p, a)); /* a free after this one is accepted, and crashes */
    ASK(cuMemPoolDestroy(pool));
    ASK(cuMemAllocAsync(&p, (size_t)1 << 50, a));
    MUST(cuCtxSynchronize());
}

static void ask_pointer(const char *what, CUdeviceptr p) {
    static const struct {
        CUpointer_attribute name;
        const char *text;
        int size;
    } attributes[] = {
        {CU_POINTER_ATTRIBUTE_CONTEXT, "CONTEXT", 8},
        {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, "MEMORY_TYPE", 4},
        {CU_POINTER_ATTRIBUTE_DEVICE_POINTER, "DEVICE_POINTER", 8},
        {CU_POINTER_ATTRIBUTE_HOST_POINTER, "HOST_POINTER", 8},
        {CU_POINTER_ATTRIBUTE_P2P_TOKENS, "P2P_TOKENS", 16},
        {CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, "SYNC_MEMOPS", 4},
        {CU_POINTER_ATTRIBUTE_BUFFER_ID, "BUFFER_ID", 8},
        {CU_POINTER_ATTRIBUTE_IS_MANAGED, "IS_MANAGED", 4},
        {CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, "DEVICE_ORDINAL", 4},
        {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, "IS_LEGACY_CUDA_IPC_CAPABLE", 4},
        {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, "RANGE_START_ADDR", 8},
        {CU_POINTER_ATTRIBUTE_RANGE_SIZE, "RANGE_SIZE", 8},
        {CU_POINTER_ATTRIBUTE_MAPPED, "MAPPED", 4},
        {CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, "ALLOWED_HANDLE_TYPES", 8},
        {CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, "IS_GPU_DIRECT_RDMA_CAPABLE", 4},
        {CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, "ACCESS_FLAGS", 4},
        {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, "MEMPOOL_HANDLE", 8},
        {CU_POINTER_ATTRIBUTE_MAPPING_SIZE, "MAPPING_SIZE", 8},
        {CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, "MAPPING_BASE_ADDR", 8},
        {CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, "MEMORY_BLOCK_ID", 8},
        {CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE, "IS_HW_DECOMPRESS_CAPABLE", 4},
    };
    enum { COUNT = sizeof(attributes) / sizeof(*attributes) };

    for (int i = 0; i < COUNT; i++) {
        uint64_t value[2] = {0, 0};
        int result = (int)cuPointerGetAttribute(value, attributes[i].name, p);
        uint64_t v = attributes[i].size == 4 ? (uint32_t)value[0] : value[0];
        const char *note = "";
        if (attributes[i].name == CU_POINTER_ATTRIBUTE_BUFFER_ID ||
            attributes[i].name == CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID ||
            attributes[i].name == CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)
            v = v != 0, note = " (not zero?)";
        else if (v == (uint64_t)(uintptr_t)context)
            v = 1, note = " (the context)";
        else if (attributes[i].size == 8 && v - p + 8192 < 16384)
            v = v - p, note = " (relative)";
        printf("pointer %-10s %-28s %d %lld%s\n", what, attributes[i].text, result, (long long)v,
               note);
    }
    CUpointer_attribute two[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                  CU_POINTER_ATTRIBUTE_RANGE_SIZE};
    unsigned type = 99;
    size_t size = 99;
    void *data[2] = {&type, &size};
    int result = (int)cuPointerGetAttributes(2, two, data, p);
    printf("pointer %-10s attributes %d type %u size %zu\n", what, result, type, size);
}

static CUdeviceptr mapped, alias;
static CUmemGenericAllocationHandle page;
static CUmemAllocationProp prop;
static CUmemAccessDesc access_desc;

static void vmm(void) {
    const size_t G = 2 << 20;
    CUdeviceptr p;
    size_t size = 0;
    CUmemGenericAllocationHandle other;
    unsigned long long flags = 99;

    ASK(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    printf("granularity %zu\n", size);
    ASK(cuMemGetAllocationGranularity(&size, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    printf("granularity recommended %zu\n", size);
    ASK(cuMemAddressReserve(&mapped, 4 * G, 0, 0, 0));
    ASK(cuMemAddressReserve(&p, 4096, 0, 0, 0));
    ASK(cuMemAddressReserve(&p, (size_t)1 << 60, 0, 0, 0));
    ASK(cuMemGetAddressRange_v2(&p, &size, mapped));
    ASK(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, mapped));
    ASK(cuMemCreate(&page, 4096, &prop, 0));
    ASK(cuMemCreate(&page, 2 * G, &prop, 0));
    ASK(cuMemCreate(&other, (size_t)1 << 50, &prop, 0));
    ASK(cuMemMap(mapped, G, 0, page, 0));
    ASK(cuMemMap(mapped, 2 * G, 0, page, 0));
    ASK(cuMemMap(mapped + G, 2 * G, 0, page, 0));
    ASK(cuMemSetAccess(mapped, 4 * G, &access_desc, 1));
    ASK(cuMemsetD8_v2(mapped, 1, 16));
    ASK(cuMemcpyHtoD_v2(mapped, &p, 8));
    ASK(cuMemSetAccess(mapped, G, &access_desc, 1));
    ASK(cuMemSetAccess(mapped, 2 * G, &access_desc, 1));
    ASK(cuMemGetAccess(&flags, &access_desc.location, mapped));
    printf("access %llu\n", flags);
    ASK(cuMemGetAccess(&flags, &access_desc.location, mapped + 3 * G));
    ASK(cuMemGetAddressRange_v2(&p, &size, mapped + G + 5));
    printf("range of a mapping: offset %lld size %zu\n", (long long)(p - mapped), size);
    MUST(cuMemAddressReserve(&alias, 2 * G, 0, 0, 0));
    ASK(cuMemMap(alias, 2 * G, 0, page, 0));
    ASK(cuMemSetAccess(alias, 2 * G, &access_desc, 1));
    ASK(cuMemFree_v2(mapped));
    ASK(cuMemRetainAllocationHandle(&other, (void *)(mapped + 100)));
    printf("retained the same: %d\n", other == page);
    ASK(cuMemRelease(other));
    CUmemAllocationProp back;
    memset(&back, 0, sizeof(back));
    ASK(cuMemGetAllocationPropertiesFromHandle(&back, page));
    int fd;
    ASK(cuMemExportToShareableHandle(&fd, page, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    CUipcMemHandle handle;
    ASK(cuIpcGetMemHandle(&handle, mapped));
    ask_pointer("mapped", mapped + 64);
    ASK(cuMemUnmap(alias, G));
    ASK(cuMemAddressFree(alias, 2 * G));
    ASK(cuMemUnmap(alias, 2 * G));
    ASK(cuMemUnmap(alias, 2 * G));
    ASK(cuMemAddressFree(alias, G));
    ASK(cuMemAddressFree(alias, 2 * G));
    DURING(cuMemSetAccess(mapped, 2 * G, &access_desc, 1));
    ASK(cuMemRelease(page));
    ASK(cuMemRelease(page));
    ASK(cuMemsetD8_v2(mapped, 1, 16));
    DURING(cuMemUnmap(mapped, 2 * G));
    ASK(cuMemsetD8_v2(mapped, 1, 16));
    ASK(cuMemcpyHtoD_v2(mapped, &p, 8));
    MUST(cuMemCreate(&page, G, &prop, 0));
    MUST(cuMemMap(mapped, G, 0, page, 0));
    MUST(cuMemMap(mapped + 2 * G, G, 0, page, 0));
    ASK(cuMemUnmap(mapped, 3 * G)); /* with a gap in the middle */
    MUST(cuMemMap(mapped, G, 0, page, 0));
    MUST(cuMemMap(mapped + 2 * G, G, 0, page, 0));
    ASK(cuMemUnmap(mapped + G, 3 * G));
    ASK(cuMemUnmap(mapped, 4 * G));
    MUST(cuMemRelease(page));
    ASK(cuMemAddressFree(mapped, 4 * G));
    ASK(cuMemAddressFree(mapped, 4 * G));
}

static void pointers(void) {
    CUdeviceptr p;
    void *host;
    unsigned one = 1;
    static char pageable[64];

    MUST(cuMemAlloc_v2(&p, 5000));
    ask_pointer("device", p + 64);
    ASK(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    ASK(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 0x1000));
    ASK(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    one = 0;
    ASK(cuPointerGetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    printf("sync memops %u\n", one);
    CUipcMemHandle h1, h2;
    memset(&h1, 0, sizeof(h1));
    memset(&h2, 0, sizeof(h2));
    ASK(cuIpcGetMemHandle(&h1, p));
    ASK(cuIpcGetMemHandle(&h2, p + 100));
    printf("handles identical: %d\n", memcmp(&h1, &h2, sizeof(h1)) == 0);
    CUdeviceptr q;
    ASK(cuIpcOpenMemHandle_v2(&q, h1, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    ASK(cuIpcOpenMemHandle_v2(&q, h1, 0));
    memset(&h2, 7, sizeof(h2));
    ASK(cuIpcOpenMemHandle_v2(&q, h2, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    ASK(cuIpcCloseMemHandle(p));
    ASK(cuIpcGetMemHandle(&h2, 0x1000));
    MUST(cuMemFree_v2(p));
    ask_pointer("freed", p);
    MUST(cuMemHostAlloc(&host, 5000, 0));
    ask_pointer("host", (CUdeviceptr)host + 64);
    ASK(cuIpcGetMemHandle(&h2, (CUdeviceptr)host));
    MUST(cuMemFreeHost(host));
    MUST(cuMemAllocManaged(&p, 5000, 1));
    ask_pointer("managed", p + 64);
    ASK(cuIpcGetMemHandle(&h2, p));
    MUST(cuMemFree_v2(p));
    MUST(cuMemAllocAsync(&p, 5000, a));
    ask_pointer("pool", p + 64);
    ASK(cuIpcGetMemHandle(&h2, p));
    MUST(cuMemFreeAsync(p, a));
    ask_pointer("pageable", (CUdeviceptr)pageable);
    ask_pointer("unknown", 0x1000);
}

static void waiting(void) {
    CUdeviceptr p, q;
    void *host, *pinned;
    CUevent event, mark;
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR desc = {64, 64, CU_AD_FORMAT_FLOAT, 1};
    CUmodule module;
    CUlibrary library;
    CUstream s;
    static char pageable[1 << 20];

    MUST(cuMemAlloc_v2(&q, 1 << 20));
    MUST(cuMemHostAlloc(&pinned, 1 << 20, 0));
    MUST(cuMemAlloc_v2(&p, 4096));
    DURING(cuMemFree_v2(p));
    DURING(cuMemAlloc_v2(&p, 4096));
    DURING(cuMemFreeAsync(p, b));
    MUST(cuMemAllocAsync(&p, 4096, b));
    DURING(cuMemFree_v2(p));
    MUST(cuMemAllocAsync(&p, 4096, a));
    DURING(cuMemFree_v2(p));
    DURING(cuMemHostAlloc(&host, 4096, 0));
    DURING(cuMemFreeHost(host));
    host = aligned_alloc(4096, 8192);
    DURING(cuMemHostRegister_v2(host, 8192, 0));
    DURING(cuMemHostUnregister(host));
    free(host);
    DURING(cuMemAllocManaged(&p, 4096, 1));
    DURING(cuMemFree_v2(p));
    DURING(cuArrayCreate_v2(&array, &desc));
    DURING(cuArrayDestroy(array));
    DURING(cuModuleLoadData(&module, ptx));
    DURING(cuModuleUnload(module));
    DURING(cuLibraryLoadData(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    DURING(cuLibraryUnload(library));
    DURING(cuStreamCreate(&s, 1));
    DURING(cuStreamDestroy_v2(s));
    DURING(cuEventCreate(&event, 0));
    MUST(cuEventRecord(event, b));
    DURING(cuEventDestroy_v2(event));
    DURING(cuMemcpyHtoDAsync_v2(q, pageable, 64, a));
    DURING(cuMemcpyHtoDAsync_v2(q, pageable, 1 << 20, a));
    DURING(cuMemcpyHtoDAsync_v2(q, pinned, 1 << 20, a));
    DURING(cuMemcpyDtoHAsync_v2(pageable, q, 64, a));
    DURING(cuMemcpyDtoHAsync_v2(pinned, q, 64, a));
    DURING(cuMemcpyDtoDAsync_v2(q, q + 4096, 64, a));
    DURING(cuMemcpyHtoD_v2(q, pageable, 64));
    DURING(cuMemcpyDtoH_v2(pageable, q, 64));
    DURING(cuMemsetD8_v2(q, 0, 64));
    CUstream saved = a;
    a = blocking; /* now the work is in a stream that the legacy stream waits for */
    puts("the work in a blocking stream");
    DURING(cuMemcpyHtoD_v2(q, pageable, 64));
    DURING(cuMemcpyHtoD_v2(q, pageable, 1 << 20));
    DURING(cuMemcpyHtoD_v2(q, pinned, 64));
    DURING(cuMemcpyDtoH_v2(pageable, q, 64));
    DURING(cuMemcpyDtoD_v2(q, q + 4096, 64));
    DURING(cuMemcpy(q, q + 4096, 64));
    DURING(cuMemsetD8_v2(q, 0, 64));
    DURING(cuStreamSynchronize(NULL));
    DURING(cuStreamQuery(NULL));
    a = saved;
    puts("context events");
    MUST(cuEventCreate(&mark, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    DURING(cuCtxRecordEvent(context, mark));
    MUST(cuCtxSynchronize());
    busy(a);
    ASK(cuCtxRecordEvent(context, mark));
    ASK(cuEventQuery(mark));
    ASK(cuStreamQuery(b));
    ASK(cuCtxWaitEvent(context, mark));
    ASK(cuStreamQuery(b));
    ASK(cuEventRecord(event, b));
    ASK(cuEventQuery(event));
    ASK(cuStreamQuery(b));
    finish();
    MUST(cuCtxSynchronize());
    ASK(cuEventQuery(mark));
    ASK(cuCtxRecordEvent(NULL, mark));
    ASK(cuCtxWaitEvent(NULL, mark));
    busy(a);
    MUST(cuCtxRecordEvent(context, mark));
    MUST(cuCtxWaitEvent(context, mark));
    struct watched idle = {0}, recorded = {0};
    watch_me(&idle);
    MUST(cuStreamSynchronize(b));
    printf("idle stream behind a barrier: synchronising %s\n", waited(&idle));
    MUST(cuEventRecord(event, b));
    watch_me(&recorded);
    MUST(cuStreamSynchronize(b));
    printf("stream with a record behind a barrier: synchronising %s\n", waited(&recorded));
    finish();
    MUST(cuCtxSynchronize());
    CUevent timed;
    MUST(cuEventCreate(&timed, 0));
    ASK(cuCtxRecordEvent(context, timed));
    MUST(cuMemFree_v2(q));
    MUST(cuMemFreeHost(pinned));
}

/* ---- while another thread waits inside a call ------------------------------------------------ */

static CUdeviceptr to_free;
static int how_to_wait;

static void *waiter(void *watched) {
    MUST(cuCtxSetCurrent(context));
    enter(watched);
    if (how_to_wait == 0)
        MUST(cuMemFree_v2(to_free));
    else if (how_to_wait == 1)
        MUST(cuCtxSynchronize());
    else
        MUST(cuStreamSynchronize(a));
    return NULL;
}

#define DURING_WAIT(call)                                                                          \
    do {                                                                                           \
        struct watched other = {0}, self = {0};                                                    \
        pthread_t thread;                                                                          \
        if (how_to_wait == 0)                                                                      \
            MUST(cuMemAlloc_v2(&to_free, 4096));                                                   \
        busy(a);                                                                                   \
        pthread_create(&thread, NULL, waiter, &other);                                             \
        watch(&other);                                                                             \
        watch_me(&self);                                                                           \
        int result = (int)(call);                                                                  \
        printf("during %s: %-50s %d %s\n",                                                         \
               how_to_wait == 0   ? "cuMemFree"                                                    \
               : how_to_wait == 1 ? "cuCtxSync"                                                    \
                                  : "cuStreamSync",                                                \
               #call, result, waited(&self));                                                      \
        finish();                                                                                  \
        pthread_join(thread, NULL);                                                                \
        MUST(cuCtxSynchronize());                                                                  \
    } while (0)

static void CUDA_CB nothing(void *unused) {
    (void)unused;
}

static void during_wait(void) {
    CUmemGenericAllocationHandle handle;
    void *host;
    CUdeviceptr p, q;
    CUevent event;
    CUcontext c;
    CUstream s;
    size_t x, y;
    uint64_t us = 1;
    void *params[] = {&us};
    int n;

    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuMemAlloc_v2(&q, 4096));
    for (how_to_wait = 0; how_to_wait < 3; how_to_wait++) {
        DURING_WAIT(cuLaunchKernel(sleep_us, 1, 1, 1, 1, 1, 1, 0, b, params, NULL));
        DURING_WAIT(cuMemAlloc_v2(&p, 64));
        DURING_WAIT(cuMemFree_v2(p));
        DURING_WAIT(cuMemsetD8Async(q, 0, 64, b));
        DURING_WAIT(cuEventRecord(event, b));
        DURING_WAIT(cuEventQuery(event));
        DURING_WAIT(cuStreamQuery(b));
        DURING_WAIT(cuStreamWaitEvent(b, event, 0));
        DURING_WAIT(cuCtxRecordEvent(context, event));
        DURING_WAIT(cuCtxWaitEvent(context, event));
        DURING_WAIT(cuCtxGetCurrent(&c));
        DURING_WAIT(cuMemGetInfo_v2(&x, &y));
        DURING_WAIT(cuMemGetAddressRange_v2(&p, &x, q));
        DURING_WAIT(cuPointerGetAttribute(&n, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, q));
        DURING_WAIT(cuStreamCreate(&s, 1));
        DURING_WAIT(cuMemAllocAsync(&p, 64, b));
        DURING_WAIT(cuMemFreeAsync(p, b));
        DURING_WAIT(cuMemHostAlloc(&host, 64, 0));
        DURING_WAIT(cuMemcpyDtoHAsync_v2(host, q, 64, b));
        DURING_WAIT(cuLaunchHostFunc(b, nothing, NULL));
        DURING_WAIT(cuMemCreate(&handle, 2 << 20, &prop, 0));
        DURING_WAIT(cuMemAddressReserve(&mapped, 2 << 20, 0, 0, 0));
        DURING_WAIT(cuMemMap(mapped, 2 << 20, 0, handle, 0));
        DURING_WAIT(cuMemSetAccess(mapped, 2 << 20, &access_desc, 1));
        DURING_WAIT(cuMemUnmap(mapped, 2 << 20));
        DURING_WAIT(cuMemRelease(handle));
        DURING_WAIT(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    }
}

/* ---- captures -------------------------------------------------------------------------------- */

static const char *capture_note;
static CUstreamCaptureMode capture_mode;

/* Makes a call during a capture of stream a. Prints the answer, the capture's state and its end. */
#define CAPTURING(call)                                                                            \
    do {                                                                                           \
        CUgraph ended = NULL;                                                                      \
        CUstreamCaptureStatus status = 99;                                                         \
        MUST(cuStreamBeginCapture_v2(a, capture_mode));                                            \
        int result = (int)(call);                                                                  \
        int asked = (int)cuStreamIsCapturing(a, &status);                                          \
        int end = (int)cuStreamEndCapture(a, &ended);                                              \
        printf("capture %s: %-50s %d, then %d state %d, end %d %s\n", capture_note, #call, result, \
               asked, (int)status, end, ended ? "graph" : "no graph");                             \
        if (ended)                                                                                 \
            MUST(cuGraphDestroy(ended));                                                           \
    } while (0)

static void capture_questions(void) {
    CUdeviceptr p = 0, q;
    void *host = NULL;
    CUevent event, made;
    CUstream s = NULL;
    CUmodule module;
    CUcontext c;
    CUmemGenericAllocationHandle handle;
    size_t x, y;
    char bytes[64];
    int n;
    uint64_t us = 1;
    void *params[] = {&us};

    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventRecord(event, b));
    MUST(cuMemAlloc_v2(&q, 4096));
    MUST(cuMemAlloc_v2(&p, 4096));
    CAPTURING(cuCtxGetCurrent(&c));
    CAPTURING(cuMemFree_v2(p));
    CAPTURING(cuMemAlloc_v2(&p, 4096));
    CAPTURING(cuMemFree_v2(0));
    CAPTURING(cuMemFree_v2(0x1000));
    CAPTURING(cuEventQuery(event));
    CAPTURING(cuEventSynchronize(event));
    CAPTURING(cuEventCreate(&made, 0));
    CAPTURING(cuEventDestroy_v2(made));
    CAPTURING(cuEventRecord(event, b));
    CAPTURING(cuStreamCreate(&s, 1));
    CAPTURING(cuStreamDestroy_v2(s));
    CAPTURING(cuStreamQuery(a));
    CAPTURING(cuStreamQuery(b));
    CAPTURING(cuStreamSynchronize(a));
    CAPTURING(cuStreamSynchronize(b));
    CAPTURING(cuCtxSynchronize());
    CAPTURING(cuCtxRecordEvent(context, event));
    CAPTURING(cuCtxWaitEvent(context, event));
    CAPTURING((cuCtxSynchronize(), cuCtxRecordEvent(context, event)));
    CAPTURING((cuCtxSynchronize(), cuEventQuery(event)));
    CAPTURING((cuCtxSynchronize(), cuMemsetD8Async(q, 0, 64, a)));
    CAPTURING(cuMemGetInfo_v2(&x, &y));
    CAPTURING(cuMemGetAddressRange_v2(&p, &x, q));
    CAPTURING(cuPointerGetAttribute(&n, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, q));
    CAPTURING(cuMemHostAlloc(&host, 4096, 0));
    CAPTURING(cuMemFreeHost(host));
    CAPTURING(cuMemAllocManaged(&p, 4096, 1));
    CAPTURING(cuModuleLoadData(&module, ptx));
    CAPTURING(cuMemAllocAsync(&p, 64, b));
    CAPTURING(cuMemFreeAsync(p, b));
    CAPTURING(cuMemAllocAsync(&p, 64, a));
    CAPTURING(cuMemFreeAsync(q, a));
    CAPTURING(cuMemcpyHtoD_v2(q, bytes, 64));
    CAPTURING(cuMemcpyDtoH_v2(bytes, q, 64));
    CAPTURING(cuMemsetD8_v2(q, 0, 64));
    CAPTURING(cuMemsetD8Async(q, 0, 64, a));
    CAPTURING(cuMemcpyHtoDAsync_v2(q, bytes, 64, a));
    CAPTURING(cuMemcpyDtoHAsync_v2(bytes, q, 64, a));
    CAPTURING(cuMemsetD8Async(q, 0, 64, b));
    CAPTURING(cuLaunchKernel(sleep_us, 1, 1, 1, 1, 1, 1, 0, a, params, NULL));
    CAPTURING(cuLaunchKernel(sleep_us, 1, 1, 1, 1, 1, 1, 0, b, params, NULL));
    CAPTURING(cuLaunchKernel(sleep_us, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    CAPTURING(cuStreamBeginCapture_v2(a, capture_mode));
    CAPTURING(cuStreamWaitEvent(a, event, 0));
    CAPTURING(cuMemAddressReserve(&p, 2 << 20, 0, 0, 0));
    CAPTURING(cuMemAddressFree(p, 2 << 20));
    CAPTURING(cuMemCreate(&handle, 2 << 20, &prop, 0));
    CAPTURING(cuMemRelease(handle));
    MUST(cuMemFree_v2(q));
}

static void *other_thread(void *unused) {
    CUdeviceptr p;
    CUevent event;

    (void)unused;
    MUST(cuCtxSetCurrent(context));
    ASK(cuMemAlloc_v2(&p, 64));
    ASK(cuEventCreate(&event, 2));
    ASK(cuEventQuery(event));
    ASK(cuMemFree_v2(p));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    ASK(cuThreadExchangeStreamCaptureMode(&mode));
    ASK(cuMemAlloc_v2(&p, 64));
    ASK(cuEventQuery(event));
    ASK(cuMemFree_v2(p));
    return NULL;
}

static void captures(void) {
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                                CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    static const char *names[] = {"global", "local", "relaxed"};
    CUstream saved = a;
    CUgraph graph;
    CUgraphExec exec;
    CUevent event, fork;
    CUdeviceptr p;
    size_t count = 0;

    for (int i = 0; i < 3; i++) {
        capture_mode = modes[i];
        capture_note = names[i];
        capture_questions();
    }
    capture_mode = modes[0];
    capture_note = "of blocking";
    a = blocking;
    CAPTURING(cuMemsetD8_v2(0, 0, 0));
    CAPTURING(
        cuLaunchKernel(sleep_us, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&(uint64_t){1}}, NULL));
    CAPTURING(cuStreamSynchronize(NULL));
    CAPTURING(cuStreamQuery(NULL));
    a = saved;
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CUstreamCaptureStatus status;
        printf("another thread during a %s capture\n", names[i]);
        MUST(cuStreamBeginCapture_v2(a, modes[i]));
        pthread_create(&thread, NULL, other_thread, NULL);
        pthread_join(thread, NULL);
        MUST(cuStreamIsCapturing(a, &status));
        printf("state %d end %d\n", (int)status, (int)cuStreamEndCapture(a, &graph));
    }
    ASK(cuStreamBeginCapture_v2(NULL, modes[0]));
    ASK(cuStreamEndCapture(a, &graph));
    MUST(cuEventCreate(&event, 2));
    MUST(cuEventCreate(&fork, 2));
    MUST(cuMemAlloc_v2(&p, 4096));
    puts("fork and join");
    ASK(cuStreamBeginCapture_v2(a, modes[0]));
    ASK(cuMemsetD8Async(p, 1, 64, a));
    ASK(cuEventRecord(event, a));
    ASK(cuEventQuery(event));
    ASK(cuStreamEndCapture(a, &graph));
    ASK(cuStreamBeginCapture_v2(a, modes[0]));
    ASK(cuMemsetD8Async(p, 1, 64, a));
    ASK(cuEventRecord(event, a));
    ASK(cuStreamWaitEvent(b, event, 0));
    ASK(cuMemsetD8Async(p + 64, 2, 64, b));
    ASK(cuStreamEndCapture(b, &graph));
    ASK(cuStreamBeginCapture_v2(a, modes[0]));
    ASK(cuStreamEndCapture(a, &graph));
    ASK(cuStreamBeginCapture_v2(a, modes[0]));
    ASK(cuMemsetD8Async(p, 1, 64, a));
    ASK(cuEventRecord(event, a));
    ASK(cuStreamWaitEvent(b, event, 0));
    ASK(cuMemsetD8Async(p + 64, 2, 64, b));
    ASK(cuStreamEndCapture(a, &graph));
    ASK(cuStreamBeginCapture_v2(a, modes[0]));
    ASK(cuMemsetD8Async(p, 1, 64, a));
    ASK(cuEventRecord(event, a));
    ASK(cuStreamWaitEvent(b, event, 0));
    ASK(cuMemsetD8Async(p + 64, 2, 64, b));
    ASK(cuEventRecord(fork, b));
    ASK(cuStreamWaitEvent(a, fork, 0));
    ASK(cuStreamEndCapture(a, &graph));
    ASK(cuGraphGetNodes(graph, NULL, &count));
    printf("%zu nodes\n", count);
    ASK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    ASK(cuGraphLaunch(exec, a));
    ASK(cuStreamSynchronize(a));
    ASK(cuGraphExecDestroy(exec));
    ASK(cuGraphDestroy(graph));
    ASK(cuEventQuery(event));
    MUST(cuMemFree_v2(p));
}

static void primary(void) {
    CUcontext p, q;
    CUdeviceptr m;
    unsigned flags;
    int active;

    ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("active %d\n", active);
    ASK(cuDevicePrimaryCtxRetain(&p, 0));
    ASK(cuDevicePrimaryCtxRetain(&q, 0));
    printf("the same: %d\n", p == q);
    ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("active %d\n", active);
    ASK(cuCtxSetCurrent(p));
    ASK(cuMemAlloc_v2(&m, 64));
    ASK(cuDevicePrimaryCtxReset_v2(0));
    ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("active %d\n", active);
    ASK(cuMemFree_v2(m));
    ASK(cuMemAlloc_v2(&m, 64));
    ASK(cuDevicePrimaryCtxRetain(&q, 0));
    printf("the same: %d\n", p == q);
    ASK(cuMemAlloc_v2(&m, 64));
    ASK(cuDevicePrimaryCtxRelease_v2(0));
    ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("active %d\n", active);
    ASK(cuDevicePrimaryCtxRelease_v2(0));
    ASK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    printf("active %d\n", active);
    ASK(cuDevicePrimaryCtxRelease_v2(0));
    ASK(cuDevicePrimaryCtxRelease_v2(0));
    ASK(cuMemAlloc_v2(&m, 64));
    ASK(cuCtxGetCurrent(&q));
    printf("still current: %d\n", p == q);
    ASK(cuCtxSynchronize());
    ASK(cuCtxSetCurrent(p));
    ASK(cuCtxSetCurrent(NULL));
}

static void two_contexts(void) {
    CUcontext other;
    CUevent event;
    CUstream s;
    CUdeviceptr p, q;

    ASK(cuCtxCreate_v2(&other, 0, 0));
    MUST(cuEventCreate(&event, 2));
    MUST(cuStreamCreate(&s, 1));
    MUST(cuMemAlloc_v2(&p, 4096));
    ASK(cuEventRecord(event, a));
    ASK(cuCtxRecordEvent(context, event));
    ASK(cuCtxRecordEvent(other, event));
    ASK(cuCtxWaitEvent(context, event));
    ASK(cuStreamWaitEvent(a, event, 0));
    ASK(cuMemsetD8Async(p, 0, 64, a));
    ASK(cuStreamSynchronize(a));
    ASK(cuMemGetAddressRange_v2(&q, NULL, p));
    MUST(cuCtxSetCurrent(context));
    ASK(cuMemGetAddressRange_v2(&q, NULL, p));
    DURING(cuMemFree_v2(p));
    MUST(cuCtxPushCurrent_v2(other));
    ASK(cuMemAlloc_v2(&p, 64));
    ASK(cuCtxDestroy_v2(other));
    ASK(cuCtxGetCurrent(&other));
    printf("popped: %d\n", other != context);
    MUST(cuCtxSetCurrent(context));
    ASK(cuMemFree_v2(p));
}

static void faults(void) {
    CUdeviceptr p, q;
    CUevent event, other;
    CUdevice device;
    CUcontext of_stream, second, third;
    CUstreamCaptureStatus capturing;
    CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    void *answer = &attribute, *host, *kept;
    unsigned long long id;
    unsigned flags;
    size_t x, y;
    int n;

    MUST(cuCtxCreate_v2(&second, 0, 0));
    MUST(cuCtxSetCurrent(context));
    MUST(cuMemAlloc_v2(&p, 64));
    MUST(cuMemHostAlloc(&host, 64, 0));
    MUST(cuMemHostAlloc(&kept, 64, 0));
    MUST(cuEventCreate(&event, 2));
    MUST(cuEventCreate(&other, 2));
    MUST(cuEventRecord(event, a));
    MUST(cuCtxSynchronize());
    ASK(cuLaunchKernel(fault, 1, 1, 1, 1, 1, 1, 0, a, NULL, NULL));
    ASK(cuCtxSynchronize());
    ASK(cuCtxSynchronize());
    ASK(cuMemAlloc_v2(&q, 64));
    ASK(cuMemFree_v2(p));
    ASK(cuMemFree_v2(0x1000));
    ASK(cuEventQuery(event));
    ASK(cuStreamQuery(a));
    ASK(cuStreamSynchronize(b));
    ASK(cuMemGetInfo_v2(&x, &y));
    ASK(cuPointerGetAttribute(&n, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    ASK(cuMemGetAddressRange_v2(&q, &x, p));
    ASK(cuCtxRecordEvent(context, event));
    ASK(cuCtxWaitEvent(context, event));
    ASK(cuEventCreate(&event, 2));
    ASK(cuMemHostAlloc((void **)&x, 64, 0));
    ASK(cuMemHostGetFlags(&flags, kept));
    ASK(cuMemFreeHost(host));
    ASK(cuMemFreeHost(NULL));
    ASK(cuCtxGetDevice(&device));
    ASK(cuCtxGetId(NULL, &id));
    ASK(cuCtxGetFlags(&flags));
    ASK(cuCtxGetApiVersion(context, &flags));
    ASK(cuCtxGetStreamPriorityRange(&n, &n));
    ASK(cuStreamGetCtx(a, &of_stream));
    ASK(cuStreamGetCtx(NULL, &of_stream));
    ASK(cuStreamGetId(a, &id));
    ASK(cuStreamIsCapturing(a, &capturing));
    ASK(cuStreamIsCapturing(CU_STREAM_PER_THREAD, &capturing));
    ASK(cuEventRecord(other, a));
    ASK(cuStreamWaitEvent(a, other, 0));
    ASK(cuEventDestroy_v2(other));
    ASK(cuPointerGetAttributes(1, &attribute, &answer, p));
    ASK(cuPointerSetAttribute(&n, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    ASK(cuCtxGetCurrent(&context));
    ASK(cuCtxPushCurrent_v2(context));
    ASK(cuCtxPopCurrent_v2(&context));
    ASK(cuCtxDestroy_v2(context));
    ASK(cuCtxSetCurrent(second));
    ASK(cuCtxSynchronize());
    ASK(cuMemAlloc_v2(&q, 64));
    ASK(cuCtxCreate_v2(&third, 0, 0));
    ASK(cuDevicePrimaryCtxRetain(&third, 0));
    ASK(cuCtxDestroy_v2(second));
    ASK(cuCtxCreate_v2(&third, 0, 0));
}

static void set_up(void) {
    CUmodule module;

    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuModuleLoadData(&module, ptx));
    MUST(cuModuleGetFunction(&sleep_us, module, "sleep_us"));
    MUST(cuModuleGetFunction(&spin_until, module, "spin_until"));
    MUST(cuModuleGetFunction(&fault, module, "fault"));
    MUST(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    MUST(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access_desc.location = prop.location;
    access_desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static void init_only(void) {
    MUST(cuInit(0));
}

static const struct {
    const char *name;
    void (*before)(void), (*run)(void);
} sections[] = {
    {"before init", NULL, before_init},
    {"entries", init_only, entries},
    {"without context", init_only, without_context},
    {"primary", init_only, primary},
    {"memory", set_up, memory},
    {"pools", set_up, pools},
    {"vmm", set_up, vmm},
    {"pointers", set_up, pointers},
    {"waiting", set_up, waiting},
    {"during_wait", set_up, during_wait},
    {"captures", set_up, captures},
    {"two contexts", set_up, two_contexts},
    {"faults", set_up, faults},
};

/* Each section runs in a process of its own, so a crash of the driver ends only one section. */
int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 1024); /* keeps the lines before a crash */
    for (size_t i = 0; i < sizeof(sections) / sizeof(*sections); i++) {
        int status = 0;
        printf("== %s\n", sections[i].name);
        pid_t child = fork();
        if (child == 0) {
            if (sections[i].before)
                sections[i].before();
            sections[i].run();
            exit(0);
        }
        waitpid(child, &status, 0);
        if (status)
            printf("== %s ended with %x\n", sections[i].name, (unsigned)status);
    }
    return 0;
}
