/* Prints answers about contexts, devices and threads, also after a context's end or a fault. */
#include "diff.h"

#include <dlfcn.h>
#include <pthread.h>

static CUdevice devices[2];
static int device_count;

static const char *whose(CUdeviceptr p, CUcontext a, CUcontext b) {
    CUcontext owner = NULL;
    CUresult r = cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p);
    return r != CUDA_SUCCESS ? "nobody's"
           : owner == a      ? "first's"
           : owner == b      ? "second's"
                             : "other's";
}

static void two(void) {
    CUcontext a, b, popped;
    CUdeviceptr p, q;
    size_t bytes;
    CHECK(cuCtxCreate_v2(&a, 0, devices[0]));
    p = take(4096);
    CHECK(cuMemsetD32(p, 0xAAAA, 1024));
    CHECK(cuCtxCreate_v2(&b, 0, devices[0]));
    q = take(4096);
    CHECK(cuMemsetD32(q, 0xBBBB, 1024));
    line("contexts: two: %s %s", whose(p, a, b), whose(q, a, b));
    line("contexts: two: range across %d", cuMemGetAddressRange(NULL, &bytes, p));
    CODES("contexts: two: free across", cuMemFree(p), cuMemFree(p));
    CHECK(cuCtxPopCurrent(&popped));
    line("contexts: two: popped the second %d", popped == b);
    p = take(4096);
    line("contexts: two: %s, the other's still holds %s", whose(p, a, b), ends(q, 4096));
    CHECK(cuCtxPopCurrent(&popped));
    CODES("contexts: none: alloc", cuMemAlloc(&(CUdeviceptr){0}, 100));
    CODES("contexts: none: range, free, again", cuMemGetAddressRange(NULL, &bytes, q), cuMemFree(q),
          cuMemFree(q));
    CHECK(cuCtxPushCurrent(a));
    line("contexts: destroyed: %d", cuCtxDestroy(b));
    line("contexts: destroyed: range %d", cuMemGetAddressRange(NULL, &bytes, p));
    line("contexts: destroyed current one: %d", cuCtxDestroy(a));
    CODES("contexts: destroyed current one: range, free, alloc",
          cuMemGetAddressRange(NULL, &bytes, p), cuMemFree(p), cuMemAlloc(&q, 100));
    CHECK(cuCtxSetCurrent(NULL));
}

static void *destroy(void *context) {
    CHECK(cuCtxDestroy(context));
    return NULL;
}

/* Another thread has ended the current context. The memory belongs to a live context. */
static void ended(void) {
    CUcontext a, b, popped;
    CUdeviceptr base = 7;
    size_t bytes = 7;
    pthread_t thread;
    CHECK(cuCtxCreate_v2(&a, 0, devices[0]));
    CUdeviceptr p = take(4096), large = take(3 * MIB), freed = take(4096);
    CHECK(cuMemFree(freed));
    CHECK(cuCtxCreate_v2(&b, 0, devices[0]));
    pthread_create(&thread, NULL, destroy, b);
    pthread_join(thread, NULL);
    CODES("contexts: ended: range, inside, of freed memory", cuMemGetAddressRange(&base, &bytes, p),
          cuMemGetAddressRange(&base, &bytes, large + 5),
          cuMemGetAddressRange(&base, &bytes, freed));
    line("contexts: ended: untouched %d", base == 7 && bytes == 7);
    CODES("contexts: ended: free inside, of freed memory", cuMemFree(p + 4),
          cuMemFree(large + 4096), cuMemFree(freed), cuMemFreeAsync(p + 4, NULL));
    cuCtxPopCurrent(&popped);
    CHECK(cuCtxSetCurrent(a));
    CODES("contexts: ended: with the other one again",
          cuMemGetAddressRange(&base, &bytes, large + 5), cuMemFree(p + 4), cuMemFree(p),
          cuMemFree(large));
    CHECK(cuCtxDestroy(a));
}

