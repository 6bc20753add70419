/*
 * mem_misuse CASE: makes one misuse, or one unusual but legal use. Each case prints the driver's
 * answers, never an address. mem_misuse.py compares them with the native ones, and checks the exit
 * status and stderr.
 */
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

CUresult CUDAAPI cuCtxCreate_v2(CUcontext *made, unsigned flags, CUdevice device);

static CUcontext context;

#define SAY(call) printf("%s: %d\n", #call, (int)(call))

static CUdeviceptr take(size_t bytes) {
    CUdeviceptr p;
    CHECK(cuMemAlloc(&p, bytes));
    return p;
}

/* Allocates, writes, reads and frees a small and a large block. Launches no kernel. */
static void still_works(void) {
    CUdeviceptr p = take(5000), q = take(3 * MIB);
    uint32_t value = 0;
    CHECK(cuMemsetD32(p, 7, 1250));
    CHECK(cuMemsetD32(q, 9, 3 * MIB / 4));
    CHECK(cuMemcpyDtoH(&value, p + 4996, 4));
    printf("still works: %u", value);
    CHECK(cuMemcpyDtoH(&value, q + 3 * MIB - 4, 4));
    printf(" %u", value);
    printf(" %d", cuMemFree(p));
    printf(" %d\n", cuMemFree(q));
}

/* ---- wrong and unusual arguments ---- */

static void double_free(void) {
    CUdeviceptr p = take(1000), keep = take(1000);
    SAY(cuMemFree(p));
    SAY(cuMemFree(p));
    SAY(cuMemFree(p));
    SAY(cuMemFree(keep));
}

static void double_free_large(void) {
    CUdeviceptr p = take(3 * MIB), keep = take(3 * MIB);
    SAY(cuMemFree(p));
    SAY(cuMemFree(p));
    SAY(cuMemFree(keep));
}

static void interior_free(void) {
    CUdeviceptr p = take(100000);
    SAY(cuMemFree(p + 1));
    SAY(cuMemFree(p + 512));
    SAY(cuMemFree(p + 99999));
    SAY(cuMemFree(p));
}

static void interior_free_large(void) {
    CUdeviceptr p = take(5 * MIB);
    SAY(cuMemFree(p + 8));
    SAY(cuMemFree(p + 512));
    SAY(cuMemFree(p + 2 * MIB));
    SAY(cuMemFree(p + 5 * MIB - 1));
    SAY(cuMemFree(p));
}

static void free_of_no_device_memory(void) {
    char stack[64], *heap = malloc(4096);
    SAY(cuMemFree((CUdeviceptr)stack));
    SAY(cuMemFree((CUdeviceptr)heap));
    SAY(cuMemFree(1));
    SAY(cuMemFree(0x1234567890));
    SAY(cuMemFree((CUdeviceptr)-1));
    SAY(cuMemFree((CUdeviceptr)1 << 63));
    free(heap);
}

static void free_of_host_memory(void) {
    void *pinned;
    CHECK(cuMemAllocHost(&pinned, 4096));
    SAY(cuMemFree((CUdeviceptr)pinned));
    SAY(cuMemFreeHost(pinned));
    SAY(cuMemFreeHost(pinned));
    SAY(cuMemFreeHost((void *)take(4096)));
}

static void free_zero(void) {
    SAY(cuMemFree(0));
    SAY(cuMemFreeAsync(0, 0));
    SAY(cuMemFree(0));
}

static void alloc_zero(void) {
    CUdeviceptr p = 77;
    SAY(cuMemAlloc(&p, 0));
    printf("untouched: %d\n", p == 77);
}

