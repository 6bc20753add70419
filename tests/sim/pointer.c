/*
 * Answers the queries about an address. The answers are those that an H200 gave (probe.c).
 */
#include "driver.h"

#include <string.h>

static struct range *visible(CUdeviceptr address) {
    struct range *range = range_find(address);

    return range && range->kind != RANGE_ARRAY ? range : NULL;
}

/* Returns the range that a query is about. For mapped memory it is the whole reservation. */
static const struct range *whole(const struct range *range) {
    return range->kind == RANGE_MAPPED ? reservation_find(range->base) : range;
}

static size_t mapping_unit(const struct range *range) {
    return range->kind == RANGE_POOL ? 32 * MIB : GRANULE;
}

static CUdeviceptr mapping_base(const struct range *range) {
    bool in_chunk = range->kind == RANGE_DEVICE && range->chunk;

    return in_chunk ? range->base / GRANULE * GRANULE : range->base;
}

static bool host_side(const struct range *range) {
    return !range_is_device(range) || range->kind == RANGE_MANAGED;
}

static unsigned access_flags(const struct range *range) {
    const struct context *context = context_current();
    int device = context ? context->device->ordinal : range->device;

    return range->kind != RANGE_MAPPED || (range->access & device_mask(device)) ? 3 : 0;
}

static unsigned handle_types(const struct range *range) {
    return range->kind == RANGE_MAPPED
               ? (unsigned)physical_prop(range->physical)->requestedHandleTypes
           : range->kind == RANGE_POOL ? (unsigned)range->pool->props.handleTypes
                                       : 0;
}

static bool rdma(const struct range *range) {
    return range->kind == RANGE_MAPPED
               ? physical_prop(range->physical)->allocFlags.gpuDirectRDMACapable
               : range->kind == RANGE_DEVICE;
}

static CUresult put_int(void *data, int value) {
    memcpy(data, &value, sizeof(value));
    return CUDA_SUCCESS;
}

static CUresult put_long(void *data, uint64_t value) {
    memcpy(data, &value, sizeof(value));
    return CUDA_SUCCESS;
}

static CUresult answer(void *data, CUpointer_attribute name, const struct range *range,
                       CUdeviceptr address) {
    switch ((int)name) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        return put_long(data, (uintptr_t)range->context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        return put_int(data, range_is_device(range) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        return put_long(data, address);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        return host_side(range) ? put_long(data, address) : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
        memset(data, 0, sizeof(CUDA_POINTER_ATTRIBUTE_P2P_TOKENS));
        return range_is_device(range) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: /* device memory has 1 from the start */
        return put_int(data, range->sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        return put_long(data, range->id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        return put_int(data, range->kind == RANGE_MANAGED);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        return put_int(data, range->device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        return put_int(data, range->kind == RANGE_DEVICE);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        return put_long(data, whole(range)->base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        return put_long(data, whole(range)->size);
    case CU_POINTER_ATTRIBUTE_MAPPED:
        return put_int(data, 1);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        return put_long(data, handle_types(range));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        return put_int(data, rdma(range));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        return put_int(data, (int)access_flags(range));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        return put_long(data, (uintptr_t)range->pool);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        return put_long(data, round_up(range->size, mapping_unit(range)));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        return put_long(data, mapping_base(range));
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

static CUresult get_one(void *data, CUpointer_attribute name, CUdeviceptr address) {
    const struct range *range = visible(address);

    return data && range ? answer(data, name, range, address) : CUDA_ERROR_INVALID_VALUE;
}

/* Reads several attributes. An unknown address is no error: its memory type is 0, it is host
 * memory, and all other values stay as they are. */
static CUresult get_many(unsigned count, const CUpointer_attribute *names, void **data,
                         CUdeviceptr address) {
    const struct range *range = visible(address);

    if (!names || !data || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++)
        if (range)
            answer(data[i], names[i], range, address);
        else if (names[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
            put_int(data[i], 0);
        else if (names[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER)
            put_long(data[i], address);
    return CUDA_SUCCESS;
}

static CUresult set_one(const void *data, CUpointer_attribute name, CUdeviceptr address) {
    struct range *range = visible(address);

    if (data && range && range->kind == RANGE_MAPPED)
        return CUDA_ERROR_NOT_SUPPORTED; /* driver 580 on an H200, for any attribute */
    if (!data || !range || name != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return CUDA_ERROR_INVALID_VALUE;
    range->sync_memops = *(const int *)data != 0;
    return CUDA_SUCCESS;
}

ENTRY(cuPointerGetAttribute, (void *data, CUpointer_attribute name, CUdeviceptr address),
      INITIALISED, get_one(data, name, address))
ENTRY(cuPointerGetAttributes,
      (unsigned count, CUpointer_attribute *names, void **data, CUdeviceptr address), INITIALISED,
      get_many(count, names, data, address))
ENTRY(cuPointerSetAttribute, (const void *data, CUpointer_attribute name, CUdeviceptr address),
      INITIALISED, set_one(data, name, address))
