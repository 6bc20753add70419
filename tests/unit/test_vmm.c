/*
 * The vmm backend over a driver that keeps addresses, handles and mappings in tables, and refuses a
 * call when a test says so: what is created and released, which devices have access, and what
 * remains when a call fails half way.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "backend/vmm.h"
#include "driver/context/active_contexts.h"
#include "driver/context/context.h"
#include "driver/context/decay.h"
#include "driver/context/device_pool.h"
#include "driver/context/fault.h"
#include "driver/limit/charge.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/wait_by_free.h"
#include "driver/reuse/deferred.h"
#include "driver/state/capture.h"
#include "driver/state/device.h"
#include "stats/stats.h"

#include <errno.h>
#include <string.h>

/* Statistics: no test reads them. */
int stats_device_count(void) {
    return 0;
}
bool stats_read(int ordinal, struct stats_device *out, struct segment_map *map) {
    (void)map;
    (void)ordinal, (void)out;
    return false;
}
uint64_t stats_host_bytes(void) {
    return 0;
}

bool stats_read_counters(int ordinal, struct stats_device *out) {
    return stats_read(ordinal, out, NULL);
}

#define PAGE ((uint64_t)2 << 20)
#define SLOTS 4096 /* VMM pages of the addresses that the driver reserves, from BASE on */
#define BASE ((CUdeviceptr)1 << 40)

/* ---- the driver ---- */

static struct slot {
    uint64_t handle; /* its handle; 0: nothing is mapped */
    uint64_t access;
} slots[SLOTS];

static struct reservation {
    CUdeviceptr address;
    size_t bytes;
} reservations[16];

static CUdeviceptr next_address;
static uint64_t last_handle;
static unsigned handle_count, mappings, set_access_calls, creates;
static CUmemAllocationProp last_prop;
static int attributes[256];
static int version, devices, unreachable;
static size_t granularity;
static size_t reported_free, has; /* bytes */
static unsigned relaxed; /* the calling thread is in relaxed capture mode, as every call requires */

/* The driver refuses the `left`-th call of a kind, counted from now on, with `code`. */
static struct refusal {
    unsigned left;
    CUresult code;
} refuse_create, refuse_map, refuse_access, refuse_reserve, refuse_release, refuse_unmap;

static bool refuses_all_unmaps;

static bool refuses(struct refusal *refusal) {
    assert_true(relaxed > 0);
    return refusal->left > 0 && --refusal->left == 0;
}

struct real_entries real_entries;
_Atomic unsigned capture_active;