static void null_out(void) {
    size_t pitch;
    CUdeviceptr p;
    SAY(cuMemAlloc(NULL, 100));
    SAY(cuMemAlloc(NULL, 0));
    SAY(cuMemAllocPitch(NULL, &pitch, 100, 10, 4));
    SAY(cuMemAllocPitch(&p, NULL, 100, 10, 4));
    SAY(cuMemAllocAsync(NULL, 100, 0));
    SAY(cuMemAllocManaged(NULL, 100, CU_MEM_ATTACH_GLOBAL));
    SAY(cuMemAllocHost(NULL, 100));
    SAY(cuMemGetAddressRange(NULL, NULL, take(512)));
    SAY(cuMemGetInfo(NULL, NULL));
    SAY(cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_RANGE_SIZE, take(512)));
}

static void pitch_odd(void) {
    static const unsigned elements[] = {0, 1, 2, 3, 4, 5, 8, 12, 16, 32};
    for (unsigned i = 0; i < 10; i++) {
        CUdeviceptr p = 0;
        size_t pitch = 0;
        CUresult r = cuMemAllocPitch(&p, &pitch, 1000, 3, elements[i]);
        printf("element %u: %d pitch %zu free %d\n", elements[i], r, pitch,
               r ? -1 : (int)cuMemFree(p));
    }
}

static void pitch_sizes(void) {
    static const size_t sizes[][2] = {{0, 0},
                                      {0, 5},
                                      {5, 0},
                                      {1, 1},
                                      {512, 1},
                                      {513, 7},
                                      {1 << 20, 3},
                                      {(size_t)-1, 1},
                                      {1, ~0u},
                                      {~0u, 1 << 30},
                                      {(size_t)1 << 40, (size_t)1 << 40}};
    for (unsigned i = 0; i < 11; i++) {
        CUdeviceptr p = 0;
        size_t pitch = 0;
        CUresult r = cuMemAllocPitch(&p, &pitch, sizes[i][0], sizes[i][1], 4);
        printf("%zu x %zu: %d", sizes[i][0], sizes[i][1], r);
        if (r == CUDA_SUCCESS)
            printf(" pitch %zu free %d", pitch, cuMemFree(p));
        printf("\n");
    }
}

/* ---- calls without a context, in other contexts and threads ---- */

static void before_init(void) {
    CUdeviceptr p;
    size_t a, b;
    SAY(cuMemAlloc(&p, 100));
    SAY(cuMemFree(0));
    SAY(cuMemFree(4096));
    SAY(cuMemGetInfo(&a, &b));
    SAY(cuMemAllocPitch(&p, &a, 100, 10, 4));
    SAY(cuCtxSynchronize());
    SAY(cuMemFreeAsync(4096, 0));
    SAY(cuMemGetAddressRange(&p, &a, 4096));
    context = begin();
}

static void no_context(void) {
    CUdeviceptr p = take(100), q;
    size_t a, b;
    CHECK(cuCtxSetCurrent(NULL));
    SAY(cuMemAlloc(&q, 100));
    SAY(cuMemGetInfo(&a, &b));
    SAY(cuCtxSynchronize());
    SAY(cuMemFree(p));
    SAY(cuMemFree(p));
    SAY(cuMemFree(0));
    CHECK(cuCtxSetCurrent(context));
}

static void after_destroy(void) {
    CUcontext other;
    CUdeviceptr p, q;
    size_t bytes;
    CHECK(cuCtxCreate_v2(&other, 0, 0));
    p = take(100);
    CHECK(cuMemAlloc(&q, 3 * MIB));
    CHECK(cuCtxDestroy(other));
    CHECK(cuCtxSetCurrent(context));
    SAY(cuMemFree(p));
    SAY(cuMemFree(q));
    SAY(cuMemGetAddressRange(NULL, &bytes, p));
    SAY(cuCtxDestroy(other));
    SAY(cuCtxSetCurrent(other));
    SAY(cuMemAlloc(&p, 100));
    CHECK(cuCtxSetCurrent(context));
}

static void *free_it(void *p) {
    SAY(cuMemFree(*(CUdeviceptr *)p));
    SAY(cuMemFree(*(CUdeviceptr *)p));
    return NULL;
}

