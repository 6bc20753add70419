#include "backend/pages.h"

#include "driver/capture.h"
#include "driver/device.h"
#include "driver/entries.h"
#include "driver/fault.h"
#include "driver/mempool.h"
#include "driver/spans.h"
#include "memory/host.h"
#include "pool/pool.h"
#include "stats/stats.h"

#include <errno.h>
#include <stdatomic.h>

#define PAGE ((uint64_t)2 << 20)

/* Before that, pages that can be exported were slow (drivers of CUDA 12.0). */
#define EXPORTS_WELL_SINCE 12020

/* --- the ranges of addresses of all such backends --- */

struct pages_range {
    uint64_t address, bytes;
    struct pages_range *next; /* of its backend; under that one's lock, as the bits are */
    uint64_t mapped[];        /* a bit for each page */
};

static struct spans ranges;
static _Atomic size_t range_count;
static struct lock ranges_lock = LOCK_INITIALIZER(RANGES);

static size_t size_of_range(uint64_t bytes) {
    size_t words = (size_t)((bytes / PAGE + 63) / 64);
    return (sizeof(struct pages_range) + words * sizeof(uint64_t) + 4095) & ~(size_t)4095;
}

static bool list(struct pages_range *range) {
    lock_acquire(&ranges_lock);
    bool listed = spans_add(&ranges, range->address, range);
    atomic_store(&range_count, ranges.count);
    lock_release(&ranges_lock);
    return listed;
}

/* Before the driver can give its addresses to somebody else. */
static void strike(const struct pages_range *range) {
    lock_acquire(&ranges_lock);
    spans_remove(&ranges, spans_find(&ranges, range->address, range));
    atomic_store(&range_count, ranges.count);
    lock_release(&ranges_lock);
}

bool pages_touch(uint64_t address, uint64_t bytes) {
    if (atomic_load(&range_count) == 0 || bytes == 0) {
        return false;
    }
    uint64_t last = bytes - 1 > UINT64_MAX - address ? UINT64_MAX : address + bytes - 1;
    lock_acquire(&ranges_lock);
    const struct pages_range *range = spans_before(&ranges, last);
    bool touched = range && range->address + range->bytes > address;
    lock_release(&ranges_lock);
    return touched;
}

static struct pages *of(struct backend *backend) {
    return (struct pages *)backend;
}

/* What the pool makes of a refusal to give or to map. */
static int refusal(CUresult r) {
    return r == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : device_backend_answer(r);
}

/* Charges a mapping that failed half way and that the driver would not unmap. It is unmapped before
 * the next mapping. One that finds the table full stays mapped and charged. */
static void keep_stuck(struct pages *pages, uint64_t address, uint64_t bytes) {
    device_owe(pages->common.device, bytes);
    if (pages->stuck_count < PAGES_STUCK_MOST) {
        pages->stuck[pages->stuck_count++] = (struct pages_stuck){address, bytes};
    }
}

/* Asks the driver for it once more. */
static void free_stuck(struct pages *pages) {
    for (unsigned i = pages->stuck_count; i-- > 0;) {
        const struct pages_stuck stuck = pages->stuck[i];
        if (REAL(cuMemUnmap)(stuck.address, stuck.bytes) == CUDA_SUCCESS) {
            pages->stuck[i] = pages->stuck[--pages->stuck_count];
            device_refund(pages->common.device, stuck.bytes);
        }
    }
}

static int reserve_addresses(struct backend *backend, uint64_t bytes, uint64_t *address) {
    struct pages *pages = of(backend);
    CUdeviceptr at = 0;
    struct pages_range *range = host_map(size_of_range(bytes), 4096);
    if (!range) {
        return -ENOMEM;
    }
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuMemAddressReserve)(&at, bytes, PAGE, 0, 0);
    range->address = at;
    range->bytes = bytes;
    /* Where a context has ended unseen, its pool may count them as its own still. It cannot be forgotten
     * here, as context_address_given() would: the pool's lock over its mappings is held. */
    if (r == CUDA_SUCCESS && (pool_touches(at, bytes) || !list(range))) {
        REAL(cuMemAddressFree)(at, bytes);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture_restore(mode);
    if (r != CUDA_SUCCESS) {
        host_unmap(range, size_of_range(bytes));
        return fault_is_deadly(r) ? (int)r : -ENOMEM; /* whatever it calls that */
    }
    lock_acquire(&pages->lock);
    range->next = pages->ranges;
    pages->ranges = range;
    lock_release(&pages->lock);
    *address = at;
    return 0;
}

