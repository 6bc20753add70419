/*
 * replay TRACE.csv [lag_us] [budget] [segments|pages]: runs a recorded trace (time_us,thread,op,id,bytes) through the pool on a device that is
 * `lag_us` behind the CPU: an event finishes that long after it was recorded, in the trace's own time. Prints what the pool
 * reserved at its peak over what the program requested at its peak.
 */
#include "pool/pool.h"
#include "stats/stats.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t now_us, lag_us, next_address = (uint64_t)1 << 40, recorded_at[BACKEND_SLOTS];

static int reserve(struct backend *backend, uint64_t bytes, uint64_t *address) {
    (void)backend;
    *address = next_address;
    next_address += bytes + ((uint64_t)2 << 20); /* never adjacent: segments do not merge */
    return 0;
}

static int release(struct backend *backend, uint64_t address, uint64_t bytes) {
    (void)backend, (void)address, (void)bytes;
    return 0;
}

static int record(struct backend *backend, unsigned slot) {
    (void)backend;
    recorded_at[slot] = now_us;
    return 0;
}

static int query(struct backend *backend, unsigned slot) {
    (void)backend;
    return now_us >= recorded_at[slot] + lag_us ? 0 : -EAGAIN;
}

static int nothing(struct backend *backend, unsigned slot) {
    (void)backend, (void)slot;
    return 0;
}

static int returned(struct backend *backend) {
    (void)backend;
    return 0;
}

static int alive(struct backend *backend) {
    (void)backend;
    return 0;
}

static uint64_t clock_of_trace(struct backend *backend) {
    (void)backend;
    return now_us * 1000;
}

static uint64_t mapped, made;

static int take_addresses(struct backend *backend, uint64_t bytes, uint64_t *address) {
    return reserve(backend, bytes, address);
}

static void give_addresses(struct backend *backend, uint64_t address, uint64_t bytes) {
    (void)backend, (void)address, (void)bytes;
}

static int take_pages(struct backend *backend, unsigned count, uint64_t *pages) {
    (void)backend;
    for (unsigned i = 0; i < count; i++) {
        pages[i] = ++made;
    }
    return 0;
}

static void give_pages(struct backend *backend, unsigned count, const uint64_t *pages) {
    (void)backend, (void)count, (void)pages;
}

static int map(struct backend *backend, uint64_t address, unsigned count, const uint64_t *pages) {
    (void)backend, (void)address, (void)pages;
    mapped += count;
    return 0;
}

static int unmap(struct backend *backend, uint64_t address, unsigned count) {
    (void)backend, (void)address, (void)count;
    return 0;
}

static struct backend_ops ops = {
    .name = "replay",
    .reserve = reserve,
    .release = release,
    .returned = returned,
    .record = record,
    .query = query,
    .order = nothing,
    .wait = nothing,
    .health = alive,
    .synchronize = alive,
    .clock = clock_of_trace,
};

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: replay TRACE.csv [lag_us] [budget] [segments|pages]\n");
        return 2;
    }
    FILE *file = strcmp(argv[1], "-") == 0 ? stdin : fopen(argv[1], "r");
    if (!file) {
        perror(argv[1]);
        return 1;
    }
    lag_us = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    bool pages = argc > 4 && strcmp(argv[4], "pages") == 0;
    if (pages) {
        ops.take_addresses = take_addresses;
        ops.give_addresses = give_addresses;
        ops.take_pages = take_pages;
        ops.give_pages = give_pages;
        ops.map = map;
        ops.unmap = unmap;
    }
    struct backend backend = {.ops = &ops, .capacity = (uint64_t)1 << 45, .has_events = true};
    struct pool_config config = {.reuse = POOL_BARRIER,
                                 .budget = argc > 3 ? strtoull(argv[3], NULL, 10) : 0};
    struct pool *pool = pool_create(&backend, &config);
    size_t room = 1 << 20;
    uint64_t *live = calloc(room, sizeof *live);
    char line[256];
    uint64_t events = 0, quarters[64] = {0};
    while (fgets(line, sizeof line, file)) {
        uint64_t time, thread, id, bytes = 0;
        char op;
        if (sscanf(line, "%" SCNu64 ",%" SCNu64 ",%c,%" SCNu64 ",%" SCNu64, &time, &thread, &op,
                   &id, &bytes) < 4) {
            continue;
        }
        now_us = time;
        if (id >= room) {
            live = realloc(live, 2 * id * sizeof *live);
            memset(live + room, 0, (2 * id - room) * sizeof *live);
            room = 2 * id;
        }
        if (op == 'a') {
            if (pool_alloc(pool, bytes, &live[id]) != 0) {
                fprintf(stderr, "event %" PRIu64 ": out of memory\n", events);
                return 1;
            }
        } else if (pool_free(live[id]) != 0) {
            fprintf(stderr, "event %" PRIu64 ": free failed\n", events);
            return 1;
        }
        events++;
        quarters[events / 4096 % 64] = mapped;
    }
    int broken = pool_check(pool);
    struct stats_device stats = {.peaks_exact = true};
    pool_read(pool, &stats);
    printf(
        "%s lag %" PRIu64
        " us: requested %.1f MiB, allocated %.1f, active %.1f, reserved %.1f, ratio %.3f; %" PRIu64
        " segments, %" PRIu64 " driver allocs, %" PRIu64 " frees, %" PRIu64 " epochs, %" PRIu64
        " barriers, %" PRIu64 " waits%s\n",
        argv[1], lag_us, (double)stats.requested.peak / 1048576,
        (double)stats.allocated.peak / 1048576, (double)stats.active.peak / 1048576,
        (double)stats.reserved.peak / 1048576,
        (double)stats.reserved.peak / (double)stats.requested.peak, stats.segments.current,
        stats.driver_allocs, stats.driver_frees, stats.epochs, stats.barriers, stats.cpu_waits,
        broken ? " BROKEN" : "");
    if (broken) {
        printf("    check.c:%d\n", broken);
    }
    if (pages) {
        printf("    pages made %" PRIu64 ", mapped %" PRIu64 "; by 4096 events:", made, mapped);
        for (unsigned i = 0; i < events / 4096 && i < 64; i++) {
            printf(" %" PRIu64, quarters[i] - (i > 0 ? quarters[i - 1] : 0));
        }
        printf("\n");
    }
    return broken != 0;
}
