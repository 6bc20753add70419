#include "driver/limit/driver_pools.h"

#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/limit/oom_retry.h"
#include "driver/limit/unpooled.h"
#include "driver/state/capture.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "process/helper.h"
#include "process/lock.h"
#include "process/process.h"

/*
 * Growth of a pool: 32 MiB for an allocation of 2000 bytes on an H200 (tests/sim/probe-h200.txt).
 */
#define UNIT ((uint64_t)32 << 20)

struct driver_pool {
    CUmemoryPool handle;   /* NULL: destroyed, or graph memory */
    struct device *device; /* NULL: host memory, or an unknown pool */
    bool graphs;
    bool there;       /* the pool is known to exist, so the driver may be asked about it */
    bool stale;       /* a free came after the last query */
    uint64_t live;    /* bytes of live allocations, as requested */
    uint64_t asked;   /* bytes of allocations in progress, while a limit is set */
    uint64_t reserve; /* bytes, from the last query */
    uint64_t counted; /* larger of live and reserve: charged and counted */
    struct driver_pool *next;
};

atomic_bool driver_pool_stale;
static struct driver_pool *pools;
static _Atomic(struct driver_pool *) currents[STATS_MAX_DEVICES];
static struct host_slab slab = {.object_bytes = sizeof(struct driver_pool)};
static struct lock lock = LOCK_INITIALIZER(MEMPOOL);

/* --- one pool; lock held --- */

/* Charges and counts the larger of live bytes and reserve. */
static void count_reserve(struct driver_pool *pool) {
    uint64_t before = pool->counted, now = pool->live > pool->reserve ? pool->live : pool->reserve;
    if (now == before || !pool->device) {
        return;
    }
    pool->counted = now;
    if (now > before) {
        device_charge_taken(pool->device, now - before);
    } else {
        device_refund(pool->device, before - now);
    }
    device_book(pool->device, &pool->device->outside.stream_ordered, (int64_t)(now - before));
}

/*
 * Queries the reserve of a pool and counts it. The query would invalidate a capture, so the last
 * result stays during a capture. A capture that begins meanwhile waits for the lock
 * (driver_pool_capture_announced).
 */
static void query_reserve(struct driver_pool *pool) {
    if (atomic_load(&capture_active) > 0) {
        count_reserve(pool);
        return;
    }
    cuuint64_t reserve = 0;
    CUresult r = CUDA_ERROR_NOT_FOUND;
    if (pool->graphs) {
        r = REAL(cuDeviceGetGraphMemAttribute)(pool->device->ordinal,
                                               CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserve);
    } else if (pool->there) {
        r = REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                        &reserve);
    }
    if (r == CUDA_SUCCESS) {
        pool->reserve = reserve;
        pool->stale = false;
    }
    count_reserve(pool);
}

/*
 * Gives the reserve beyond `keep` bytes back to the device; graph memory has no such bound. Does
 * nothing during a capture.
 */
static void trim(struct driver_pool *pool, uint64_t keep) {
    if (atomic_load(&capture_active) > 0) {
        return;
    }
    CUstreamCaptureMode mode = capture_relax();
    if (pool->graphs) {
        REAL(cuDeviceGraphMemTrim)(pool->device->ordinal);
    } else if (pool->there) {
        REAL(cuMemPoolTrimTo)(pool->handle, keep);
    }
    capture_restore(mode);
    query_reserve(pool);
}

static struct driver_pool *find(CUmemoryPool handle) {
    struct driver_pool *pool = pools;
    while (pool && (pool->graphs || pool->handle != handle)) {
        pool = pool->next;
    }
    return pool;
}

/* Adds a pool, in the place of a destroyed one if possible. Returns NULL without host memory. */
static struct driver_pool *add(const struct driver_pool *as) {
    struct driver_pool *pool = find(NULL); /* of a destroyed pool */
    while (pool && (pool->graphs || pool->handle || pool->live > 0)) {
        pool = pool->next;
    }
    if (pool) {
        struct driver_pool *next = pool->next;
        *pool = *as;
        pool->next = next;
    } else if ((pool = host_slab_get(&slab)) != NULL) {
        *pool = *as;
        pool->next = pools;
        pools = pool;
    }
    return pool;
}