static void in_thread(void *(*what)(void *), void *with) {
    pthread_t thread;
    pthread_create(&thread, NULL, what, with);
    pthread_join(thread, NULL);
}

static void free_in_thread(void) {
    CUdeviceptr p = take(4096), q = take(4 * MIB);
    in_thread(free_it, &p); /* no context is current there */
    in_thread(free_it, &q);
}

static void free_other_context(void) {
    CUcontext other, popped;
    CUdeviceptr p = take(4096), q = take(4 * MIB), o;
    CHECK(cuCtxCreate_v2(&other, 0, 0));
    o = take(4096);
    SAY(cuMemFree(p));
    SAY(cuMemFree(q));
    SAY(cuMemFree(q));
    CHECK(cuCtxPopCurrent(&popped));
    SAY(cuMemFree(o));
    CHECK(cuCtxDestroy(other));
}

/* A deferred free whose context ends must not free a block of the next context at that address. */
static void async_free_and_destroy(void) {
    CUcontext a, b;
    CUdeviceptr p, q, flag;
    CUstream s;
    struct kernels k;
    CHECK(cuCtxCreate_v2(&a, 0, 0));
    kernels_load(&k);
    CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    flag = take(4096);
    CHECK(cuMemsetD32(flag, 0, 1));
    CHECK(cuCtxSynchronize());
    CHECK(launch_sleep(&k, s, 50000));
    p = take(4096);
    CHECK(cuMemFreeAsync(p, s));
    CHECK(cuCtxDestroy(a));
    CHECK(cuCtxCreate_v2(&b, 0, 0));
    for (unsigned i = 0; i < 4; i++) {
        CHECK(cuMemAlloc(&q, 4096));
        CHECK(cuMemsetD32(q, i, 1024));
    }
    SAY(cuMemFree(q));
    SAY(cuMemFree(q));
    CHECK(cuCtxDestroy(b));
    CHECK(cuCtxSetCurrent(context));
}

/* The same while an older deferred free of another context keeps the list from becoming empty. */
static void async_free_and_destroy_behind_another(void) {
    CUcontext a, b;
    CUdeviceptr p[64], q[64], first = take(4096);
    CUstream mine, s;
    struct kernels k;
    int freed = 0, again = 0;
    kernels_load(&k);
    CHECK(cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING));
    CHECK(launch_sleep(&k, mine, 100000));
    CHECK(cuMemFreeAsync(first, mine));
    CHECK(cuCtxCreate_v2(&a, 0, 0));
    CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < 64; i++)
        p[i] = take(4096);
    for (unsigned i = 0; i < 64; i++)
        CHECK(cuMemFreeAsync(p[i], s));
    CHECK(cuCtxDestroy(a));
    CHECK(cuCtxCreate_v2(&b, 0, 0));
    for (unsigned i = 0; i < 64; i++)
        q[i] = take(4096);
    CHECK(cuCtxPopCurrent(&a));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamSynchronize(mine));
    still_works(); /* reclaims deferred frees */
    CHECK(cuCtxSetCurrent(b));
    for (unsigned i = 0; i < 64; i++) {
        freed += cuMemFree(q[i]) == CUDA_SUCCESS;
        again += cuMemFree(q[i]) == CUDA_SUCCESS;
    }
    printf("freed %d, again %d\n", freed, again);
    CHECK(cuCtxDestroy(b));
    CHECK(cuCtxSetCurrent(context));
}

