#include "driver/device.h"

#include "backend/device_backend.h"
#include "driver/device_pool.h"
#include "driver/entries.h"
#include "driver/mempool.h"
#include "driver/page_helper.h"
#include "driver/remember.h"
#include "live/live.h"
#include "live/peaks.h"
#include "heap/host.h"
#include "pool/pool.h"
#include "process/options.h"
#include "process/print.h"
#include "stats/stats.h"
#include "trace/trace.h"

#include <string.h>

static struct device devices[STATS_MAX_DEVICES];
static struct lock devices_lock = LOCK_INITIALIZER(DEVICES);

static struct device_limit limit_of_all; /* as it was asked for, */
static bool limits_all;                  /* if it was */

static uint64_t limit_bytes(const struct device_limit *limit, uint64_t total) {
    if (limit->fraction == 0) {
        return limit->bytes;
    }
    /* 0 would lift it, however small the share */
    uint64_t share = (uint64_t)((double)total * limit->fraction);
    return limit->fraction >= 1 ? 0 : share > 0 ? share : 1;
}

/* Under the lock. */
static uint64_t first_limit(int ordinal, uint64_t total) {
    return limits_all ? limit_bytes(&limit_of_all, total) : options_limit(ordinal, total);
}

static void read_uuid(struct device *device) {
    CUuuid uuid;
    if (REAL(cuDeviceGetUuid_v2)(&uuid, device->ordinal) != CUDA_SUCCESS) {
        return;
    }
    static const char digits[] = "0123456789abcdef";
    char *to = device->uuid;
    memcpy(to, "GPU-", 4);
    to += 4;
    for (unsigned i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10) {
            *to++ = '-';
        }
        *to++ = digits[(unsigned char)uuid.bytes[i] >> 4];
        *to++ = digits[(unsigned char)uuid.bytes[i] & 15];
    }
    *to = 0;
}

static bool identify(struct device *device, CUdevice ordinal) {
    size_t total = 0;
    if (REAL(cuDeviceTotalMem_v2)(&total, ordinal) != CUDA_SUCCESS) {
        return false;
    }
    device->ordinal = ordinal;
    device->total = total;
    if (REAL(cuDeviceGetName)(device->name, sizeof device->name, ordinal) != CUDA_SUCCESS) {
        device->name[0] = 0;
    }
    read_uuid(device);
    lock_start(&device->lock, LOCK_DEVICE);
    atomic_store(&device->limit, first_limit(ordinal, total));
    trace_device((unsigned)ordinal, device->name, device->uuid, total);
    return true;
}

/* A limit for a device that is not there would be missed only when it is needed. And now there is something
 * to show. */
static void use_first(void) {
    static atomic_flag done = ATOMIC_FLAG_INIT;
    int count = 0;
    if (!atomic_flag_test_and_set(&done) && REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS) {
        options_check_devices(count);
        peaks_start();
        live_start((unsigned)count);
        page_helper_want();
    }
}

struct device *device_get(CUdevice ordinal) {
    if (ordinal < 0 || ordinal >= STATS_MAX_DEVICES) {
        return NULL;
    }
    struct device *device = &devices[ordinal];
    if (atomic_load_explicit(&device->used, memory_order_acquire)) {
        return device;
    }
    lock_acquire(&devices_lock);
    bool used = atomic_load(&device->used) || identify(device, ordinal);
    atomic_store_explicit(&device->used, used, memory_order_release);
    lock_release(&devices_lock);
    if (used) {
        use_first();
    }
    return used ? device : NULL;
}

struct device *device_used(int ordinal) {
    bool used = ordinal >= 0 && ordinal < STATS_MAX_DEVICES && atomic_load(&devices[ordinal].used);
    return used ? &devices[ordinal] : NULL;
}

void device_forked(void) {
    for (unsigned i = 0; i < STATS_MAX_DEVICES; i++) {
        atomic_store(&devices[i].used, false);
    }
}

void device_set_limit(struct device *device, const struct device_limit *limit) {
    atomic_store(&device->limit, limit_bytes(limit, device->total));
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        pool_set_capacity(p->pool, device_visible_total(device));
    }
}

