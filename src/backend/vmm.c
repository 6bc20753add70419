/*
 * Implements the vmm backend: VA ranges, handles and mappings. vmm.h has the overview.
 *
 * Callers of the VMM operations hold the pool's remap lock (source/backend.h has the exceptions).
 * grant_access() and vmm_touches() need no lock of their caller. vmm.lock protects mappings and
 * access; ranges_lock protects the address map of all VA ranges. Invariant: a handle is charged to
 * the device before cuMemCreate until after cuMemRelease, unless it is only a probe.
 */
#include "backend/vmm_support.h"

#include "driver/context/fault.h"
#include "driver/limit/charge.h"
#include "driver/limit/driver_pools.h"
#include "driver/state/address_map.h"
#include "driver/state/capture.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "heap/page_map.h"
#include "stats/stats.h"

#include <errno.h>
#include <stdatomic.h>

/* --- the VA ranges of all vmm backends --- */

struct vmm_range {
    uint64_t address, bytes;
    struct vmm_range *next; /* next range of the same backend; under vmm.lock */
    uint64_t mapped[];      /* a bit for each VMM page; under vmm.lock */
};

static struct address_map ranges;
static _Atomic size_t range_count; /* ranges.count, for readers without the lock */
static struct lock ranges_lock = LOCK_INITIALIZER(RANGES);

/* Returns the host memory of a struct vmm_range for `bytes` of addresses, in whole host pages. */
static size_t size_of_range(uint64_t bytes) {
    size_t words = (size_t)((bytes / PAGE_BYTES + 63) / 64);
    return (sizeof(struct vmm_range) + words * sizeof(uint64_t) + 4095) & ~(size_t)4095;
}

static bool list_range(struct vmm_range *range) {
    lock_acquire(&ranges_lock);
    bool listed = address_map_add(&ranges, range->address, range);
    atomic_store(&range_count, ranges.count);
    lock_release(&ranges_lock);
    return listed;
}

/* Removes a VA range from the address map. Call before cuMemAddressFree: after that call the driver
 * may hand out the addresses again. */
static void unlist_range(const struct vmm_range *range) {
    lock_acquire(&ranges_lock);
    address_map_remove(&ranges, address_map_find(&ranges, range->address, range));
    atomic_store(&range_count, ranges.count);
    lock_release(&ranges_lock);
}

bool vmm_touches(uint64_t address, uint64_t bytes) {
    if (atomic_load(&range_count) == 0 || bytes == 0)
        return false;
    lock_acquire(&ranges_lock);
    const struct vmm_range *range = address_map_before_end(&ranges, address, bytes);
    bool touched = range && range->address + range->bytes > address;
    lock_release(&ranges_lock);
    return touched;
}

/* Charges the mapped part of a failed map() that the driver did not unmap. free_leaked() unmaps it
 * later. If the table is full, the part stays mapped and charged. Call with vmm.lock. */
static void keep_leaked(struct vmm_backend *vmm, uint64_t address, uint64_t bytes) {
    device_charge_always(vmm->common.device, bytes);
    if (vmm->leaked_count < VMM_LEAKED_MOST)
        vmm->leaked[vmm->leaked_count++] = (struct vmm_leaked){address, bytes};
}

/* Tries once more to unmap the parts of failed map() calls. Call with vmm.lock. */
static void free_leaked(struct vmm_backend *vmm) {
    for (unsigned i = vmm->leaked_count; i-- > 0;) {
        const struct vmm_leaked leaked = vmm->leaked[i];
        if (REAL(cuMemUnmap)(leaked.address, leaked.bytes) == CUDA_SUCCESS) {
            vmm->leaked[i] = vmm->leaked[--vmm->leaked_count];
            device_refund(vmm->common.device, leaked.bytes);
        }
    }
}

