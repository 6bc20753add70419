/*
 * Recording a trace (GPUCACHE_TRACE): every allocation and free, what happens besides, into a file that is
 * mapped, so that a process that is killed leaves what it had written (format.h).
 *
 * A thread writes into a chunk of its own, without a lock or a locked instruction; a lock is taken to get
 * the next chunk. What is no longer to be kept goes then (ring.h). While nothing is recorded, nothing is
 * asked either: the short ways through allocations and frees are not taken when something is
 * (driver/state/capture.h).
 *
 * Whatever stands in the way of the file is one warning, and no trace. A file that cannot grow any
 * more goes on as a ring. A file that somebody cuts short ends the trace (process/guard.h). In the
 * child of a fork nothing is recorded.
 */
#ifndef GPUCACHE_TRACE_TRACE_H
#define GPUCACHE_TRACE_TRACE_H

#include "live/flight.h"
#include "process/process.h"
#include "stats/holders.h"
#include "trace/format.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

extern atomic_bool trace_recording;

static inline bool trace_on(void) {
    return __builtin_expect(atomic_load_explicit(&trace_recording, memory_order_relaxed), 0);
}

/** Now, in ticks. They go forward on all processors alike; where the processor has no such clock they are nanoseconds. */
extern bool trace_has_ticks;

static inline uint64_t trace_clock(void) {
#if defined(__x86_64__)
    if (__builtin_expect(trace_has_ticks, 1)) {
        return __builtin_ia32_rdtsc();
    }
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
    return flight_clock(CLOCK_MONOTONIC);
}

/** A record to be written; words as in format.h. */
struct trace_entry {
    uint64_t ticks;
    uint64_t address, bytes, value, detail, space;
    uint32_t stack; /* 0: none */
    unsigned kind, flags, device;
};

/** Nothing unless trace_on(). Waits for no lock but its own, keeps errno. */
void trace_write(const struct trace_entry *entry);

/** The stack's number for a record, once it stands in the trace what that means; 0: it cannot. Keeps errno. */
uint32_t trace_stack(const struct stats_stacks *stacks, uint32_t stack);

/** For who writes a record by itself (trace_put()): the thread's next slot, and what stands in its `who`; NULL: there is none. */
struct trace_record *trace_slot(uint64_t *who);

/** A moment of the flight recorder that began at `since` (nanoseconds of flight_clock()) and is over; 0: that was not measured. */
void trace_moment(enum flight_kind kind, unsigned device, uint64_t space, uint64_t address,
                  uint64_t bytes, uint64_t since);

/** An allocation has failed in the end; the driver has so much left. */
void trace_oom(unsigned device, uint64_t bytes, uint64_t free_bytes, uint32_t stack);

/** A block that no pool serves came, or went: `freed`, a time before the driver took it back; 0: it came. */
void trace_native(unsigned device, uint64_t address, uint64_t bytes, uint64_t freed,
                  uint32_t stack);

/** Pages of 2 MiB were mapped side by side; or are no longer, since a time before that was asked for. */
#define TRACE_PAGE ((uint64_t)2 << 20)
void trace_map(unsigned device, uint64_t space, uint64_t address, unsigned count);
void trace_unmap(unsigned device, uint64_t space, uint64_t address, unsigned count, uint64_t since);

/** What a context's pool had from the driver has gone with it, since a time before anybody could have got it. */
void trace_context_end(unsigned device, uint64_t space, uint64_t bytes, uint64_t since);

/** A named moment. */
void trace_mark(const char *label);

/** A device is used for the first time, or gets its backend; NULL: it has none yet. */
void trace_device(unsigned device, const char *name, const char *uuid, uint64_t total_bytes);
void trace_backend(unsigned device, const char *backend);
void trace_set_driver_version(int version);

/**
 * Opens the file, if there is to be one. `lives` says of an ALLOCATE that a pool has served whether its block still lives; it takes
 * no lock. Once, when options are known. True if there is a trace.
 */
bool trace_start(bool (*lives)(uint64_t address, uint64_t ticks));

/** In the child of a fork. */
void trace_forked(void);

/** The process ends: says what was dropped. */
void trace_end(enum process_end how, int signal);

#endif
