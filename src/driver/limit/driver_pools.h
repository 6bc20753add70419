/*
 * The driver's own pools of stream-ordered memory, and what they hold of the device.
 *
 * A pool keeps more than what is live in it: what was freed stays in its reserve until a
 * synchronisation finds it above the release threshold, or for good. That is memory of the device,
 * so the reserve is what is counted and what the limit holds over. Only the driver knows it
 * (CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), and asking costs a call. So it is looked at
 *
 *      without a limit  when the live bytes have outgrown what was seen last, at the first wait
 *                       after a free, and where the program asks the driver for figures
 *      with a limit     after every allocation too, and before one is refused
 *
 * and between two looks a pool counts with what was seen last, or with its live bytes if they are
 * more. Reports and gpucache_get_stats() make no call: they have what was seen last.
 *
 * With a limit an allocation is charged as if the pool had to grow for it, and the charge becomes
 * what it did grow by. If the limit does not allow that, pools give back what they need not keep.
 *
 * The memory that graphs allocate is one more such pool of each device. What it takes is taken at a
 * launch, and seen at a look.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_DRIVER_POOLS_H
#define GPUCACHE_DRIVER_LIMIT_DRIVER_POOLS_H

#include "driver/state/device.h"
#include "process/process.h"

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct context;
struct driver_pool;

/** The pool that cuMemAllocAsync takes from; NULL if it is not known. */
struct driver_pool *driver_pool_current(void);

/** The pool behind a handle; NULL if it is no memory of a device. */
struct driver_pool *driver_pool_of(CUmemoryPool handle);

struct device *driver_pool_device(const struct driver_pool *pool);

/** One allocation, from before the driver is asked until it has answered. */
struct driver_pool_claim {
    struct driver_pool *pool;
    uint64_t bytes, charged;
    bool limited;
};

/** Whether the limit allows `bytes` more in the pool. */
bool driver_pool_begin(struct driver_pool *pool, uint64_t bytes, struct driver_pool_claim *claim);

/** After the driver's answer. False: it has taken more than the limit allows; the block is to be
 * freed again, and unpooled_leave() tells the rest. */
bool driver_pool_end(CUresult answer, const struct driver_pool_claim *claim, CUdeviceptr dptr);

/** A block of `bytes` was freed. */
void driver_pool_left(struct driver_pool *pool, uint64_t bytes);

/** Graphs may allocate memory on this device from now on. NULL: none. */
void driver_pool_graphs(struct device *device);

/** Looks at the pools of a device. */
void driver_pool_look(struct device *device);

/** The same for all pools in which something was freed since the last look. */
void driver_pool_look_again(void);
extern atomic_bool driver_pool_stale;

/** After a wait of the program, at which the driver gives back what is above the thresholds. */
static inline CUresult driver_pool_waited(CUresult r) {
    if (__builtin_expect(atomic_load_explicit(&driver_pool_stale, memory_order_relaxed), 0) &&
        r == CUDA_SUCCESS && atomic_load(&process_state) == PROCESS_STARTED) {
        driver_pool_look_again();
    }
    return r;
}

/** `bytes` more do not fit under the device's limit: the pools give back what they only keep. True
 * if they did. */
bool driver_pool_make_room(struct device *device, uint64_t bytes);

/** The driver has refused memory that is not its own pools': what these keep beyond their thresholds goes back to the device, as
 * where cuMemAlloc finds none. Not during a capture. True if there was any. */
bool driver_pool_trim(const struct device *device);

/** What the driver's pools of a device keep and nobody has live. */
uint64_t driver_pool_kept(struct device *device);

/** A context has ended. If it was the last one of a device, whether its pools are still there is not
 * known until the program uses them again. */
void driver_pools_invalidate(const struct context *context);

#endif
