#include "driver/limit/driver_pools.h"

#include "driver/context/context.h"
#include "driver/limit/driver_pool_state.h"
#include "driver/state/capture.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "process/process.h"

atomic_bool driver_pool_stale;
/* No entry is ever removed: ledger rows and threads keep pointers to entries. add() reuses them. */
static struct driver_pool *pools;
static _Atomic(struct driver_pool *) currents[STATS_MAX_DEVICES]; /* NULL: ask the driver */
static struct host_freelist freelist = {.object_bytes = sizeof(struct driver_pool)};
/* Held during driver calls too: a thread may wait here for a trim or a destruction of a pool. */
struct lock driver_pool_lock = LOCK_INITIALIZER(DRIVER_POOLS);

/* --- one pool; lock held --- */

/* Returns the bytes to charge. */
static uint64_t larger_of_live_and_reserve(const struct driver_pool *pool) {
    uint64_t live = atomic_load(&pool->live), reserve = atomic_load(&pool->reserve);
    return live > reserve ? live : reserve;
}

void driver_pool_count(struct driver_pool *pool) {
    uint64_t before = atomic_load(&pool->counted), now;
    if (!pool->device)
        return;
    do { /* a free that saw the old value of `counted` did not call this function */
        now = larger_of_live_and_reserve(pool);
        atomic_store(&pool->counted, now);
    } while (now != larger_of_live_and_reserve(pool));
    if (now == before)
        return;
    if (now > before)
        device_charge_always(pool->device, now - before);
    else
        device_refund(pool->device, before - now);
    device_change_metric(pool->device, &pool->device->unpooled.stream_ordered,
                         (int64_t)(now - before));
}

void driver_pool_query(struct driver_pool *pool) {
    if (atomic_load(&capture_active) > 0) {
        driver_pool_count(pool);
        return;
    }
    cuuint64_t reserve = 0;
    CUresult r = CUDA_ERROR_NOT_FOUND;
    if (pool->is_graph_memory) {
        r = REAL(cuDeviceGetGraphMemAttribute)(pool->device->ordinal,
                                               CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &reserve);
    } else if (pool->exists) {
        r = REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                                        &reserve);
    }
    if (r == CUDA_SUCCESS)
        atomic_store(&pool->reserve, reserve);
    driver_pool_count(pool);
}

/*
 * Trims a pool to `keep` bytes of reserve. For the entry of graph memory, ignores `keep` and gives
 * all unused graph memory back. Does nothing during a capture.
 */
static void trim(struct driver_pool *pool, uint64_t keep) {
    if (atomic_load(&capture_active) > 0)
        return;
    CUstreamCaptureMode mode = capture_relax();
    if (pool->is_graph_memory)
        REAL(cuDeviceGraphMemTrim)(pool->device->ordinal);
    else if (pool->exists)
        REAL(cuMemPoolTrimTo)(pool->handle, keep);
    capture_restore(mode);
    driver_pool_query(pool);
}

/* Returns the entry of a handle, or NULL if there is none. For the handle NULL, returns the first
 * entry of a destroyed pool. */
static struct driver_pool *find(CUmemoryPool handle) {
    struct driver_pool *pool = pools;
    while (pool && (pool->is_graph_memory || pool->handle != handle))
        pool = pool->next;
    return pool;
}

/*
 * Adds a pool. Reuses the entry of a destroyed pool if that pool has no live allocation and none in
 * progress. The device must be the same, because another thread may still hold a pointer to the
 * entry and charge its device. Graph memory gets an entry of its own. Returns NULL without host
 * memory.
 */
static struct driver_pool *add(const struct driver_pool *as) {
    struct driver_pool *pool = as->is_graph_memory ? NULL : find(NULL); /* destroyed: no handle */
    while (pool && (pool->is_graph_memory || pool->handle || pool->device != as->device ||
                    pool->live > 0 || pool->calls > 0))
        pool = pool->next;
    if (pool) {
        /* Other fields may be changing: a free, or a call that has just got a pointer to the entry,
         * goes on without the lock. */
        pool->handle = as->handle;
        pool->exists = as->exists;
        driver_pool_count(pool);
    } else if ((pool = host_freelist_get(&freelist)) != NULL) {
        *pool = *as;
        pool->next = pools;
        pools = pool;
    }
    return pool;
}

/*
 * Marks a pool as destroyed. The driver destroys it once its last allocation is freed; until then
 * the live bytes stay counted.
 */
