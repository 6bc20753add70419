/*
 * Allocates and frees during a stream capture: in each capture mode, in the capturing thread and in
 * another one, in each mode of the calling thread. Prints the code of each call, the state of the
 * capture, and the number of wrong words after a replay of its graph.
 */
#include "diff.h"

#include <dlfcn.h>
#include <pthread.h>

static CUcontext context;
static struct kernels kernels;
static CUstream captured, other;
static CUdeviceptr warm_small, warm_large, data, errors;

enum operation {
    NOTHING,
    ALLOC_SMALL,
    ALLOC_LARGE,
    ALLOC_NEW,
    FREE_SMALL,
    FREE_LARGE,
    FREE_BAD,
    FREE_NULL,
    ALLOC_FREE_MANY,
    PITCH,
    RANGE,
    ATTRIBUTE,
    INFO,
    EVENT_QUERY,
    MANAGED,
    HOST,
    ASYNC_OTHER,
    FREE_ASYNC_OTHER,
    SYNCHRONIZE_OTHER,
    OPERATIONS
};
static const char *const names[] = {"nothing",
                                    "alloc small",
                                    "alloc large",
                                    "alloc new",
                                    "free small",
                                    "free large",
                                    "free bad",
                                    "free null",
                                    "many",
                                    "pitch",
                                    "range",
                                    "attribute",
                                    "info",
                                    "event query",
                                    "managed",
                                    "host",
                                    "alloc async elsewhere",
                                    "free async elsewhere",
                                    "synchronize another stream"};

static CUdeviceptr mine[64];
static CUevent event;

static int operate(enum operation what) {
    CUdeviceptr p = 0;
    size_t a, b;
    void *host;
    CUresult r = CUDA_SUCCESS;
    switch (what) {
    case ALLOC_SMALL:
        r = cuMemAlloc(&mine[0], 5000);
        break;
    case ALLOC_LARGE:
        r = cuMemAlloc(&mine[0], 3 * MIB);
        break;
    case ALLOC_NEW: /* more than the pool has */
        r = cuMemAlloc(&mine[0], 200 * MIB);
        break;
    case FREE_SMALL:
        r = cuMemFree(warm_small);
        warm_small = r ? warm_small : 0;
        break;
    case FREE_LARGE:
        r = cuMemFree(warm_large);
        warm_large = r ? warm_large : 0;
        break;
    case FREE_BAD:
        r = cuMemFree(data + 8);
        break;
    case FREE_NULL:
        r = cuMemFree(0);
        break;
    case ALLOC_FREE_MANY:
        for (unsigned i = 0; i < 200 && r == CUDA_SUCCESS; i++) {
            r = cuMemAlloc(&p, i % 10 ? 4096 : 2 * MIB);
            r = r ? r : cuMemFree(p);
        }
        break;
    case PITCH:
        r = cuMemAllocPitch(&mine[0], &a, 100, 10, 4);
        break;
    case RANGE:
        r = cuMemGetAddressRange(&p, &a, data + 1);
        break;
    case ATTRIBUTE:
        r = cuPointerGetAttribute(&a, CU_POINTER_ATTRIBUTE_RANGE_SIZE, data);
        break;
    case INFO:
        r = cuMemGetInfo(&a, &b);
        break;
    case EVENT_QUERY:
        r = cuEventQuery(event);
        break;
    case MANAGED:
        r = cuMemAllocManaged(&mine[0], 5000, CU_MEM_ATTACH_GLOBAL);
        break;
    case HOST:
        r = cuMemAllocHost(&host, 5000);
        if (r == CUDA_SUCCESS)
            r = cuMemFreeHost(host);
        break;
    case ASYNC_OTHER:
        r = cuMemAllocAsync(&mine[0], 5000, other);
        break;
    case FREE_ASYNC_OTHER:
        r = cuMemFreeAsync(warm_small, other);
        warm_small = r ? warm_small : 0;
        break;
    case SYNCHRONIZE_OTHER:
        r = cuStreamSynchronize(other);
        break;
    default:
        break;
    }
    return r;
}

struct task {
    enum operation what;
    int mode; /* of the calling thread; -1: unchanged */
    int answer;
};

static void *run(void *argument) {
    struct task *task = argument;
    CUstreamCaptureMode mode = (CUstreamCaptureMode)task->mode;
    CHECK(cuCtxSetCurrent(context));
    if (task->mode >= 0)
        CHECK(cuThreadExchangeStreamCaptureMode(&mode));
    task->answer = operate(task->what);
    if (task->mode >= 0)
        CHECK(cuThreadExchangeStreamCaptureMode(&mode));
    return NULL;
}

