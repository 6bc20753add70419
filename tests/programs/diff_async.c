/*
 * Prints the answers of cuMemFreeAsync for memory of cuMemAlloc, and which stream a free waits for.
 *
 * diff_async          one line per behaviour
 * diff_async count    number of driver calls; on the simulated driver only
 */
#include "diff.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static CUcontext context;
static struct kernels kernels;
static CUdeviceptr errors;
static volatile uint32_t *flags; /* for kernels that spin; each flag is used once */
static unsigned flags_used;

/* The state of one context. */
static void prepare(void) {
    void *host;
    kernels_load(&kernels);
    CHECK(cuMemAllocHost(&host, 4096));
    flags = memset(host, 0, 4096);
    flags_used = 0;
    errors = take(4);
    CHECK(cuMemsetD32(errors, 0, 1));
}

static CUstream new_stream(void) {
    CUstream stream;
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    return stream;
}

/* Blocks a stream until its flag is set. Returns the number of the flag. */
static unsigned stop(CUstream stream) {
    unsigned flag = flags_used++;
    CHECK(launch_spin(&kernels, stream, (CUdeviceptr)(uintptr_t)&flags[flag], 1));
    return flag;
}

static void go_on(unsigned flag) {
    flags[flag] = 1;
}

/* Returns a size of which `parts` blocks fill the device or nearly so. */
static size_t part_of_device(unsigned parts) {
    size_t free_bytes = 0, total = 0;
    CHECK(cuMemGetInfo(&free_bytes, &total));
    return free_bytes / 20 * 19 / parts / (2 * MIB) * (2 * MIB);
}

/* Returns how many blocks can be allocated, and frees them. Natively the free waits for the kernel
 * that spins. */
static unsigned can_have(size_t bytes, unsigned most, unsigned flag) {
    CUdeviceptr p[32];
    unsigned count = 0;
    while (count < most && cuMemAlloc(&p[count], bytes) == CUDA_SUCCESS)
        count++;
    go_on(flag);
    for (unsigned i = 0; i < count; i++)
        CHECK(cuMemFree(p[i]));
    return count;
}

/* Allocates and frees blocks of a third of the device one after another, in a stream without
 * delay. */
static unsigned go_round(CUstream stream) {
    size_t bytes = part_of_device(3);
    unsigned good = 0;
    for (unsigned i = 0; i < 12; i++) {
        CUdeviceptr p;
        if (cuMemAlloc(&p, bytes) != CUDA_SUCCESS)
            break;
        CHECK(launch_fill(&kernels, stream, p, i, 1000));
        CHECK(launch_check(&kernels, stream, p, i, 1000, errors));
        CHECK(cuMemFreeAsync(p, stream));
        CHECK(cuStreamSynchronize(stream));
        good++;
    }
    return good;
}

static void lines(void) {
    CUstream stuck[12], b = new_stream();
    CUdeviceptr p[12];
    for (unsigned i = 0; i < 12; i++) {
        stuck[i] = new_stream();
        p[i] = take(MIB);
    }
    unsigned flag = stop(stuck[0]);
    CHECK(cuMemFreeAsync(p[0], stuck[0]));
    line("async: with a stuck stream: %u", go_round(b));
    for (unsigned i = 1; i < 12; i++) {
        CHECK(launch_spin(&kernels, stuck[i], (CUdeviceptr)(uintptr_t)&flags[flag], 1));
        CHECK(cuMemFreeAsync(p[i], stuck[i]));
    }
    line("async: with twelve: %u", go_round(b));
    go_on(flag);
    CHECK(cuCtxSynchronize());
    for (unsigned i = 0; i < 12; i++)
        CHECK(cuStreamDestroy(stuck[i]));
    CHECK(cuStreamDestroy(b));
}