void device_set_limits(const struct device_limit *limit) {
    lock_acquire(&devices_lock);
    limit_of_all = *limit;
    limits_all = true;
    lock_release(&devices_lock);
    for (int i = 0; i < STATS_MAX_DEVICES; i++) {
        struct device *device = device_used(i);
        if (device) {
            device_set_limit(device, limit);
        }
    }
}

uint64_t device_limit_of(int ordinal, uint64_t total) {
    const struct device *device = device_used(ordinal);
    if (device) {
        return atomic_load(&device->limit);
    }
    lock_acquire(&devices_lock);
    uint64_t limit = first_limit(ordinal, total);
    lock_release(&devices_lock);
    return limit;
}

void device_reset_peaks(struct device *device) {
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        pool_reset_peaks(p->pool);
    }
    atomic_store(&device->pooled_peak, atomic_load(&device->pooled));
    lock_acquire(&device->lock);
    counters_reset_peaks(&device->outside);
    lock_release(&device->lock);
    remember_reset_peak(device->ordinal);
}

struct device *device_current(void) {
    CUdevice ordinal;
    return REAL(cuCtxGetDevice)(&ordinal) == CUDA_SUCCESS ? device_get(ordinal) : NULL;
}

static bool is_within_limit(const struct device *device, uint64_t charged, uint64_t bytes) {
    uint64_t limit = atomic_load(&device->limit);
    return limit == 0 || (bytes <= limit && charged <= limit - bytes);
}

bool device_take(struct device *device, uint64_t bytes) {
    uint64_t charged = atomic_load(&device->charged);
    do {
        if (!is_within_limit(device, charged, bytes)) {
            return false;
        }
    } while (!atomic_compare_exchange_weak(&device->charged, &charged, charged + bytes));
    return true;
}

bool device_charge(struct device *device, uint64_t bytes) {
    return device_take(device, bytes) ||
           (mempool_make_room(device, bytes) && device_take(device, bytes));
}

bool device_allows(struct device *device, uint64_t bytes) {
    return is_within_limit(device, atomic_load(&device->charged), bytes) ||
           (mempool_make_room(device, bytes) &&
            is_within_limit(device, atomic_load(&device->charged), bytes));
}

void device_owe(struct device *device, uint64_t bytes) {
    atomic_fetch_add(&device->charged, bytes);
}

void device_uncharge(struct device *device, uint64_t bytes) {
    atomic_fetch_sub(&device->charged, bytes);
    askers_give_back(&device->askers);
}

void device_refund(struct device *device, uint64_t bytes) {
    device_uncharge(device, bytes);
    atomic_fetch_add(&askers_returns, 1);
}

uint64_t device_given_back(struct device *device) {
    askers_wait(&device->askers);
    return askers_given_back(&device->askers);
}

void device_pooled(struct device *device, int64_t change) {
    uint64_t now = atomic_fetch_add(&device->pooled, (uint64_t)change) + (uint64_t)change;
    uint64_t peak = atomic_load(&device->pooled_peak);
    while (change > 0 && now > peak &&
           !atomic_compare_exchange_weak(&device->pooled_peak, &peak, now)) {
    }
}

uint64_t device_visible_total(const struct device *device) {
    uint64_t limit = atomic_load(&device->limit);
    return limit && limit < device->total ? limit : device->total;
}

/*
 * What could go back to the driver if all of it were finished. What lies beside live blocks could not, and a
 * program that asks for as much as is free would not get it.
 */
static uint64_t idle_for_others(const struct device *device) {
    uint64_t bytes = 0;
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        pool_reclaim_own(p->pool);
        uint64_t stuck = p->idle ? 0 : pool_stuck_bytes(p->pool), idle = pool_idle_bytes(p->pool);
        bytes += (idle > stuck ? idle - stuck : 0) + atomic_load(&p->backend->returning);
    }
    return bytes;
}

void device_visible_memory(const struct device *device, uint64_t *free_bytes,
                           uint64_t *total_bytes) {
    uint64_t idle = idle_for_others(device), limit = atomic_load(&device->limit);
    *free_bytes += idle;
    if (limit) {
        uint64_t charged = atomic_load(&device->charged);
        charged = charged > idle ? charged - idle : 0;
        uint64_t allowed = limit > charged ? limit - charged : 0;
        *free_bytes = *free_bytes > allowed ? allowed : *free_bytes;
        *total_bytes = *total_bytes > limit ? limit : *total_bytes;
    }
    *free_bytes = *free_bytes > *total_bytes ? *total_bytes : *free_bytes;
}