static int reserve_addresses(struct backend *backend, uint64_t bytes, uint64_t *address) {
    struct vmm_backend *vmm = (struct vmm_backend *)backend;
    CUdeviceptr at = 0;
    struct vmm_range *range = host_map(size_of_range(bytes), 4096);
    if (!range)
        return -ENOMEM;
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuMemAddressReserve)(&at, bytes, PAGE_BYTES, 0, 0);
    range->address = at;
    range->bytes = bytes;
    /* Another pool may still have these addresses in the page map, if the library did not see the
     * end of that pool's context. This thread holds the remap lock, so it must not call
     * context_address_given(). It frees the addresses instead. */
    if (r == CUDA_SUCCESS && (page_map_any(at, bytes) || !list_range(range))) {
        REAL(cuMemAddressFree)(at, bytes);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture_restore(mode);
    if (r != CUDA_SUCCESS) {
        host_unmap(range, size_of_range(bytes));
        return fault_is_sticky(r) ? (int)r : -ENOMEM; /* other codes: no such range is free */
    }
    lock_acquire(&vmm->lock);
    range->next = vmm->ranges;
    vmm->ranges = range;
    lock_release(&vmm->lock);
    *address = at;
    return 0;
}

static void free_addresses(struct backend *backend, uint64_t address, uint64_t bytes) {
    struct vmm_backend *vmm = (struct vmm_backend *)backend;
    CUstreamCaptureMode mode = capture_relax();
    lock_acquire(&vmm->lock);
    struct vmm_range **at = &vmm->ranges, *range;
    while ((range = *at)->address != address)
        at = &range->next;
    *at = range->next;
    free_leaked(vmm);
    lock_release(&vmm->lock);
    unlist_range(range);
    host_unmap(range, size_of_range(bytes));
    REAL(cuMemAddressFree)(address, bytes);
    capture_restore(mode);
}

/* --- handles --- */

/*
 * Creates a handle (vmm_support.h). The caller holds the pool's remap lock, or is the only user of
 * `vmm`. Acquires the lock DRIVER_POOLS for a trim. Steps after a refusal:
 *
 *      1  refused, but not out of memory: perhaps only the use by the decompression engine is
 *         refused. Tries without that use, and makes all further handles without it.
 *      2  out of memory: trims the driver's own pools, and tries once more.
 */
CUresult vmm_create_handle(struct vmm_backend *vmm, uint64_t bytes, uint64_t *created) {
    CUmemGenericAllocationHandle handle = 0;
    CUresult r = REAL(cuMemCreate)(&handle, bytes, &vmm->prop, 0);
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_OUT_OF_MEMORY && !fault_is_sticky(r) &&
        vmm->prop.allocFlags.usage != 0) {
        vmm->prop.allocFlags.usage = 0;
        vmm->cannot_decompress = true;
        r = REAL(cuMemCreate)(&handle, bytes, &vmm->prop, 0);
    }
    if (r == CUDA_ERROR_OUT_OF_MEMORY && driver_pool_trim(vmm->common.device))
        r = REAL(cuMemCreate)(&handle, bytes, &vmm->prop, 0);
    *created = handle;
    return r;
}

unsigned vmm_release_handles(unsigned count, const uint64_t *handles) {
    unsigned gone = 0;
    for (unsigned i = 0; i < count; i++)
        gone += REAL(cuMemRelease)(handles[i]) == CUDA_SUCCESS;
    return gone;
}

/*
 * Refuses a growth by `count` VMM pages that cannot succeed, before handles are created one by one
 * (backend.h). If cuMemGetInfo reports less memory, tries one handle of all the bytes: the driver
 * may have more than it reports. Returns 0, -ENOMEM or -EDQUOT.
 */
static int probe_handles(struct backend *backend, unsigned count) {
    struct vmm_backend *vmm = (struct vmm_backend *)backend;
    struct device *device = vmm->common.device;
    uint64_t since = device_backend_begin(), bytes = count * PAGE_BYTES, handle;
    size_t reported, total;
    if (!device_allows(device, bytes)) {
        device_backend_show(&vmm->common, FLIGHT_LIMIT_REFUSED, 0, bytes, since);
        return -EDQUOT;
    }
    if (device_current() != device || REAL(cuMemGetInfo_v2)(&reported, &total) != CUDA_SUCCESS ||
        reported >= bytes)
        return 0;
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = vmm_create_handle(vmm, bytes, &handle);
    if (r == CUDA_SUCCESS && vmm_release_handles(1, &handle) == 0)
        device_charge_always(device, bytes);
    capture_restore(mode);
    return r == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : 0;
}