static void mark_destroyed(struct driver_pool *pool) {
    pool->handle = NULL;
    pool->exists = false;
    pool->reserve = 0;
    driver_pool_count(pool);
    for (unsigned i = 0; i < STATS_MAX_DEVICES; i++) {
        struct driver_pool *current = pool;
        atomic_compare_exchange_strong(&currents[i], &current, NULL);
    }
}

/* --- which pool --- */

struct driver_pool *driver_pool_current(void) {
    struct device *device = device_current();
    struct driver_pool *pool = device ? atomic_load(&currents[device->ordinal]) : NULL;
    CUmemoryPool handle;
    if (!device || pool)
        return pool && pool->device ? pool : NULL;
    lock_acquire(&driver_pool_lock);
    if (REAL(cuDeviceGetMemPool)(&handle, device->ordinal) == CUDA_SUCCESS) {
        pool = find(handle);
        if (!pool)
            pool = add(&(struct driver_pool){.handle = handle, .device = device, .exists = true});
        atomic_store(&currents[device->ordinal], pool);
    }
    lock_release(&driver_pool_lock);
    return pool && pool->device ? pool : NULL;
}

/* Returns the device whose default pool `handle` is. NULL: there is none. */
static struct device *device_of_default(CUmemoryPool handle) {
    CUmemoryPool other;
    for (int i = 0; REAL(cuDeviceGetDefaultMemPool)(&other, i) == CUDA_SUCCESS; i++)
        if (other == handle)
            return device_get(i);
    return NULL;
}

struct driver_pool *driver_pool_of(CUmemoryPool handle) {
    if (!handle || !process_ready())
        return NULL;
    lock_acquire(&driver_pool_lock);
    struct driver_pool *pool = find(handle);
    if (!pool) /* `exists` is false until driver_pool_end() sees a successful allocation */
        pool = add(&(struct driver_pool){.handle = handle, .device = device_of_default(handle)});
    lock_release(&driver_pool_lock);
    return pool && pool->device ? pool : NULL;
}

void driver_pool_add_graph_memory(struct device *device) {
    struct driver_pool *pool;
    if (!device)
        return;
    lock_acquire(&driver_pool_lock);
    for (pool = pools; pool && !(pool->is_graph_memory && pool->device == device);)
        pool = pool->next;
    if (!pool) {
        add(&(struct driver_pool){.device = device, .is_graph_memory = true});
        atomic_store(&driver_pool_stale, true);
    }
    lock_release(&driver_pool_lock);
}

struct device *driver_pool_device(const struct driver_pool *pool) {
    return pool->device;
}

/* --- querying, and giving back --- */

void driver_pool_query_all(struct device *device) {
    lock_acquire(&driver_pool_lock);
    for (struct driver_pool *pool = pools; pool; pool = pool->next)
        if (pool->device && pool->device == device)
            driver_pool_query(pool);
    lock_release(&driver_pool_lock);
}

/* Clears `stale`, as no other query does: only a wait makes the driver release memory. During a
 * capture the pools stay stale: the first wait after the capture queries them. */
void driver_pool_query_stale(void) {
    bool again = false;
    lock_acquire(&driver_pool_lock);
    atomic_store(&driver_pool_stale, false); /* first: a free during the queries sets it again */
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        if (pool->stale || pool->is_graph_memory) {
            /* Before the query, for a free during it. Also if the driver does not answer: it would
             * not at the next wait either. */
            bool capturing = atomic_load(&capture_active) > 0;
            atomic_store(&pool->stale, false);
            driver_pool_query(pool);
            if (capturing || atomic_load(&capture_active) > 0) /* the driver may not be asked */
                atomic_store(&pool->stale, true);
        }
        /* graph memory changes at launches, which do no query */
        again |= pool->is_graph_memory || (pool->stale && pool->exists);
    }
    if (again)
        atomic_store(&driver_pool_stale, true);
    lock_release(&driver_pool_lock);
}

uint64_t driver_pool_kept(struct device *device) {
    uint64_t kept = 0;
    lock_acquire(&driver_pool_lock);
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device && pool->device == device) {
            driver_pool_query(pool);
            uint64_t live = atomic_load(&pool->live), reserve = atomic_load(&pool->reserve);
            kept += reserve > live ? reserve - live : 0;
        }
    }
    lock_release(&driver_pool_lock);
    return kept;
}