/* Checks that a stream that is never idle returns the memory of each free that it has reached. */
static void busy(void) {
    CUstream stream = new_stream();
    CUevent done[3];
    unsigned flag[60], good = 0;
    size_t bytes = part_of_device(8);
    for (unsigned i = 0; i < 3; i++)
        CHECK(cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING));
    for (unsigned i = 0; i < 60; i++) {
        CUdeviceptr p;
        flag[i] = stop(stream);
        if (good == i && cuMemAlloc(&p, bytes) == CUDA_SUCCESS) {
            good++;
            CHECK(launch_fill(&kernels, stream, p, i, 1000));
            CHECK(launch_check(&kernels, stream, p, i, 1000, errors));
            CHECK(cuMemFreeAsync(p, stream));
        }
        CHECK(cuEventRecord(done[i % 3], stream));
        if (i >= 2) {
            go_on(flag[i - 2]);
            CHECK(cuEventSynchronize(done[(i - 2) % 3]));
        }
    }
    go_on(flag[58]);
    go_on(flag[59]);
    CHECK(cuStreamSynchronize(stream));
    line("async: a stream that is never idle: %u", good);
    CHECK(cuStreamDestroy(stream));
}

/* A free that the stream has reached counts as free in cuMemGetInfo too. */
static void counted(void) {
    static const size_t sizes[] = {5000, 3 * MIB, 100 * MIB};
    CUstream stream = new_stream();
    for (unsigned i = 0; i < 3; i++) {
        size_t before = 0, after = 0, total;
        CHECK(cuMemGetInfo(&before, &total));
        CHECK(cuMemFreeAsync(take(sizes[i]), stream));
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuMemGetInfo(&after, &total));
        line("async: %zu bytes, freed in a stream: %s", sizes[i],
             after >= before ? "all is free again" : "less is free");
    }
    CHECK(cuStreamDestroy(stream));
}

/* Creates a stream with the handle of a destroyed one, whose frees the library has not polled
 * yet. */
static void handles(void) {
    CUdeviceptr p[7], q = take(MIB);
    size_t bytes = part_of_device(7);
    CUstream first = new_stream(), second;
    for (unsigned i = 0; i < 7; i++)
        p[i] = take(bytes);
    for (unsigned i = 0; i < 7; i++)
        CHECK(cuMemFreeAsync(p[i], first));
    CHECK(cuStreamSynchronize(first));
    CHECK(cuStreamDestroy(first));
    second = new_stream();
    unsigned flag = stop(second);
    CHECK(cuMemFreeAsync(q, second));
    line("async: after a stream ended: %u", can_have(bytes, 7, flag));
    CHECK(cuStreamDestroy(second));
    CHECK(cuCtxSynchronize());
}

/* Checks that a block keeps its contents until its stream reaches the free. */
static void early(void) {
    CUstream a = new_stream(), b = new_stream();
    CUdeviceptr p[20], q[40];
    uint32_t wrong = 77;
    unsigned flag = stop(a);
    CHECK(cuMemsetD32(errors, 0, 1));
    for (unsigned i = 0; i < 20; i++) {
        p[i] = take(i % 4 ? 5000 : 3 * MIB);
        CHECK(launch_fill(&kernels, b, p[i], i, 1000));
    }
    CHECK(cuStreamSynchronize(b));
    for (unsigned i = 0; i < 20; i++) {
        CHECK(launch_check(&kernels, a, p[i], i, 1000, errors));
        CHECK(cuMemFreeAsync(p[i], a));
    }
    for (unsigned i = 0; i < 40; i++) {
        q[i] = take(i % 4 ? 5000 : 3 * MIB);
        CHECK(launch_fill(&kernels, b, q[i], 1000 + i, 1000));
    }
    CHECK(cuStreamSynchronize(b));
    go_on(flag);
    CHECK(cuStreamSynchronize(a));
    CHECK(cuMemcpyDtoH(&wrong, errors, 4));
    line("async: words that changed while their block waited: %u", wrong);
    for (unsigned i = 0; i < 40; i++)
        CHECK(cuMemFree(q[i]));
    CHECK(cuStreamDestroy(a));
    CHECK(cuStreamDestroy(b));
}

/* --- contexts --- */