/* Creates and ends many contexts. All memory of a context ends with it. */
static void lives(void) {
    int good = 0, stale = 0;
    CUdeviceptr old[8] = {0};
    for (unsigned life = 0; life < 16; life++) {
        CUcontext c;
        CHECK(cuCtxCreate_v2(&c, 0, devices[life % (unsigned)device_count]));
        for (unsigned i = 0; i < 8; i++)
            stale += old[i] && cuMemFree(old[i]) == CUDA_SUCCESS;
        for (unsigned i = 0; i < 8; i++) {
            old[i] = take(i % 2 ? 3000 : 3 * MIB);
            CHECK(cuMemsetD32(old[i], i + life, 700));
        }
        for (unsigned i = 0; i < 8; i++) {
            uint32_t value = 0;
            CHECK(cuMemcpyDtoH(&value, old[i] + 4 * 699, 4));
            good += value == i + life;
        }
        CHECK(cuMemFree(old[3]));
        CHECK(cuMemFree(old[4]));
        old[3] = old[4] = 0;
        CHECK(cuCtxDestroy(c));
    }
    line("contexts: lives: good %d, freed after death %d", good, stale);
}

static void primary(void) {
    CUcontext a, b, popped;
    CUdeviceptr p, q;
    unsigned flags;
    int active = -1;
    size_t bytes;
    CHECK(cuDevicePrimaryCtxRetain(&a, devices[0]));
    CHECK(cuCtxSetCurrent(a));
    p = take(100000);
    CHECK(cuDevicePrimaryCtxRetain(&b, devices[0]));
    line("contexts: primary: one handle %d", a == b);
    CODES("contexts: primary: first release", cuDevicePrimaryCtxRelease(devices[0]));
    line("contexts: primary: still there %s", whose(p, a, NULL));
    line("contexts: primary: frees %d", cuMemFree(p));
    p = take(100000);
    q = take(5 * MIB);
    line("contexts: primary: last release %d", cuDevicePrimaryCtxRelease(devices[0]));
    CHECK(cuDevicePrimaryCtxGetState(devices[0], &flags, &active));
    CODES("contexts: primary: active, current still set", active, cuCtxGetCurrent(&popped),
          popped == a);
    CODES("contexts: primary: alloc, free, range", cuMemAlloc(&(CUdeviceptr){0}, 100), cuMemFree(p),
          cuMemGetAddressRange(NULL, &bytes, p));
    CHECK(cuDevicePrimaryCtxRetain(&a, devices[0]));
    CHECK(cuCtxSetCurrent(a));
    line("contexts: primary: again %s", whose(p, a, NULL));
    CODES("contexts: primary: old pointers", cuMemFree(p), cuMemFree(q));
    p = take(100000);
    line("contexts: primary: reset %d", cuDevicePrimaryCtxReset(devices[0]));
    CODES("contexts: primary: after reset alloc, free", cuMemAlloc(&(CUdeviceptr){0}, 100),
          cuMemFree(p));
    CHECK(cuDevicePrimaryCtxRetain(&a, devices[0]));
    CHECK(cuCtxSetCurrent(a));
    p = take(100000);
    CHECK(cuMemsetD32(p, 77, 25000));
    line("contexts: primary: and going on %s", ends(p, 100000));
    CODES("contexts: primary: and freeing", cuMemFree(p), cuMemFree(p));
}

/* cuda.h has no macro for these two, but may lack them one day: "absent" then. */
typedef CUresult CUDAAPI attach_entry(CUcontext *, unsigned);
typedef CUresult CUDAAPI detach_entry(CUcontext);

