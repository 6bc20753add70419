/*
 * Measures the cost of one cached pair of allocation and free, for any allocator. pairs.cu,
 * pairs_rmm.cpp and pairs_torch.cpp define the allocators.
 *
 *   fixed       64 KiB, freed at once
 *   mixed       512 bytes to 2 MiB, 32 blocks live in each thread, replaced at random
 *   handover    mixed sizes; every other thread allocates, its neighbour frees
 *   rmm         RMM's random_allocations benchmark: 1000 allocations of 1 B to 64 MiB, at most
 *               16 000 MiB live, allocate with probability 0.73, else free at random
 *
 * Three runs measure the mean, with a clock that is read at the ends only. Their median counts,
 * because a shared host may delay one of them. A fourth run measures the distribution, with a time
 * stamp around each pair. Before each run the pattern runs for as long without a measurement (rmm:
 * one round). Values are nanoseconds per pair as each thread sees it. In handover and rmm the free
 * does not follow its allocation, so the distribution has single calls of both kinds. The mean of
 * handover is the time of a producer's step, which makes one allocation.
 *
 * A free gets the size of its block, because some allocators need it. All allocators pay for that.
 */
#ifndef GPU_BENCH_PAIRS_H
#define GPU_BENCH_PAIRS_H

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "../gpu/check.h"

