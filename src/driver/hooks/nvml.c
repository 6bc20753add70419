#include "driver/hooks/nvml.h"

#include "driver/limit/room.h"
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

const struct loader_table loader_nvml = {"libnvidia-ml.so.1", entries,
                                         sizeof entries / sizeof *entries, NULL};

/* Calls the real entry, or says why there is none. */
#define CALL_NVML(symbol, arguments)                                                               \
    (!loader_find_nvml()   ? NVML_LIBRARY_NOT_FOUND                                                \
     : !nvml.real_##symbol ? NVML_FUNCTION_NOT_FOUND                                               \
                           : nvml.real_##symbol arguments)

/*
 * The device behind an NVML handle, if this process has used it; else NULL, and NVML's own answer
 * stands. By UUID: NVML counts devices in the order of the bus and sees all of them, CUDA in an
 * order and a selection of its own. What stands before the first dash is the kind (GPU, MIG), which
 * CUDA does not tell. No call of CUDA is made: a program that only asks NVML must not start CUDA.
 */
static struct device *device_behind(nvml_device handle) {
    char uuid[UUID_BYTES] = "";
    if (atomic_load_explicit(&process_state, memory_order_acquire) != PROCESS_STARTED ||
        CALL_NVML(nvmlDeviceGetUUID, (handle, uuid, sizeof uuid)) != NVML_DONE) {
        return NULL;
    }
    const char *number = strchr(uuid, '-');
    for (int i = stats_device_count(); number && i-- > 0;) {
        struct device *device = device_used(i);
        const char *own = device ? strchr(device->uuid, '-') : NULL;
        if (own && strcmp(own, number) == 0) {
            return device;
        }
    }
    return NULL;
}

nvml_return hook_nvmlDeviceGetMemoryInfo(nvml_device handle, struct nvml_memory *memory) {
    nvml_return r = CALL_NVML(nvmlDeviceGetMemoryInfo, (handle, memory));
    struct device *device = r == NVML_DONE && memory ? device_behind(handle) : NULL;
    if (device) {
        device_visible_memory(device, &memory->free, &memory->total);
        memory->used = memory->total - memory->free;
    }
    return r;
}

/*
 * Whether `used` includes what is reserved differs between driver versions: the sums of this very
 * answer tell. A limit leaves no room for the system's share, which is nobody's allocation.
 */
nvml_return hook_nvmlDeviceGetMemoryInfo_v2(nvml_device handle, struct nvml_memory_v2 *memory) {
    nvml_return r = CALL_NVML(nvmlDeviceGetMemoryInfo_v2, (handle, memory));
    bool known = r == NVML_DONE && memory && memory->version == NVML_MEMORY_V2;
    struct device *device = known ? device_behind(handle) : NULL;
    if (device) {
        bool apart = memory->used + memory->free + memory->reserved <= memory->total;
        uint64_t total = memory->total;
        device_visible_memory(device, &memory->free, &memory->total);
        if (memory->total < total) {
            memory->reserved = 0;
        }
        uint64_t taken = memory->total - memory->free;
        memory->used = apart ? (taken > memory->reserved ? taken - memory->reserved : 0) : taken;
    }
    return r;
}