static void free_addresses(struct backend *backend, uint64_t address, uint64_t bytes) {
    struct pages *pages = of(backend);
    lock_acquire(&pages->lock);
    struct pages_range **at = &pages->ranges, *range;
    while ((range = *at) != NULL && range->address != address) {
        at = &range->next;
    }
    if (range) {
        *at = range->next;
    }
    lock_release(&pages->lock);
    if (!range) {
        return;
    }
    strike(range);
    host_unmap(range, size_of_range(bytes));
    CUstreamCaptureMode mode = capture_relax();
    lock_acquire(&pages->lock);
    free_stuck(pages);
    lock_release(&pages->lock);
    REAL(cuMemAddressFree)(address, bytes);
    capture_restore(mode);
}

/* --- pages --- */

/* Memory for the decompression engine may be short of what it needs where other memory is not. */
static CUresult create(struct pages *pages, uint64_t bytes, uint64_t *page) {
    CUmemGenericAllocationHandle handle = 0;
    CUresult r = REAL(cuMemCreate)(&handle, bytes, &pages->prop, 0);
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_OUT_OF_MEMORY && !fault_is_deadly(r) &&
        pages->prop.allocFlags.usage != 0) {
        pages->prop.allocFlags.usage = 0;
        pages->cannot_decompress = true;
        r = REAL(cuMemCreate)(&handle, bytes, &pages->prop, 0);
    }
    if (r == CUDA_ERROR_OUT_OF_MEMORY && mempool_trim(pages->common.device)) {
        r = REAL(cuMemCreate)(&handle, bytes, &pages->prop, 0);
    }
    *page = handle;
    return r;
}

/* How many the driver has taken. */
static unsigned let_go(unsigned count, const uint64_t *handles) {
    unsigned gone = 0;
    for (unsigned i = 0; i < count; i++) {
        gone += REAL(cuMemRelease)(handles[i]) == CUDA_SUCCESS;
    }
    return gone;
}

/* Where it counts fewer as free the driver is asked for all in one piece: it may have more than it counts. */
static int probe_handles(struct backend *backend, unsigned count) {
    struct pages *pages = of(backend);
    struct device *device = pages->common.device;
    uint64_t since = device_backend_begin(), bytes = count * PAGE, handle;
    size_t there, total;
    if (!device_allows(device, bytes)) {
        device_backend_show(&pages->common, FLIGHT_LIMIT_REFUSED, 0, bytes, since);
        return -EDQUOT;
    }
    if (device_current() != device || REAL(cuMemGetInfo_v2)(&there, &total) != CUDA_SUCCESS ||
        there >= bytes) {
        return 0;
    }
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = create(pages, bytes, &handle);
    if (r == CUDA_SUCCESS && let_go(1, &handle) == 0) {
        device_owe(device, bytes);
    }
    capture_restore(mode);
    return r == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : 0;
}

static int create_handles(struct backend *backend, unsigned count, unsigned length,
                          uint64_t *handles) {
    struct pages *pages = of(backend);
    uint64_t since = device_backend_begin(), each = length * PAGE, all = count * each;
    if (!device_charge(pages->common.device, all)) {
        device_backend_show(&pages->common, FLIGHT_LIMIT_REFUSED, 0, all, since);
        return -EDQUOT;
    }
    unsigned made = 0, kept = 0;
    CUresult r = CUDA_SUCCESS;
    CUstreamCaptureMode mode = capture_relax();
    while (made < count && (r = create(pages, each, &handles[made])) == CUDA_SUCCESS) {
        made++;
    }
    if (r != CUDA_SUCCESS) {
        kept = made - let_go(made, handles);
    }
    capture_restore(mode);
    if (r != CUDA_SUCCESS) {
        (made > 0 ? device_refund : device_uncharge)(pages->common.device, (count - kept) * each);
        device_backend_show(&pages->common, FLIGHT_GROW_REFUSED, 0, all, since);
        return r == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : (int)r;
    }
    device_pooled(pages->common.device, (int64_t)all);
    device_backend_show(&pages->common, FLIGHT_GROW, 0, all, since);
    return 0;
}

/* What the driver does not take back, as after a fault, stays charged: it is there still. */
static void release_handles(struct backend *backend, unsigned count, unsigned length,
                            const uint64_t *handles) {
    uint64_t since = device_backend_begin(), each = length * PAGE;
    CUstreamCaptureMode mode = capture_relax();
    unsigned gone = let_go(count, handles);
    capture_restore(mode);
    device_backend_show(&of(backend)->common, FLIGHT_GIVE_BACK, 0, gone * each, since);
    device_backend_count_return(&of(backend)->common, gone * each);
}

/* --- mappings; the backend's lock is held --- */