/* Returns the bytes by which a charge of `bytes` more would exceed the limit. Lock held. */
static uint64_t excess_over_limit(const struct device *device, uint64_t bytes) {
    uint64_t limit = atomic_load(&device->limit), charged = atomic_load(&device->charged);
    return limit && charged + bytes > limit ? charged + bytes - limit : 0;
}

bool driver_pool_trim_for(struct device *device, uint64_t bytes) {
    bool any = false;
    uint64_t excess;
    if (bytes > atomic_load(&device->limit))
        return false;
    lock_acquire(&driver_pool_lock);
    for (struct driver_pool *pool = pools; pool && (excess = excess_over_limit(device, bytes)) > 0;
         pool = pool->next) {
        uint64_t before = pool->counted;
        if (!pool->device || pool->device != device || pool->reserve <= pool->live)
            continue;
        /* Memory kept in the pool serves its next allocations without another driver call. */
        uint64_t keep =
            before > excess ? (before - excess) / DRIVER_POOL_UNIT * DRIVER_POOL_UNIT : 0;
        trim(pool, keep);
        if (keep > 0 && excess_over_limit(device, bytes) > 0)
            trim(pool, 0);
        any |= pool->counted < before;
    }
    lock_release(&driver_pool_lock);
    return any;
}

/* Returns the release threshold of a pool, in bytes. UINT64_MAX: the driver refuses to tell. */
static uint64_t threshold(const struct driver_pool *pool) {
    cuuint64_t keep = UINT64_MAX;
    REAL(cuMemPoolGetAttribute)(pool->handle, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep);
    return keep;
}

/* Waits for a query or trim in progress; later ones see the announced capture. */
void driver_pool_capture_announced(void) {
    lock_acquire(&driver_pool_lock);
    lock_release(&driver_pool_lock);
}

bool driver_pool_trim(const struct device *device) {
    bool any = false;
    lock_acquire(&driver_pool_lock);
    struct driver_pool *pool = atomic_load(&capture_active) > 0 ? NULL : pools;
    for (; pool; pool = pool->next) {
        if (pool->device == device && pool->exists && !pool->is_graph_memory) {
            driver_pool_query(pool);
            uint64_t before = pool->reserve;
            if (before > pool->live)
                trim(pool, threshold(pool));
            any |= pool->reserve < before;
        }
    }
    lock_release(&driver_pool_lock);
    return any;
}

/* Runs as a callback of registry_remove(), which has lowered context_count() before. */
void driver_pools_invalidate(const struct context *context) {
    const struct device *device = context->primary ? device_used(context->ordinal) : NULL;
    if (!device && (context->primary || context_count() > 0))
        return; /* an unused device has no pool; other contexts may still use the pools */
    lock_acquire(&driver_pool_lock);
    for (struct driver_pool *pool = pools; pool; pool = pool->next) {
        if (pool->device && (pool->device == device || !device)) {
            pool->exists = false;
            pool->reserve = 0;
            driver_pool_count(pool);
            atomic_store(&currents[pool->device->ordinal], NULL);
        }
    }
    lock_release(&driver_pool_lock);
}

/* --- after calls of the program about a pool --- */

void driver_pool_created(CUmemoryPool handle, struct device *device, bool on_device) {
    lock_acquire(&driver_pool_lock);
    struct driver_pool *old = find(handle);
    if (old)
        mark_destroyed(old);
    add(&(struct driver_pool){.handle = handle, .device = device, .exists = on_device});
    lock_release(&driver_pool_lock);
}

CUresult driver_pool_destroy(CUmemoryPool handle) {
    lock_acquire(&driver_pool_lock);
    struct driver_pool *pool = handle ? find(handle) : NULL;
    CUresult answer = REAL(cuMemPoolDestroy)(handle);
    if (pool && answer == CUDA_SUCCESS)
        mark_destroyed(pool);
    lock_release(&driver_pool_lock);
    return answer;
}

void driver_pool_query_handle(CUmemoryPool handle) {
    lock_acquire(&driver_pool_lock);
    struct driver_pool *pool = find(handle);
    if (pool && pool->device)
        driver_pool_query(pool);
    lock_release(&driver_pool_lock);
}

void driver_pool_forget_current(int ordinal) {
    lock_acquire(&driver_pool_lock);
    atomic_store(&currents[ordinal], NULL);
    lock_release(&driver_pool_lock);
}