/*
 * Marks a pool as destroyed. The driver has destroyed the pool, or will do so later. Live
 * allocations stay counted until they are freed.
 */
static void mark_destroyed(struct driver_pool *pool) {
    pool->handle = NULL;
    pool->there = false;
    pool->reserve = 0;
    count_reserve(pool);
    for (unsigned i = 0; i < STATS_MAX_DEVICES; i++) {
        struct driver_pool *current = pool;
        atomic_compare_exchange_strong(&currents[i], &current, NULL);
    }
}

/* --- which pool --- */

struct driver_pool *driver_pool_current(void) {
    struct device *device = process_ready() ? device_current() : NULL;
    struct driver_pool *pool = device ? atomic_load(&currents[device->ordinal]) : NULL;
    CUmemoryPool handle;
    if (!device || pool) {
        return pool;
    }
    lock_acquire(&lock);
    if (REAL(cuDeviceGetMemPool)(&handle, device->ordinal) == CUDA_SUCCESS) {
        pool = find(handle);
        if (!pool) {
            pool = add(&(struct driver_pool){.handle = handle, .device = device, .there = true});
        }
        atomic_store(&currents[device->ordinal], pool);
    }
    lock_release(&lock);
    return pool;
}

/*
 * Returns the device of a pool that the program did not create: a default pool. NULL if there is
 * none.
 */
static struct device *device_of_default(CUmemoryPool handle) {
    CUmemoryPool other;
    for (int i = 0; REAL(cuDeviceGetDefaultMemPool)(&other, i) == CUDA_SUCCESS; i++) {
        if (other == handle) {
            return device_get(i);
        }
    }
    return NULL;
}

struct driver_pool *driver_pool_of(CUmemoryPool handle) {
    if (!handle || !process_ready()) {
        return NULL;
    }
    lock_acquire(&lock);
    struct driver_pool *pool = find(handle);
    if (!pool) {
        pool = add(&(struct driver_pool){.handle = handle, .device = device_of_default(handle)});
    }
    lock_release(&lock);
    return pool && pool->device ? pool : NULL;
}

void driver_pool_graphs(struct device *device) {
    struct driver_pool *pool;
    if (!device) {
        return;
    }
    lock_acquire(&lock);
    for (pool = pools; pool && !(pool->graphs && pool->device == device);) {
        pool = pool->next;
    }
    if (!pool) {
        add(&(struct driver_pool){.device = device, .graphs = true});
        atomic_store(&driver_pool_stale, true);
    }
    lock_release(&lock);
}

struct device *driver_pool_device(const struct driver_pool *pool) {
    return pool->device;
}

/* --- allocating --- */

/*
 * Returns whether the charge of a device exceeds its limit. The charge includes the claims in
 * progress, and possibly also the growth that a claim was made for. The function therefore
 * subtracts the claims. Lock held.
 */
static bool exceeds_limit(const struct device *device) {
    uint64_t limit = atomic_load(&device->limit);
    return limit && atomic_load(&device->charged) > limit + device->claimed;
}

/* Charges `bytes` for an allocation. Returns false if the limit refuses. Takes the lock. */
static bool try_claim(struct driver_pool *pool, uint64_t bytes, struct driver_pool_claim *claim) {
    struct device *device = pool->device;
    in_flight_enter(&device->in_flight);
    lock_acquire(&lock);
    bool allowed = device_take(device, bytes);
    if (allowed) {
        device->claimed += bytes;
        claim->charged = bytes;
        pool->asked += claim->bytes;
    }
    lock_release(&lock);
    if (!allowed) {
        in_flight_leave(&device->in_flight);
    }
    return allowed;
}

static bool claim_or_trim(struct driver_pool *pool, uint64_t bytes,
                          struct driver_pool_claim *claim) {
    return try_claim(pool, bytes, claim) ||
           (driver_pool_make_room(pool->device, bytes) && try_claim(pool, bytes, claim));
}

