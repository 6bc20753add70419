/*
 * Records a trace (GPUCACHE_TRACE): every allocation and free, and every slow or rare event of the
 * flight recorder (a moment), in a mapped file (format.h). The file survives a kill of the process.
 *
 * Each thread writes into its own chunk, without a lock or a locked instruction. The ring's lock is
 * taken to get the next chunk, which may drop old records (ring.h), and to record segments, pages,
 * native blocks, context ends and new stacks. Without a trace, allocations and frees make no check:
 * a trace disables their fast paths (driver/state/fast_path.h).
 *
 *   | case                                | effect                                    |
 *   | ----------------------------------- | ----------------------------------------- |
 *   | the file cannot be opened or mapped | one warning, no trace                     |
 *   | the file cannot grow further        | the trace continues and reuses its chunks |
 *   | another process truncates the file  | the trace ends (process/guard.h)          |
 *   | child of a fork                     | records nothing                           |
 */
#ifndef GPUCACHE_TRACE_TRACE_H
#define GPUCACHE_TRACE_TRACE_H

#include "base/clock.h"
#include "live/flight.h"
#include "process/process.h"
#include "stats/holders.h"
#include "trace/format.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern atomic_bool trace_recording;

static inline bool trace_on(void) {
    return __builtin_expect(atomic_load_explicit(&trace_recording, memory_order_relaxed), 0);
}

/* Only for x86-64. True: the time stamp counter has a constant rate. False: ticks are nanoseconds.
 * On aarch64 ticks are those of the virtual counter. */
extern bool trace_has_ticks;

/** Returns the time in ticks, which are the same on all processors. */
static inline uint64_t trace_clock(void) {
#if defined(__x86_64__)
    if (__builtin_expect(trace_has_ticks, 1))
        return __builtin_ia32_rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
    return clock_ns(CLOCK_MONOTONIC);
}

/** A record to be written; its words are those of format.h. */
struct trace_entry {
    uint64_t ticks;
    uint64_t address, bytes, value, detail, space;
    uint32_t stack; /* 0: none */
    unsigned kind, flags, device;
};

/** Writes a record if trace_on(). May take the ring's lock, and no other lock. Keeps errno. */
void trace_write(const struct trace_entry *entry);

/**
 * Writes a stack to the trace unless it is there, and returns its number for a record. Returns 0 if
 * the stack cannot be written. May take the ring's lock. Keeps errno.
 */
uint32_t trace_stack(const struct stats_stacks *stacks, uint32_t stack);

/**
 * Returns the thread's next slot, for a caller that writes the record itself with trace_put(). *who
 * is the record's `who` without a stack. Returns NULL without a free slot or a trace. May take the
 * ring's lock.
 */
struct trace_record *trace_slot(uint64_t *who);

/**
 * Records a moment of the flight recorder that has ended. `since` is its begin in nanoseconds of
 * clock_ns(); 0: not measured.
 */
void trace_moment(enum flight_kind kind, unsigned device, uint64_t space, uint64_t address,
                  uint64_t bytes, uint64_t since);

/** Records that an allocation of `bytes` failed for good, with `free_bytes` free in the driver. */
void trace_oom(unsigned device, uint64_t bytes, uint64_t free_bytes, uint32_t stack);

/**
 * Records the allocation or the free of a block that no pool serves. An allocation has a `freed` of
 * 0. For a free, `freed` is a time in ticks before the driver could hand out the address again.
 */
void trace_native(unsigned device, uint64_t address, uint64_t bytes, uint64_t freed,
                  uint32_t stack);

/**
 * Record that `count` adjacent VMM pages were mapped or unmapped. `since` is a time in ticks before
 * the call that unmapped them.
 */
void trace_map(unsigned device, uint64_t space, uint64_t address, unsigned count);
void trace_unmap(unsigned device, uint64_t space, uint64_t address, unsigned count, uint64_t since);

/**
 * Records that a context has ended, with the `bytes` that its pool had reserved. `since` is a time
 * in ticks before another allocation could get the memory.
 */
void trace_context_end(unsigned device, uint64_t space, uint64_t bytes, uint64_t since);

/** Records a label of the program, of at most TRACE_LABEL bytes. */
void trace_mark(const char *label);

/** An allocation or a free of a block that this process has recorded. */
struct trace_last {
    uint64_t key;            /* used only by last.c */
    uint64_t address, bytes; /* bytes of the block */
    int64_t time_us;         /* since 1970 */
    uint32_t stack;          /* of an allocation; 0: unknown */
    uint16_t device;
    bool is_free;
};

/**
 * Fills `to` with the last allocations and frees of all devices in the order of time, at most
 * `most`. Returns their number; 0 if no trace is recorded. Two kinds of events may be missing
 * between them: those that other threads add during the call, and those that found no chunk
 * (header.missed). Takes the ring's lock and keeps errno.
 */
size_t trace_read_last(struct trace_last *to, size_t most);

/* Write the properties of a device, of its backend and of the driver to the header. */
void trace_device(unsigned device, const char *name, const char *uuid, uint64_t total_bytes);
void trace_backend(unsigned device, const char *backend);
void trace_set_driver_version(int version);

/**
 * Opens the file if GPUCACHE_TRACE is set. Returns whether a trace is recorded; an error is logged.
 * Called once, after the options are parsed. Keeps errno. `lives` takes no lock and returns whether
 * the block of an ALLOCATE is live; it is asked only for blocks of pools.
 */
bool trace_start(bool (*lives)(uint64_t address, uint64_t ticks));

/** Stops recording. Called in the child of a fork. */
void trace_forked(void);

/** Logs warnings about dropped records when the process ends. `signal` is not used. */
void trace_end(enum process_end how, int signal);

#endif
