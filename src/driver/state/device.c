#include "driver/state/device.h"

#include "base/print.h"
#include "driver/state/partition.h"
#include "driver/table/entries.h"
#include "options/options.h"
#include "pool/pool.h"
#include "process/process.h"
#include "stats/stats.h"
#include "trace/trace.h"

#include <string.h>

/* Contexts and code take memory of the device that is not charged: up to the memory of the device
 * divided by this. */
#define UNCHARGED_SHARE 32

void (*device_first_use)(unsigned count);

static struct device devices[STATS_MAX_DEVICES];

/* Protects the first use of devices, changes of their limits and lists of pools, and the two
 * variables below. */
static struct lock devices_lock = LOCK_INITIALIZER(DEVICES);
static struct device_limit limit_of_all; /* from device_set_limits() */
static bool has_limit_of_all;            /* device_set_limits() was called */

/* Returns a limit in bytes, for a device with `total` bytes of memory. 0: no limit. */
static uint64_t limit_bytes(const struct device_limit *limit, uint64_t total) {
    if (limit->fraction == 0)
        return limit->bytes;
    /* at least 1, because 0 means no limit */
    uint64_t share = (uint64_t)((double)total * limit->fraction);
    return limit->fraction >= 1 ? 0 : share > 0 ? share : 1;
}

/* Returns the public call that sets such a limit. `gpucache ctl` sets it by the same call. */
static const char *limit_call(const struct device_limit *limit) {
    return limit->fraction == 0 ? "gpucache_set_memory_limit" : "gpucache_set_memory_fraction";
}

/* Returns the limit of a device at its first use, in bytes. Sets *source to the variable, call or
 * command that set the limit. Call with devices_lock. */
static uint64_t first_limit(int ordinal, uint64_t total, const char **source) {
    if (has_limit_of_all) {
        *source = limit_call(&limit_of_all);
        return limit_bytes(&limit_of_all, total);
    }
    uint64_t limit = options_limit(ordinal, total, source), hard = partition_hard_limit(ordinal);
    if (hard != 0 && hard < total && (limit == 0 || hard < limit)) {
        *source = "nvidia-smi memory-limits";
        return hard;
    }
    return limit;
}

bool device_uuid(CUdevice ordinal, char to[48]) {
    CUuuid uuid;
    if (REAL(cuDeviceGetUuid_v2)(&uuid, ordinal) != CUDA_SUCCESS)
        return false;
    static const char digits[] = "0123456789abcdef";
    memcpy(to, "GPU-", 4);
    to += 4;
    for (unsigned i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *to++ = '-';
        *to++ = digits[(unsigned char)uuid.bytes[i] >> 4];
        *to++ = digits[(unsigned char)uuid.bytes[i] & 15];
    }
    *to = 0;
    return true;
}

/* Sets the constant fields of a device, and its first limit. Returns false if the driver has no
 * such device. Call with devices_lock. */
static bool identify(struct device *device, CUdevice ordinal) {
    size_t total = 0;
    if (REAL(cuDeviceTotalMem_v2)(&total, ordinal) != CUDA_SUCCESS)
        return false;
    device->ordinal = ordinal;
    device->total = total;
    if (REAL(cuDeviceGetName)(device->name, sizeof device->name, ordinal) != CUDA_SUCCESS)
        device->name[0] = 0;
    device_uuid(ordinal, device->uuid);
    lock_start(&device->lock, LOCK_DEVICE);
    const char *source;
    atomic_store(&device->limit, first_limit(ordinal, total, &source));
    atomic_store(&device->limit_source, source);
    trace_device((unsigned)ordinal, device->name, device->uuid, total);
    return true;
}

/* Warns of limits for devices that do not exist, and calls device_first_use. Does both once. */
static void announce_first_use(void) {
    static atomic_flag done = ATOMIC_FLAG_INIT;
    int count = 0;
    if (!atomic_flag_test_and_set(&done) && REAL(cuDeviceGetCount)(&count) == CUDA_SUCCESS) {
        options_check_devices(count);
        if (device_first_use)
            device_first_use((unsigned)count);
    }
}