static void contexts(void) {
    CUcontext other;
    CUstream mine = new_stream(), theirs;
    size_t bytes;
    CUdeviceptr p = take(3 * MIB), q = take(4096), r = take(4096), s = take(4096), t;
    CHECK(cuCtxCreate_v2(&other, 0, 0));
    theirs = new_stream();
    CODES("async: a stream of the block's context, another current", cuMemFreeAsync(p, mine));
    CODES("async: another context's stream", cuMemFreeAsync(q, theirs));
    CODES("async: another context's default streams", cuMemFreeAsync(r, CU_STREAM_LEGACY),
          cuMemFreeAsync(s, CU_STREAM_PER_THREAD));
    CHECK(cuCtxSynchronize());
    CHECK(cuCtxSetCurrent(context));
    t = take(4096);
    CODES("async: another context's stream, from here", cuMemFreeAsync(t, theirs));
    CODES("async: and synchronise", cuCtxSynchronize(), cuStreamSynchronize(theirs));
    bytes = part_of_device(7);
    CUdeviceptr most[7];
    for (unsigned i = 0; i < 7; i++)
        most[i] = take(bytes);
    unsigned flag = flags_used++;
    for (unsigned i = 0; i < 7; i++)
        CHECK(cuMemFreeAsync(most[i], theirs));
    CODES("async: the end of the stream's context", cuCtxDestroy(other));
    /* a GPU's driver drops these frees with the context; the library returns the blocks */
    unsigned had = can_have(bytes, 7, flag);
    bool ours = dlsym(RTLD_DEFAULT, "gpucache_empty_cache") != NULL;
    line("async: what waited there: %s", !ours || had == 7 ? "all" : "not all");
    CHECK(cuStreamDestroy(mine));
}

/* Memory freed in a stream serves other contexts and other kinds as soon as the stream reaches the
 * free. */
static void elsewhere(void) {
    CUcontext other;
    CUdeviceptr p, q, r;
    CUmemGenericAllocationHandle pages = 0;
    const CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    size_t most = part_of_device(4) * 3, half = most / 3 * 2 / (2 * MIB) * (2 * MIB);
    CHECK(cuCtxCreate_v2(&other, 0, 0));
    for (unsigned i = 0; i < 3; i++) {
        CHECK(cuCtxSetCurrent(context));
        p = take(most);
        CHECK(cuMemFreeAsync(p, CU_STREAM_LEGACY));
        CHECK(cuCtxSynchronize());
        CHECK(cuCtxSetCurrent(other));
        CUresult code = i == 0   ? cuMemAlloc(&q, half)
                        : i == 1 ? cuMemAllocAsync(&r, half, CU_STREAM_LEGACY)
                                 : cuMemCreate(&pages, half, &prop, 0);
        CODES("async: freed in a stream, and had elsewhere", code,
              i == 0   ? cuMemFree(q)
              : i == 1 ? cuMemFree(r)
                       : cuMemRelease(pages),
              cuCtxSynchronize());
    }
    CHECK(cuCtxDestroy(other));
    CHECK(cuCtxSetCurrent(context));
    /* the driver's pool keeps it until a wait */
    CHECK(cuMemAllocAsync(&p, most, CU_STREAM_LEGACY));
    CHECK(cuMemFreeAsync(p, CU_STREAM_LEGACY));
    while (cuStreamQuery(CU_STREAM_LEGACY) == CUDA_ERROR_NOT_READY)
        ;
    CUresult code = cuMemAlloc(&q, half);
    CODES("async: kept by the driver's pool", code, cuMemFree(q), cuCtxSynchronize());
}

/* Ends a context with deferred frees. The next context frees in its default stream at once. */
static void lives(void) {
    uint32_t wrong = 0;
    int codes = 0;
    for (unsigned i = 0; i < 30; i++) {
        CUcontext other;
        struct kernels k;
        CHECK(cuCtxCreate_v2(&other, 0, 0));
        kernels_load(&k);
        CUdeviceptr bad = take(4);
        CHECK(cuMemsetD32(bad, 0, 1));
        CUstream stream = new_stream();
        for (unsigned j = 0; j < 12; j++) {
            CUdeviceptr p = take(j % 3 ? 5000 : 2 * MIB);
            CUstream in = j % 4 == 0   ? stream
                          : j % 4 == 1 ? CU_STREAM_LEGACY
                                       : CU_STREAM_PER_THREAD;
            CHECK(launch_fill(&k, in, p, i * 100 + j, 1000));
            CHECK(launch_check(&k, in, p, i * 100 + j, 1000, bad));
            codes += cuMemFreeAsync(p, in);
        }
        if (i % 3 == 0) {
            uint32_t words = 0;
            CHECK(cuCtxSynchronize());
            CHECK(cuMemcpyDtoH(&words, bad, 4));
            wrong += words;
        }
        CHECK(cuCtxDestroy(other));
    }
    CHECK(cuCtxSetCurrent(context));
    line("async: lives of contexts: codes %d, words wrong %u", codes, wrong);
}

