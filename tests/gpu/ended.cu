/*
 * ended facts, or ended [ROUNDS [returns]]: destroys the stream, thread or graph of work that
 * still runs. A native free waits for such work too, so the memory that it writes may not be handed
 * out again.
 *
 * Without `facts` the program prints how many words were wrong: none, natively and under the
 * library. With `returns` it also prints whether any freed memory was handed out again. With
 * `facts`, run natively, it prints whether an event of the context captures such work, and whether
 * a wait of the context orders it.
 */
#include "facts.cuh"

#include <functional>

static volatile int *finished; /* in host memory: set by the late writer at its end */

struct kind {
    const char *name;
    std::function<void(uint32_t *p, size_t n, uint32_t seed, int ms)> launch;
};

static void write_late(cudaStream_t s, uint32_t *p, size_t n, uint32_t seed, int ms) {
    spin_ms(s, ms);
    fill<<<grid_for(n), 256, 0, s>>>(p, n, seed);
    set_flag<<<1, 1, 0, s>>>(finished, 1);
    CHECK(cudaGetLastError());
}

static void in_stream(bool destroyed, unsigned flags, uint32_t *p, size_t n, uint32_t seed,
                      int ms) {
    static cudaStream_t kept;
    cudaStream_t s = kept;
    if (destroyed || !kept)
        CHECK(cudaStreamCreateWithFlags(&s, flags));
    write_late(s, p, n, seed, ms);
    if (destroyed)
        CHECK(cudaStreamDestroy(s));
    else
        kept = s;
}

static void in_thread(uint32_t *p, size_t n, uint32_t seed, int ms) {
    std::thread([=] {
        CHECK(cudaSetDevice(0));
        write_late(cudaStreamPerThread, p, n, seed, ms);
    }).join();
}

static void in_graph(uint32_t *p, size_t n, uint32_t seed, int ms) {
    cudaStream_t s = new_stream();
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
    write_late(s, p, n, seed, ms);
    CHECK(cudaStreamEndCapture(s, &graph));
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(s));
}

static void by_copy(uint32_t *p, size_t n, uint32_t seed, int ms) {
    static uint32_t *pinned;
    static size_t elements;
    if (elements < n) {
        CHECK(cudaMallocHost(&pinned, n * sizeof *pinned));
        elements = n;
    }
    CHECK(cudaDeviceSynchronize()); /* the last round's copy still reads it */
    for (size_t i = 0; i < n; i++)
        pinned[i] = pattern(seed, i);
    cudaStream_t s = new_stream();
    spin_ms(s, ms);
    CHECK(cudaMemcpyAsync(p, pinned, n * sizeof *p, cudaMemcpyHostToDevice, s));
    set_flag<<<1, 1, 0, s>>>(finished, 1);
    CHECK(cudaStreamDestroy(s));
}

static void behind_another(uint32_t *p, size_t n, uint32_t seed, int ms) {
    cudaStream_t first = new_stream(), second = new_stream();
    cudaEvent_t e;
    CHECK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    spin_ms(first, ms);
    CHECK(cudaEventRecord(e, first));
    CHECK(cudaStreamWaitEvent(second, e, 0));
    write_late(second, p, n, seed, 0);
    CHECK(cudaEventDestroy(e));
    CHECK(cudaStreamDestroy(first));
    CHECK(cudaStreamDestroy(second));
}

static const kind kinds[] = {
    {"stream that lives on",
     [](uint32_t *p, size_t n, uint32_t seed, int ms) {
         in_stream(false, cudaStreamNonBlocking, p, n, seed, ms);
     }},
    {"non-blocking stream destroyed",
     [](uint32_t *p, size_t n, uint32_t seed, int ms) {
         in_stream(true, cudaStreamNonBlocking, p, n, seed, ms);
     }},
    {"blocking stream destroyed",
     [](uint32_t *p, size_t n, uint32_t seed, int ms) {
         in_stream(true, cudaStreamDefault, p, n, seed, ms);
     }},
    {"per-thread stream, thread ended", in_thread},
    {"graph and its stream destroyed", in_graph},
    {"copy from pinned memory, stream destroyed", by_copy},
    {"two streams, one behind the other, destroyed", behind_another},
};

