#include "driver/context/device_pool.h"

#include "base/log.h"
#include "driver/context/application_events.h"
#include "driver/context/context.h"
#include "driver/context/decay.h"
#include "driver/context/device_backend.h"
#include "driver/state/device.h"
#include "driver/state/partition.h"
#include "driver/state/rdma_libraries.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "options/options.h"
#include "pool/pool.h"
#include "trace/trace.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

/* On an overcommitted device, idle memory up to the memory of the device divided by this does not
 * go back before the tick: a program would otherwise lose its small blocks to the driver after each
 * free. */
#define DISPLACING_SHARE 64

/* Tells the trace and the log which backend a pool has. */
static void report_start(const struct device_backend *backend) {
    int version = 0;
    REAL(cuDriverGetVersion)(&version);
    trace_backend((unsigned)backend->device->ordinal, backend->backend.ops->name);
    log_info("device %d: %s, driver %d.%d, backend %s (%s), %s", backend->device->ordinal,
             backend->device->name, version / 1000, version % 1000 / 10, backend->backend.ops->name,
             atomic_load(&backend->device->backend_reason),
             backend->backend.has_events ? "context events"
                                         : "no context events: frees synchronise");
}

/* Returns a pool of the device whose context has ended. NULL: there is none. */
static struct device_pool *unused_pool(struct device *device) {
    struct device_pool *p = atomic_load(&device->pools);
    while (p && !p->unused)
        p = p->next;
    return p;
}

static const struct backend_kind *segments_kind, *vmm_kind;

void device_pool_set_kinds(const struct backend_kind *segments, const struct backend_kind *vmm) {
    segments_kind = segments;
    vmm_kind = vmm;
}

/* Returns the kind of a device's backends, after choose_backend(). */
static const struct backend_kind *kind_of(const struct device *device) {
    return atomic_load(&device->uses_vmm) ? vmm_kind : segments_kind;
}

/* Returns whether idle memory goes back to the driver after the decay time. If the backend prevents
 * it, logs the reason for a device's first pool. */
static bool decays(const struct device *device, const struct backend *backend) {
    if (options()->decay_ms == OPTIONS_NEVER)
        return false;
    if (backend->release_waits && !atomic_load(&device->pools)) {
        log_line(options_from_environment(OPTION_DECAY_MS) ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
                 "device %d: idle memory in segments (%s) does not go back by itself after "
                 "GPUCACHE_DECAY_MS: without stream-ordered memory a free waits for the device",
                 device->ordinal, atomic_load(&device->backend_reason));
    }
    return !backend->release_waits;
}

/* Returns the reason for segments if the process has a limit of addresses (RLIMIT_AS, `ulimit -v`),
 * else NULL. Each VA range of the vmm backend takes several times the addresses of the device's
 * memory, and the program could then lack addresses. Keeps errno. */
static const char *address_limit(void) {
    struct rlimit limit;
    int saved_errno = errno;
    bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    errno = saved_errno;
    return limited ? "ulimit -v limits addresses" : NULL;
}

/* Chooses the kind of backend when a device gets its first pool. The kind never changes
 * afterwards. */
static void choose_backend(struct device *device) {
    const char *reason_against = NULL, *reason_for = NULL;
    if (atomic_load(&device->backend_reason))
        return;
    switch (options()->backend) {
    case BACKEND_PAGES:
        reason_against = vmm_kind->unavailable(device);
        reason_for = "GPUCACHE_BACKEND=pages";
        break;
    case BACKEND_SEGMENTS:
        reason_against = "GPUCACHE_BACKEND=segments";
        break;
    case BACKEND_AUTO:
        reason_against = rdma_libraries_loaded(RDMA_CARDS);
        reason_against = reason_against ? reason_against : address_limit();
        reason_against = reason_against ? reason_against : vmm_kind->unavailable(device);
        reason_against = reason_against ? reason_against : vmm_kind->not_exportable(device);
        reason_for = "driver and device support them";
        break;
    }
    atomic_store(&device->uses_vmm, reason_against == NULL);
    atomic_store(&device->backend_reason, reason_against ? reason_against : reason_for);
}

/* Starts an unused pool for a new context. Returns false if the backend does not start. Acquires
 * the pool's lock: a thread that still uses the pool for the ended context must not be inside a
 * call of the backend. */
static bool reuse_pool(struct device_pool *entry, CUcontext context, struct device *device,
                       uint64_t peer_devices) {
    pool_lock(entry->pool);
    bool started = kind_of(device)->start(entry->backend, context, device, peer_devices) == 0;
    pool_unlock(entry->pool);
    entry->unused = !started;
    return started;
}

/* Returns the bytes that the larger kind of backend needs: new_pool() may use the memory for either
 * kind. */
static size_t backend_bytes(void) {
    return segments_kind->bytes > vmm_kind->bytes ? segments_kind->bytes : vmm_kind->bytes;
}