/*
 * The primary context ends and comes back under its handle, and events of the program's under
 * those of events that ended with it.
 */
static void again(void) {
    CUevent event[64];
    CUcontext same;
    int codes = 0, moved = 0;
    for (unsigned i = 0; i < 5; i++)
        CHECK(cuMemFreeAsync(take(5000), CU_STREAM_LEGACY));
    CHECK(cuCtxSynchronize());
    CHECK(cuMemFree(take(3 * MIB)));
    CHECK(cuDevicePrimaryCtxReset(0));
    CHECK(cuDevicePrimaryCtxRetain(&same, 0));
    CHECK(cuCtxSetCurrent(same));
    prepare();
    CUstream stream = new_stream();
    unsigned flag = stop(stream);
    for (unsigned i = 0; i < 64; i++) {
        CHECK(cuEventCreate(&event[i], CU_EVENT_DISABLE_TIMING));
        CHECK(cuEventRecord(event[i], stream));
    }
    for (unsigned i = 0; i < 5; i++)
        codes += cuMemFreeAsync(take(5000), CU_STREAM_LEGACY);
    CHECK(cuStreamSynchronize(CU_STREAM_LEGACY));
    for (unsigned i = 0; i < 64; i++)
        moved += cuEventQuery(event[i]) != CUDA_ERROR_NOT_READY;
    line("async: after the primary context came back: codes %d, events of the program's moved: %d",
         codes, moved);
    go_on(flag);
    CHECK(cuCtxSynchronize());
}

/* Frees in a green context's stream, and ends the green context before the library has polled
 * the free. */