static void async_mixes(void) {
    CUstream s;
    CUdeviceptr p, q;
    CHECK(cuStreamCreate(&s, 0));
    p = take(4096);
    SAY(cuMemFreeAsync(p, s));
    SAY(cuMemFreeAsync(p, s));
    SAY(cuMemFree(p));
    CHECK(cuStreamSynchronize(s));
    SAY(cuMemFree(p));
    SAY(cuMemFreeAsync(p, s));
    p = take(3 * MIB);
    SAY(cuMemFreeAsync(p + 512, s));
    SAY(cuMemFreeAsync(p, s));
    SAY(cuMemAllocAsync(&q, 5000, s));
    SAY(cuMemFree(q));
    SAY(cuMemFree(q));
    SAY(cuMemAllocAsync(&q, 5000, s));
    SAY(cuMemFreeAsync(q, s));
    SAY(cuMemFreeAsync(q, s));
    p = take(4096);
    SAY(cuMemFreeAsync(p, CU_STREAM_LEGACY));
    p = take(4096);
    SAY(cuMemFreeAsync(p, CU_STREAM_PER_THREAD));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemAllocManaged(&q, 4096, CU_MEM_ATTACH_GLOBAL));
    SAY(cuMemFree(q));
    SAY(cuMemFree(q));
    CHECK(cuStreamDestroy(s));
}

/* ---- sizes and capacity ---- */

static void too_large(void) {
    CUdeviceptr p = 5;
    SAY(cuMemAlloc(&p, (size_t)1 << 45));
    SAY(cuMemAlloc(&p, (size_t)1 << 63));
    SAY(cuMemAlloc(&p, SIZE_MAX));
    SAY(cuMemAlloc(&p, SIZE_MAX - 511));
    SAY(cuMemAlloc(&p, SIZE_MAX - 2 * MIB));
    printf("untouched: %d\n", p == 5);
}

/* Fills a small device three times: as many blocks fit as natively. */
static void fill_up(void) {
    static CUdeviceptr p[4096];
    for (unsigned round = 0; round < 3; round++) {
        size_t size = (round == 1 ? 32 : 16) * MIB;
        unsigned count = 0;
        while (count < 4096 && cuMemAlloc(&p[count], size) == CUDA_SUCCESS)
            count++;
        printf("round %u: %u blocks of %zu MiB\n", round, count, size / MIB);
        for (unsigned i = 0; i < count; i++)
            CHECK(cuMemFree(p[i]));
    }
}

/* Fills the device with small blocks. A large block fits only after all of them are freed. */
static void small_then_large(void) {
    static CUdeviceptr p[100000];
    CUdeviceptr q;
    size_t count = 0;
    while (count < 100000 && cuMemAlloc(&p[count], 64 * KIB) == CUDA_SUCCESS)
        count++;
    SAY(cuMemAlloc(&q, 32 * MIB));
    for (size_t i = 0; i < count; i++)
        CHECK(cuMemFree(p[i]));
    SAY(cuMemAlloc(&q, 32 * MIB));
    SAY(cuMemFree(q));
}

/* The error of a wrong argument takes precedence over out of memory, at a limit too. */
static void wrong_and_large(void) {
    const size_t large = (size_t)1 << 40;
    CUdeviceptr p;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUarray array;
    CUmipmappedArray mipmap;
    SAY(cuMemAllocManaged(&p, large, 0));
    SAY(cuMemAllocManaged(&p, large, 64));
    SAY(cuMemCreate(&handle, large + 4096, &prop, 0));
    SAY(cuMemCreate(&handle, large, &prop, 5));
    SAY(cuMemCreate(NULL, large, &prop, 0));
    SAY(cuMemCreate(&handle, large, &prop, 0));
    prop.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    SAY(cuMemCreate(&handle, large, &prop, 0));
    CUDA_ARRAY3D_DESCRIPTOR d = {
        .Width = 65536, .Height = 32768, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 3};
    CUDA_ARRAY_DESCRIPTOR flat = {
        .Width = 65536, .Height = 32768, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 3};
    SAY(cuArrayCreate(&array, &flat));
    SAY(cuArray3DCreate(&array, &d));
    SAY(cuMipmappedArrayCreate(&mipmap, &d, 2));
    d.NumChannels = flat.NumChannels = 4;
    SAY(cuArrayCreate(NULL, &flat));
    SAY(cuArray3DCreate(NULL, &d));
    d.Width = 0;
    SAY(cuArray3DCreate(&array, &d));
}