/* Creates a pool and adds it to the device's list. NULL: no host memory, or the driver refused.
 * Keeps the host memory of a failed attempt in `spare`, under the registry's lock. The next attempt
 * uses this memory, perhaps for another device or kind of backend. The memory is therefore cleared:
 * backend_kind.start() needs zeroed memory. */
static struct device_pool *new_pool(CUcontext context, struct device *device,
                                    uint64_t peer_devices) {
    static struct device_pool *spare;
    if (!spare && !(spare = host_map(sizeof *spare, 4096)))
        return NULL;
    if (!spare->backend && !(spare->backend = host_map(backend_bytes(), 4096)))
        return NULL;
    memset(spare->backend, 0, backend_bytes());
    if (kind_of(device)->start(spare->backend, context, device, peer_devices) != 0)
        return NULL;
    struct pool_config config = {
        .reuse = options()->reuse,
        .decays = decays(device, &spare->backend->backend),
    };
    uint64_t guaranteed = partition_soft_limit(device->ordinal);
    if (options()->budget_bytes != OPTIONS_AUTOMATIC) {
        config.budget = options()->budget_bytes + 1; /* a pool computes a budget of 0 (config.h) */
    } else if (guaranteed != 0) {
        config.budget = guaranteed + 1;
        log_info("device %d: the budget is %llu bytes, the soft limit of nvidia-smi memory-limits",
                 device->ordinal, (unsigned long long)guaranteed);
    }
    struct device_pool *entry = spare;
    if (!(entry->pool = pool_create(&entry->backend->backend, &config))) {
        device_backend_stop(entry->backend);
        return NULL;
    }
    decay_start(); /* also if nothing decays: the end of the process needs the thread */
    device_add_pool(device, entry);
    spare = NULL;
    return entry;
}

struct device_pool *device_pool_start(CUcontext context, struct device *device,
                                      uint64_t peer_devices) {
    choose_backend(device);
    struct device_pool *entry = unused_pool(device);
    if (entry ? !reuse_pool(entry, context, device, peer_devices)
              : !(entry = new_pool(context, device, peer_devices)))
        return NULL;
    application_events_tell(entry->pool);
    report_start(entry->backend);
    return entry;
}

CUresult device_pool_grant_access(struct device_pool *entry, CUdevice by) {
    const struct backend_kind *kind = kind_of(entry->backend->device);
    return kind->grant_access ? kind->grant_access(entry->backend, by) : CUDA_SUCCESS;
}

void device_pool_suspend(const struct context *context, bool suspended) {
    struct device_pool *entry = context->entry;
    if (entry) {
        pool_lock(entry->pool);
        entry->backend->backend.suspended = suspended;
        pool_unlock(entry->pool);
    }
}

void device_pool_forget(const struct context *context) {
    struct device_pool *entry = context->entry;
    if (!entry)
        return;
    struct device *device = entry->backend->device;
    uint64_t begun = trace_on() ? trace_clock() : 0;
    pool_lock(entry->pool);
    device_backend_end(entry->backend);
    pool_unlock(entry->pool);
    uint64_t bytes = pool_forget(entry->pool);
    trace_context_end((unsigned)device->ordinal, (uintptr_t)entry->backend, bytes, begun);
    device_change_pooled(device, -(int64_t)bytes);
    device_refund(device, bytes);
    entry->unused = true;
}

void device_pool_drain_barriers(struct device *device) {
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next)
        pool_wait_for_barriers(p->pool);
}

bool device_pool_wait_for_events_in_free(struct device *device) {
    bool any = false;
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next)
        any |= !p->unused && pool_wait_for_events_in_free(p->pool);
    return any;
}

int device_pool_release_idle(struct device *device) {
    int result = 0;
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        int r = p->unused ? 0 : pool_trim(p->pool, true);
        result = r != 0 ? r : result;
    }
    return result;
}

uint64_t device_unreleasable_bytes(struct device *device) {
    uint64_t bytes = 0;
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        bytes +=
            p->unused ? 0 : pool_unreleasable_bytes(p->pool) + atomic_load(&p->backend->returning);
    }
    return bytes;
}

bool device_pool_displaces_managed(const struct device *device) {
    uint64_t idle = 0, unreleasable = 0;
    if (!device_is_overcommitted(device))
        return false;
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        if (p->unused)
            continue;
        idle += pool_unused_bytes(p->pool) + atomic_load(&p->backend->returning);
        unreleasable += pool_unreleasable_bytes(p->pool);
    }
    return idle > unreleasable + device->total / DISPLACING_SHARE;
}

struct device *device_of_pool(struct pool *pool) {
    return ((struct device_backend *)pool_backend(pool))->device;
}

CUcontext context_of_pool(struct pool *pool) {
    return ((struct device_backend *)pool_backend(pool))->context;
}