static void green(void) {
    typedef CUresult CUDAAPI resource(CUdevice, CUdevResource *, CUdevResourceType);
    typedef CUresult CUDAAPI describe(CUdevResourceDesc *, CUdevResource *, unsigned);
    typedef CUresult CUDAAPI make(CUgreenCtx *, CUdevResourceDesc, CUdevice, unsigned);
    typedef CUresult CUDAAPI make_stream(CUstream *, CUgreenCtx, unsigned, int);
    typedef CUresult CUDAAPI end(CUgreenCtx);
    resource *all = (resource *)dlsym(RTLD_DEFAULT, "cuDeviceGetDevResource");
    describe *desc_of = (describe *)dlsym(RTLD_DEFAULT, "cuDevResourceGenerateDesc");
    make *create = (make *)dlsym(RTLD_DEFAULT, "cuGreenCtxCreate");
    make_stream *stream_of = (make_stream *)dlsym(RTLD_DEFAULT, "cuGreenCtxStreamCreate");
    end *destroy = (end *)dlsym(RTLD_DEFAULT, "cuGreenCtxDestroy");
    CUdevResource resources;
    CUdevResourceDesc desc;
    int codes = 0;
    if (!all || !desc_of || !create || !stream_of || !destroy ||
        all(0, &resources, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
        desc_of(&desc, &resources, 1) != CUDA_SUCCESS)
        return;
    size_t bytes = part_of_device(7);
    for (unsigned round = 0; round < 3; round++) {
        CUgreenCtx green;
        CUstream stream;
        CUdeviceptr p[7];
        CHECK(create(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
        CHECK(stream_of(&stream, green, CU_STREAM_NON_BLOCKING, 0));
        for (unsigned i = 0; i < 7; i++)
            p[i] = take(bytes);
        for (unsigned i = 0; i < 7; i++)
            codes += cuMemFreeAsync(p[i], stream);
        CHECK(cuStreamSynchronize(stream));
        CHECK(cuStreamDestroy(stream));
        CHECK(destroy(green));
    }
    line("async: green contexts' streams: %d, and then %u", codes,
         can_have(bytes, 7, flags_used++));
}

typedef CUresult free_async(CUdeviceptr, CUstream);

/* Frees in the per-thread stream, by both of its handles, in a thread that then ends. */
static void *in_thread(void *number) {
    free_async *own = (free_async *)dlsym(RTLD_DEFAULT, "cuMemFreeAsync_ptsz");
    unsigned at = *(unsigned *)number;
    CHECK(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < 20; i++) {
        CUdeviceptr p = take(i % 5 ? 6000 : 2 * MIB);
        CHECK(launch_fill(&kernels, CU_STREAM_PER_THREAD, p, at + i, 1000));
        CHECK(launch_check(&kernels, CU_STREAM_PER_THREAD, p, at + i, 1000, errors));
        CHECK(i % 2 && own ? own(p, NULL) : cuMemFreeAsync(p, CU_STREAM_PER_THREAD));
    }
    return NULL;
}

static void threads(void) {
    pthread_t thread[4];
    unsigned number[4];
    uint32_t wrong = 77;
    CHECK(cuMemsetD32(errors, 0, 1));
    for (unsigned i = 0; i < 40; i++) {
        if (i >= 4)
            pthread_join(thread[i % 4], NULL);
        number[i % 4] = i * 100;
        pthread_create(&thread[i % 4], NULL, in_thread, &number[i % 4]);
    }
    for (unsigned i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(&wrong, errors, 4));
    line("async: threads' own streams: words wrong %u", wrong);
}

/* --- answers --- */

enum wrong { OWN, OTHER, INSIDE, NOTHING, ENDED, UNKNOWN, FREED, WRONGS };
static const char *const wrongs[] = {
    "in the captured stream", "in another",         "inside a block", "NULL",
    "in a stream that ended", "an unknown address", "freed before"};

static void while_captured(CUstreamCaptureMode mode, enum wrong what) {
    CUstream captured = new_stream(), other = new_stream(), ended = new_stream();
    CUdeviceptr a = take(100000), b = take(3 * MIB), freed = take(5000);
    CUgraph graph = NULL;
    CUresult r = CUDA_SUCCESS;
    CHECK(cuMemFree(freed));
    CHECK(cuStreamDestroy(ended));
    CHECK(cuStreamBeginCapture(captured, mode));
    switch (what) {
    case OWN:
        r = cuMemFreeAsync(a, captured);
        break;
    case OTHER:
        r = cuMemFreeAsync(a, other);
        break;
    case INSIDE:
        r = cuMemFreeAsync(a + 512, captured);
        break;
    case NOTHING:
        r = cuMemFreeAsync(0, captured);
        break;
    case ENDED:
        r = cuMemFreeAsync(a, ended);
        break;
    case UNKNOWN:
        r = cuMemFreeAsync(0x1234500, other);
        break;
    default:
        r = cuMemFreeAsync(freed, captured);
        break;
    }
    CUresult end = cuStreamEndCapture(captured, &graph);
    CUresult again = what == OTHER && r == CUDA_SUCCESS ? CUDA_SUCCESS : cuMemFree(a);
    line("async: capture of mode %d, %s: %d, end %d, graph %d, then freed %d %d", mode,
         wrongs[what], r, end, graph != NULL, again, cuMemFree(b));
    CHECK(cuStreamDestroy(captured));
    CHECK(cuStreamDestroy(other));
}

static void answers(void) {
    CUdeviceptr p = take(5000), q = take(3 * MIB);
    CUstream stream = new_stream();
    CODES("async: inside, beyond, unknown, NULL", cuMemFreeAsync(p + 4, stream),
          cuMemFreeAsync(q + 3 * MIB - 512, stream), cuMemFreeAsync(0x1234500, stream),
          cuMemFreeAsync(0, stream));
    CUcontext popped;
    while (cuCtxPopCurrent(&popped) == CUDA_SUCCESS)
        ;
    CUresult without = cuMemFreeAsync(p, stream);
    CODES("async: without a context", without, cuMemFreeAsync(p, NULL),
          cuMemFreeAsync(p + 4, stream));
    CHECK(cuCtxSetCurrent(context));
    CODES("async: still there", without == CUDA_SUCCESS ? without : cuMemFree(p), cuMemFree(q));
    CHECK(cuStreamDestroy(stream));
}

static volatile bool over;

static void *free_for_ever(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    CUstream stream = new_stream();
    for (unsigned i = 1; !over; i++) {
        CHECK(cuMemFreeAsync(take(5000), stream));
        if (i % 256 == 0)
            CHECK(
                cuStreamSynchronize(stream)); /* natively the memory is free only after this wait */
    }
    CHECK(cuStreamDestroy(stream));
    return unused;
}

/* Forks while a thread is inside cuMemFreeAsync. */
static void forks(void) {
    pthread_t thread;
    CUdeviceptr p = take(5000);
    int answer = -1, others = 0;
    pthread_create(&thread, NULL, free_for_ever, NULL);
    for (unsigned i = 0; i < 200; i++) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            alarm(10);
            _exit((int)cuMemFreeAsync(p, CU_STREAM_LEGACY) & 127);
        }
        waitpid(child, &status, 0);
        int now = WIFEXITED(status) ? WEXITSTATUS(status) : -2;
        others += answer >= 0 && now != answer;
        answer = answer < 0 ? now : answer;
    }
    over = true;
    pthread_join(thread, NULL);
    line("async: in children: %d, other answers %d", answer, others);
    CHECK(cuMemFree(p));
}

/* The library updates deferred frees during a capture of the program. */
static void emptied_during_a_capture(void) {
    int (*empty)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "gpucache_empty_cache");
    CUstream a = new_stream(), captured = new_stream();
    CUgraph graph = NULL;
    CHECK(cuMemFreeAsync(take(3 * MIB), a));
    CHECK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    if (empty)
        empty(0);
    CUresult end = cuStreamEndCapture(captured, &graph);
    line("async: looked at during a capture: end %d, graph %d", end, graph != NULL);
    CHECK(cuStreamDestroy(a));
    CHECK(cuStreamDestroy(captured));
}