/* A context ends when its last user detaches. */
static void attach(void) {
    attach_entry *join = (attach_entry *)dlsym(RTLD_DEFAULT, "cuCtxAttach");
    detach_entry *leave = (detach_entry *)dlsym(RTLD_DEFAULT, "cuCtxDetach");
    CUcontext a, b = NULL, current = NULL, primary;
    CUdeviceptr p, q;
    size_t bytes;
    if (!join || !leave) {
        line("contexts: attach: absent");
        return;
    }
    CHECK(cuCtxCreate_v2(&a, 0, devices[0]));
    p = take(4096);
    q = take(3 * MIB);
    CHECK(cuMemsetD32(p, 0xAAAA, 1024));
    CODES("contexts: attach: flags", join(&b, 1), b != NULL);
    CODES("contexts: attach: once", join(&b, 0), b == a);
    CODES("contexts: attach: detach the second user", leave(a));
    CODES("contexts: attach: still current", cuCtxGetCurrent(&current), current == a);
    CODES("contexts: attach: what is live", cuMemGetAddressRange(NULL, &bytes, p),
          cuMemGetAddressRange(NULL, &bytes, q));
    line("contexts: attach: holds %s", ends(p, 4096));
    CODES("contexts: attach: free, again, take anew", cuMemFree(p), cuMemFree(p),
          cuMemAlloc(&p, 4096));
    CODES("contexts: attach: detach the last user", leave(a));
    CODES("contexts: attach: current", cuCtxGetCurrent(&current), current == a, current == NULL);
    CHECK(cuCtxSetCurrent(NULL));
    CODES("contexts: attach: with none current", join(&b, 0));
    CHECK(cuDevicePrimaryCtxRetain(&primary, devices[0]));
    CHECK(cuCtxSetCurrent(primary));
    CODES("contexts: attach: what is left", cuMemGetAddressRange(NULL, &bytes, p), cuMemFree(p),
          cuMemFree(q));
    q = take(100000);
    CODES("contexts: attach: and going on", cuMemFree(q), cuMemFree(q));
    /* many contexts with two users each */
    int good = 0;
    for (unsigned life = 0; life < 8; life++) {
        CHECK(cuCtxCreate_v2(&a, 0, devices[0]));
        if (join(&b, 0) == CUDA_SUCCESS)
            leave(b);
        p = take(life % 2 ? 3000 : 3 * MIB);
        CHECK(cuMemsetD32(p, life, 700));
        uint32_t value = 0;
        CHECK(cuMemcpyDtoH(&value, p + 4 * 699, 4));
        good += value == life && leave(a) == CUDA_SUCCESS;
        CHECK(cuCtxSetCurrent(primary));
        good += cuMemFree(p) != CUDA_SUCCESS;
    }
    line("contexts: attach: lives: %d", good);
    CHECK(cuDevicePrimaryCtxRelease(devices[0]));
    CHECK(cuCtxSetCurrent(NULL));
}

/* Attaches to a primary context, and detaches a context that is not current. Either may be refused.
 */
static void attach_primary(void) {
    attach_entry *join = (attach_entry *)dlsym(RTLD_DEFAULT, "cuCtxAttach");
    detach_entry *leave = (detach_entry *)dlsym(RTLD_DEFAULT, "cuCtxDetach");
    CUcontext primary, b = NULL;
    CUdeviceptr p;
    if (!join || !leave)
        return;
    CHECK(cuDevicePrimaryCtxRetain(&primary, devices[0]));
    CHECK(cuCtxSetCurrent(primary));
    p = take(100000);
    CODES("contexts: attach: primary", join(&b, 0), b == primary);
    if (b)
        CODES("contexts: attach: primary: detach", leave(b));
    CODES("contexts: attach: primary: memory", cuMemGetAddressRange(NULL, &(size_t){0}, p),
          cuMemAlloc(&(CUdeviceptr){0}, 100), cuMemFree(p));
    CHECK(cuCtxSetCurrent(NULL));
    CODES("contexts: attach: detach one that is not current", leave(primary));
    CODES("contexts: attach: detach nothing", leave(NULL));
}

static void detach_dead(void) {
    detach_entry *leave = (detach_entry *)dlsym(RTLD_DEFAULT, "cuCtxDetach");
    CUcontext a;
    if (!leave)
        return;
    CHECK(cuCtxCreate_v2(&a, 0, devices[0]));
    take(4096);
    CODES("contexts: attach: detach, and the dead one", leave(a), leave(a));
}

static CUcontext shared;
static CUdeviceptr passed[64];

static void *allocate_there(void *unused) {
    CHECK(cuCtxSetCurrent(shared));
    for (unsigned i = 0; i < 64; i++) {
        passed[i] = take(500 * (i + 1) + (i % 8 == 0 ? 2 * MIB : 0));
        CHECK(cuMemsetD32(passed[i], i, 100));
    }
    return unused;
}

static void *free_there(void *unused) {
    int good = 0;
    for (unsigned i = 0; i < 64; i++)
        good += cuMemFree(passed[i]) == CUDA_SUCCESS;
    line("contexts: threads: freed with none current %d", good);
    return unused;
}

static void threads(void) {
    pthread_t thread;
    int good = 0;
    CHECK(cuCtxGetCurrent(&shared));
    pthread_create(&thread, NULL, allocate_there, NULL);
    pthread_join(thread, NULL);
    for (unsigned i = 0; i < 64; i++) {
        uint32_t value = ~0u;
        cuMemcpyDtoH(&value, passed[i] + 396, 4);
        good += value == i;
    }
    line("contexts: threads: handed over %d", good);
    pthread_create(&thread, NULL, free_there, NULL);
    pthread_join(thread, NULL);
    good = 0;
    for (unsigned i = 0; i < 64; i++)
        good += cuMemFree(passed[i]) == CUDA_SUCCESS;
    line("contexts: threads: freed again %d", good);
}

