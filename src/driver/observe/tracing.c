#include "driver/observe/tracing.h"

#include "base/likely.h"
#include "driver/context/device_pool.h"
#include "driver/state/device.h"
#include "driver/state/fast_path.h"
#include "pool/pool.h"

/* Returns whether the allocation that was recorded at `ticks` is live: the ticks are its tag. */
static bool is_live(uint64_t address, uint64_t ticks) {
    struct pool_description described;
    return pool_describe(address, &described) == 0 && described.tag == ticks;
}

void tracing_start(void) {
    if (trace_start(is_live))
        fast_path_block();
}

/* The trace's identifier of a pool and the pool's device, which never change. */
struct pool_place {
    struct pool *pool;
    uint64_t space;
    unsigned device;
};

/* Returns the place of a pool. Each thread keeps that of the pool that it used last. */
static inline struct pool_place place_of(struct pool *pool) {
    static _Thread_local struct pool_place last __attribute__((tls_model("initial-exec")));
    if (unlikely(last.pool != pool)) {
        last = (struct pool_place){pool, (uint64_t)(uintptr_t)pool_backend(pool),
                                   (unsigned)device_of_pool(pool)->ordinal};
    }
    return last;
}

/*
 * Writes a record of a block to the trace, word by word: building and then copying it costs a fifth
 * more. `stack_or_tag`: the call stack of an allocation; of a free, the low half of the block's
 * tag.
 */
static inline void write_block(enum trace_kind kind, unsigned flags, uint64_t ticks,
                               uint64_t address, const struct pool_description *described,
                               uint64_t stream, uint32_t stack_or_tag) {
    uint64_t thread;
    struct trace_record *slot = trace_slot(&thread);
    if (slot) {
        struct pool_place place = place_of(described->pool);
        const uint64_t words[7] = {ticks,  address,     described->requested, described->bytes,
                                   stream, place.space, thread | stack_or_tag};
        trace_put(slot, words, place.device, flags, kind);
    }
}

/* Tags the block with the time, which distinguishes the allocation from others at its address. */
void tracing_allocated(CUdeviceptr address, uint32_t stack) {
    struct pool_description described;
    stack = stack != 0 ? trace_stack(stats_stacks(), stack) : 0;
    uint64_t now = trace_clock();
    if (pool_tag(address, now, &described) == 0)
        write_block(TRACE_ALLOCATE, 0, now, address, &described, 0, stack);
}

int tracing_free(CUdeviceptr address) {
    struct pool_description described;
    bool known = pool_describe(address, &described) == 0;
    uint64_t now = trace_clock();
    int r = pool_free(address);
    if (r == 0 && known)
        write_block(TRACE_FREE, 0, now, address, &described, 0, (uint32_t)described.tag);
    return r;
}

struct tracing_freed tracing_free_begin(CUdeviceptr address) {
    struct tracing_freed freed = {.address = address};
    freed.known = pool_describe(address, &freed.described) == 0;
    freed.ticks = trace_clock();
    return freed;
}

void tracing_free_end(const struct tracing_freed *freed, CUstream stream) {
    if (freed->known) {
        write_block(TRACE_FREE, TRACE_ORDERED, freed->ticks, freed->address, &freed->described,
                    (uint64_t)(uintptr_t)stream, (uint32_t)freed->described.tag);
    }
}