static unsigned long long wrong_words(cudaStream_t s, const uint32_t *p, size_t n, uint32_t seed) {
    static unsigned long long *bad, *host;
    if (!bad) {
        CHECK(cudaMalloc(&bad, sizeof *bad));
        CHECK(cudaMallocHost(&host, sizeof *host));
    }
    CHECK(cudaMemsetAsync(bad, 0, sizeof *bad, s));
    verify<<<grid_for(n), 256, 0, s>>>(p, n, seed, bad);
    CHECK(cudaMemcpyAsync(host, bad, sizeof *host, cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    return *host;
}

static void facts() {
    const size_t n = 1 << 20;
    CUcontext ctx = primary();
    CUevent ev = new_event();
    cudaStream_t reader = new_stream();
    uint32_t *p;
    CHECK(cudaMalloc(&p, n * sizeof *p));
    CHECK(cudaMemset(p, 0, n * sizeof *p));
    wrong_words(reader, p, n, 0);
    for (const kind &k : kinds) {
        k.launch(p, n, 1, 0); /* the first launch loads code */
        CHECK(cudaDeviceSynchronize());

        *finished = 0;
        double launch = took_ms([&] { k.launch(p, n, 2, 30); });
        CHECK(cuCtxRecordEvent(ctx, ev));
        double ready = until_ready_ms(ev);
        int seen = *finished;
        CHECK(cudaDeviceSynchronize());
        printf("  %-46s launched and ended in %.2f ms; an event of the context complete after %.2f "
               "ms, "
               "the work then %s\n",
               k.name, launch, ready, seen ? "over" : "UNDER WAY");

        k.launch(p, n, 3, 30);
        CHECK(cuCtxRecordEvent(ctx, ev));
        CHECK(cuCtxWaitEvent(ctx, ev));
        printf("  %-46s behind a wait of the context %llu words are the old ones\n", "",
               wrong_words(reader, p, n, 3));
        CHECK(cudaDeviceSynchronize());

        *finished = 0;
        k.launch(p, n, 4, 30);
        double freed = took_ms([&] { CHECK(cudaFree(p)); });
        printf("  %-46s cudaFree took %.2f ms, the work then %s\n", "", freed,
               *finished ? "over" : "UNDER WAY");
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMalloc(&p, n * sizeof *p));
    }
}

/* Returns how often freed memory was handed out again within 20 ms. */
static int use(int rounds) {
    cudaStream_t own = new_stream();
    int all_again = 0;
    for (const kind &k : kinds) {
        unsigned long long wrong = 0;
        int again = 0;
        for (int round = 0; round < rounds; round++) {
            size_t n = round % 2 ? 1 << 20 : 1 << 14;
            uint32_t seed = (uint32_t)round + 1, *p, *q;
            CHECK(cudaMalloc(&p, n * sizeof *p));
            k.launch(p, n, ~seed, 3);
            CHECK(cudaFree(p));
            double begin = now_s();
            int taken = 0;
            do { /* until the same memory is handed out, natively at once */
                CHECK(cudaMalloc(&q, n * sizeof *q));
                fill<<<grid_for(n), 256, 0, own>>>(q, n, seed);
                taken = q == p;
                CHECK(cudaStreamSynchronize(own));
                if (!taken)
                    CHECK(cudaFree(q));
            } while (!taken && now_s() - begin < 0.02);
            again += taken;
            CHECK(cudaDeviceSynchronize());
            if (taken) {
                wrong += wrong_words(own, q, n, seed);
                CHECK(cudaFree(q));
            }
        }
        printf("%s: %llu words wrong\n", k.name, wrong);
        printf("note: the memory was handed out again in %d of %d rounds\n", again, rounds);
        all_again += again;
    }
    return all_again;
}

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    alarm(60);
    int *flag;
    CHECK(cudaHostAlloc(&flag, sizeof *flag, cudaHostAllocMapped));
    finished = flag;
    warm();
    bool wants_facts = argc > 1 && strcmp(argv[1], "facts") == 0;
    if (wants_facts) {
        facts();
        return 0;
    }
    int again = use((int)arg_long(argc, argv, 1, 40));
    if (argc > 2 && strcmp(argv[2], "returns") == 0)
        printf("freed memory was %s\n", again > 0 ? "handed out again" : "never handed out again");
    return 0;
}
