/*
 * How a pool gets memory from the driver, and the decisions that follow from it: one struct for
 * each kind of backend, chosen when the pool is created. No other code asks for the kind.
 *
 *      segments_policy   a segment is an allocation of the driver, at an address of its choice
 *      vmm_policy        handles of physical memory are mapped at addresses that the pool chooses
 *
 * The fields never change. The functions are called with the pool's lock, and may release it.
 */
#ifndef GPUCACHE_SOURCE_MEMORY_POLICY_H
#define GPUCACHE_SOURCE_MEMORY_POLICY_H

#include <stdbool.h>
#include <stdint.h>

struct alloc_request;
struct source;

struct memory_policy {
    /** Grows the pool for a request. Host memory is prepared. Returns what source_grow() does. */
    int (*grow)(struct source *source, const struct alloc_request *request);

    /**
     * Grows the pool by what the request lacks, within the budget if possible. `over_budget`: the
     * growth exceeds the budget; set only with `releases_first`. Returns 0, whether or not the
     * request is served already, or the error of source_grow().
     */
    int (*grow_within_budget)(struct source *source, struct alloc_request *request,
                              bool over_budget);

    /** Releases idle segments until `bytes` bytes are released. Returns the bytes released. */
    uint64_t (*release_idle)(struct source *source, uint64_t bytes);

    /** Releases one segment that was idle for the decay time. Returns its bytes, or 0. */
    uint64_t (*decay)(struct source *source);

    /**
     * Replaces a long idle handle by short ones, so that a large request of `bytes` bytes, which
     * would take a part of it, does not keep all of it. Returns false if the driver or host memory
     * refuses. NULL: a request may take any part of any segment.
     */
    bool (*split)(struct source *source, uint64_t bytes);

    /**
     * Ends the memory of a context that has ended. Keeps the pool's lock; remap.lock is held too.
     * Returns the bytes that ended with the context: 0 if the function released them itself.
     */
    uint64_t (*end)(struct source *source);

    bool has_handles;     /* segments are handles, at addresses that the pool chooses */
    bool releases_first;  /* releases idle segments before a growth beyond the budget */
    bool barrier_ahead;   /* large requests beyond the budget: barrier_ahead() (slow_path.c) */
    bool slack_is_shared; /* the slack of the goal counts for cached blocks too */
    unsigned slack_share; /* slack of the goal: one part in this of the peak of live memory */
    unsigned left_share;  /* the budget leaves one part in this of the device; 0: nothing */
    uint64_t caches_each_most;  /* most slack and quotas in bytes for each active cache */
};

#endif