CUresult CUDAAPI entry_absent(void) {
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
    static CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUstreamCaptureMode before = now;
    now = *mode;
    *mode = before;
    relaxed = now == CU_STREAM_CAPTURE_MODE_RELAXED;
    return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                        unsigned long long flags) {
    assert_true(bytes % PAGE == 0 && alignment == PAGE && hint == 0 && flags == 0);
    if (refuses(&refuse_reserve))
        return refuse_reserve.code;
    for (unsigned i = 0; i < 16; i++) {
        if (reservations[i].bytes == 0) {
            *address = next_address;
            next_address += bytes + PAGE; /* never adjacent */
            reservations[i] = (struct reservation){*address, bytes};
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static struct slot *slot_of(CUdeviceptr address) {
    assert_true(address >= BASE && address < BASE + SLOTS * PAGE && address % PAGE == 0);
    return &slots[(address - BASE) / PAGE];
}

static CUresult free_addresses(CUdeviceptr address, size_t bytes) {
    for (unsigned i = 0; i < 16; i++) {
        if (reservations[i].address == address && reservations[i].bytes == bytes) {
            for (size_t at = 0; at < bytes && address + at < BASE + SLOTS * PAGE; at += PAGE)
                assert_int_equal(slot_of(address + at)->handle, 0);
            reservations[i] = (struct reservation){0};
            return CUDA_SUCCESS;
        }
    }
    fail_msg("no such reservation");
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t bytes,
                       const CUmemAllocationProp *prop, unsigned long long flags) {
    assert_true(bytes % PAGE == 0 && bytes > 0 && flags == 0);
    creates++;
    last_prop = *prop;
    if (refuses(&refuse_create))
        return refuse_create.code;
    if (bytes > has)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *handle = ++last_handle;
    handle_count++;
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle) {
    assert_in_range(handle, 1, last_handle);
    if (refuses(&refuse_release))
        return refuse_release.code;
    handle_count--;
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr address, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
    assert_true(bytes == PAGE && offset == 0 && flags == 0);
    if (refuses(&refuse_map))
        return refuse_map.code;
    assert_int_equal(slot_of(address)->handle, 0);
    *slot_of(address) = (struct slot){handle, 0};
    mappings++;
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr address, size_t bytes) {
    if (refuses(&refuse_unmap) || refuses_all_unmaps)
        return CUDA_ERROR_UNKNOWN;
    for (size_t at = 0; at < bytes; at += PAGE) {
        assert_int_not_equal(slot_of(address + at)->handle, 0);
        *slot_of(address + at) = (struct slot){0};
        mappings--;
    }
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *accesses,
                           size_t count) {
    set_access_calls++;
    if (refuses(&refuse_access))
        return refuse_access.code;
    assert_true(bytes > 0 && count > 0);
    for (size_t at = 0; at < bytes; at += PAGE) {
        assert_int_not_equal(slot_of(address + at)->handle, 0); /* every page is mapped */
        for (size_t i = 0; i < count; i++) {
            assert_int_equal(accesses[i].location.type, CU_MEM_LOCATION_TYPE_DEVICE);
            assert_int_equal(accesses[i].flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
            slot_of(address + at)->access |= (uint64_t)1 << accesses[i].location.id;
        }
    }
    return CUDA_SUCCESS;
}

static CUresult say_granularity(size_t *bytes, const CUmemAllocationProp *prop,
                                CUmemAllocationGranularity_flags option) {
    (void)prop, (void)option;
    *bytes = granularity;
    return CUDA_SUCCESS;
}

static CUresult say_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    (void)device;
    *value = attributes[attribute];
    return CUDA_SUCCESS;
}

static CUresult say_version(int *value) {
    *value = version;
    return CUDA_SUCCESS;
}

static CUresult say_count(int *count) {
    *count = devices;
    return CUDA_SUCCESS;
}

static CUresult say_peer(int *can, CUdevice from, CUdevice to) {
    assert_true(from != to && to == 1);
    *can = from != unreachable;
    return CUDA_SUCCESS;
}

static CUresult create_event(CUevent *event, unsigned flags) {
    (void)flags;
    *event = (CUevent)1;
    return CUDA_SUCCESS;
}

static CUresult get_info(size_t *free_bytes, size_t *total) {
    *free_bytes = reported_free;
    *total = SLOTS * PAGE;
    return CUDA_SUCCESS;
}

/* ---- the rest of the library ---- */

static struct device device;
static uint64_t limit;

struct device *device_current(void) {
    return &device;
}

bool device_charge_once(struct device *where, uint64_t bytes) {
    if (atomic_load(&where->charged) + bytes > limit)
        return false;
    atomic_fetch_add(&where->charged, bytes);
    return true;
}

static unsigned trims; /* how many calls of driver_pool_trim() return memory */

bool driver_pool_trim(const struct device *where) {
    (void)where;
    return trims > 0 && trims--;
}

bool device_charge_or_trim(struct device *where, uint64_t bytes) {
    return device_charge_once(where, bytes);
}

bool device_allows(struct device *where, uint64_t bytes) {
    return atomic_load(&where->charged) + bytes <= limit;
}

void device_refund(struct device *where, uint64_t bytes) {
    assert_true(atomic_load(&where->charged) >= bytes);
    atomic_fetch_sub(&where->charged, bytes);
}

void device_uncharge(struct device *where, uint64_t bytes) {
    assert_true(atomic_load(&where->charged) >= bytes);
    atomic_fetch_sub(&where->charged, bytes);
}

void device_charge_always(struct device *where, uint64_t bytes) {
    atomic_fetch_add(&where->charged, bytes);
}

uint64_t device_wait_for_in_flight(struct device *where) {
    (void)where;
    return 0;
}

void device_change_pooled(struct device *where, int64_t change) {
    atomic_fetch_add(&where->pooled, (uint64_t)change);
}

uint64_t device_visible_total(const struct device *where) {
    return where->total;
}

uint64_t device_idle_bytes(const struct device *where, const struct device_backend *but) {
    (void)where, (void)but;
    return 0;
}

uint64_t device_available(struct device *where) {
    (void)where;
    return 0;
}

bool device_release_others(struct device *where, const struct device_backend *but, uint64_t bytes,
                           bool wait) {
    (void)where, (void)but, (void)bytes, (void)wait;
    return false;
}

bool capture_hold_off(void) {
    return true;
}

void capture_let_go(void) {}

_Atomic unsigned context_alive = 1;

bool active_contexts_is_only(CUcontext context) {
    (void)context;
    return true;
}

void decay_wake(void) {}

uint64_t device_deferred_bytes(const struct device *where) {
    (void)where;
    return 0;
}

bool device_pool_wait_for_events_in_free(struct device *where) {
    (void)where;
    return false;
}

bool deferred_reclaim(CUcontext context, bool all) {
    (void)context, (void)all;
    return false;
}

bool fault_is_sticky(CUresult code) {
    return code == CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* ---- each test ---- */

static struct vmm_backend vmm;
static struct backend *const backend = &vmm.common.backend;

static int start(void **state) {
    (void)state;
    memset(slots, 0, sizeof slots);
    memset(reservations, 0, sizeof reservations);
    memset(attributes, 0, sizeof attributes);
    refuse_create = refuse_map = refuse_access = refuse_reserve = refuse_release = refuse_unmap =
        (struct refusal){0};
    refuses_all_unmaps = false;
    next_address = BASE;
    last_handle = 0;
    handle_count = mappings = set_access_calls = creates = 0;
    version = 13000;
    devices = 4;
    unreachable = -1;
    granularity = PAGE;
    reported_free = 0;
    has = SIZE_MAX;
    limit = UINT64_MAX / 2;
    attributes[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 1;
    real_entries = (struct real_entries){
        .real_cuThreadExchangeStreamCaptureMode = exchange_mode,
        .real_cuMemAddressReserve = reserve,
        .real_cuMemAddressFree = free_addresses,
        .real_cuMemCreate = create,
        .real_cuMemGetInfo_v2 = get_info,
        .real_cuMemRelease = release,
        .real_cuMemMap = map,
        .real_cuMemUnmap = unmap,
        .real_cuMemSetAccess = set_access,
        .real_cuMemGetAllocationGranularity = say_granularity,
        .real_cuDeviceGetAttribute = say_attribute,
        .real_cuDriverGetVersion = say_version,
        .real_cuDeviceGetCount = say_count,
        .real_cuDeviceCanAccessPeer = say_peer,
        .real_cuEventCreate = create_event,
    };
    memset(&device, 0, sizeof device);
    device.ordinal = 1;
    device.total = 64 * PAGE;
    memset(&vmm, 0, sizeof vmm);
    return vmm_kind.start(&vmm.common, (CUcontext)1, &device, 0);
}

/* Checks that the test has released everything. */
static int stop(void **state) {
    (void)state;
    bool left = false;
    for (unsigned i = 0; i < 16; i++)
        left |= reservations[i].bytes != 0;
    return !left && handle_count == 0 && mappings == 0 && atomic_load(&device.charged) == 0 &&
                   atomic_load(&device.pooled) == 0 && !vmm_touches(0, UINT64_MAX)
               ? 0
               : -1;
}

static uint64_t reserve_addresses(unsigned count) {
    uint64_t address = 0;
    assert_int_equal(backend->ops->reserve_addresses(backend, count * PAGE, &address), 0);
    return address;
}

static void take(unsigned count, uint64_t *handles) {
    assert_int_equal(backend->ops->create_handles(backend, count, 1, handles), 0);
}

static uint64_t access_at(uint64_t address) {
    return slot_of(address)->access;
}

static void a_handle_is_charged_and_refunded(void **state) {
    (void)state;
    uint64_t handles[3];
    take(3, handles);
    assert_int_equal(atomic_load(&device.charged), 3 * PAGE);
    assert_int_equal(atomic_load(&device.pooled), 3 * PAGE);
    backend->ops->release_handles(backend, 2, 1, handles);
    assert_int_equal(atomic_load(&device.charged), PAGE);
    assert_int_equal(atomic_load(&device.pooled), PAGE);
    backend->ops->release_handles(backend, 1, 1, handles + 2);
}

static void all_handles_or_none(void **state) {
    (void)state;
    uint64_t handles[5];
    refuse_create = (struct refusal){4, CUDA_ERROR_OUT_OF_MEMORY};
    assert_int_equal(backend->ops->create_handles(backend, 5, 1, handles), -ENOMEM);
    assert_int_equal(handle_count, 0);
    trims = 1; /* the creation is repeated once after a trim */
    refuse_create = (struct refusal){4, CUDA_ERROR_OUT_OF_MEMORY};
    assert_int_equal(backend->ops->create_handles(backend, 5, 1, handles), 0);
    assert_int_equal(trims, 0);
    backend->ops->release_handles(backend, 5, 1, handles);
    refuse_create = (struct refusal){1, CUDA_ERROR_NOT_PERMITTED};
    assert_int_equal(backend->ops->create_handles(backend, 5, 1, handles),
                     CUDA_ERROR_NOT_PERMITTED);
    limit = 4 * PAGE;
    creates = 0;
    assert_int_equal(backend->ops->create_handles(backend, 5, 1, handles), -EDQUOT);
    assert_int_equal(creates, 0);
    assert_int_equal(atomic_load(&device.charged), 0);
}

/* Handles of an incomplete batch would take memory from others until their release. */
static void handles_beyond_the_free_memory_are_not_created(void **state) {
    (void)state;
    creates = 0;
    reported_free = 8 * PAGE;
    assert_int_equal(backend->ops->probe_handles(backend, 8), 0);
    assert_int_equal(creates, 0);
    has = 8 * PAGE;
    assert_int_equal(backend->ops->probe_handles(backend, 9), -ENOMEM);
    assert_int_equal(creates, 1);
    has = 9 * PAGE; /* more than cuMemGetInfo reports */
    assert_int_equal(backend->ops->probe_handles(backend, 9), 0);
    assert_int_equal(creates, 2);
    uint64_t before = limit;
    limit = 8 * PAGE; /* the limit is the reason, whatever the driver has */
    assert_int_equal(backend->ops->probe_handles(backend, 9), -EDQUOT);
    assert_int_equal(creates, 2);
    assert_int_equal(backend->ops->probe_handles(backend, 8), 0);
    assert_int_equal(atomic_load(&device.charged), 0);
    limit = before;
    refuse_create = (struct refusal){1, CUDA_ERROR_ILLEGAL_ADDRESS};
    assert_int_equal(backend->ops->probe_handles(backend, 9), 0);
    refuse_release = (struct refusal){1, CUDA_ERROR_ILLEGAL_ADDRESS};
    assert_int_equal(backend->ops->probe_handles(backend, 9), 0);
    assert_int_equal(atomic_load(&device.charged), 9 * PAGE);
    device_refund(&device, 9 * PAGE);
    handle_count--;
}

static void handles_that_the_driver_keeps_stay_charged(void **state) {
    (void)state;
    uint64_t handles[3];
    take(3, handles);
    refuse_release = (struct refusal){2, CUDA_ERROR_ILLEGAL_ADDRESS};
    backend->ops->release_handles(backend, 3, 1, handles);
    assert_int_equal(atomic_load(&device.charged), PAGE);
    backend->ops->release_handles(backend, 1, 1, handles + 1);
    refuse_create = (struct refusal){3, CUDA_ERROR_OUT_OF_MEMORY};
    refuse_release = (struct refusal){1, CUDA_ERROR_ILLEGAL_ADDRESS};
    assert_int_equal(backend->ops->create_handles(backend, 3, 1, handles), -ENOMEM);
    assert_int_equal(atomic_load(&device.charged), PAGE);
    backend->ops->release_handles(backend, 1, 1, handles);
    refuse_release = (struct refusal){1, CUDA_ERROR_ILLEGAL_ADDRESS};
    assert_null(vmm_kind.unavailable(&device));
    assert_int_equal(atomic_load(&device.charged), PAGE);
    backend->ops->release_handles(backend, 1, 1, &last_handle);
    device_change_pooled(&device, 2 * PAGE); /* two handles that the pool never had */
}

static void one_call_gives_access_to_all_handles_mapped_together(void **state) {
    (void)state;
    uint64_t handles[8], at = reserve_addresses(16);
    take(8, handles);
    assert_int_equal(backend->ops->map(backend, at + 2 * PAGE, 8, 1, handles), 0);
    assert_int_equal(set_access_calls, 1);
    for (unsigned i = 0; i < 8; i++) {
        assert_int_equal(slot_of(at + (2 + i) * PAGE)->handle, handles[i]);
        assert_int_equal(access_at(at + (2 + i) * PAGE), 1 << device.ordinal);
    }
    assert_int_equal(backend->ops->unmap(backend, at + 2 * PAGE, 8, false), 0);
    backend->ops->release_handles(backend, 8, 1, handles);
    backend->ops->free_addresses(backend, at, 16 * PAGE);
}

static void a_handle_is_mapped_at_several_addresses(void **state) {
    (void)state;
    uint64_t handle, at = reserve_addresses(3), handles[2];
    take(1, &handle);
    handles[0] = handles[1] = handle;
    assert_int_equal(backend->ops->map(backend, at, 2, 1, handles), 0);
    assert_int_equal(backend->ops->map(backend, at + 2 * PAGE, 1, 1, &handle), 0);
    assert_int_equal(mappings, 3);
    assert_int_equal(backend->ops->unmap(backend, at, 3, false), 0);
    backend->ops->release_handles(backend, 1, 1, &handle);
    backend->ops->free_addresses(backend, at, 3 * PAGE);
}

static void nothing_stays_mapped_when_a_mapping_fails(void **state) {
    (void)state;
    uint64_t handles[6], at = reserve_addresses(6);
    take(6, handles);
    refuse_map = (struct refusal){1, CUDA_ERROR_OUT_OF_MEMORY};
    assert_int_equal(backend->ops->map(backend, at, 6, 1, handles), -ENOMEM);
    refuse_map = (struct refusal){5, CUDA_ERROR_UNKNOWN};
    assert_int_equal(backend->ops->map(backend, at, 6, 1, handles), -EBUSY);
    assert_int_equal(mappings, 0);
    refuse_map = (struct refusal){3, CUDA_ERROR_ILLEGAL_ADDRESS};
    assert_int_equal(backend->ops->map(backend, at, 6, 1, handles), CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(mappings, 0);
    refuse_access = (struct refusal){1, CUDA_ERROR_OUT_OF_MEMORY};
    assert_int_equal(backend->ops->map(backend, at, 6, 1, handles), -ENOMEM);
    assert_int_equal(mappings, 0);
    assert_int_equal(vmm_kind.grant_access(&vmm.common, 0),
                     CUDA_SUCCESS); /* nothing is mapped yet */
    assert_int_equal(backend->ops->map(backend, at, 6, 1, handles), 0);
    assert_int_equal(backend->ops->unmap(backend, at, 6, false), 0);
    backend->ops->release_handles(backend, 6, 1, handles);
    backend->ops->free_addresses(backend, at, 6 * PAGE);
}

/* The next mapping needs the addresses of the leaked one, which is unmapped first. */
static void a_leaked_mapping_is_unmapped_later(void **state) {
    (void)state;
    uint64_t handles[6], at = reserve_addresses(6);
    take(6, handles);
    refuse_access = refuse_unmap = (struct refusal){1, CUDA_ERROR_UNKNOWN};
    assert_int_equal(backend->ops->map(backend, at, 4, 1, handles), -EBUSY);
    assert_int_equal(mappings, 4);
    assert_int_equal(atomic_load(&device.charged), 10 * PAGE);
    refuse_unmap = (struct refusal){1, CUDA_ERROR_UNKNOWN}; /* once more */
    assert_int_equal(backend->ops->map(backend, at + 4 * PAGE, 2, 1, handles + 4), 0);
    assert_int_equal(mappings, 6);
    assert_int_equal(backend->ops->map(backend, at, 4, 1, handles), 0);
    assert_int_equal(atomic_load(&device.charged), 6 * PAGE);
    assert_int_equal(backend->ops->unmap(backend, at + 4 * PAGE, 2, false), 0);
    refuse_map = (struct refusal){2, CUDA_ERROR_UNKNOWN};
    refuse_unmap = (struct refusal){1, CUDA_ERROR_UNKNOWN};
    assert_int_equal(backend->ops->map(backend, at + 4 * PAGE, 2, 1, handles + 4), -EBUSY);
    assert_int_equal(mappings, 5);
    assert_int_equal(backend->ops->unmap(backend, at, 4, false), 0); /* unmaps the leaked one too */
    assert_int_equal(mappings, 0);
    backend->ops->release_handles(backend, 6, 1, handles);
    backend->ops->free_addresses(backend, at, 6 * PAGE);
}

/* The last mapping stays, and stays charged, when all others were unmapped. */
static void a_leaked_mapping_beyond_the_table_stays_charged(void **state) {
    (void)state;
    uint64_t handle, at = reserve_addresses(VMM_LEAKED_MOST + 2);
    uint64_t last = at + VMM_LEAKED_MOST * PAGE;
    take(1, &handle);
    refuses_all_unmaps = true;
    for (unsigned i = 0; i <= VMM_LEAKED_MOST; i++) {
        refuse_access = (struct refusal){1, CUDA_ERROR_UNKNOWN};
        assert_int_equal(backend->ops->map(backend, at + i * PAGE, 1, 1, &handle), -EBUSY);
    }
    assert_int_equal(atomic_load(&device.charged), (VMM_LEAKED_MOST + 2) * PAGE);
    refuses_all_unmaps = false;
    assert_int_equal(backend->ops->map(backend, last + PAGE, 1, 1, &handle), 0);
    assert_int_equal(mappings, 2);
    assert_int_equal(atomic_load(&device.charged), 2 * PAGE);
    *slot_of(last) = (struct slot){0}; /* else the mapping would remain after the test */
    mappings--;
    atomic_fetch_sub(&device.charged, PAGE);
    assert_int_equal(backend->ops->unmap(backend, last + PAGE, 1, false), 0);
    backend->ops->release_handles(backend, 1, 1, &handle);
    backend->ops->free_addresses(backend, at, (VMM_LEAKED_MOST + 2) * PAGE);
}

/* 200 VMM pages take several words of bits. Runs have several lengths, in two VA ranges. */
static void a_later_device_gets_access_to_every_page(void **state) {
    (void)state;
    uint64_t handle, first = reserve_addresses(200), second = reserve_addresses(10);
    static const unsigned mapped[] = {0, 1, 2, 5, 62, 63, 64, 65, 127, 128, 199};
    take(1, &handle);
    for (unsigned i = 0; i < 11; i++)
        assert_int_equal(backend->ops->map(backend, first + mapped[i] * PAGE, 1, 1, &handle), 0);
    assert_int_equal(backend->ops->map(backend, second + 9 * PAGE, 1, 1, &handle), 0);
    assert_int_equal(backend->ops->unmap(backend, first + PAGE, 1, false), 0);
    set_access_calls = 0;
    assert_int_equal(vmm_kind.grant_access(&vmm.common, 3), CUDA_SUCCESS);
    assert_int_equal(set_access_calls, 7);
    for (unsigned i = 0; i < 11; i++)
        assert_int_equal(access_at(first + mapped[i] * PAGE), mapped[i] == 1 ? 0 : 1 << 1 | 1 << 3);
    assert_int_equal(access_at(second + 9 * PAGE), 1 << 1 | 1 << 3);
    assert_int_equal(vmm_kind.grant_access(&vmm.common, 3), CUDA_SUCCESS); /* has access already */
    assert_int_equal(vmm_kind.grant_access(&vmm.common, device.ordinal), CUDA_SUCCESS);
    assert_int_equal(set_access_calls, 7);
    assert_int_equal(backend->ops->map(backend, first + PAGE, 1, 1, &handle), 0);
    assert_int_equal(access_at(first + PAGE), 1 << 1 | 1 << 3);
    for (unsigned i = 0; i < 11; i++)
        assert_int_equal(backend->ops->unmap(backend, first + mapped[i] * PAGE, 1, false), 0);
    assert_int_equal(backend->ops->unmap(backend, second + 9 * PAGE, 1, false), 0);
    backend->ops->release_handles(backend, 1, 1, &handle);
    backend->ops->free_addresses(backend, second, 10 * PAGE);
    backend->ops->free_addresses(backend, first, 200 * PAGE);
}

static void access_that_is_refused_is_not_counted_as_given(void **state) {
    (void)state;
    uint64_t handle, at = reserve_addresses(2);
    take(1, &handle);
    assert_int_equal(backend->ops->map(backend, at, 1, 1, &handle), 0);
    refuse_access = (struct refusal){1, CUDA_ERROR_OUT_OF_MEMORY};
    assert_int_equal(vmm_kind.grant_access(&vmm.common, 2), CUDA_ERROR_OUT_OF_MEMORY);
    assert_int_equal(access_at(at), 1 << 1);
    assert_int_equal(vmm_kind.grant_access(&vmm.common, 2), CUDA_SUCCESS);
    assert_int_equal(access_at(at), 1 << 1 | 1 << 2);
    assert_int_equal(backend->ops->unmap(backend, at, 1, false), 0);
    backend->ops->release_handles(backend, 1, 1, &handle);
    backend->ops->free_addresses(backend, at, 2 * PAGE);
}

/* The peers of the next context are its own. Memory can be unmapped and released after its context
 * has ended: the pool does that then. */
static void memory_outlives_its_context_and_peers_do_not(void **state) {
    (void)state;
    uint64_t handles[2], at = reserve_addresses(4);
    take(2, handles);
    assert_int_equal(vmm_kind.grant_access(&vmm.common, 0), CUDA_SUCCESS);
    assert_int_equal(backend->ops->map(backend, at, 2, 1, handles), 0);
    device_backend_end(&vmm.common);
    assert_int_equal(backend->ops->unmap(backend, at, 2, false), 0);
    backend->ops->release_handles(backend, 1, 1, handles);
    backend->ops->free_addresses(backend, at, 4 * PAGE);
    assert_int_equal(vmm_kind.start(&vmm.common, (CUcontext)2, &device, 1 << 2), 0);
    at = reserve_addresses(1);
    assert_int_equal(backend->ops->map(backend, at, 1, 1, handles + 1), 0);
    assert_int_equal(access_at(at), 1 << 1 | 1 << 2);
    assert_int_equal(backend->ops->unmap(backend, at, 1, false), 0);
    backend->ops->release_handles(backend, 1, 1, handles + 1);
    backend->ops->free_addresses(backend, at, PAGE);
}

static void addresses_touch_the_backend_while_reserved(void **state) {
    (void)state;
    uint64_t a = reserve_addresses(4), b = reserve_addresses(2), none = 77;
    assert_false(vmm_touches(a - 1, 1));
    assert_true(vmm_touches(a - 1, 2));
    assert_true(vmm_touches(a + 4 * PAGE - 1, 1));
    assert_false(vmm_touches(a + 4 * PAGE, PAGE));
    assert_true(vmm_touches(a + 4 * PAGE, UINT64_MAX));
    assert_true(vmm_touches(b, 1));
    assert_false(vmm_touches(b, 0));
    refuse_reserve = (struct refusal){1, CUDA_ERROR_INVALID_VALUE};
    assert_int_equal(backend->ops->reserve_addresses(backend, PAGE, &none), -ENOMEM);
    assert_int_equal(none, 77);
    backend->ops->free_addresses(backend, a, 4 * PAGE);
    assert_false(vmm_touches(a, 4 * PAGE));
    assert_true(vmm_touches(b + PAGE, PAGE));
    backend->ops->free_addresses(backend, b, 2 * PAGE);
}

static void create_and_release_one(void) {
    uint64_t handle;
    take(1, &handle);
    backend->ops->release_handles(backend, 1, 1, &handle);
}

static int start_anew(void) {
    memset(&vmm, 0, sizeof vmm);
    return vmm_kind.start(&vmm.common, (CUcontext)1, &device, 0);
}

static void handles_are_made_for_what_the_device_can(void **state) {
    (void)state;
    create_and_release_one();
    assert_int_equal(last_prop.type, CU_MEM_ALLOCATION_TYPE_PINNED);
    assert_int_equal(last_prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
    assert_int_equal(last_prop.location.id, device.ordinal);
    assert_int_equal(last_prop.requestedHandleTypes, 0);
    assert_int_equal(last_prop.allocFlags.gpuDirectRDMACapable, 0);
    assert_int_equal(last_prop.allocFlags.usage, 0);
    attributes[CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED] = 1;
    attributes[CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED] = 1;
    attributes[CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK] = 6;
    assert_int_equal(start_anew(), 0);
    create_and_release_one();
    assert_int_equal(last_prop.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    assert_int_equal(last_prop.allocFlags.gpuDirectRDMACapable, 1);
    assert_int_equal(last_prop.allocFlags.usage, CU_MEM_CREATE_USAGE_HW_DECOMPRESS);
    assert_true(vmm_can_decompress(&vmm));
    version = 12000;
    assert_int_equal(start_anew(), 0);
    create_and_release_one();
    assert_int_equal(last_prop.requestedHandleTypes, 0);
}

static void refused_decompression_is_requested_once(void **state) {
    (void)state;
    attributes[CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK] = 1;
    assert_int_equal(start_anew(), 0);
    uint64_t handles[3];
    refuse_create = (struct refusal){1, CUDA_ERROR_NOT_SUPPORTED};
    take(3, handles);
    assert_int_equal(creates, 4);
    assert_int_equal(last_prop.allocFlags.usage, 0);
    assert_false(vmm_can_decompress(&vmm));
    backend->ops->release_handles(backend, 3, 1, handles);
    assert_int_equal(start_anew(), 0);
    refuse_create = (struct refusal){1, CUDA_ERROR_OUT_OF_MEMORY}; /* does not drop the flag */
    assert_int_equal(backend->ops->create_handles(backend, 3, 1, handles), -ENOMEM);
    assert_true(vmm_can_decompress(&vmm));
}

static void an_unable_device_names_the_reason(void **state) {
    (void)state;
    assert_null(vmm_kind.unavailable(&device));
    refuse_create = (struct refusal){1, CUDA_ERROR_OUT_OF_MEMORY};
    assert_null(vmm_kind.unavailable(&device)); /* a full device has the ability */
    refuse_create = (struct refusal){1, CUDA_ERROR_NOT_SUPPORTED};
    assert_string_equal(vmm_kind.unavailable(&device), "the driver refuses to create pages");
    refuse_map = (struct refusal){1, CUDA_ERROR_NOT_SUPPORTED};
    assert_string_equal(vmm_kind.unavailable(&device), "the driver refuses to map pages");
    refuse_access = (struct refusal){1, CUDA_ERROR_NOT_SUPPORTED};
    assert_string_equal(vmm_kind.unavailable(&device), "the driver refuses to map pages");
    refuse_reserve = (struct refusal){1, CUDA_ERROR_OUT_OF_MEMORY};
    assert_string_equal(vmm_kind.unavailable(&device), "the driver refuses to reserve addresses");
    granularity = 64 << 10;
    assert_null(vmm_kind.unavailable(&device));
    granularity = 2 * PAGE;
    assert_string_equal(vmm_kind.unavailable(&device), "the driver has no pages of 2 MiB");
    devices = STATS_MAX_DEVICES + 1;
    assert_string_equal(vmm_kind.unavailable(&device), "another device could not reach its pages");
    devices = STATS_MAX_DEVICES;
    granularity = PAGE;
    assert_null(vmm_kind.unavailable(&device));
    unreachable = 3;
    assert_string_equal(vmm_kind.unavailable(&device), "another device could not reach its pages");
    attributes[CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED] = 0;
    assert_string_equal(vmm_kind.unavailable(&device),
                        "the device has no virtual memory management");
    real_entries.real_cuMemMap = (void *)entry_absent;
    assert_string_equal(vmm_kind.unavailable(&device), "the driver has no virtual memory API");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

/* ---- a wait that captures allow ---- */

static unsigned bytes_taken, pinned_taken; /* allocated and freed again */
static CUresult free_code;

static CUresult push(CUcontext context) {
    assert_ptr_equal(context, (CUcontext)7);
    return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *context) {
    *context = (CUcontext)7;
    return CUDA_SUCCESS;
}

static CUresult take_byte(CUdeviceptr *at, size_t bytes) {
    assert_true(relaxed > 0);
    assert_int_equal(bytes, 1);
    assert_int_equal(atomic_load(&device.charged), PAGE); /* charged before the driver's call */
    if (has == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *at = BASE;
    return CUDA_SUCCESS;
}

static CUresult free_byte(CUdeviceptr at) {
    assert_int_equal(at, BASE);
    bytes_taken++;
    return free_code;
}

static CUresult take_pinned(void **at, size_t bytes) {
    assert_true(relaxed > 0 && bytes == 1);
    *at = &pinned_taken;
    return CUDA_SUCCESS;
}

static CUresult free_pinned(void *at) {
    assert_ptr_equal(at, &pinned_taken);
    pinned_taken++;
    return CUDA_SUCCESS;
}

static CUresult wait_with(uint64_t limit_now, size_t has_now, CUresult code) {
    limit = limit_now;
    has = has_now;
    free_code = code;
    bytes_taken = pinned_taken = 0;
    real_entries.real_cuCtxPushCurrent_v2 = push;
    real_entries.real_cuCtxPopCurrent_v2 = pop;
    real_entries.real_cuMemAlloc_v2 = take_byte;
    real_entries.real_cuMemFree_v2 = free_byte;
    real_entries.real_cuMemAllocHost_v2 = take_pinned;
    real_entries.real_cuMemFreeHost = free_pinned;
    return wait_by_free((CUcontext)7);
}

static void a_wait_by_free_is_charged_and_falls_back_to_pinned_memory(void **state) {
    (void)state;
    static const struct {
        uint64_t limit;
        size_t has;
        unsigned bytes, pinned;
    } rows[] = {{PAGE, SIZE_MAX, 1, 0}, {PAGE - 1, SIZE_MAX, 0, 1}, {PAGE, 0, 0, 1}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(wait_with(rows[i].limit, rows[i].has, CUDA_SUCCESS), CUDA_SUCCESS);
        assert_int_equal(bytes_taken, rows[i].bytes);
        assert_int_equal(pinned_taken, rows[i].pinned);
        assert_int_equal(atomic_load(&device.charged), 0);
        assert_int_equal(relaxed, 0);
    }
}

static void a_byte_that_the_driver_has_not_freed_stays_charged(void **state) {
    (void)state;
    assert_int_equal(wait_with(PAGE, SIZE_MAX, CUDA_ERROR_ILLEGAL_ADDRESS),
                     CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_int_equal(pinned_taken, 0);
    assert_int_equal(atomic_load(&device.charged), PAGE);
    device_uncharge(&device, PAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_handle_is_charged_and_refunded),
        TEST(all_handles_or_none),
        TEST(handles_beyond_the_free_memory_are_not_created),
        TEST(handles_that_the_driver_keeps_stay_charged),
        TEST(one_call_gives_access_to_all_handles_mapped_together),
        TEST(a_handle_is_mapped_at_several_addresses),
        TEST(nothing_stays_mapped_when_a_mapping_fails),
        TEST(a_leaked_mapping_is_unmapped_later),
        TEST(a_leaked_mapping_beyond_the_table_stays_charged),
        TEST(a_later_device_gets_access_to_every_page),
        TEST(access_that_is_refused_is_not_counted_as_given),
        TEST(memory_outlives_its_context_and_peers_do_not),
        TEST(addresses_touch_the_backend_while_reserved),
        TEST(handles_are_made_for_what_the_device_can),
        TEST(refused_decompression_is_requested_once),
        TEST(an_unable_device_names_the_reason),
        TEST(a_wait_by_free_is_charged_and_falls_back_to_pinned_memory),
        TEST(a_byte_that_the_driver_has_not_freed_stays_charged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