static void capture_one(CUstreamCaptureMode capture, bool elsewhere, int mode,
                        enum operation what) {
    static const char *const modes[] = {"global", "thread-local", "relaxed"};
    struct task task = {what, mode, 0};
    CUstreamCaptureStatus status;
    CUgraph graph = NULL;
    CUgraphExec exec;
    uint32_t wrong = 77;
    pthread_t thread;
    mine[0] = 0;
    if (!warm_small)
        warm_small = take(5000);
    if (!warm_large)
        warm_large = take(3 * MIB);
    CHECK(cuStreamBeginCapture(captured, capture));
    CUresult first = launch_fill(&kernels, captured, data, 0x5EED, 1000);
    if (elsewhere) {
        pthread_create(&thread, NULL, run, &task);
        pthread_join(thread, NULL);
    } else {
        run(&task);
    }
    CUresult second = launch_check(&kernels, captured, data, 0x5EED, 1000, errors);
    CUresult asked = cuStreamIsCapturing(captured, &status);
    CUresult end = cuStreamEndCapture(captured, &graph);
    int ran = -1;
    if (end == CUDA_SUCCESS && graph) {
        CHECK(cuMemsetD32(errors, 0, 1));
        CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
        ran = cuGraphLaunch(exec, captured);
        CHECK(cuStreamSynchronize(captured));
        CHECK(cuMemcpyDtoH(&wrong, errors, 4));
        CHECK(cuGraphExecDestroy(exec));
        CHECK(cuGraphDestroy(graph));
    }
    line(
        "capture: %s, %s thread%s%s: %s: %d, launches %d %d, capturing %d %d, end %d, replay %d %u",
        modes[capture], elsewhere ? "other" : "same", mode < 0 ? "" : ", own mode ",
        mode < 0 ? "" : modes[mode], names[what], task.answer, first, second, asked,
        asked ? -1 : (int)status, end, ran, wrong);
    CUresult freed = mine[0] ? cuMemFree(mine[0]) : CUDA_SUCCESS;
    if (freed != CUDA_SUCCESS)
        line("capture: what was allocated cannot be freed: %d", freed);
    CHECK(cuCtxSynchronize());
}

static void each_mode(void) {
    for (int capture = 0; capture < 3; capture++)
        for (int elsewhere = 0; elsewhere < 2; elsewhere++)
            for (int mode = -1; mode < 3; mode++)
                for (enum operation what = NOTHING; what < OPERATIONS; what++)
                    if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL)
                        capture_one((CUstreamCaptureMode)capture, elsewhere, mode, what);
}

/* Three captures at a time, while another stream uses and reuses memory. */
static void several(void) {
    CUstream s[3];
    CUgraph graph[3];
    CUgraphExec exec[3];
    CUdeviceptr p[3], q[50];
    uint32_t wrong = 77;
    CHECK(cuMemsetD32(errors, 0, 1));
    for (unsigned i = 0; i < 3; i++) {
        CHECK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
        p[i] = take(4096 << i);
        CHECK(cuStreamBeginCapture(s[i], CU_STREAM_CAPTURE_MODE_RELAXED));
    }
    int good = 0;
    for (unsigned round = 0; round < 30; round++) {
        for (unsigned i = 0; i < 50; i++) {
            q[i] = take(1000 * (i + 1) + (i % 10 ? 0 : 2 * MIB));
            CHECK(launch_fill(&kernels, other, q[i], i, 250));
            CHECK(launch_check(&kernels, other, q[i], i, 250, errors));
        }
        for (unsigned i = 0; i < 50; i++)
            good += cuMemFree(q[i]) == CUDA_SUCCESS;
        if (round % 10 == 3) {
            unsigned i = round / 10;
            CHECK(launch_fill(&kernels, s[i], p[i], i, 1000));
            CHECK(launch_check(&kernels, s[i], p[i], i, 1000, errors));
            CHECK(cuStreamEndCapture(s[i], &graph[i]));
        }
    }
    line("capture: several: frees %d", good);
    for (unsigned i = 0; i < 3; i++) {
        CHECK(cuGraphInstantiateWithFlags(&exec[i], graph[i], 0));
        CHECK(cuGraphLaunch(exec[i], s[i]));
        CHECK(cuGraphLaunch(exec[i], s[i]));
    }
    CHECK(cuCtxSynchronize());
    CHECK(cuMemcpyDtoH(&wrong, errors, 4));
    line("capture: several: wrong %u", wrong);
    for (unsigned i = 0; i < 3; i++) {
        CHECK(cuGraphExecDestroy(exec[i]));
        CHECK(cuGraphDestroy(graph[i]));
        CHECK(cuMemFree(p[i]));
        CHECK(cuStreamDestroy(s[i]));
    }
}