struct device *device_get(CUdevice ordinal) {
    if (ordinal < 0 || ordinal >= STATS_MAX_DEVICES)
        return NULL;
    struct device *device = &devices[ordinal];
    if (atomic_load_explicit(&device->used, memory_order_acquire))
        return device;
    lock_acquire(&devices_lock);
    bool used = atomic_load(&device->used) || identify(device, ordinal);
    atomic_store_explicit(&device->used, used, memory_order_release);
    lock_release(&devices_lock);
    if (used)
        announce_first_use();
    return used ? device : NULL;
}

struct device *device_used(int ordinal) {
    bool used = ordinal >= 0 && ordinal < STATS_MAX_DEVICES && atomic_load(&devices[ordinal].used);
    return used ? &devices[ordinal] : NULL;
}

void device_forked(void) {
    for (unsigned i = 0; i < STATS_MAX_DEVICES; i++)
        atomic_store(&devices[i].used, false);
}

/* The lock orders calls: the limit that is set last is also the last capacity of each pool. */
void device_set_limit(struct device *device, const struct device_limit *limit) {
    lock_acquire(&devices_lock);
    atomic_store(&device->limit_source, limit_call(limit)); /* first: each limit has a source */
    atomic_store(&device->limit, limit_bytes(limit, device->total));
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next)
        pool_set_capacity(p->pool, device_visible_total(device));
    lock_release(&devices_lock);
}

void device_add_pool(struct device *device, struct device_pool *entry) {
    lock_acquire(&devices_lock);
    entry->next = atomic_load(&device->pools);
    atomic_store(&device->pools, entry);
    pool_set_capacity(entry->pool, device_visible_total(device));
    lock_release(&devices_lock);
}

void device_set_limits(const struct device_limit *limit) {
    lock_acquire(&devices_lock);
    limit_of_all = *limit;
    has_limit_of_all = true;
    lock_release(&devices_lock);
    for (int i = 0; i < STATS_MAX_DEVICES; i++) {
        struct device *device = device_used(i);
        if (device)
            device_set_limit(device, limit);
    }
}

uint64_t device_limit_of(int ordinal, uint64_t total) {
    const struct device *device = device_used(ordinal);
    if (device)
        return atomic_load(&device->limit);
    lock_acquire(&devices_lock);
    const char *source;
    uint64_t limit = first_limit(ordinal, total, &source);
    lock_release(&devices_lock);
    return limit;
}

struct device *device_current(void) {
    CUdevice ordinal;
    bool any = !process_is_forked() && REAL(cuCtxGetDevice)(&ordinal) == CUDA_SUCCESS;
    return any && process_ready() ? device_get(ordinal) : NULL;
}

bool device_is_within_limit(const struct device *device, uint64_t charged, uint64_t bytes) {
    uint64_t limit = atomic_load(&device->limit);
    return limit == 0 || (bytes <= limit && charged <= limit - bytes);
}

bool device_charge_once(struct device *device, uint64_t bytes) {
    uint64_t charged = atomic_load(&device->charged);
    do {
        if (!device_is_within_limit(device, charged, bytes))
            return false;
    } while (!atomic_compare_exchange_weak(&device->charged, &charged, charged + bytes));
    return true;
}

void device_charge_always(struct device *device, uint64_t bytes) {
    atomic_fetch_add(&device->charged, bytes);
}

void device_uncharge(struct device *device, uint64_t bytes) {
    atomic_fetch_sub(&device->charged, bytes);
    in_flight_give_back(&device->in_flight);
}

void device_refund(struct device *device, uint64_t bytes) {
    device_uncharge(device, bytes);
    atomic_fetch_add(&in_flight_returns, 1);
}

bool device_is_overcommitted(const struct device *device) {
    uint64_t uncharged = device->total / UNCHARGED_SHARE;
    return counter_get(&device->unpooled.managed.current) > 0 &&
           atomic_load(&device->charged) > device->total - uncharged;
}

uint64_t device_wait_for_in_flight(struct device *device) {
    in_flight_wait(&device->in_flight);
    return in_flight_given_back(&device->in_flight);
}

void device_change_pooled(struct device *device, int64_t change) {
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

void device_change_metric(struct device *device, struct metric *metric, int64_t change) {
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
    counter_add(&device->unpooled.ooms, 1);
    counter_add(&device->unpooled.limit_refusals, at_limit);
    lock_release(&device->lock);
}

int device_used_count(void) {
    int count = STATS_MAX_DEVICES;
    while (count > 0 && !atomic_load_explicit(&devices[count - 1].used, memory_order_acquire))
        count--;
    return count;
}
