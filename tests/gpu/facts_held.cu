/*
 * facts_held [section]: measures natively what a wait of the context (cuCtxWaitEvent) delays in
 * idle streams. An event recorded in such a stream does not complete before the wait is over,
 * although cuStreamQuery and cuStreamSynchronize return at once.
 *
 * On an H100 (driver 580.159.04), with a wait for a kernel of 60 ms, in streams of every kind:
 *
 *   | case                              | stream                             | event            |
 *   | --------------------------------- | ---------------------------------- | ---------------- |
 *   | record in an idle stream          | query 0, synchronised in 0.0 ms    | after 60 ms      |
 *   | 5 ms of work before the wait      | synchronised in 5.0 ms             | after 60 ms      |
 *   | work after the wait               | after 65 ms                        | after 65 ms      |
 *   | wait for a complete event         | no delay                           | no delay         |
 *   | wait for an event that is delayed | after 60 ms                        | after 60 ms      |
 *   | 1, 8, 64 records, the wait over   |                                    | at first query,  |
 *   |                                   |                                    | 100 times of 100 |
 *   | record in a blocking stream, work | query 0, synchronised in 0.0 ms    | after that work  |
 *   | in the null stream                |                                    |                  |
 *
 * cuStreamQuery of an idle stream took 0.3 us, behind a wait 1.6 us.
 */
#include "facts.cuh"

static CUcontext ctx;
static cudaStream_t busy, other;
static CUevent waited, record, elsewhere;
static CUdeviceptr plain;

/* The context waits for an event behind a kernel of so many ms. */
static void put_up(int ms) {
    spin_ms(busy, ms);
    CHECK(cuCtxRecordEvent(ctx, waited));
    CHECK(cuCtxWaitEvent(ctx, waited));
}

static void begin() {
    ctx = primary();
    warm();
    busy = new_stream();
    other = new_stream();
    waited = new_event();
    record = new_event();
    elsewhere = new_event();
    spin_ns<<<1, 1, 0, busy>>>(1);
    spin_ns<<<1, 1, 0, other>>>(1);
    CHECK(cudaDeviceSynchronize());
}

static void mark(CUstream s) {
    CHECK(cuEventRecord(record, s));
}

static void work(CUstream s) {
    spin_ms(s, 5);
}

/* Work of a stream before and after the wait of the context. */
static const struct {
    const char *name;
    void (*before)(CUstream s), (*after)(CUstream s);
} contents[] = {
    {"wait, record", nullptr, mark},
    {"record, wait", mark, nullptr},
    {"5 ms, wait, record", work, mark},
    {"wait, 5 ms, record", nullptr,
     [](CUstream s) {
         work(s);
         mark(s);
     }},
    {"wait, record, 5 ms", nullptr,
     [](CUstream s) {
         mark(s);
         work(s);
     }},
    {"wait, wait for a complete event, record", nullptr,
     [](CUstream s) {
         CHECK(cuStreamWaitEvent(s, elsewhere, 0));
         mark(s);
     }},
    {"wait, wait for an event that is held, record", nullptr,
     [](CUstream s) {
         CHECK(cuEventRecord(elsewhere, (CUstream)other));
         CHECK(cuStreamWaitEvent(s, elsewhere, 0));
         mark(s);
     }},
    {"wait, host function, record", nullptr,
     [](CUstream s) {
         CHECK(cuLaunchHostFunc(
             s, [](void *) {}, nullptr));
         mark(s);
     }},
    {"wait, cuMemAllocAsync and free, record", nullptr,
     [](CUstream s) {
         CUdeviceptr p;
         CHECK(cuMemAllocAsync(&p, 1 << 20, s));
         CHECK(cuMemFreeAsync(p, s));
         mark(s);
     }},
    {"wait, cuMemFreeAsync of cuMemAlloc's, record", nullptr,
     [](CUstream s) {
         CHECK(cuMemFreeAsync(plain, s));
         mark(s);
     }},
};

static void one(const char *stream_name, CUstream s, size_t which) {
    CHECK(cuMemAlloc(&plain, 32 << 20));
    CHECK(cuEventRecord(record, (CUstream)other));
    CHECK(cuEventRecord(elsewhere, (CUstream)other));
    CHECK(cudaDeviceSynchronize());
    double start = now_s();
    if (contents[which].before)
        contents[which].before(s);
    put_up(60);
    if (contents[which].after)
        contents[which].after(s);
    int stream_first = (int)cuStreamQuery(s), record_first = (int)cuEventQuery(record);
    CHECK(cuStreamSynchronize(s));
    double stream_ms = (now_s() - start) * 1e3;
    int record_then = (int)cuEventQuery(record);
    CHECK(cuEventSynchronize(record));
    double record_ms = (now_s() - start) * 1e3;
    printf(
        "  %-20s %-45s query: stream %3d, record %3d; stream synchronised after %5.1f ms, record "
        "then %3d; record after %5.1f ms\n",
        stream_name, contents[which].name, stream_first, record_first, stream_ms, record_then,
        record_ms);
    CHECK(cudaDeviceSynchronize());
    cuMemFree(plain);
}