/*
 * Returns whether the reserve may serve `bytes` without growth, and adds `bytes` to `asked` if so.
 * Only the driver's answer tells whether the reserve did serve them.
 */
static bool claim_from_reserve(struct driver_pool *pool, uint64_t bytes) {
    lock_acquire(&lock);
    query_reserve(pool);
    bool enough = pool->reserve >= pool->live + pool->asked + bytes;
    pool->asked += enough ? bytes : 0;
    lock_release(&lock);
    return enough;
}

bool driver_pool_begin(struct driver_pool *pool, uint64_t bytes, struct driver_pool_claim *claim) {
    struct device *device = pool->device;
    uint64_t limit = atomic_load(&device->limit);
    *claim = (struct driver_pool_claim){.pool = pool, .bytes = bytes};
    if (limit == 0) {
        return true;
    }
    claim->limited = true;
    uint64_t most = bytes > limit ? bytes : (bytes + UNIT - 1) / UNIT * UNIT;
    if (claim_or_trim(pool, most, claim)) {
        return true;
    }
    struct oom_retry oom_retry = {0};
    while (oom_retry_at_limit(device, bytes, &oom_retry)) {
        if (claim_or_trim(pool, most, claim)) {
            device_count(device, &device->outside.oom_retries);
            return true;
        }
        if (claim_from_reserve(pool, bytes)) {
            return true;
        }
    }
    device_count_oom(device, true);
    return false;
}

/*
 * Enters an allocation in the live bytes and in the ledger, in this order: from its row on, the end
 * of its context can subtract the allocation (driver_pool_left). Takes the lock.
 */
static void enter_allocation(struct driver_pool *pool, CUdeviceptr dptr, uint64_t bytes) {
    context_address_given(dptr, bytes);
    lock_acquire(&lock);
    pool->live += bytes;
    lock_release(&lock);
    bool entered =
        unpooled_enter(UNPOOLED_STREAM_ORDERED, pool->device, bytes, dptr, (uint64_t)pool);
    lock_acquire(&lock);
    pool->there = pool->handle != NULL;
    pool->live -= entered ? 0 : bytes;
    if (pool->live > pool->reserve || atomic_load(&pool->device->limit)) {
        query_reserve(pool);
    }
    lock_release(&lock);
}

bool driver_pool_end(CUresult answer, const struct driver_pool_claim *claim, CUdeviceptr dptr) {
    struct driver_pool *pool = claim->pool;
    struct device *device = pool->device;
    if (answer == CUDA_SUCCESS) {
        enter_allocation(pool, dptr, claim->bytes);
    }
    lock_acquire(&lock);
    pool->asked -= claim->limited ? claim->bytes : 0;
    device_uncharge(device, claim->charged);
    device->claimed -= claim->charged;
    bool exceeded = answer == CUDA_SUCCESS && exceeds_limit(device);
    lock_release(&lock);
    if (exceeded) {
        driver_pool_make_room(device, 0);
        lock_acquire(&lock);
        exceeded = exceeds_limit(device);
        lock_release(&lock);
    }
    if (claim->charged > 0) {
        in_flight_leave(&device->in_flight);
    }
    if (exceeded) {
        device_count_oom(device, true);
    }
    helper_start_wanted();
    return !exceeded;
}

void driver_pool_left(struct driver_pool *pool, uint64_t bytes) {
    lock_acquire(&lock);
    pool->live -= bytes;
    pool->stale = true;
    count_reserve(pool);
    lock_release(&lock);
    atomic_store_explicit(&driver_pool_stale, true, memory_order_relaxed);
}

/* --- querying, and giving back --- */

void driver_pool_look(struct device *device) {
    lock_acquire(&lock);
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device && pool->device == device) {
            query_reserve(pool);
        }
    }
    lock_release(&lock);
}

/* During a capture the pools stay stale: the first wait after it queries them. */
void driver_pool_look_again(void) {
    bool again = false;
    lock_acquire(&lock);
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        if (pool->stale || pool->graphs) {
            query_reserve(pool);
        }
        /* graph memory changes at a launch, which queries nothing */
        again |= pool->graphs || (pool->stale && pool->there);
    }
    atomic_store(&driver_pool_stale, again);
    lock_release(&lock);
}