static CUmemAccessDesc access_of(CUdevice device) {
    return (CUmemAccessDesc){
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
}

static CUresult give_access(const struct pages *pages, uint64_t address, uint64_t bytes) {
    CUmemAccessDesc who[STATS_MAX_DEVICES];
    CUdevice own = pages->common.device->ordinal;
    size_t count = 0;
    for (CUdevice i = 0; i < STATS_MAX_DEVICES; i++) {
        if (i == own || (pages->reached_by >> i & 1) != 0) {
            who[count++] = access_of(i);
        }
    }
    return REAL(cuMemSetAccess)(address, bytes, who, count);
}

static struct pages_range *range_around(uint64_t address) {
    lock_acquire(&ranges_lock);
    struct pages_range *range = spans_before(&ranges, address);
    lock_release(&ranges_lock);
    return range;
}

static bool is_mapped(const struct pages_range *range, uint64_t page) {
    return (range->mapped[page / 64] >> page % 64 & 1) != 0;
}

static void note(uint64_t address, unsigned count, bool mapped) {
    struct pages_range *range = range_around(address);
    uint64_t first = (address - range->address) / PAGE;
    for (uint64_t i = first; i < first + count; i++) {
        uint64_t bit = (uint64_t)1 << i % 64;
        range->mapped[i / 64] = mapped ? range->mapped[i / 64] | bit : range->mapped[i / 64] & ~bit;
    }
}

static int map(struct backend *backend, uint64_t address, unsigned count, unsigned length,
               const uint64_t *handles) {
    struct pages *pages = of(backend);
    uint64_t each = length * PAGE;
    unsigned done = 0;
    CUresult r = CUDA_SUCCESS;
    CUstreamCaptureMode mode = capture_relax();
    lock_acquire(&pages->lock);
    free_stuck(pages);
    while (done < count &&
           (r = REAL(cuMemMap)(address + done * each, each, 0, handles[done], 0)) == CUDA_SUCCESS) {
        done++;
    }
    r = r == CUDA_SUCCESS ? give_access(pages, address, count * each) : r;
    if (r == CUDA_SUCCESS) {
        note(address, count * length, true);
    } else if (done > 0 && REAL(cuMemUnmap)(address, done * each) != CUDA_SUCCESS) {
        keep_stuck(pages, address, done * each);
    }
    lock_release(&pages->lock);
    if (r == CUDA_SUCCESS && trace_on()) {
        trace_map((unsigned)pages->common.device->ordinal, (uintptr_t)pages, address,
                  count * length);
    }
    capture_restore(mode);
    return refusal(r);
}

/* To a trace memory lies at one address: what is mapped at two for a while has left the first. */
static void mark_stale(struct backend *backend, uint64_t address, unsigned count, bool back) {
    struct pages *pages = of(backend);
    unsigned device = (unsigned)pages->common.device->ordinal;
    if (trace_on() && back) {
        trace_map(device, (uintptr_t)pages, address, count);
    } else if (trace_on()) {
        trace_unmap(device, (uintptr_t)pages, address, count, trace_clock());
    }
}

static int unmap(struct backend *backend, uint64_t address, unsigned count, bool left) {
    struct pages *pages = of(backend);
    uint64_t begun = trace_on() && !left ? trace_clock() : 0;
    CUstreamCaptureMode mode = capture_relax();
    lock_acquire(&pages->lock);
    free_stuck(pages);
    CUresult r = REAL(cuMemUnmap)(address, count * PAGE);
    if (r == CUDA_SUCCESS) {
        note(address, count, false);
    }
    lock_release(&pages->lock);
    if (r == CUDA_SUCCESS && begun) {
        trace_unmap((unsigned)pages->common.device->ordinal, (uintptr_t)pages, address, count,
                    begun);
    }
    capture_restore(mode);
    return device_backend_answer(r);
}

/* One call for what lies side by side. */
static CUresult let_reach_range(const struct pages_range *range, const CUmemAccessDesc *who) {
    uint64_t count = range->bytes / PAGE, from = 0;
    CUresult r = CUDA_SUCCESS;
    while (r == CUDA_SUCCESS && from < count) {
        uint64_t to = from;
        while (to < count && is_mapped(range, to)) {
            to++;
        }
        if (to > from) {
            r = REAL(cuMemSetAccess)(range->address + from * PAGE, (to - from) * PAGE, who, 1);
        }
        from = to + 1;
    }
    return r;
}

CUresult pages_let_reach(struct pages *pages, CUdevice device) {
    uint64_t bit = device_bit(device);
    CUmemAccessDesc who = access_of(device);
    CUresult r = CUDA_SUCCESS;
    CUstreamCaptureMode mode = capture_relax();
    lock_acquire(&pages->lock);
    if (device != pages->common.device->ordinal && (pages->reached_by & bit) == 0) {
        for (struct pages_range *range = pages->ranges; range && r == CUDA_SUCCESS;
             range = range->next) {
            r = let_reach_range(range, &who);
        }
        pages->reached_by |= r == CUDA_SUCCESS ? bit : 0;
    }
    lock_release(&pages->lock);
    capture_restore(mode);
    return r;
}

static int returned(struct backend *backend) {
    (void)backend;
    return 0;
}

static const struct backend_ops ops = {
    .name = "pages",
    .returned = returned,
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

/* --- what a device can --- */

static bool can(const struct device *device, CUdevice_attribute attribute) {
    int value = 0;
    return REAL(cuDeviceGetAttribute)(&value, attribute, device->ordinal) == CUDA_SUCCESS && value;
}

static CUmemAllocationProp prop_of(const struct device *device) {
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
    };
    int version = 0;
    REAL(cuDriverGetVersion)(&version);
    if (version >= EXPORTS_WELL_SINCE &&
        can(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    prop.allocFlags.gpuDirectRDMACapable =
        can(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    if (can(device, CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK)) {
        prop.allocFlags.usage = CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
    }
    return prop;
}

static bool has_api(void) {
    return HAS(cuMemAddressReserve) && HAS(cuMemAddressFree) && HAS(cuMemCreate) &&
           HAS(cuMemRelease) && HAS(cuMemMap) && HAS(cuMemUnmap) && HAS(cuMemSetAccess) &&
           HAS(cuMemGetAllocationGranularity);
}

/* A device that is full is none that cannot. */
static const char *try_one(struct pages *pages, CUdeviceptr at) {
    uint64_t page;
    CUresult r = create(pages, PAGE, &page);
    if (r != CUDA_SUCCESS) {
        return r == CUDA_ERROR_OUT_OF_MEMORY ? NULL : "the driver refuses to create pages";
    }
    bool mapped = REAL(cuMemMap)(at, PAGE, 0, page, 0) == CUDA_SUCCESS;
    bool usable = mapped && give_access(pages, at, PAGE) == CUDA_SUCCESS;
    bool kept = mapped && REAL(cuMemUnmap)(at, PAGE) != CUDA_SUCCESS;
    if (let_go(1, &page) == 0 || kept) {
        device_owe(pages->common.device, PAGE);
    }
    return usable ? NULL : "the driver refuses to map pages";
}

/* Copies from any device to any other go without peer access natively. Of pages they do only where it could be
 * given, as it then is (driver/fault.c). */
static bool all_can_reach(const struct device *device) {
    int count = 0;
    REAL(cuDeviceGetCount)(&count);
    int can_all = count <= STATS_MAX_DEVICES; /* a set of devices holds no more (device_bit) */
    for (CUdevice i = 0; i < count && can_all; i++) {
        if (i != device->ordinal &&
            REAL(cuDeviceCanAccessPeer)(&can_all, i, device->ordinal) != CUDA_SUCCESS) {
            can_all = 0;
        }
    }
    return can_all;
}

const char *pages_lacking(struct device *device) {
    struct pages trial = {.common.device = device};
    size_t unit = 0;
    if (!has_api()) {
        return "the driver has no virtual memory API";
    }
    if (!can(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)) {
        return "the device has no virtual memory management";
    }
    if (!all_can_reach(device)) {
        return "another device could not reach its pages";
    }
    trial.prop = prop_of(device);
    if (REAL(cuMemGetAllocationGranularity)(&unit, &trial.prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) !=
            CUDA_SUCCESS ||
        unit == 0 || PAGE % unit != 0) {
        return "the driver has no pages of 2 MiB";
    }
    CUdeviceptr at = 0;
    size_t bytes = (device->total + PAGE - 1) / PAGE * PAGE;
    CUstreamCaptureMode mode = capture_relax();
    const char *reason = "the driver refuses to reserve addresses";
    if (REAL(cuMemAddressReserve)(&at, bytes, PAGE, 0, 0) == CUDA_SUCCESS) {
        reason = try_one(&trial, at);
        REAL(cuMemAddressFree)(at, bytes);
    }
    capture_restore(mode);
    return reason;
}

const char *pages_unshared(const struct device *device) {
    return prop_of(device).requestedHandleTypes ? NULL : "the driver makes no IPC handles of pages";
}

int pages_start(struct pages *pages, CUcontext context, struct device *device,
                uint64_t reached_by) {
    if (!pages->begun) {
        lock_start(&pages->lock, LOCK_PAGES);
        pages->prop = prop_of(device);
        pages->begun = true;
    }
    pages->reached_by = reached_by;
    return device_backend_start(&pages->common, &ops, context, device);
}
