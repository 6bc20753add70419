/*
 * How a pool gets memory from the driver, and the decisions that follow from it: one struct for
 * each kind of backend, chosen when the pool is created. Other code reads these fields instead of
 * asking for the kind.
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
    /**
     * Grows the pool by source_growth() bytes or more, if source_can_grow(). Returns 0, or
     *
     *      -ENOMEM, -EDQUOT   the driver or the limit has no more (source_refused())
     *      -ERANGE            the pool cannot grow: no host memory, no suitable address, a refused
     *                         mapping, or the context has ended
     *      > 0                the driver's code
     */
    int (*grow)(struct source *source, const struct alloc_request *request);

    /**
     * Grows the pool by what the request lacks, within the budget if possible. With
     * `releases_first` the caller has set request->over_budget. Returns 0, whether or not the
     * request is served already, or the error of grow().
     */
    int (*grow_within_budget)(struct source *source, struct alloc_request *request);

    /** Releases idle segments until `bytes` bytes are released. Returns the bytes released. */
    uint64_t (*release_idle)(struct source *source, uint64_t bytes);

    /** Releases one segment that was idle for the decay time. Returns its bytes, or 0. */
    uint64_t (*decay)(struct source *source);

    /**
     * Queries until the driver has all memory of released segments, for at most `limit_ns` ns (0:
     * one query). Clears source.returning_bytes if the driver has it. Releases the lock between two
     * queries. NULL: returning_bytes is always 0.
     */
    void (*wait_for_return)(struct source *source, uint64_t limit_ns);

    /**
     * Splits an idle handle that is longer than a large request of `bytes` bytes, so that the rest
     * can still be released or remapped. Returns false if the driver or host memory refuses. NULL:
     * segments cannot be split, and a request takes a part of one.
     */
    bool (*split)(struct source *source, uint64_t bytes);

    /**
     * Cleans up after the end of a context. Called with remap.lock too; keeps both locks.
     * Returns the bytes that the driver freed with the context (segments), or 0 after releasing the
     * handles (vmm).
     */
    uint64_t (*end)(struct source *source);

    bool has_handles;          /* segments are handles, at addresses that the pool chooses */
    bool releases_first;       /* releases idle segments before a growth beyond the budget, unless
                                  backend.release_waits is set */
    bool barrier_ahead;        /* large requests beyond the budget: barrier_ahead() (slow_path.c) */
    bool slack_is_shared;      /* cached blocks use the slack of the goal before the budget rises */
    unsigned slack_share;      /* slack of the goal: the peak of live memory divided by this */
    unsigned share_for_others; /* the budget leaves the device's bytes divided by this; 0: none */
    uint64_t caches_each_most; /* bound of slack plus quotas for each active cache, in bytes;
                                  UINT64_MAX: none */
};

extern const struct memory_policy segments_policy, vmm_policy; /* in segment/ and vmm/ */

#endif
