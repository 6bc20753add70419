/*
 * Keeps the ledger of unpooled memory: a row for each allocation that the driver serves without the
 * pool. Hooks, observe/ and driver_pool_claim.c call these functions with no lock held. ipc/ also
 * calls unpooled_enter() and unpooled_free() with its own locks. unpooled_forget(), and
 * unpooled_find() from block_stacks_forget(), run under REGISTRY. Functions acquire the lock
 * LEDGER; those that drop rows then acquire DRIVER_POOLS and the device's lock. unpooled_end() and
 * unpooled_free_end() also record a fault that the driver reports (fault.h), under REGISTRY.
 * unpooled_end() first removes an ended context whose pool covers the new address.
 *
 * The driver may give freed memory to another thread before the free returns, and a context may end
 * during a call. Two functions therefore bracket each driver call. Invariant: memory is charged
 * before the driver is asked for it, and refunded after the driver has freed it.
 *
 *   | step                | effect                                                             |
 *   | ------------------- | ------------------------------------------------------------------ |
 *   | unpooled_begin      | charges the bytes and lists the call                               |
 *   | (driver call)       |                                                                    |
 *   | unpooled_end        | adds and counts the row if the context still exists                |
 *   | unpooled_free_begin | releases a holder; takes a row without one out of the table        |
 *   | (driver call)       |                                                                    |
 *   | unpooled_free_end   | counts the free, or lists the row again if the driver refused      |
 */
#ifndef GPUCACHE_DRIVER_LIMIT_UNPOOLED_H
#define GPUCACHE_DRIVER_LIMIT_UNPOOLED_H

#include "driver/limit/unpooled_kind.h"
#include "driver/state/device.h"
#include "stats/memory_list.h"

#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>

struct context;
struct ledger_row;

/** An allocation in progress. */
struct unpooled_call {
    enum unpooled_kind kind;
    struct device *device;
    CUcontext context;
    uint64_t bytes;
    uint32_t stack; /* stack of the allocation, set by the caller if known; else 0 */
    unsigned requester;
    bool ended;                 /* the context ended during the call */
    struct unpooled_call *next; /* in the list of allocations in progress */
};

/**
 * Returns whether the limit allows `bytes` more of a kind on the device. If so, charges the bytes,
 * for kinds that are charged, and unpooled_end() must follow. Before a refusal, gives idle memory
 * back and retries. Counts the refusal as out of memory, except for UNPOOLED_NATIVE, whose caller
 * counts it. A NULL device allows everything and counts nothing.
 */
bool unpooled_begin(struct unpooled_call *call, enum unpooled_kind kind, struct device *device,
                    uint64_t bytes);

/**
 * Adds a row for the memory if `answer` is CUDA_SUCCESS and the context has not ended. Otherwise,
 * or without host memory for the row, takes the charge back. Returns `answer`.
 */
CUresult unpooled_end(struct unpooled_call *call, CUresult answer, uint64_t key, uint64_t value);

/**
 * Adds a row without a charge or a check of the limit. Only for kinds that are not charged: the
 * free of a charged kind refunds its bytes. Returns false for a NULL device or without host memory.
 * `context`: its end frees the memory; NULL: the memory belongs to the process. `value` of
 * stream-ordered memory is its struct driver_pool.
 */
bool unpooled_enter(enum unpooled_kind kind, struct device *device, CUcontext context,
                    uint64_t bytes, uint64_t key, uint64_t value);

/**
 * Releases one holder of the row of `key`, before the driver call that frees it. A row without
 * holders leaves the table and stays counted. If `bytes` is not 0, does the same for all rows that
 * begin in the `bytes` bytes from `key`, also behind gaps: the driver unmaps the whole range.
 * Returns the rows for unpooled_free_end(), or NULL if there is none.
 */
struct ledger_row *unpooled_free_begin(enum unpooled_space space, uint64_t key, uint64_t bytes);

/**
 * Ends a free. If the driver's `answer` is CUDA_SUCCESS, uncounts and refunds the rows; otherwise
 * lists them again. `row` NULL: there are no rows. Returns `answer`.
 */
CUresult unpooled_free_end(struct ledger_row *row, CUresult answer);

/**
 * Runs unpooled_free_begin() and unpooled_free_end() in one step. Use it only if the driver
 * cannot give `key` to another thread between the driver's free and this call.
 */
void unpooled_free(enum unpooled_space space, uint64_t key);

/**
 * Ends all rows, and all allocations in progress, of a context that has ended. Rows of memory that
 * belongs to the process remain.
 */
void unpooled_forget(const struct context *context);

/**
 * Adds a holder to the row of a handle: the memory stays counted until the holder is released.
 * Returns the row, or NULL if there is none.
 */
struct ledger_row *unpooled_hold(uint64_t handle);

/**
 * Adds the memory of one kind to `to`: each row as a segment with one block. A NULL device means
 * all devices. Takes the lock for a time in proportion to the number of rows.
 */
void unpooled_list(enum unpooled_kind kind, const struct device *device, struct memory_list *to);

/**
 * Adds a row for a mapping at `key` if `answer` is CUDA_SUCCESS. The mapping takes over the holder
 * that unpooled_hold() added to `memory`. On failure, releases that holder. Does nothing if
 * `memory` is NULL. `offset`: where the mapped `bytes` begin in the memory, in bytes.
 */
void unpooled_mapped(CUresult answer, struct ledger_row *memory, uint64_t offset, uint64_t key,
                     uint64_t bytes);

struct unpooled_entry {
    uint64_t bytes, value;
};

/**
 * Returns the entry of `key`, also while the driver is asked to free its memory. Returns zeros if
 * there is no row.
 */
struct unpooled_entry unpooled_find(enum unpooled_space space, uint64_t key);

#endif
