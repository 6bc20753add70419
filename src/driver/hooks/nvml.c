#include "driver/hooks/nvml.h"

#include "driver/limit/charge.h"
#include "driver/state/device.h"
#include "loader/loader.h"
#include "process/process.h"
#include "stats/stats.h"

#include <stddef.h>
#include <string.h>

#define UUID_BYTES 96 /* NVML_DEVICE_UUID_V2_BUFFER_SIZE */

static struct {
    nvml_return (*real_nvmlDeviceGetUUID)(nvml_device, char *, unsigned);
#define REAL_OF(symbol, parameters, arguments) nvml_return(*real_##symbol) parameters;
    NVML_ENTRIES(REAL_OF)
#undef REAL_OF
} nvml;

static const struct loader_entry entries[] = {
    {"nvmlDeviceGetUUID", 0, (void **)&nvml.real_nvmlDeviceGetUUID, NULL},
#define ROW(symbol, parameters, arguments)                                                         \
    {#symbol, 0, (void **)&nvml.real_##symbol, (void *)hook_##symbol},
    NVML_ENTRIES(ROW)
#undef ROW
};
_Static_assert(sizeof entries / sizeof *entries <= LOADER_SLOTS / 4,
               "a look-up ends at a free slot");

static LOADER_TABLE(nvml) table = {"libnvidia-ml.so.1", entries, sizeof entries / sizeof *entries,
                                   NULL};

/* Calls the real entry, or returns NVML's error for a missing library or a missing function. */
#define CALL_NVML(symbol, arguments)                                                               \
    (!loader_find_nvml()   ? NVML_LIBRARY_NOT_FOUND                                                \
     : !nvml.real_##symbol ? NVML_FUNCTION_NOT_FOUND                                               \
                           : nvml.real_##symbol arguments)

/*
 * Returns the device of an NVML handle, or NULL if this process has not used the device: NVML's
 * answer is then right. Compares UUIDs: NVML lists all devices in the order of the bus, but CUDA
 * may list some of them in another order. The comparison starts at the first dash: NVML's UUIDs
 * begin with the kind of device (GPU, MIG), which CUDA does not return. Makes no CUDA call, so that
 * a program that only uses NVML does not start CUDA.
 */
static struct device *device_of_handle(nvml_device handle) {
    char uuid[UUID_BYTES] = "";
    if (atomic_load_explicit(&process_state, memory_order_acquire) != PROCESS_STARTED ||
        CALL_NVML(nvmlDeviceGetUUID, (handle, uuid, sizeof uuid)) != NVML_DONE)
        return NULL;
    const char *wanted = strchr(uuid, '-');
    for (int i = stats_device_count(); wanted && i-- > 0;) {
        struct device *device = device_used(i);
        const char *own = device ? strchr(device->uuid, '-') : NULL;
        if (own && strcmp(own, wanted) == 0)
            return device;
    }
    return NULL;
}

nvml_return hook_nvmlDeviceGetMemoryInfo(nvml_device handle, struct nvml_memory *memory) {
    nvml_return answer = CALL_NVML(nvmlDeviceGetMemoryInfo, (handle, memory));
    struct device *device = answer == NVML_DONE && memory ? device_of_handle(handle) : NULL;
    if (device) {
        device_visible_memory(device, &memory->free, &memory->total);
        memory->used = memory->total - memory->free;
    }
    return answer;
}

/*
 * Corrects the answer of NVML. Driver versions differ in whether `used` includes `reserved`. It
 * does not if all three parts fit in the total. Under a limit, `reserved` is 0: the total is then
 * the limit, and memory of the system does not count against the limit.
 */
nvml_return hook_nvmlDeviceGetMemoryInfo_v2(nvml_device handle, struct nvml_memory_v2 *memory) {
    nvml_return answer = CALL_NVML(nvmlDeviceGetMemoryInfo_v2, (handle, memory));
    bool known = answer == NVML_DONE && memory && memory->version == NVML_MEMORY_V2;
    struct device *device = known ? device_of_handle(handle) : NULL;
    if (device) {
        bool excludes_reserved = memory->used + memory->free + memory->reserved <= memory->total;
        uint64_t total = memory->total;
        device_visible_memory(device, &memory->free, &memory->total);
        if (memory->total < total)
            memory->reserved = 0;
        uint64_t not_free = memory->total - memory->free;
        memory->used = excludes_reserved
                           ? (not_free > memory->reserved ? not_free - memory->reserved : 0)
                           : not_free;
    }
    return answer;
}