static int create_handles(struct backend *backend, unsigned count, unsigned length,
                          uint64_t *handles) {
    struct vmm_backend *vmm = (struct vmm_backend *)backend;
    uint64_t since = device_backend_begin(), each = length * PAGE_BYTES, all = count * each;
    if (!device_charge_or_trim(vmm->common.device, all)) {
        device_backend_show(&vmm->common, FLIGHT_LIMIT_REFUSED, 0, all, since);
        return -EDQUOT;
    }
    unsigned made = 0, kept = 0;
    CUresult r = CUDA_SUCCESS;
    CUstreamCaptureMode mode = capture_relax();
    while (made < count && (r = vmm_create_handle(vmm, each, &handles[made])) == CUDA_SUCCESS)
        made++;
    if (r != CUDA_SUCCESS)
        kept = made - vmm_release_handles(made, handles);
    capture_restore(mode);
    if (r != CUDA_SUCCESS) {
        (made > 0 ? device_refund : device_uncharge)(vmm->common.device, (count - kept) * each);
        device_backend_show(&vmm->common, FLIGHT_GROW_REFUSED, 0, all, since);
        return r == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : (int)r;
    }
    device_change_pooled(vmm->common.device, (int64_t)all);
    device_backend_show(&vmm->common, FLIGHT_GROW, 0, all, since);
    return 0;
}

/*
 * Releases handles. A handle that the driver does not take back, as after a fault, stays charged:
 * its memory still exists.
 */
static void release_handles(struct backend *backend, unsigned count, unsigned length,
                            const uint64_t *handles) {
    struct device_backend *own = &((struct vmm_backend *)backend)->common;
    uint64_t since = device_backend_begin(), each = length * PAGE_BYTES;
    CUstreamCaptureMode mode = capture_relax();
    unsigned gone = vmm_release_handles(count, handles);
    capture_restore(mode);
    device_backend_show(own, FLIGHT_GIVE_BACK, 0, gone * each, since);
    device_backend_count_return(own, gone * each);
}

/* --- mappings: vmm.lock protects them; map(), unmap(), grant_access() and start() take it --- */