static void destroyed_stream(void) {
    CUdeviceptr p;
    CUstream stream;
    CHECK(cuStreamCreate(&stream, 0));
    CHECK(cuStreamDestroy(stream));
    SAY(cuMemAllocAsync(&p, (size_t)1 << 40, stream));
}

/* Without a current context the driver does not read the descriptor. */
static void unreadable(void) {
    CUarray array;
    CUmipmappedArray mipmap;
    CHECK(cuCtxSetCurrent(NULL));
    SAY(cuArrayCreate(&array, (CUDA_ARRAY_DESCRIPTOR *)8));
    SAY(cuArray3DCreate(&array, (CUDA_ARRAY3D_DESCRIPTOR *)8));
    SAY(cuMipmappedArrayCreate(&mipmap, (CUDA_ARRAY3D_DESCRIPTOR *)8, 3));
    CHECK(cuCtxSetCurrent(context));
}

static void unreadable_before_init(void) {
    CUmemGenericAllocationHandle handle;
    CUarray array;
    SAY(cuMemCreate(&handle, 4096, (CUmemAllocationProp *)8, 0));
    SAY(cuArray3DCreate(&array, (CUDA_ARRAY3D_DESCRIPTOR *)8));
    context = begin();
}

/* The driver refuses or clamps absurd numbers of levels. The library must not loop over them. */
static void many_levels(void) {
    CUDA_ARRAY3D_DESCRIPTOR d = {
        .Width = 16, .Height = 16, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1};
    CUmipmappedArray mipmap;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    for (unsigned i = 0; i < 4; i++) {
        CUresult r = cuMipmappedArrayCreate(&mipmap, &d, ~0u - i);
        printf("levels: %d\n", (int)r);
        if (r == CUDA_SUCCESS)
            CHECK(cuMipmappedArrayDestroy(mipmap));
    }
    clock_gettime(CLOCK_MONOTONIC, &after);
    printf("at once: %d\n", after.tv_sec - before.tv_sec < 5);
}

static void errno_stays(void) {
    CUdeviceptr p, q;
    errno = 12345;
    CHECK(cuMemAlloc(&p, 100));
    CHECK(cuMemAlloc(&q, 9 * MIB));
    cuMemAlloc(&p, (size_t)1 << 60);
    CHECK(cuMemFree(q));
    cuMemFree(q);
    cuMemFree(3);
    printf("errno stays: %d\n", errno);
}

/* ---- forks, and ends of the process ---- */

static void wait_for(pid_t child) {
    int status;
    waitpid(child, &status, 0);
    printf("child: exit %d signal %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
           WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

static void fork_after(void) {
    CUdeviceptr p = take(4096), q;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        SAY(cuMemAlloc(&q, 100));
        SAY(cuMemFree(p));
        SAY(cuInit(0));
        SAY(cuCtxSynchronize());
        exit(3);
    }
    wait_for(child);
    SAY(cuMemFree(p));
}

static void fork_before(void) {
    pid_t child = fork();
    if (child == 0) {
        context = begin();
        still_works();
        exit(4);
    }
    wait_for(child);
    context = begin();
}

static void fork_many(void) {
    CUdeviceptr p = take(4096);
    for (unsigned i = 0; i < 5; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            SAY(cuMemFree(p));
            _exit((int)i);
        }
        wait_for(child);
        CHECK(cuMemFree(p));
        p = take(4096 * (i + 1));
    }
}

static void exec_true(void) {
    take(4096);
    fflush(stdout);
    execl("/bin/true", "true", NULL);
}

static void exec_again(void) {
    take(4096);
    fflush(stdout);
    execl("/proc/self/exe", "misuse", "ok", NULL);
}

static void exit_live(void) {
    take(4096);
    take(4 * MIB);
    exit(7);
}

static void exit_quick(void) {
    take(4096);
    fflush(stdout);
    _exit(8);
}

static void abort_live(void) {
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    take(4096);
    fflush(stdout);
    abort();
}