static void two_devices(void) {
    CUcontext a, b;
    CUdeviceptr p, q;
    int ordinal = -1;
    if (device_count < 2)
        return;
    CHECK(cuDevicePrimaryCtxRetain(&b, devices[1]));
    CHECK(cuCtxGetCurrent(&a));
    p = take(70000);
    CHECK(cuCtxSetCurrent(b));
    q = take(70000);
    CHECK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    line("contexts: devices: ordinal of the first's %d", ordinal);
    CHECK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, q));
    line("contexts: devices: ordinal of the second's %d", ordinal);
    CODES("contexts: devices: free of the first's with the second current", cuMemFree(p),
          cuMemFree(p));
    CHECK(cuCtxSetCurrent(a));
    CODES("contexts: devices: free of the second's with the first current", cuMemFree(q),
          cuMemFree(q));
    size_t free_bytes, total[3];
    CHECK(cuMemGetInfo(&free_bytes, &total[0]));
    CHECK(cuCtxSetCurrent(b));
    CHECK(cuMemGetInfo(&free_bytes, &total[1]));
    CHECK(cuDeviceTotalMem(&total[2], devices[1]));
    line("contexts: devices: totals agree %d %d", total[1] == total[2], free_bytes <= total[1]);
    CHECK(cuDevicePrimaryCtxRelease(devices[1]));
    CHECK(cuCtxSetCurrent(a));
}

static void fault(unsigned first) {
    struct kernels k;
    CUdeviceptr p, q;
    CUevent event;
    size_t bytes, other;
    kernels_load(&k);
    p = take(4096);
    CHECK(cuMemFree(take(70000)));
    CHECK(cuEventCreate(&event, 0));
    CHECK(cuEventRecord(event, 0));
    CHECK(cuCtxSynchronize());
    CHECK(launch(k.fault, 0, 1, NULL));
    line("contexts: fault: synchronize %d", cuCtxSynchronize());
    for (unsigned i = 0; i < 6; i++) {
        switch ((first + i) % 6) {
        case 0:
            line("contexts: fault: alloc %d", cuMemAlloc(&q, 70000));
            break;
        case 1:
            line("contexts: fault: free %d", cuMemFree(p));
            break;
        case 2:
            line("contexts: fault: info %d", cuMemGetInfo(&bytes, &other));
            break;
        case 3:
            line("contexts: fault: range %d", cuMemGetAddressRange(NULL, &bytes, p));
            break;
        case 4:
            line("contexts: fault: large %d", cuMemAlloc(&q, 30 * MIB));
            break;
        default:
            CODES("contexts: fault: again, free of nothing, bad free", cuCtxSynchronize(),
                  cuMemFree(0), cuMemFree(p + 1));
        }
    }
    CUcontext c;
    CHECK(cuCtxGetCurrent(&c));
    CHECK(cuDevicePrimaryCtxReset(devices[0]));
    line("contexts: fault: after reset alloc %d", cuMemAlloc(&q, 100));
}

int main(int argc, char **argv) {
    CUcontext c;
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&device_count));
    device_count = device_count > 2 ? 2 : device_count;
    for (int i = 0; i < device_count; i++)
        CHECK(cuDeviceGet(&devices[i], i));
    if (argc > 2 && strcmp(argv[1], "fault") == 0) {
        CHECK(cuDevicePrimaryCtxRetain(&c, devices[0]));
        CHECK(cuCtxSetCurrent(c));
        fault((unsigned)atoi(argv[2]));
        return 0;
    }
    static const struct {
        const char *name;
        void (*run)(void);
    } parts[] = {{"two", two},
                 {"lives", lives},
                 {"primary", primary},
                 {"threads", threads},
                 {"two devices", two_devices},
                 {"attach", attach},
                 {"attach a primary one", attach_primary},
                 {"detach a dead one", detach_dead},
                 {"ended", ended}};
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!section(parts[i].name))
            continue;
        if (i == 3) {
            CHECK(cuDevicePrimaryCtxRetain(&c, devices[0]));
            CHECK(cuCtxSetCurrent(c));
        }
        parts[i].run();
    }
    return 0;
}