void device_book(struct device *device, struct metric *metric, int64_t change) {
    lock_acquire(&device->lock);
    metric_change(metric, change);
    lock_release(&device->lock);
}

void device_count(struct device *device, stat_counter *counter) {
    lock_acquire(&device->lock);
    counter_add(counter, 1);
    lock_release(&device->lock);
}

void device_count_oom(struct device *device, bool at_limit) {
    lock_acquire(&device->lock);
    counter_add(&device->outside.ooms, 1);
    counter_add(&device->outside.limit_refusals, at_limit);
    lock_release(&device->lock);
}

uint64_t device_idle_bytes(const struct device *device, const struct device_backend *but) {
    uint64_t bytes = 0;
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        if (p->backend != but) {
            bytes += pool_idle_bytes(p->pool) + atomic_load(&p->backend->returning);
        }
    }
    return bytes;
}

uint64_t device_deferred_bytes(const struct device *device) {
    uint64_t bytes = 0;
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        bytes += pool_deferred_bytes(p->pool);
    }
    return bytes;
}

static uint64_t free_now(struct device *device) {
    size_t total, there = device->total;
    uint64_t limit = atomic_load(&device->limit), charged = atomic_load(&device->charged);
    if (device_current() == device) {
        REAL(cuMemGetInfo_v2)(&there, &total);
    }
    uint64_t room = there, allowed = limit > charged ? limit - charged : 0;
    return limit && allowed < room ? allowed : room;
}

/* What the driver's own pools keep is there for others of its calls too, but for what lies beside live blocks. */
uint64_t device_room(struct device *device) {
    return free_now(device) + mempool_kept(device);
}

bool device_gather(struct device *device, const struct device_backend *but, uint64_t bytes,
                   bool wait) {
    bool any = false, there = free_now(device) >= bytes;
    struct device_pool *p = atomic_load(&device->pools);
    for (; p && free_now(device) < bytes; p = p->next) {
        any |= p->backend != but && !p->idle && pool_give_back(p->pool, bytes, wait) == 0;
    }
    return any || there;
}

bool device_could_have(struct device *device, uint64_t bytes) {
    return bytes <=
           device_room(device) + device_idle_bytes(device, NULL) + device_deferred_bytes(device);
}

/* --- the snapshot (stats/stats.h) --- */

int stats_device_count(void) {
    for (int i = STATS_MAX_DEVICES; i > 0; i--) {
        if (atomic_load_explicit(&devices[i - 1].used, memory_order_acquire)) {
            return i;
        }
    }
    return 0;
}

uint64_t stats_host_bytes(void) {
    return host_bytes();
}