namespace bench {

static inline uint64_t stamp() {
#if defined(__x86_64__)
    unsigned core;
    return __rdtscp(&core);
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
#endif
}

static inline double ns_per_stamp() {
    double t0 = now_s();
    uint64_t s0 = stamp();
    while (now_s() - t0 < 0.02) {
    }
    uint64_t s1 = stamp();
    return (now_s() - t0) * 1e9 / (double)(s1 - s0);
}

static inline size_t mixed_size(uint64_t *random) {
    return (size_t)std::exp2(9 + (double)(rng(random) >> 40) / (1 << 24) * 12);
}

/* The measurements of one thread. */
struct result {
    double ns = 0;
    uint64_t pairs = 0;
    std::vector<uint32_t> stamps;
};

struct block {
    void *p;
    size_t bytes;
};

/*
 * A ring with one producer and one consumer. Each reads the other's index only when necessary, so
 * that the measurement shows the allocator and not the ring.
 */
struct ring {
    enum { size = 256 };
    alignas(64) std::atomic<uint64_t> head{0};
    alignas(64) std::atomic<uint64_t> tail{0};
    alignas(64) block slot[size];
    alignas(64) std::atomic<bool> warm{false};
};

struct job {
    bool stamps;
    double seconds;
};

static const size_t stamp_most = 400000;
static const int mean_runs = 3;

static inline void keep(result &r, uint64_t t) {
    if (r.stamps.size() < stamp_most)
        r.stamps.push_back((uint32_t)std::min<uint64_t>(t, UINT32_MAX));
}

template <class A> void run_fixed(A &a, int, const job &j, result &r) {
    for (double warm = now_s() + j.seconds; now_s() < warm;)
        a.release(a.allocate(65536), 65536);
    double start = now_s(), end = start + j.seconds;
    do {
        for (int i = 0; i < 64; i++) {
            uint64_t t = j.stamps ? stamp() : 0;
            void *p = a.allocate(65536);
            a.release(p, 65536);
            if (j.stamps)
                keep(r, stamp() - t);
        }
        r.pairs += 64;
    } while (now_s() < end);
    r.ns = (now_s() - start) * 1e9 / (double)r.pairs;
}

template <class A> void run_mixed(A &a, int thread, const job &j, result &r) {
    enum { live = 32, plan = 4096 };
    uint64_t random = (uint64_t)thread * 77 + 5;
    std::vector<uint32_t> sizes(plan);
    std::vector<uint8_t> slots(plan);
    for (int i = 0; i < plan; i++) {
        sizes[i] = (uint32_t)mixed_size(&random);
        slots[i] = (uint8_t)(rng(&random) % live);
    }
    block held[live];
    for (int i = 0; i < live; i++)
        held[i] = {a.allocate(sizes[i]), sizes[i]};
    auto replace = [&](block &b, size_t bytes) {
        a.release(b.p, b.bytes);
        b = {a.allocate(bytes), bytes};
    };
    unsigned at = 0;
    double warm = now_s() + j.seconds; /* so that the caches are filled */
    for (; at % 64 || now_s() < warm; at++)
        replace(held[slots[at % plan]], sizes[at % plan]);
    at %= plan;
    double start = now_s(), end = start + j.seconds;
    do {
        for (int i = 0; i < 64; i++, at = (at + 1) % plan) {
            uint64_t t = j.stamps ? stamp() : 0;
            replace(held[slots[at]], sizes[at]);
            if (j.stamps)
                keep(r, stamp() - t);
        }
        r.pairs += 64;
    } while (now_s() < end);
    r.ns = (now_s() - start) * 1e9 / (double)r.pairs;
    for (const block &b : held)
        a.release(b.p, b.bytes);
}

/* Threads 2k and 2k+1 share ring k. The producer's end mark is a null pointer. */
template <class A> void run_handover(A &a, int thread, const job &j, result &r, ring &q) {
    if (thread % 2 == 0) {
        uint64_t random = (uint64_t)thread * 77 + 5;
        std::vector<uint32_t> sizes(4096);
        for (auto &s : sizes)
            s = (uint32_t)mixed_size(&random);
        uint64_t head = 0, tail = 0;
        auto put = [&](block b) {
            while (head - tail >= ring::size &&
                   head - (tail = q.tail.load(std::memory_order_acquire)) >= ring::size)
                std::this_thread::yield();
            q.slot[head % ring::size] = b;
            q.head.store(++head, std::memory_order_release);
        };
        auto make = [&](bool stamps) {
            for (int i = 0; i < 64; i++) {
                uint64_t t = stamps ? stamp() : 0;
                size_t bytes = sizes[head % 4096];
                void *p = a.allocate(bytes);
                if (stamps)
                    keep(r, stamp() - t);
                put({p, bytes});
            }
        };
        for (double warm = now_s() + j.seconds; now_s() < warm;)
            make(false);
        q.warm.store(true, std::memory_order_relaxed);
        double start = now_s(), end = start + j.seconds;
        do {
            make(j.stamps);
            r.pairs += 64;
        } while (now_s() < end);
        put({nullptr, 0});
        r.ns = (now_s() - start) * 1e9 / (double)r.pairs;
    } else {
        for (uint64_t head = 0, tail = 0;;) {
            while (tail == head && tail == (head = q.head.load(std::memory_order_acquire)))
                std::this_thread::yield();
            block b = q.slot[tail % ring::size];
            q.tail.store(++tail, std::memory_order_release);
            if (!b.p)
                return;
            bool stamps = j.stamps && q.warm.load(std::memory_order_relaxed);
            uint64_t before = stamps ? stamp() : 0;
            a.release(b.p, b.bytes);
            if (stamps)
                keep(r, stamp() - before);
        }
    }
}

/* A pair is one allocation and one free at any places of the sequence. */
template <class A> void run_rmm(A &a, int thread, const job &j, result &r) {
    const int allocations = 1000;
    const size_t most_live = (size_t)16000 << 20;
    struct step {
        bool allocate;
        uint32_t at;
        size_t bytes;
    };
    std::vector<step> steps;
    std::vector<size_t> live;
    uint64_t random = (uint64_t)thread * 77 + 5;
    size_t bytes_live = 0;
    for (int count = 0, i = 0; i < allocations * 2; i++) {
        size_t bytes = 1 + rng(&random) % ((size_t)64 << 20);
        bool allocate = live.empty() || (rng(&random) % 100 < 73 && count < allocations &&
                                         bytes_live + bytes < most_live);
        if (allocate) {
            steps.push_back({true, 0, bytes});
            live.push_back(bytes);
            bytes_live += bytes;
            count++;
        } else {
            uint32_t at = (uint32_t)(rng(&random) % live.size());
            steps.push_back({false, at, 0});
            bytes_live -= live[at];
            live[at] = live.back();
            live.pop_back();
        }
    }
    std::vector<block> held;
    held.reserve(allocations);
    double start = 0, end = 0;
    for (int round = 0; round == 0 || now_s() < end; round++) {
        if (round == 1) { /* the first round fills the cache */
            start = now_s();
            r.pairs = 0;
        }
        for (const step &s : steps) {
            uint64_t t = j.stamps ? stamp() : 0;
            if (s.allocate) {
                held.push_back({a.allocate(s.bytes), s.bytes});
                r.pairs++;
            } else {
                block b = held[s.at];
                held[s.at] = held.back();
                held.pop_back();
                a.release(b.p, b.bytes);
            }
            if (j.stamps && round)
                keep(r, stamp() - t);
        }
        for (const block &b : held)
            a.release(b.p, b.bytes);
        held.clear();
        if (round == 0)
            start = now_s(), end = start + j.seconds;
    }
    r.ns = (now_s() - start) * 1e9 / (double)(r.pairs ? r.pairs : 1);
}

static inline double mean(const std::vector<result> &results) {
    double sum = 0;
    int n = 0;
    for (auto &r : results)
        if (r.pairs)
            sum += r.ns, n++;
    return sum / n;
}

static inline void report(const std::string &name, std::vector<result> &results, double scale) {
    std::vector<uint32_t> all;
    for (auto &r : results)
        all.insert(all.end(), r.stamps.begin(), r.stamps.end());
    if (all.empty())
        return;
    std::sort(all.begin(), all.end());
    for (auto [what, q] : {std::pair<const char *, double>{"p50", .5},
                           {"p90", .9},
                           {"p99", .99},
                           {"p999", .999},
                           {"max", 1}})
        print_time((name + "/" + what).c_str(), all[(size_t)(q * (double)(all.size() - 1))] * scale,
                   "ns");
}

template <class A> void all(const char *name, A &a, double seconds) {
    double scale = ns_per_stamp();
    for (const char *pattern : {"fixed", "mixed", "handover", "rmm"})
        for (int threads : {1, 2, 4, 8, 16}) {
            bool handover = strcmp(pattern, "handover") == 0;
            if ((handover && threads == 1) || (strcmp(pattern, "rmm") == 0 && threads != 1))
                continue;
            const std::string title =
                std::string(name) + "/" + pattern + "/" + std::to_string(threads);
            std::vector<double> means;
            for (int run = 0; run <= mean_runs; run++) {
                bool stamps = run == mean_runs;
                job j = {stamps, seconds};
                std::vector<result> results(threads);
                std::unique_ptr<ring[]> rings(new ring[8]);
                std::atomic<int> ready{0}, done{0};
                std::vector<std::thread> pool;
                for (int t = 0; t < threads; t++)
                    pool.emplace_back([&, t] {
                        if (stamps)
                            results[t].stamps.reserve(stamp_most);
                        a.enter();
                        for (int i = 0; i < 64; i++)
                            a.release(a.allocate(65536), 65536);
                        ready++;
                        while (ready < threads)
                            std::this_thread::yield();
                        if (handover)
                            run_handover(a, t, j, results[t], rings[t / 2]);
                        else if (strcmp(pattern, "fixed") == 0)
                            run_fixed(a, t, j, results[t]);
                        else if (strcmp(pattern, "mixed") == 0)
                            run_mixed(a, t, j, results[t]);
                        else
                            run_rmm(a, t, j, results[t]);
                        done++;
                        while (done < threads) /* a block's stream has to outlive its release in
                                                  another thread */
                            std::this_thread::yield();
                        a.leave();
                    });
                for (auto &t : pool)
                    t.join();
                a.synchronise();
                if (stamps)
                    report(title, results, scale);
                else
                    means.push_back(mean(results));
            }
            std::sort(means.begin(), means.end());
            print_time((title + "/mean").c_str(), means[mean_runs / 2], "ns");
            fflush(stdout);
        }
}

} // namespace bench

#endif
