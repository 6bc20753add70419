#include "driver/limit/driver_pools.h"

#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/limit/oom_retry.h"
#include "driver/limit/retry.h"
#include "driver/limit/unpooled.h"
#include "driver/state/capture.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "process/helper.h"
#include "process/lock.h"
#include "process/process.h"

/* What a pool takes from the device at a time: 32 MiB for 2000 bytes on an H200 (tests/sim/probe-h200.txt). */
#define UNIT ((uint64_t)32 << 20)

struct driver_pool {
    CUmemoryPool handle;   /* NULL: destroyed, or that of a device's graphs */
    struct device *device; /* NULL: host memory, or what is not known */
    bool graphs;
    bool there;       /* the driver may be asked */
    bool stale;       /* something was freed since the last look */
    uint64_t live;    /* as the program asked for it */
    uint64_t asked;   /* for allocations under way */
    uint64_t reserve; /* as seen last */
    uint64_t counted; /* the larger of the two: charged and booked */
    struct driver_pool *next;
};

atomic_bool driver_pool_stale;
static struct driver_pool *pools;
static _Atomic(struct driver_pool *) currents[STATS_MAX_DEVICES];
static struct host_slab slab = {.object_bytes = sizeof(struct driver_pool)};
static struct lock lock = LOCK_INITIALIZER(MEMPOOL);

/* --- one pool; lock held --- */

static void count(struct driver_pool *pool) {
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

/* Not during a capture, which the driver would end for it. */
static void look(struct driver_pool *pool) {
    if (atomic_load(&capture_active) > 0) {
        count(pool);
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
    count(pool);
}

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
    look(pool);
}

static struct driver_pool *find(CUmemoryPool handle) {
    struct driver_pool *pool = pools;
    while (pool && (pool->graphs || pool->handle != handle)) {
        pool = pool->next;
    }
    return pool;
}

static struct driver_pool *add(const struct driver_pool *as) {
    struct driver_pool *pool = find(NULL); /* one that was destroyed */
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

/* The driver has destroyed it, or will: what is live in it stays counted until it is freed. */
static void gone(struct driver_pool *pool) {
    pool->handle = NULL;
    pool->there = false;
    pool->reserve = 0;
    count(pool);
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

/* The device of a pool that nobody has made: a default one. */
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

/* The claims of all threads are charged, and so is what the pools have grown by meanwhile. */
static bool over(const struct device *device) {
    uint64_t limit = atomic_load(&device->limit);
    return limit && atomic_load(&device->charged) > limit + device->claimed;
}

static bool claim_for(struct driver_pool *pool, uint64_t bytes, struct driver_pool_claim *claim) {
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

static bool claim_with_room(struct driver_pool *pool, uint64_t bytes,
                            struct driver_pool_claim *claim) {
    return claim_for(pool, bytes, claim) ||
           (driver_pool_make_room(pool->device, bytes) && claim_for(pool, bytes, claim));
}

/* Whether what the pool keeps may be enough; that it is, shows when the driver has answered. */
static bool keeps(struct driver_pool *pool, uint64_t bytes) {
    lock_acquire(&lock);
    look(pool);
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
    if (claim_with_room(pool, most, claim)) {
        return true;
    }
    struct oom_retry oom_retry = {0};
    while (oom_retry_at_limit(device, bytes, &oom_retry)) {
        if (claim_with_room(pool, most, claim)) {
            device_count(device, &device->outside.oom_retries);
            return true;
        }
        if (keeps(pool, bytes)) {
            return true;
        }
    }
    device_count_oom(device, true);
    return false;
}

bool driver_pool_end(CUresult answer, const struct driver_pool_claim *claim, CUdeviceptr dptr) {
    struct driver_pool *pool = claim->pool;
    struct device *device = pool->device;
    if (answer == CUDA_SUCCESS) {
        context_address_given(dptr, claim->bytes);
    }
    bool entered = answer == CUDA_SUCCESS && unpooled_enter(UNPOOLED_STREAM_ORDERED, device,
                                                            claim->bytes, dptr, (uint64_t)pool);
    lock_acquire(&lock);
    if (answer == CUDA_SUCCESS) {
        pool->there = pool->handle != NULL;
        pool->live += entered ? claim->bytes : 0;
        if (pool->live > pool->reserve || atomic_load(&device->limit)) {
            look(pool);
        }
    }
    pool->asked -= claim->limited ? claim->bytes : 0;
    device_uncharge(device, claim->charged);
    device->claimed -= claim->charged;
    bool beyond = answer == CUDA_SUCCESS && over(device);
    lock_release(&lock);
    if (beyond) {
        driver_pool_make_room(device, 0);
        lock_acquire(&lock);
        beyond = over(device);
        lock_release(&lock);
    }
    if (claim->charged > 0) {
        in_flight_leave(&device->in_flight);
    }
    if (beyond) {
        device_count_oom(device, true);
    }
    helper_start_wanted();
    return !beyond;
}

void driver_pool_left(struct driver_pool *pool, uint64_t bytes) {
    lock_acquire(&lock);
    pool->live -= bytes;
    pool->stale = true;
    count(pool);
    lock_release(&lock);
    atomic_store_explicit(&driver_pool_stale, true, memory_order_relaxed);
}

/* --- looking, and giving back --- */

void driver_pool_look(struct device *device) {
    lock_acquire(&lock);
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device && pool->device == device) {
            look(pool);
        }
    }
    lock_release(&lock);
}

void driver_pool_look_again(void) {
    lock_acquire(&lock);
    bool graphs = false;
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        graphs |= pool->graphs; /* these change at a launch, which is not looked at */
        if (pool->stale || pool->graphs) {
            pool->stale = false;
            look(pool);
        }
    }
    atomic_store(&driver_pool_stale, graphs);
    lock_release(&lock);
}

uint64_t driver_pool_kept(struct device *device) {
    uint64_t kept = 0;
    lock_acquire(&lock);
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device && pool->device == device) {
            look(pool);
            kept += pool->reserve > pool->live ? pool->reserve - pool->live : 0;
        }
    }
    lock_release(&lock);
    return kept;
}