static void section_idle() {
    begin();
    CUstream blocking;
    CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    const struct {
        const char *name;
        CUstream stream;
    } streams[] = {{"non-blocking, used", (CUstream)new_stream()},
                   {"blocking", blocking},
                   {"legacy", CU_STREAM_LEGACY},
                   {"per-thread", CU_STREAM_PER_THREAD}};
    spin_ns<<<1, 1, 0, streams[0].stream>>>(1);
    for (size_t which = 0; which < sizeof contents / sizeof *contents; which++) {
        for (auto &s : streams)
            one(s.name, s.stream, which);
        one("non-blocking, new", (CUstream)new_stream(), which);
    }
}

/* Checks that records in idle streams are complete once a query has found the event complete for
 * which the context waits. */
static void section_after() {
    begin();
    for (int count : {1, 8, 64}) {
        std::vector<CUstream> streams(count);
        std::vector<CUevent> events(count);
        for (int i = 0; i < count; i++) {
            streams[i] = (CUstream)new_stream();
            events[i] = new_event();
        }
        int early = 0, at_once = 0, rounds = 100;
        std::vector<double> us;
        for (int n = 0; n < rounds; n++) {
            CHECK(cudaDeviceSynchronize());
            put_up(2);
            for (int i = 0; i < count; i++)
                CHECK(cuEventRecord(events[i], streams[i]));
            for (int i = 0; i < count; i++)
                early += cuEventQuery(events[i]) == CUDA_SUCCESS;
            if (n % 2)
                CHECK(cuEventSynchronize(waited));
            else
                until_ready_ms(waited);
            double t = now_s();
            bool all = true;
            for (int i = 0; i < count; i++)
                all &= cuEventQuery(events[i]) == CUDA_SUCCESS;
            at_once += all;
            for (int i = 0; i < count; i++)
                until_ready_ms(events[i]);
            us.push_back((now_s() - t) * 1e6);
        }
        printf(
            "  %2d idle streams, a record in each: complete before the wait was over %d of %d; all "
            "complete at the first query after it %d of %d\n",
            count, early, rounds * count, at_once, rounds);
        quantiles("until all are, from then on", us, "us");
    }
}

/* Checks whether a query of an idle blocking stream reports work of the null stream, and the other
 * way round. */
static void section_legacy() {
    begin();
    CUstream blocking, second;
    CHECK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CHECK(cuStreamCreate(&second, CU_STREAM_DEFAULT));
    const struct {
        const char *name;
        CUstream works, asked;
    } pairs[] = {{"work in the null stream, a blocking one asked", CU_STREAM_LEGACY, blocking},
                 {"work in a blocking stream, the null one asked", blocking, CU_STREAM_LEGACY},
                 {"work in a blocking stream, another one asked", blocking, second},
                 {"work in the null stream, the per-thread one asked", CU_STREAM_LEGACY,
                  CU_STREAM_PER_THREAD}};
    for (auto &pair : pairs) {
        for (int records = 0; records < 2; records++) {
            CHECK(cudaDeviceSynchronize());
            double start = now_s();
            spin_ms(pair.works, 40);
            if (records)
                CHECK(cuEventRecord(record, pair.asked));
            int first = (int)cuStreamQuery(pair.asked);
            int event = records ? (int)cuEventQuery(record) : -1;
            CHECK(cuStreamSynchronize(pair.asked));
            double stream_ms = (now_s() - start) * 1e3;
            CHECK(cudaDeviceSynchronize());
            printf("  %-50s%s query %3d, record %3d, synchronised after %5.1f ms\n", pair.name,
                   records ? ", after a record there:" : ":", first, event, stream_ms);
        }
    }
}

static void section_cost() {
    begin();
    CUstream s = (CUstream)new_stream();
    for (int held = 0; held < 2; held++) {
        CHECK(cudaDeviceSynchronize());
        if (held)
            put_up(500);
        int n = held ? 300 : 100000;
        printf("  %s: cuStreamQuery %.1f ns, cuEventQuery %.1f ns, cuEventRecord %.1f ns\n",
               held ? "idle stream behind a wait" : "idle stream",
               mean_ns(n, [&] { cuStreamQuery(s); }), mean_ns(n, [&] { cuEventQuery(record); }),
               mean_ns(n, [&] { cuEventRecord(record, s); }));
    }
    CHECK(cudaDeviceSynchronize());
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
    } sections[] = {{"idle", section_idle},
                    {"after", section_after},
                    {"legacy", section_legacy},
                    {"cost", section_cost}};
    return run_cases(argc, argv, sections);
}
