/*
 * Devices: their attributes. All are alike, and modelled on one H200.
 */
#include "driver.h"

#include <stdio.h>
#include <string.h>

struct device *device_of(int ordinal) {
    bool valid = sim.initialised && ordinal >= 0 && ordinal < sim.options.devices;

    return valid ? &sim.devices[ordinal] : NULL;
}

static CUresult get(CUdevice *device, int ordinal) {
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

static CUresult get_count(int *count) {
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sim.options.devices;
    return CUDA_SUCCESS;
}

static CUresult get_name(char *name, int length, CUdevice ordinal) {
    if (!name || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)length, "Simulated GPU");
    return CUDA_SUCCESS;
}

static CUresult get_uuid(CUuuid *uuid, CUdevice ordinal) {
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    memcpy(uuid->bytes, "simulated GPU 0", sizeof(uuid->bytes));
    uuid->bytes[sizeof(uuid->bytes) - 1] = (char)ordinal;
    return CUDA_SUCCESS;
}

static CUresult total_memory(size_t *bytes, CUdevice ordinal) {
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *bytes = device_of(ordinal)->total;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGet, (CUdevice * device, int ordinal), INITIALISED, get(device, ordinal))
ENTRY(cuDeviceGetCount, (int *count), INITIALISED, get_count(count))
ENTRY(cuDeviceGetName, (char *name, int length, CUdevice device), INITIALISED,
      get_name(name, length, device))
ENTRY(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), INITIALISED, get_uuid(uuid, device))
ENTRY(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device), INITIALISED, get_uuid(uuid, device))
ENTRY(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device), INITIALISED,
      total_memory(bytes, device))

/* ---- attributes ------------------------------------------------------------------------------ */

#define A(name) CU_DEVICE_ATTRIBUTE_##name

static const struct {
    CUdevice_attribute name;
    int value;
} attributes[] = {
    {A(MAX_THREADS_PER_BLOCK), 1024},
    {A(MAX_BLOCK_DIM_X), 1024},
    {A(MAX_BLOCK_DIM_Y), 1024},
    {A(MAX_BLOCK_DIM_Z), 64},
    {A(MAX_GRID_DIM_X), 2147483647},
    {A(MAX_GRID_DIM_Y), 65535},
    {A(MAX_GRID_DIM_Z), 65535},
    {A(MAX_SHARED_MEMORY_PER_BLOCK), 49152},
    {A(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), 232448},
    {A(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR), 233472},
    {A(TOTAL_CONSTANT_MEMORY), 65536},
    {A(WARP_SIZE), 32},
    {A(MAX_PITCH), 2147483647},
    {A(MAX_REGISTERS_PER_BLOCK), 65536},
    {A(MAX_REGISTERS_PER_MULTIPROCESSOR), 65536},
    {A(CLOCK_RATE), 1980000},
    {A(MEMORY_CLOCK_RATE), 3201000},
    {A(GLOBAL_MEMORY_BUS_WIDTH), 6144},
    {A(L2_CACHE_SIZE), 62914560},
    {A(TEXTURE_ALIGNMENT), 512},
    {A(TEXTURE_PITCH_ALIGNMENT), 32},
    {A(SURFACE_ALIGNMENT), 512},
    {A(GPU_OVERLAP), 1},
    {A(ASYNC_ENGINE_COUNT), 3},
    {A(MULTIPROCESSOR_COUNT), 132},
    {A(MAX_THREADS_PER_MULTIPROCESSOR), 2048},
    {A(MAX_BLOCKS_PER_MULTIPROCESSOR), 32},
    {A(CAN_MAP_HOST_MEMORY), 1},
    {A(CONCURRENT_KERNELS), 1},
    {A(ECC_ENABLED), 1},
    {A(UNIFIED_ADDRESSING), 1},
    {A(COMPUTE_CAPABILITY_MAJOR), 9},
    {A(COMPUTE_CAPABILITY_MINOR), 0},
    {A(STREAM_PRIORITIES_SUPPORTED), 1},
    {A(GLOBAL_L1_CACHE_SUPPORTED), 1},
    {A(LOCAL_L1_CACHE_SUPPORTED), 1},
    {A(MANAGED_MEMORY), 1},
    {A(CONCURRENT_MANAGED_ACCESS), 1},
    {A(COMPUTE_PREEMPTION_SUPPORTED), 1},
    {A(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM), 1},
    {A(COOPERATIVE_LAUNCH), 1},
    {A(HOST_REGISTER_SUPPORTED), 1},
    {A(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED), 1},
    {A(GPU_DIRECT_RDMA_SUPPORTED), 1},
    {A(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED), 1},
    {A(GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS), 1},
    {A(GPU_DIRECT_RDMA_WRITES_ORDERING), 100},
    {A(MEMPOOL_SUPPORTED_HANDLE_TYPES), 1},
    {A(CAN_USE_STREAM_MEM_OPS_V1), 1},
    {A(CAN_USE_64_BIT_STREAM_MEM_OPS), 1},
    {A(CAN_USE_STREAM_WAIT_VALUE_NOR), 1},
    {A(TIMELINE_SEMAPHORE_INTEROP_SUPPORTED), 1},
    {A(IPC_EVENT_SUPPORTED), 1},
    {A(DMA_BUF_SUPPORTED), 0},
};