uint64_t driver_pool_kept(struct device *device) {
    uint64_t kept = 0;
    lock_acquire(&lock);
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device && pool->device == device) {
            query_reserve(pool);
            kept += pool->reserve > pool->live ? pool->reserve - pool->live : 0;
        }
    }
    lock_release(&lock);
    return kept;
}

/* Returns the bytes by which a charge of `bytes` more would exceed the limit. Lock held. */
static uint64_t excess_over_limit(const struct device *device, uint64_t bytes) {
    uint64_t limit = atomic_load(&device->limit), charged = atomic_load(&device->charged);
    return limit && charged + bytes > limit ? charged + bytes - limit : 0;
}

bool driver_pool_make_room(struct device *device, uint64_t bytes) {
    bool any = false;
    uint64_t excess;
    if (bytes > atomic_load(&device->limit)) {
        return false;
    }
    lock_acquire(&lock);
    for (struct driver_pool *pool = pools; pool && (excess = excess_over_limit(device, bytes)) > 0;
         pool = pool->next) {
        uint64_t before = pool->counted;
        if (pool->device != device || pool->reserve <= pool->live) {
            continue;
        }
        /* Memory kept in the pool serves its next allocations without another driver call. */
        uint64_t keep = before > excess ? (before - excess) / UNIT * UNIT : 0;
        trim(pool, keep);
        if (keep > 0 && excess_over_limit(device, bytes) > 0) {
            trim(pool, 0);
        }
        any |= pool->counted < before;
    }
    lock_release(&lock);
    return any;
}

static uint64_t threshold(const struct driver_pool *pool) {
    cuuint64_t keep = UINT64_MAX;
    REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    return keep;
}

void driver_pool_capture_announced(void) {
    lock_acquire(&lock);
    lock_release(&lock);
}

bool driver_pool_trim(const struct device *device) {
    bool any = false;
    lock_acquire(&lock);
    struct driver_pool *pool = atomic_load(&capture_active) > 0 ? NULL : pools;
    for (; pool; pool = pool->next) {
        if (pool->device == device && pool->there && !pool->graphs) {
            query_reserve(pool);
            uint64_t before = pool->reserve;
            if (before > pool->live) {
                trim(pool, threshold(pool));
            }
            any |= pool->reserve < before;
        }
    }
    lock_release(&lock);
    return any;
}

void driver_pools_invalidate(const struct context *context) {
    const struct device *device = context->primary ? device_used(context->ordinal) : NULL;
    if (!device && (context->primary || context_count() > 0)) {
        return; /* the device may have another context */
    }
    lock_acquire(&lock);
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device && (pool->device == device || !device)) {
            pool->there = false;
            pool->reserve = 0;
            count_reserve(pool);
            atomic_store(&currents[pool->device->ordinal], NULL);
        }
    }
    lock_release(&lock);
}

/* --- after calls of the program about a pool --- */

void driver_pool_created(CUmemoryPool handle, struct device *device, bool on_device) {
    lock_acquire(&lock);
    struct driver_pool *old = find(handle);
    if (old) {
        mark_destroyed(old);
    }
    add(&(struct driver_pool){.handle = handle, .device = device, .there = on_device});
    lock_release(&lock);
}

CUresult driver_pool_destroy(CUmemoryPool handle) {
    lock_acquire(&lock);
    struct driver_pool *pool = handle ? find(handle) : NULL;
    CUresult answer = REAL(cuMemPoolDestroy)(handle);
    if (pool && answer == CUDA_SUCCESS) {
        mark_destroyed(pool);
    }
    lock_release(&lock);
    return answer;
}

void driver_pool_look_at(CUmemoryPool handle) {
    lock_acquire(&lock);
    struct driver_pool *pool = find(handle);
    if (pool && pool->device) {
        query_reserve(pool);
    }
    lock_release(&lock);
}

void driver_pool_forget_current(int ordinal) {
    lock_acquire(&lock);
    atomic_store(&currents[ordinal], NULL);
    lock_release(&lock);
}