/* More captures at a time than any table holds. After their end memory is reused again. */
static void many(void) {
    enum { MANY = 1100 };
    static CUstream s[MANY];
    size_t free_bytes, total;
    int codes = 0;
    unsigned good = 0;
    for (unsigned i = 0; i < MANY; i++)
        CHECK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
    for (unsigned i = 0; i < MANY; i++)
        codes += cuStreamBeginCapture(s[i], CU_STREAM_CAPTURE_MODE_RELAXED);
    for (unsigned i = 0; i < MANY; i++) {
        CUgraph graph = NULL;
        if (i % 3 == 2) {
            codes += cuStreamDestroy(s[i]);
        } else {
            codes += cuStreamEndCapture(s[i], &graph);
            CHECK(cuGraphDestroy(graph));
            CHECK(cuStreamDestroy(s[i]));
        }
    }
    CHECK(cuMemGetInfo(&free_bytes, &total));
    for (unsigned i = 0; i < 12; i++) {
        CUdeviceptr p;
        if (cuMemAlloc(&p, free_bytes / 3) == CUDA_SUCCESS) {
            CHECK(launch_fill(&kernels, other, p, i, 1000));
            good += cuMemFree(p) == CUDA_SUCCESS;
        }
    }
    line("capture: %d at once: codes %d, and going on %u", MANY, codes, good);
}

/* A capture in a stream of another context than the current one ends with that context. */
static void in_other_context(void) {
    CUcontext away;
    CUstream s;
    CUgraph graph = NULL;
    unsigned good = 0;
    CHECK(cuCtxCreate_v2(&away, 0, 0));
    CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CHECK(cuCtxSetCurrent(context));
    CODES("capture: in another context's stream",
          cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED),
          cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    CODES("capture: the other context's end", cuCtxDestroy(away));
    CODES("capture: end", cuStreamEndCapture(captured, &graph), cuGraphDestroy(graph));
    for (unsigned i = 0; i < 20; i++) {
        size_t free_bytes, total;
        CUdeviceptr p;
        CHECK(cuMemGetInfo(&free_bytes, &total));
        if (cuMemAlloc(&p, free_bytes / 3) == CUDA_SUCCESS) {
            CHECK(launch_fill(&kernels, other, p, i, 1000));
            good += cuMemFree(p) == CUDA_SUCCESS;
        }
    }
    line("capture: and going on %u", good);
}

/* One thread captures its own stream in two contexts. The capture in the second one goes on when
 * the first context ends. */
static void of_two_contexts(void) {
    CUcontext away;
    CUgraph graph = NULL;
    CHECK(cuCtxCreate_v2(&away, 0, 0));
    CHECK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
    CHECK(cuCtxSetCurrent(away));
    CODES("capture: end in one context", cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph),
          cuGraphDestroy(graph));
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuCtxDestroy(away));
    for (unsigned i = 0; i < 20; i++)
        CHECK(cuMemFree(take(4 * MIB)));
    CODES("capture: end in the other one", cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph),
          cuGraphDestroy(graph));
}

static void end_without_graph(void) {
    CUgraph graph = NULL;
    CUstreamCaptureStatus status;
    CHECK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    CODES("capture: end without a place for the graph", cuStreamEndCapture(captured, NULL));
    CHECK(cuStreamIsCapturing(captured, &status));
    line("capture: still capturing %d", status);
    if (status != CU_STREAM_CAPTURE_STATUS_NONE)
        CODES("capture: end", cuStreamEndCapture(captured, &graph));
}