/* --- costs --- */

static uint64_t calls(void) {
    uint64_t (*count)(const char *) = (uint64_t(*)(const char *))dlsym(RTLD_DEFAULT, "sim_calls");
    return count ? count("*") : 0;
}

static void pairs(void) {
    uint64_t before = calls();
    for (unsigned i = 0; i < 10000; i++)
        CHECK(cuMemFree(take(512)));
    line("1000 pairs: %lu", (unsigned long)((calls() - before) / 10));
}

static void count(void) {
    enum { MANY = 100000 };
    static CUdeviceptr p[MANY];
    CUstream a = new_stream(), b = new_stream();
    for (unsigned i = 0; i < MANY; i++)
        p[i] = take(512);
    for (unsigned i = 0; i < 1000; i++)
        CHECK(cuMemFree(take(512)));
    unsigned flag = stop(a);
    pairs();
    for (unsigned part = 0; part < 2; part++) {
        uint64_t before = calls();
        for (unsigned i = part * MANY / 2; i < (part + 1) * MANY / 2; i++)
            CHECK(cuMemFreeAsync(p[i], a));
        line("1000 frees: %lu", (unsigned long)((calls() - before) * 1000 / (MANY / 2)));
    }
    pairs();
    go_on(flag);
    CHECK(cuCtxSynchronize());
    uint64_t before = calls();
    CHECK(cuMemFree(take(MIB)));
    line("the first pair afterwards: %lu", (unsigned long)(calls() - before));
    before = calls();
    for (unsigned i = 0; i < 10000; i++)
        CHECK(cuMemFreeAsync(take(65536), b));
    line("1000 pairs in a stream: %lu", (unsigned long)((calls() - before) / 10));
}

int main(int argc, char **argv) {
    context = begin();
    prepare();
    if (argc > 1 && strcmp(argv[1], "count") == 0) {
        count();
        return 0;
    }
    if (section("lines"))
        lines();
    if (section("busy"))
        busy();
    if (section("counted"))
        counted();
    if (section("handles"))
        handles();
    if (section("early"))
        early();
    if (section("contexts"))
        contexts();
    /* Before "elsewhere", where the driver frees in the legacy stream: a thread that ends afterwards
     * while its per-thread stream works hangs in the driver of CUDA 13.0. */
    if (section("threads"))
        threads();
    if (section("elsewhere"))
        elsewhere();
    if (section("lives"))
        lives();
    if (section("answers"))
        answers();
    for (int mode = 0; mode < 3; mode++) {
        for (enum wrong what = OWN; what < WRONGS; what++) {
            char name[64];
            snprintf(name, sizeof name, "capture of mode %d, %s", mode, wrongs[what]);
            if (section(name))
                while_captured((CUstreamCaptureMode)mode, what);
        }
    }
    if (section("forks"))
        forks();
    if (section("emptied during a capture"))
        emptied_during_a_capture();
    if (section("green"))
        green();
    if (section("again"))
        again();
    return 0;
}