/* By how much `bytes` more would exceed the limit. */
static uint64_t missing(const struct device *device, uint64_t bytes) {
    uint64_t limit = atomic_load(&device->limit), charged = atomic_load(&device->charged);
    return limit && charged + bytes > limit ? charged + bytes - limit : 0;
}

bool driver_pool_make_room(struct device *device, uint64_t bytes) {
    bool any = false;
    uint64_t short_of;
    if (bytes > atomic_load(&device->limit)) {
        return false;
    }
    lock_acquire(&lock);
    for (struct driver_pool *pool = pools; pool && (short_of = missing(device, bytes)) > 0;
         pool = pool->next) {
        uint64_t before = pool->counted;
        if (pool->device != device || pool->reserve <= pool->live) {
            continue;
        }
        /* What it keeps beyond that serves its next allocations without another call. */
        uint64_t keep = before > short_of ? (before - short_of) / UNIT * UNIT : 0;
        trim(pool, keep);
        if (keep > 0 && missing(device, bytes) > 0) {
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

bool driver_pool_trim(const struct device *device) {
    bool any = false;
    lock_acquire(&lock);
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device == device && pool->there && !pool->graphs) {
            look(pool);
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
        return; /* another one of the device may live */
    }
    lock_acquire(&lock);
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device && (pool->device == device || !device)) {
            pool->there = false;
            pool->reserve = 0;
            count(pool);
            atomic_store(&currents[pool->device->ordinal], NULL);
        }
    }
    lock_release(&lock);
}

/* --- the hooks --- */

/* Not in a child of a fork, where the lock may be held by nobody. */
static bool started(void) {
    return atomic_load(&process_state) == PROCESS_STARTED;
}

CUresult hook_cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props) {
    CUresult r = RETRY(REAL(cuMemPoolCreate)(handle, props));
    if (r != CUDA_SUCCESS || !process_ready()) {
        return r;
    }
    bool on_device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    lock_acquire(&lock);
    struct driver_pool *old = find(*handle);
    if (old) {
        gone(old);
    }
    add(&(struct driver_pool){.handle = *handle,
                              .device = on_device ? device_get(props->location.id) : NULL,
                              .there = on_device});
    lock_release(&lock);
    return r;
}

/* Under the lock: nobody may ask the driver about the pool afterwards. */
CUresult hook_cuMemPoolDestroy(CUmemoryPool handle) {
    if (!started()) {
        return REAL(cuMemPoolDestroy)(handle);
    }
    lock_acquire(&lock);
    struct driver_pool *pool = handle ? find(handle) : NULL;
    CUresult r = REAL(cuMemPoolDestroy)(handle);
    if (pool && r == CUDA_SUCCESS) {
        gone(pool);
    }
    lock_release(&lock);
    return r;
}

static CUresult look_after(CUresult r, CUmemoryPool handle) {
    if (!started() || r != CUDA_SUCCESS || !handle) {
        return r;
    }
    lock_acquire(&lock);
    struct driver_pool *pool = find(handle);
    if (pool && pool->device) {
        look(pool);
    }
    lock_release(&lock);
    return r;
}

CUresult hook_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    return look_after(REAL(cuMemPoolTrimTo)(handle, keep), handle);
}

static CUresult set_current(CUresult r, int ordinal) {
    if (r == CUDA_SUCCESS && ordinal >= 0 && ordinal < STATS_MAX_DEVICES && started()) {
        lock_acquire(&lock);
        atomic_store(&currents[ordinal], NULL); /* asked for again */
        lock_release(&lock);
    }
    return r;
}

CUresult hook_cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
    return set_current(REAL(cuDeviceSetMemPool)(device, handle), device);
}

CUresult hook_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                              CUmemoryPool handle) {
    CUresult r = REAL(cuMemSetMemPool)(location, type, handle);
    bool on_device = location && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    return set_current(r, on_device ? location->id : -1);
}