/* Captures that fail or end in unusual ways. Afterwards memory must be reused again. */
static void odd_ends(void) {
    CUgraph graph = NULL;
    CUstream s;
    CODES("capture: end without begin", cuStreamEndCapture(captured, &graph));
    CHECK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    CODES("capture: begin twice", cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
    CODES("capture: end", cuStreamEndCapture(captured, &graph), cuGraphDestroy(graph));
    CODES("capture: begin on the legacy stream",
          cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_RELAXED));
    CODES("capture: begin in no mode", cuStreamBeginCapture(captured, (CUstreamCaptureMode)9));
    CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CODES("capture: destroy while capturing", cuStreamDestroy(s));
    CHECK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    CODES("capture: of the thread's stream: launch, alloc, end",
          launch_fill(&kernels, CU_STREAM_PER_THREAD, data, 1, 10), cuMemAlloc(&mine[0], 100),
          cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
    CHECK(cuGraphCreate(&graph, 0));
    CODES(
        "capture: to a graph",
        cuStreamBeginCaptureToGraph(captured, graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED),
        launch_fill(&kernels, captured, data, 1, 10), cuMemAlloc(&mine[0], 5000),
        cuMemFree(mine[0]), cuStreamEndCapture(captured, &graph), cuGraphDestroy(graph));
    for (unsigned i = 0; i < 100; i++)
        CHECK(cuMemFree(take(4 * MIB)));
    line("capture: and going on");
}

typedef CUresult CUDAAPI begin_again(CUstream, CUstreamCaptureMode, CUgraph, void *callback,
                                     void *data);

static void *free_in_context(void *unused) {
    CHECK(cuCtxSetCurrent(context));
    for (unsigned i = 0; i < 20; i++)
        CHECK(cuMemFree(take(4 * MIB)));
    return unused;
}

/* Captures to a graph that has nodes, which drivers of CUDA 13.3 and later can. Another thread
 * frees during the capture: an event that the library recorded then would invalidate it. */
static void again(void) {
    begin_again *entry = (begin_again *)dlsym(RTLD_DEFAULT, "cuStreamBeginRecaptureToGraph");
    pthread_t thread;
    CUgraph graph = NULL;
    if (!entry)
        return;
    CHECK(cuGraphCreate(&graph, 0));
    CODES("capture: again",
          entry(captured, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, graph, NULL, NULL));
    pthread_create(&thread, NULL, free_in_context, NULL);
    pthread_join(thread, NULL);
    CODES("capture: again: launch, end", launch_fill(&kernels, captured, data, 1, 10),
          cuStreamEndCapture(captured, &graph), cuGraphDestroy(graph));
}

/* Memory nodes: the library passes calls for the graph's own memory to the driver. */
static void nodes(void) {
    CUgraph graph = NULL;
    CUgraphExec exec;
    CUdeviceptr p = 0;
    CUstream s;
    uint32_t wrong = 77;
    CHECK(cuMemsetD32(errors, 0, 1));
    CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CODES("capture: nodes: alloc", cuMemAllocAsync(&p, 5000, s));
    CODES("capture: nodes: use", launch_fill(&kernels, s, p, 9, 1250),
          launch_check(&kernels, s, p, 9, 1250, errors));
    CODES("capture: nodes: free", cuMemFreeAsync(p, s));
    CODES("capture: nodes: end", cuStreamEndCapture(s, &graph));
    CHECK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (unsigned i = 0; i < 3; i++)
        CHECK(cuGraphLaunch(exec, s));
    CHECK(cuStreamSynchronize(s));
    CHECK(cuMemcpyDtoH(&wrong, errors, 4));
    line("capture: nodes: wrong %u", wrong);
    p = take(5000);
    CHECK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUresult freed = cuMemFreeAsync(p, s);
    CODES("capture: nodes: free of ordinary memory, end", freed, cuStreamEndCapture(s, &graph));
    CHECK(cuGraphExecDestroy(exec));
}

static void *free_without_context(void *unused) {
    (void)unused;
    CODES("capture: a free in a thread without a context", cuMemFree(mine[0]));
    return NULL;
}

/* A free of another thread invalidates a capture in global mode, also if it has no context. */
static void without_context(void) {
    pthread_t thread;
    CUgraph graph = NULL;
    mine[0] = take(5000);
    CHECK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_GLOBAL));
    pthread_create(&thread, NULL, free_without_context, NULL);
    pthread_join(thread, NULL);
    CODES("capture: its end, another free", cuStreamEndCapture(captured, &graph),
          cuMemFree(mine[0]));
}

int main(void) {
    context = begin();
    kernels_load(&kernels);
    CHECK(cuStreamCreate(&captured, CU_STREAM_NON_BLOCKING));
    CHECK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    CHECK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    CHECK(cuEventRecord(event, other));
    data = take(4096);
    errors = take(4);
    /* the pool gets free blocks, and every kernel is loaded */
    for (unsigned i = 0; i < 64; i++)
        mine[i] = take(i % 8 ? 5000 : 3 * MIB);
    for (unsigned i = 0; i < 64; i++)
        CHECK(cuMemFree(mine[i]));
    CHECK(launch_fill(&kernels, other, data, 1, 4));
    CHECK(launch_check(&kernels, other, data, 1, 4, errors));
    CHECK(cuCtxSynchronize());
    if (section("modes"))
        each_mode();
    if (section("several"))
        several();
    if (section("odd ends"))
        odd_ends();
    if (section("again"))
        again();
    if (section("nodes"))
        nodes();
    if (section("without a context"))
        without_context();
    if (section("many"))
        many();
    if (section("elsewhere"))
        in_other_context();
    if (section("two contexts"))
        of_two_contexts();
    if (section("no place for the graph"))
        end_without_graph();
    return 0;
}
