/*
 * Calls the entries before their _v2, with 32-bit device pointers, by every look-up: from the
 * program's scope, from the driver's handle, from cuGetProcAddress. The library replaces some of
 * them. All must answer as natively and must not change the pool.
 */
#include "diff.h"

#include <dlfcn.h>

static CUdevice device;
static void *driver;

static const char *const ways[] = {"by scope", "by handle", "by request"};
#define WAYS 3

/* Returns the entry with exactly this exported name. Macros of cuda.h do not replace strings. */
static void *find(unsigned way, const char *name) {
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    if (way == 0)
        return dlsym(RTLD_DEFAULT, name);
    if (way == 1)
        return dlsym(driver, name);
    return cuGetProcAddress_v2(name, &found, 3010, 0, &status) == CUDA_SUCCESS ? found : NULL;
}

/* Result of an old entry: 32 bits, with space for a wrong write of 64. */
union narrow {
    unsigned value;
    size_t wide;
};

/* Looks up the entry, and makes the call if the entry exists. */
#define OLD(way, name, parameters, arguments)                                                      \
    ((find(way, #name)) ? (int)((CUresult(CUDAAPI *) parameters)find(way, #name))arguments : ABSENT)
#define ABSENT (-404)

static void say(unsigned way, const char *what, int answer) {
    if (answer == ABSENT)
        line("old: %s, %s: absent", what, ways[way]);
    else
        line("old: %s, %s: %d", what, ways[way], answer);
}

static void still_new(const char *what) {
    CUdeviceptr p = take(5000), q = take(3 * MIB);
    CHECK(cuMemsetD32(p, 7, 1250));
    line("old: after %s: %s", what, ends(p, 5000));
    CODES("old: frees", cuMemFree(p), cuMemFree(q));
}

static void questions(void) {
    size_t whole = 0, total = 0, left = 0;
    CHECK(cuDeviceTotalMem(&whole, device));
    CHECK(cuMemGetInfo(&left, &total));
    for (unsigned way = 0; way < WAYS; way++) {
        union narrow a = {77}, b = {77};
        int r = OLD(way, cuMemGetInfo, (void *, void *), (&a, &b));
        say(way, "info", r);
        if (r == CUDA_SUCCESS)
            line("old: info, %s: total %u, free within it %d", ways[way], b.value,
                 a.value <= b.value);
        a.value = 77;
        r = OLD(way, cuDeviceTotalMem, (void *, CUdevice), (&a, device));
        say(way, "total", r);
        if (r == CUDA_SUCCESS)
            line("old: total, %s: %u", ways[way], a.value);
        say(way, "total of no device",
            OLD(way, cuDeviceTotalMem, (void *, CUdevice), (&a, (CUdevice)99)));
        say(way, "range of nothing",
            OLD(way, cuMemGetAddressRange, (void *, void *, unsigned), (&a, &b, 4096)));
    }
    still_new("questions");
}

/* Memory of an old entry is freed by the old and by the new entry. */
static void memory(void) {
    for (unsigned way = 0; way < WAYS; way++) {
        for (unsigned bytes = 5000; bytes <= 3 * MIB; bytes *= 500) {
            union narrow p = {77}, base = {77}, size = {77};
            int r = OLD(way, cuMemAlloc, (void *, unsigned), (&p, bytes));
            say(way, "alloc", r);
            if (r != CUDA_SUCCESS)
                continue;
            say(way, "set",
                OLD(way, cuMemsetD32, (unsigned, unsigned, unsigned), (p.value, 3, 1250)));
            r = OLD(way, cuMemGetAddressRange, (void *, void *, unsigned),
                    (&base, &size, p.value + 100));
            say(way, "range", r);
            line("old: range, %s: +%u %u", ways[way], r ? 0 : p.value + 100 - base.value,
                 r ? 0 : size.value);
            say(way, "free inside", OLD(way, cuMemFree, (unsigned), (p.value + 100)));
            say(way, "free", OLD(way, cuMemFree, (unsigned), (p.value)));
            say(way, "free again", OLD(way, cuMemFree, (unsigned), (p.value)));
        }
        union narrow p = {77}, pitch = {77};
        int r = OLD(way, cuMemAllocPitch, (void *, void *, unsigned, unsigned, unsigned),
                    (&p, &pitch, 100, 10, 4));
        say(way, "pitch", r);
        if (r == CUDA_SUCCESS)
            line("old: pitch, %s: %u, free %d", ways[way], pitch.value, cuMemFree(p.value));
        say(way, "alloc of nothing", OLD(way, cuMemAlloc, (void *, unsigned), (&p, 0)));
        say(way, "free of nothing", OLD(way, cuMemFree, (unsigned), (0)));
        say(way, "free nowhere", OLD(way, cuMemFree, (unsigned), (4096)));
    }
    still_new("memory");
}

static void host(void) {
    static char page[8192] __attribute__((aligned(4096)));
    for (unsigned way = 0; way < WAYS; way++) {
        void *p = NULL;
        union narrow there = {77};
        int r = OLD(way, cuMemAllocHost, (void **, unsigned), (&p, 5000));
        say(way, "pinned", r);
        if (r == CUDA_SUCCESS) {
            r = OLD(way, cuMemHostGetDevicePointer, (void *, void *, unsigned), (&there, p, 0));
            say(way, "pinned: device pointer", r);
            CODES("old: pinned: free, again", cuMemFreeHost(p), cuMemFreeHost(p));
        }
        r = OLD(way, cuMemHostRegister, (void *, size_t, unsigned), (page, 8192, 0));
        say(way, "registered", r);
        if (r == CUDA_SUCCESS)
            CODES("old: registered: and not", cuMemHostUnregister(page), cuMemHostUnregister(page));
    }
    still_new("host memory");
}

static void arrays(void) {
    struct {
        unsigned width, height;
        CUarray_format format;
        unsigned channels;
    } flat = {64, 32, CU_AD_FORMAT_FLOAT, 1};
    struct {
        unsigned width, height, depth;
        CUarray_format format;
        unsigned channels, flags;
    } deep = {32, 16, 8, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0};
    for (unsigned way = 0; way < WAYS; way++) {
        CUarray array = NULL;
        int r = OLD(way, cuArrayCreate, (CUarray *, void *), (&array, &flat));
        say(way, "array", r);
        if (r == CUDA_SUCCESS)
            CODES("old: array: destroy", cuArrayDestroy(array));
        r = OLD(way, cuArray3DCreate, (CUarray *, void *), (&array, &deep));
        say(way, "deep array", r);
        if (r == CUDA_SUCCESS)
            CODES("old: deep array: destroy", cuArrayDestroy(array));
    }
    still_new("arrays");
}

/* Creates a context by an old entry. The driver decides whether new entries may use it. */
static void contexts(void) {
    for (unsigned way = 0; way < WAYS; way++) {
        CUcontext before, made = NULL, popped = NULL, current = NULL;
        CUdeviceptr p = 0, q = 0;
        unsigned version = 0;
        union narrow old = {0}, a = {0}, b = {0};
        size_t left = 0, total = 0;
        CHECK(cuCtxGetCurrent(&before));
        int r = OLD(way, cuCtxCreate, (CUcontext *, unsigned, CUdevice), (&made, 0, device));
        say(way, "context", r);
        if (r != CUDA_SUCCESS)
            continue;
        CODES("old: context: version", cuCtxGetApiVersion(made, &version), (int)version);
        CODES("old: context: current", cuCtxGetCurrent(&current), current == made);
        int small = cuMemAlloc(&p, 5000), large = cuMemAlloc(&q, 3 * MIB);
        CODES("old: context: new allocs, info", small, large, cuMemGetInfo(&left, &total));
        if (small == CUDA_SUCCESS)
            CODES("old: context: set, range, free, again", cuMemsetD32(p, 5, 1250),
                  cuMemGetAddressRange(NULL, &left, p + 100), cuMemFree(p), cuMemFree(p));
        r = OLD(way, cuMemAlloc, (void *, unsigned), (&old, 5000));
        say(way, "context: alloc", r);
        if (r == CUDA_SUCCESS)
            say(way, "context: free", OLD(way, cuMemFree, (unsigned), (old.value)));
        say(way, "context: info", OLD(way, cuMemGetInfo, (void *, void *), (&a, &b)));
        CODES("old: context: synchronize", cuCtxSynchronize());
        say(way, "context: pop", OLD(way, cuCtxPopCurrent, (CUcontext *), (&popped)));
        CODES("old: context: popped it, the one before", popped == made, cuCtxGetCurrent(&current),
              current == before);
        if (popped == made)
            say(way, "context: push", OLD(way, cuCtxPushCurrent, (CUcontext), (made)));
        say(way, "context: destroy", OLD(way, cuCtxDestroy, (CUcontext), (made)));
        CHECK(cuCtxSetCurrent(before));
        if (large == CUDA_SUCCESS)
            CODES("old: context: what is left of it", cuMemFree(q));
        still_new("a context");
    }
}

/* Releases the primary context by the entries of CUDA 7. */
static void primary(void) {
    for (unsigned way = 0; way < 2; way++) {
        CUcontext c, again;
        CUdeviceptr p;
        CHECK(cuDevicePrimaryCtxRetain(&c, device));
        CHECK(cuCtxSetCurrent(c));
        p = take(100000);
        say(way, "release", OLD(way, cuDevicePrimaryCtxRelease, (CUdevice), (device)));
        line("old: release, %s: still there %d", ways[way],
             cuMemGetAddressRange(NULL, &(size_t){0}, p));
        say(way, "reset", OLD(way, cuDevicePrimaryCtxReset, (CUdevice), (device)));
        CODES("old: reset: alloc, free", cuMemAlloc(&(CUdeviceptr){0}, 100), cuMemFree(p));
        CHECK(cuDevicePrimaryCtxRetain(&again, device));
        CHECK(cuCtxSetCurrent(again));
        line("old: reset, %s: free of what was %d", ways[way], cuMemFree(p));
        still_new("a reset");
    }
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"questions", questions}, {"memory", memory},     {"host", host},
                 {"arrays", arrays},       {"contexts", contexts}, {"primary", primary}};
    begin();
    CHECK(cuDeviceGet(&device, 0));
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        if (section(parts[i].name))
            parts[i].run();
    return 0;
}