static void kill_live(void) {
    take(4096);
    fflush(stdout);
    raise(SIGKILL);
}

static void term_live(void) {
    take(4096);
    fflush(stdout);
    raise(SIGTERM);
}

/* ---- exit handlers and ends of threads ---- */

static CUdeviceptr handed[64];

/* Blocks for exit handlers. A handler registered before cuInit() runs after the driver's end, and
 * one registered later runs before it. */
static CUdeviceptr held[6];
static void *held_host;

static void after_the_driver(void) {
    size_t bytes;
    printf("after the driver's end:\n");
    SAY(cuMemFree(held[0]));
    SAY(cuMemFree(held[1]));
    SAY(cuMemFree(held[1]));
    SAY(cuMemFree(0));
    SAY(cuMemFreeAsync(held[2], 0));
    SAY(cuMemGetAddressRange(NULL, &bytes, held[2]));
    SAY(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, held[2]));
    SAY(cuMemAlloc(&held[2], 1000));
    SAY(cuMemAlloc(&held[2], 3 * MIB));
    SAY(cuMemFreeHost(held_host));
    SAY(cuCtxSynchronize());
}

static void before_the_drivers_end(void) {
    printf("before it:\n");
    SAY(cuMemFree(held[3]));
    SAY(cuMemFree(held[3]));
    SAY(cuMemFree(held[4] + 512));
    SAY(cuMemAlloc(&held[5], 1000));
    SAY(cuMemFree(held[5]));
    still_works();
}

static void exit_handlers(void) {
    CHECK(cuInit(0));
    atexit(before_the_drivers_end); /* before the library starts */
    context = begin();
    for (unsigned i = 0; i < 5; i++)
        held[i] = take(i == 1 ? 3 * MIB : 1000);
    CHECK(cuMemAllocHost(&held_host, 4096));
}

static void exit_handlers_late(void) {
    atexit(after_the_driver);
    exit_handlers();
    atexit(before_the_drivers_end);
}

static void *thread_with_memory(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < 64; i++)
        handed[i] = take(512 * (i + 1));
    for (unsigned i = 0; i < 32; i++)
        CHECK(cuMemFree(handed[i]));
    return unused;
}

static void thread_exit_live(void) {
    int good = 0;
    for (unsigned round = 0; round < 20; round++) {
        in_thread(thread_with_memory, NULL);
        for (unsigned i = 32; i < 64; i++)
            good += cuMemFree(handed[i]) == CUDA_SUCCESS;
    }
    printf("%d frees\n", good);
}

static pthread_key_t key;

static void destructor(void *value) {
    CUdeviceptr p;
    CHECK(cuCtxSetCurrent(context));
    SAY(cuMemFree(*(CUdeviceptr *)value));
    SAY(cuMemAlloc(&p, 4096));
    SAY(cuMemFree(p));
}

static void *thread_with_destructor(void *p) {
    CHECK(cuCtxSetCurrent(context));
    pthread_setspecific(key, p);
    CHECK(cuMemFree(take(4096)));
    return NULL;
}

static void thread_destructor(void) {
    CUdeviceptr p = take(4096);
    pthread_key_create(&key, destructor);
    in_thread(thread_with_destructor, &p);
}

static void *leave_main_alone(void *unused) {
    usleep(20000);
    CHECK(cuCtxSetCurrent(context));
    still_works();
    exit(6);
    return unused;
}

static void main_thread_ends(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, leave_main_alone, NULL);
    pthread_exit(NULL);
}

/* ---- descriptors, directory, environment ---- */

static void close_stderr(void) {
    take(4096);
    close(2);
}

/* The program's file gets the number of stderr and all free ones. The library must not write to it.
 */
static void reuse_descriptors(void) {
    const char *path = getenv("MISUSE_FILE");
    take(4096);
    if (!path)
        return;
    for (int fd = 3; fd < 1024; fd++)
        close(fd);
    close(2);
    for (int i = 0; i < 200; i++)
        if (open(path, O_RDWR | O_CREAT, 0600) < 0)
            break;
}