static CUresult attribute(int *value, CUdevice_attribute name, CUdevice ordinal) {
    if (!value || name <= 0 || name >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    *value = 0;
    if (name == A(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
        *value = sim.options.vmm;
    else if (name == A(MEMORY_POOLS_SUPPORTED))
        *value = sim.options.pools;
    else if (name == A(PCI_BUS_ID))
        *value = ordinal + 1;
    for (size_t i = 0; i < sizeof(attributes) / sizeof(*attributes); i++)
        if (attributes[i].name == name)
            *value = attributes[i].value;
    return CUDA_SUCCESS;
}

static CUresult capability(int *major, int *minor, CUdevice ordinal) {
    CUresult result = attribute(major, A(COMPUTE_CAPABILITY_MAJOR), ordinal);

    return result == CUDA_SUCCESS ? attribute(minor, A(COMPUTE_CAPABILITY_MINOR), ordinal) : result;
}

static CUresult peer_attribute(int *value, CUdevice_P2PAttribute name, CUdevice from, CUdevice to) {
    if (!value)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(from) || !device_of(to) || from == to)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = name == CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 0 : sim.options.peer;
    return CUDA_SUCCESS;
}

static CUresult can_access(int *can, CUdevice from, CUdevice to) {
    if (!can)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(from) || !device_of(to))
        return CUDA_ERROR_INVALID_DEVICE;
    *can = sim.options.peer && from != to;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetAttribute, (int *value, CUdevice_attribute name, CUdevice device), INITIALISED,
      attribute(value, name, device))
ENTRY(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device), INITIALISED,
      capability(major, minor, device))
ENTRY(cuDeviceGetP2PAttribute, (int *value, CUdevice_P2PAttribute name, CUdevice from, CUdevice to),
      INITIALISED, peer_attribute(value, name, from, to))
ENTRY(cuDeviceCanAccessPeer, (int *can, CUdevice from, CUdevice to), INITIALISED,
      can_access(can, from, to))

/* ---- the bus --------------------------------------------------------------------------------- */

static CUresult bus_id(char *id, int length, CUdevice ordinal) {
    if (!id || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, (size_t)length, "0000:%02X:00.0", (unsigned)(ordinal + 1));
    return CUDA_SUCCESS;
}

static CUresult by_bus_id(CUdevice *device, const char *id) {
    unsigned domain, bus, slot;

    if (!device || !id)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(id, "%x:%x:%x", &domain, &bus, &slot) != 3 || !device_of((int)bus - 1))
        return CUDA_ERROR_INVALID_VALUE;
    *device = (int)bus - 1;
    return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetPCIBusId, (char *id, int length, CUdevice device), INITIALISED,
      bus_id(id, length, device))
ENTRY(cuDeviceGetByPCIBusId, (CUdevice * device, const char *id), INITIALISED,
      by_bus_id(device, id))

/* ---- errors ---------------------------------------------------------------------------------- */

static const struct {
    CUresult error;
    const char *name, *text;
} errors[] = {
#define E(name, text)                                                                              \
    { name, #name, text }
    E(CUDA_SUCCESS, "no error"),
    E(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    E(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    E(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    E(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    E(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    E(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    E(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    E(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    E(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    E(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit is not supported on this architecture"),
    E(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"),
    E(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    E(CUDA_ERROR_ILLEGAL_STATE, "the operation cannot be performed in the present state"),
    E(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    E(CUDA_ERROR_NOT_READY, "device not ready"),
    E(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    E(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    E(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access has not been enabled"),
    E(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    E(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
      "part or all of the requested memory range is already mapped"),
    E(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
      "pointer does not correspond to a registered memory region"),
    E(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    E(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    E(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"),
    E(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
      "operation failed due to a previous error during capture"),
    E(CUDA_ERROR_STREAM_CAPTURE_MERGE,
      "operation would result in a merge of separate capture sequences"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"),
    E(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"),
    E(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
      "dependency created on uncaptured work in another stream"),
    E(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
      "operation would make the legacy stream depend on a capturing blocking stream"),
    E(CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a "
                                 "capturing stream"),
    E(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
      "attempt to terminate a thread-local capture sequence from another thread"),
    E(CUDA_ERROR_UNKNOWN, "unknown error"),
};

static CUresult describe(CUresult error, const char **text, bool name) {
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    *text = NULL;
    for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
        if (errors[i].error == error)
            *text = name ? errors[i].name : errors[i].text;
    return *text ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

ENTRY(cuGetErrorName, (CUresult error, const char **name), ANYTIME | QUIET,
      describe(error, name, true))
ENTRY(cuGetErrorString, (CUresult error, const char **text), ANYTIME | QUIET,
      describe(error, text, false))