static CUmemAccessDesc access_of(CUdevice device) {
    return (CUmemAccessDesc){
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
}

CUresult vmm_give_access(const struct vmm_backend *vmm, uint64_t address, uint64_t bytes) {
    CUmemAccessDesc accesses[STATS_MAX_DEVICES];
    CUdevice own = vmm->common.device->ordinal;
    size_t count = 0;
    for (CUdevice i = 0; i < STATS_MAX_DEVICES; i++)
        if (i == own || (vmm->peer_devices >> i & 1) != 0)
            accesses[count++] = access_of(i);
    return REAL(cuMemSetAccess)(address, bytes, accesses, count);
}

/* Changes the bits of mapped VMM pages. Call with vmm.lock, which protects the bits, and the remap
 * lock. The remap lock keeps the VA range from being freed after ranges_lock is released. */
static void set_mapped(uint64_t address, unsigned count, bool mapped) {
    lock_acquire(&ranges_lock);
    struct vmm_range *range = address_map_before(&ranges, address);
    lock_release(&ranges_lock);
    uint64_t first = (address - range->address) / PAGE_BYTES;
    for (uint64_t i = first; i < first + count; i++) {
        uint64_t bit = (uint64_t)1 << i % 64;
        range->mapped[i / 64] = mapped ? range->mapped[i / 64] | bit : range->mapped[i / 64] & ~bit;
    }
}

static int map(struct backend *backend, uint64_t address, unsigned count, unsigned length,
               const uint64_t *handles) {
    struct vmm_backend *vmm = (struct vmm_backend *)backend;
    uint64_t each = length * PAGE_BYTES;
    unsigned done = 0;
    CUresult r = CUDA_SUCCESS;
    CUstreamCaptureMode mode = capture_relax();
    lock_acquire(&vmm->lock);
    free_leaked(vmm);
    while (done < count &&
           (r = REAL(cuMemMap)(address + done * each, each, 0, handles[done], 0)) == CUDA_SUCCESS)
        done++;
    r = r == CUDA_SUCCESS ? vmm_give_access(vmm, address, count * each) : r;
    if (r == CUDA_SUCCESS)
        set_mapped(address, count * length, true);
    else if (done > 0 && REAL(cuMemUnmap)(address, done * each) != CUDA_SUCCESS)
        keep_leaked(vmm, address, done * each);
    lock_release(&vmm->lock);
    if (r == CUDA_SUCCESS && trace_on())
        trace_map((unsigned)vmm->common.device->ordinal, (uintptr_t)vmm, address, count * length);
    capture_restore(mode);
    return r == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : device_backend_answer(r);
}

/*
 * Records in the trace that a mapping becomes stale, as if it were unmapped; `back`: that it is
 * valid again. A trace shows memory at one address: a handle that is mapped twice counts at the new
 * address.
 */
static void mark_stale(struct backend *backend, uint64_t address, unsigned count, bool back) {
    struct vmm_backend *vmm = (struct vmm_backend *)backend;
    unsigned device = (unsigned)vmm->common.device->ordinal;
    if (trace_on() && back)
        trace_map(device, (uintptr_t)vmm, address, count);
    else if (trace_on())
        trace_unmap(device, (uintptr_t)vmm, address, count, trace_clock());
}

static int unmap(struct backend *backend, uint64_t address, unsigned count, bool stale) {
    struct vmm_backend *vmm = (struct vmm_backend *)backend;
    uint64_t since = trace_on() && !stale ? trace_clock() : 0;
    CUstreamCaptureMode mode = capture_relax();
    lock_acquire(&vmm->lock);
    free_leaked(vmm);
    CUresult r = REAL(cuMemUnmap)(address, count * PAGE_BYTES);
    if (r == CUDA_SUCCESS)
        set_mapped(address, count, false);
    lock_release(&vmm->lock);
    if (r == CUDA_SUCCESS && since)
        trace_unmap((unsigned)vmm->common.device->ordinal, (uintptr_t)vmm, address, count, since);
    capture_restore(mode);
    return device_backend_answer(r);
}

/* Gives a device access to all mapped pages of a VA range, one call for each run of them. */
static CUresult grant_range_access(const struct vmm_range *range, const CUmemAccessDesc *access) {
    uint64_t count = range->bytes / PAGE_BYTES, from = 0;
    CUresult r = CUDA_SUCCESS;
    while (r == CUDA_SUCCESS && from < count) {
        uint64_t to = from;
        while (to < count && (range->mapped[to / 64] >> to % 64 & 1) != 0)
            to++;
        if (to > from) {
            r = REAL(cuMemSetAccess)(range->address + from * PAGE_BYTES, (to - from) * PAGE_BYTES,
                                     access, 1);
        }
        from = to + 1;
    }
    return r;
}

static CUresult grant_access(struct device_backend *own, CUdevice device) {
    struct vmm_backend *vmm = (struct vmm_backend *)own;
    uint64_t bit = device_bit(device);
    CUmemAccessDesc access = access_of(device);
    CUresult r = CUDA_SUCCESS;
    CUstreamCaptureMode mode = capture_relax();
    lock_acquire(&vmm->lock);
    if (device != vmm->common.device->ordinal && (vmm->peer_devices & bit) == 0) {
        for (struct vmm_range *range = vmm->ranges; range && r == CUDA_SUCCESS; range = range->next)
            r = grant_range_access(range, &access);
        vmm->peer_devices |= r == CUDA_SUCCESS ? bit : 0;
    }
    lock_release(&vmm->lock);
    capture_restore(mode);
    return r;
}

static const struct backend_ops ops = {
    .name = "pages",
    .reserve_addresses = reserve_addresses,
    .free_addresses = free_addresses,
    .probe_handles = probe_handles,
    .create_handles = create_handles,
    .release_handles = release_handles,
    .map = map,
    .mark_stale = mark_stale,
    .unmap = unmap,
    DEVICE_BACKEND_OPS,
};

static int start(struct device_backend *own, CUcontext context, struct device *device,
                 uint64_t peer_devices) {
    struct vmm_backend *vmm = (struct vmm_backend *)own;
    if (!vmm->started) {
        lock_start(&vmm->lock, LOCK_VMM);
        vmm->prop = vmm_prop_of(device);
        vmm->started = true;
    }
    lock_acquire(&vmm->lock); /* grant_access() of a context that has ended may still run */
    vmm->peer_devices = peer_devices;
    lock_release(&vmm->lock);
    return device_backend_start(&vmm->common, &ops, context, device);
}

const struct backend_kind vmm_kind = {
    .bytes = sizeof(struct vmm_backend),
    .start = start,
    .grant_access = grant_access,
    .unavailable = vmm_unavailable,
    .not_exportable = vmm_not_exportable,
};
