#include "driver/observe/tracing.h"

#include "driver/context/device_pool.h"
#include "driver/state/capture.h"
#include "driver/state/device.h"
#include "pool/pool.h"

/* Returns whether the allocation that was recorded at `ticks` is live: pool_tag() set the time. */
static bool is_live(uint64_t address, uint64_t ticks) {
    struct pool_look look;
    return pool_look(address, &look) == 0 && look.tag == ticks;
}

void tracing_start(void) {
    if (trace_start(is_live)) {
        atomic_fetch_add(&capture_unusual, 1);
    }
}

/* The address space and device of a pool, which never change. Each thread keeps those of the pool
 * that it used last. */
struct home {
    struct pool *pool;
    uint64_t space;
    unsigned device;
};

static inline struct home home_of(struct pool *pool) {
    static _Thread_local struct home last __attribute__((tls_model("initial-exec")));
    if (__builtin_expect(last.pool != pool, 0)) {
        last = (struct home){pool, (uint64_t)(uintptr_t)pool_backend(pool),
                             (unsigned)device_pool_owner(pool)->ordinal};
    }
    return last;
}

/*
 * Writes a record of a block to the trace. trace_put() stores the record word by word: building and
 * then copying it costs a fifth more.
 */
static inline void write_block(enum trace_kind kind, unsigned flags, uint64_t ticks,
                               uint64_t address, const struct pool_look *look, uint64_t stream,
                               uint32_t stack_or_life) {
    uint64_t who;
    struct trace_record *slot = trace_slot(&who);
    if (slot) {
        struct home home = home_of(look->pool);
        const uint64_t words[7] = {ticks,  address,    look->requested,    look->bytes,
                                   stream, home.space, who | stack_or_life};
        trace_put(slot, words, home.device, flags, kind);
    }
}

/*
 * Sets the time as the tag of the block. The time tells the allocation from others at its address.
 */
void tracing_allocated(CUdeviceptr address, uint32_t stack) {
    struct pool_look look;
    stack = stack != 0 ? trace_stack(stats_stacks(), stack) : 0;
    uint64_t now = trace_clock();
    if (pool_tag(address, now, &look) == 0) {
        write_block(TRACE_ALLOCATE, 0, now, address, &look, 0, stack);
    }
}

int tracing_free(CUdeviceptr address) {
    struct pool_look look;
    bool known = pool_look(address, &look) == 0;
    uint64_t now = trace_clock();
    int r = pool_free(address);
    if (r == 0 && known) {
        write_block(TRACE_FREE, 0, now, address, &look, 0, (uint32_t)look.tag);
    }
    return r;
}

struct tracing_freed tracing_free_begin(CUdeviceptr address) {
    struct tracing_freed freed = {.address = address};
    freed.known = pool_look(address, &freed.look) == 0;
    freed.ticks = trace_clock();
    return freed;
}

void tracing_free_end(const struct tracing_freed *freed, CUstream stream) {
    if (freed->known) {
        write_block(TRACE_FREE, TRACE_ORDERED, freed->ticks, freed->address, &freed->look,
                    (uint64_t)(uintptr_t)stream, (uint32_t)freed->look.tag);
    }
}