static void add_outside(struct stats_device *out, const struct counters *counters) {
#define ADD(to, from)                                                                              \
    to.current += counter_get(&from.current);                                                      \
    to.peak += counter_get(&from.peak);                                                            \
    to.total += counter_get(&from.total);                                                          \
    to.freed += counter_get(&from.freed);
#define METRIC(field, json, label) ADD(out->field, counters->field)
#define OUTSIDE(field, json) ADD(out->field, counters->field)
#define COUNTER(field) out->field += counter_get(&counters->field);
#include "stats/fields.def"
#undef ADD
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/*
 * The figures of a metric, and of several books, are read one after another while others write. So
 * that they are those of one moment, what cannot have been more than `bound` is lowered to it, and
 * the sums follow.
 */
static void agree(struct stats_metric *metric, uint64_t bound) {
    metric->current = least(metric->current, bound);
    metric->total = metric->total > metric->current ? metric->total : metric->current;
    metric->peak = metric->peak > metric->current ? metric->peak : metric->current;
    metric->freed = metric->total - metric->current;
}

static void derive(struct stats_device *out) {
#define METRIC(field, json, label) agree(&out->field, UINT64_MAX);
#define OUTSIDE(field, json) agree(&out->field, UINT64_MAX);
#include "stats/fields.def"
    uint64_t reserved = out->reserved.current;
    agree(&out->allocated, reserved);
    agree(&out->requested, out->allocated.current);
    uint64_t idle = reserved - out->allocated.current;
    out->ready_bytes = least(out->ready_bytes, idle);
    out->pending_bytes = idle - out->ready_bytes;
    out->active.current = out->allocated.current + out->pending_bytes;
    agree(&out->active, reserved);
    /* Every byte becomes active when it is handed out. Thread caches do that many times between two
     * looks of the pool, which only knows the peak. */
    out->active.total = most(out->allocated.total, out->active.current);
    out->active.freed = out->active.total - out->active.current;
    out->active.peak = most(out->active.peak, out->allocated.peak);
    out->releasable_bytes = least(out->releasable_bytes, out->ready_bytes);
    out->non_releasable_bytes = out->ready_bytes - out->releasable_bytes;
    out->cache_misses = least(out->cache_misses, out->allocations.total);
    out->cache_hits = out->allocations.total - out->cache_misses;
}

/* What is in force: without context events there are no barriers, and nothing is reused without a pool. */
static const char *reuse_in_force(const struct device *device) {
    static const char *const names[] = {"barrier", "wait", "sync"};
    bool events = HAS(cuCtxRecordEvent) && HAS(cuCtxWaitEvent);
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        events = events && p->backend->backend.has_events;
    }
    if (options()->disable) {
        return "none";
    }
    return names[options()->reuse == REUSE_BARRIER && !events ? REUSE_WAIT : options()->reuse];
}

static void read_backend(const struct device *device, struct stats_device *out) {
    const char *reason = atomic_load(&device->backend_reason);
    bool pages = atomic_load(&device->in_pages);
    out->backend = options()->disable || !reason ? "none" : pages ? "pages" : "segments";
    out->backend_reason = options()->disable ? options()->disable_reason
                          : reason           ? reason
                                             : "no pool yet";
}

/* The figures of all pools of a device. Each has its peaks at a moment of its own: of what is live the highest one is known to have been
 * there, and the sum is the most that can have been. */
static void read_pools(struct device *device, struct stats_device *out) {
    struct stats_metric *const live[] = {&out->requested, &out->allocated, &out->allocations};
    uint64_t highest[3] = {0}, sums[3] = {0};
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        pool_read(p->pool, out);
        for (unsigned i = 0; i < 3; i++) {
            highest[i] = most(highest[i], live[i]->peak - sums[i]);
            sums[i] = live[i]->peak;
        }
    }
    out->reserved.peak = atomic_load(&device->pooled_peak);
    out->active.peak = least(out->active.peak, out->reserved.peak);
    for (unsigned i = 0; i < 3; i++) {
        live[i]->peak = most(highest[i], live[i]->current);
    }
    uint64_t could = least(sums[0], out->reserved.peak), was = out->requested.peak;
    if (sums[0] > was) {
        out->peaks_exact = false;
        out->peak_error_bytes += could > was ? could - was : 0;
    }
}

bool stats_read_counters(int ordinal, struct stats_device *out) {
    struct device *device = &devices[ordinal];
    if (!atomic_load_explicit(&device->used, memory_order_acquire)) {
        return false;
    }
    memset(out, 0, sizeof *out);
    out->ordinal = ordinal;
    memcpy(out->name, device->name, sizeof out->name);
    memcpy(out->uuid, device->uuid, sizeof out->uuid);
    out->total_bytes = device->total;
    out->limit_bytes = atomic_load(&device->limit);
    out->reuse = reuse_in_force(device);
    read_backend(device, out);
    out->peaks_exact = true;
    read_pools(device, out);
    add_outside(out, &device->outside);
    derive(out);
    return true;
}

bool stats_read(int ordinal, struct stats_device *out, struct segment_map *map) {
    bool known = stats_read_counters(ordinal, out);
    if (map) {
        map->grain = map->count = 0;
    }
    for (struct device_pool *p = known ? atomic_load(&devices[ordinal].pools) : NULL; p;
         p = p->next) {
        if (!p->idle) {
            pool_survey(p->pool, out, map);
        }
    }
    return known && remember_read_live(ordinal, out);
}