static void change_directory(void) {
    take(4096);
    if (chdir("/") == 0)
        printf("elsewhere\n");
}

static void clear_environment(void) {
    take(4096);
    clearenv();
    still_works();
}

/* ---- counters ---- */

/* Makes 1 miss, then hits, then failing allocations at a limit of 1 GiB, for the report. */
static void counted(void) {
    CUdeviceptr p = take(4096), q;
    for (unsigned i = 0; i < 10; i++)
        CHECK(cuMemFree(take(4096)));
    for (unsigned i = 0; i < 5; i++)
        cuMemAlloc(&q, (size_t)1 << 31);
    cuMemFree(p + 1);
    cuMemFree(p);
    cuMemFree(p);
    take(100);
}

static void ok(void) {}

static const struct {
    const char *name;
    void (*run)(void);
    int flags; /* bits: 1: starts without a context; 2: does not call still_works() at the end */
} cases[] = {
    {"ok", ok, 0},
    {"double_free", double_free, 0},
    {"double_free_large", double_free_large, 0},
    {"interior_free", interior_free, 0},
    {"interior_free_large", interior_free_large, 0},
    {"free_of_no_device_memory", free_of_no_device_memory, 0},
    {"free_of_host_memory", free_of_host_memory, 0},
    {"free_zero", free_zero, 0},
    {"alloc_zero", alloc_zero, 0},
    {"null_out", null_out, 0},
    {"pitch_odd", pitch_odd, 0},
    {"pitch_sizes", pitch_sizes, 0},
    {"before_init", before_init, 1},
    {"no_context", no_context, 0},
    {"after_destroy", after_destroy, 0},
    {"free_in_thread", free_in_thread, 0},
    {"free_other_context", free_other_context, 0},
    {"async_free_and_destroy", async_free_and_destroy, 0},
    {"async_free_and_destroy_behind_another", async_free_and_destroy_behind_another, 0},
    {"async_mixes", async_mixes, 0},
    {"too_large", too_large, 0},
    {"wrong_and_large", wrong_and_large, 0},
    {"destroyed_stream", destroyed_stream, 0},
    {"unreadable", unreadable, 0},
    {"unreadable_before_init", unreadable_before_init, 1},
    {"many_levels", many_levels, 0},
    {"fill_up", fill_up, 0},
    {"small_then_large", small_then_large, 0},
    {"errno_stays", errno_stays, 0},
    {"fork_after", fork_after, 0},
    {"fork_before", fork_before, 1},
    {"fork_many", fork_many, 0},
    {"exec_true", exec_true, 2},
    {"exec_again", exec_again, 2},
    {"exit_live", exit_live, 2},
    {"exit_quick", exit_quick, 2},
    {"exit_handlers", exit_handlers, 3},
    {"exit_handlers_late", exit_handlers_late, 3},
    {"abort_live", abort_live, 2},
    {"kill_live", kill_live, 2},
    {"term_live", term_live, 2},
    {"thread_exit_live", thread_exit_live, 0},
    {"thread_destructor", thread_destructor, 0},
    {"main_thread_ends", main_thread_ends, 2},
    {"close_stderr", close_stderr, 2},
    {"reuse_descriptors", reuse_descriptors, 2},
    {"change_directory", change_directory, 0},
    {"clear_environment", clear_environment, 2},
    {"counted", counted, 2},
};

int main(int argc, char **argv) {
    for (unsigned i = 0; argc > 1 && i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[1], cases[i].name) != 0)
            continue;
        if (!(cases[i].flags & 1))
            context = begin();
        cases[i].run();
        if (!(cases[i].flags & 2))
            still_works();
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "list") == 0)
        for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
            puts(cases[i].name);
    return argc > 1 && strcmp(argv[1], "list") == 0 ? 0 : 2;
}
