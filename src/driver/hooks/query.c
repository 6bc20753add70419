/*
 * Being asked about memory: a block inside a segment answers as an allocation of its own.
 *
 * Three attributes differ between a block and the segment around it: where the allocation starts,
 * how long it is, and its number. A fourth, SYNC_MEMOPS, belongs to the allocation too, but the
 * driver keeps it per segment: the pool keeps the value with the block. All others are the driver's
 * to answer. Memory of the pool that is not live is, to the program, memory it has freed.
 *
 * Where memory comes in pages the driver knows them one by one, as mapped by nobody's context and
 * exportable. There the answers are those it gives for memory of cuMemAlloc
 * (tests/sim/probe-h200.txt). So it is with pages that were opened by an IPC handle.
 */
#include "backend/vmm.h"
#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/context/fault.h"
#include "driver/ipc/ipc.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/room.h"
#include "driver/reuse/pinned.h"
#include "driver/state/device.h"
#include "driver/state/shutdown.h"
#include "driver/table/entries.h"
#include "pool/pool.h"
#include "process/helper.h"
#include "process/options.h"
#include "process/process.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* Numbers of blocks are far from those the driver counts up from 1. */
#define BLOCK_ID_BASE ((unsigned long long)1 << 62)
#define ATTRIBUTES_MOST 1024u       /* more than there are */
#define MAPPING ((uint64_t)2 << 20) /* what the driver maps at a time */
#define IMPORT_ID_BASE (BLOCK_ID_BASE + ((unsigned long long)1 << 61))

/* --- free and total memory --- */

CUresult hook_cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    uint64_t free_now = 0, total = 0;
    CUresult r = REAL(cuMemGetInfo_v2)(free_bytes ? &free_now : NULL, total_bytes ? &total : NULL);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    struct device *device = process_ready() ? device_current() : NULL;
    if (device) {
        total = device->total;
        driver_pool_look(device);
        device_visible_memory(device, &free_now, &total);
        helper_start_wanted();
    }
    if (free_bytes) {
        *free_bytes = free_now;
    }
    if (total_bytes) {
        *total_bytes = total;
    }
    return r;
}

CUresult hook_cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
    CUresult r = REAL(cuDeviceTotalMem_v2)(bytes, ordinal);
    if (r == CUDA_SUCCESS && process_ready()) {
        uint64_t limit = device_limit_of(ordinal, *bytes);
        if (limit && limit < *bytes) {
            *bytes = limit;
        }
    }
    return r;
}

/* --- addresses --- */

/* As pool_find, but pinned memory that is kept is gone for the program, and a driver that has ended
 * answers for itself. */
static int find_block(CUdeviceptr dptr, struct pool_block *block) {
    int r = shutdown_over() ? -ENOENT : pool_find(dptr, block);
    return r == -ENOENT && pinned_has((const void *)dptr) ? -EINVAL : r;
}

/* A block as the program knows it: of a pool here, or of another process's and imported. */
struct known {
    uint64_t address, bytes;
    struct pool *pool;   /* NULL: imported, */
    uint64_t id;         /* and its number; */
    CUcontext mapped_in; /* in pages: by whom */
};

static int find_known(CUdeviceptr dptr, struct known *known) {
    struct pool_block block;
    struct ipc_block import;
    int r = find_block(dptr, &block);
    if (r == 0) {
        *known = (struct known){block.address, block.requested, block.pool, 0, NULL};
    } else if (r == -ENOENT && (r = ipc_find(dptr, &import)) == 0) {
        *known = (struct known){import.address, import.bytes, NULL, import.id, import.mapped_in};
    }
    return r;
}

static bool in_pages(const struct known *block) {
    return block->pool && backend_maps(pool_backend(block->pool));
}

/* What the driver is asked about without a current context: it knows what is a primary one's. */
static CUdeviceptr known_without(const struct known *block, CUdeviceptr dptr) {
    bool primary = !in_pages(block) ||
                   context_primary_pool(device_pool_owner(block->pool)->ordinal) == block->pool;
    return primary ? dptr : UNKNOWN_ADDRESS;
}

static void *unless_kept(void *host) {
    return !shutdown_over() && pinned_has(host) ? (void *)UNKNOWN_ADDRESS : host;
}

CUresult hook_cuMemHostGetFlags(unsigned int *flags, void *host) {
    return REAL(cuMemHostGetFlags)(flags, unless_kept(host));
}

CUresult hook_cuMemHostGetDevicePointer_v2(CUdeviceptr *dptr, void *host, unsigned int flags) {
    return REAL(cuMemHostGetDevicePointer_v2)(dptr, unless_kept(host), flags);
}

CUresult hook_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr dptr) {
    struct known block = {.pool = NULL};
    int r = find_known(dptr, &block);
    if (r != 0) {
        return REAL(cuMemGetAddressRange_v2)(base, bytes, r == -EINVAL ? UNKNOWN_ADDRESS : dptr);
    }
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current);
    if (!block.pool || !current || device_pool_context(block.pool) != current) {
        /* without a context it depends; and another one may have ended, or died of a fault */
        CUdeviceptr asked = current ? dptr : known_without(&block, dptr);
        CUresult result = REAL(cuMemGetAddressRange_v2)(base, bytes, asked);
        if (result != CUDA_SUCCESS) {
            return result;
        }
    } else if (fault_of(block.pool)) {
        return fault_of(block.pool);
    }
    if (base) {
        *base = block.address;
    }
    if (bytes) {
        *bytes = block.bytes;
    }
    return CUDA_SUCCESS;
}

/* --- attributes --- */

/*
 * SYNC_MEMOPS of a block is the block's flag in its pool, from the moment that it is set. The
 * driver keeps the attribute for the whole segment. So all other blocks have what the driver said
 * before the first one was set.
 */
#define SYNC_UNKNOWN (-1) /* none has been set yet */
static _Atomic int sync_default = SYNC_UNKNOWN;

static int driver_sync_memops(CUdeviceptr dptr) {
    int value = SYNC_UNKNOWN;
    CUresult r = REAL(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, dptr);
    return r == CUDA_SUCCESS ? value : SYNC_UNKNOWN;
}

/* Must run before the driver changes the attribute: another thread may set that of a neighbour
 * next. */
static void keep_sync_default(CUdeviceptr dptr) {
    int none = SYNC_UNKNOWN;
    if (atomic_load(&sync_default) == SYNC_UNKNOWN) {
        atomic_compare_exchange_strong(&sync_default, &none, driver_sync_memops(dptr));
    }
}

/* Returns SYNC_UNKNOWN where the driver's answer is right. */
static int sync_memops_of(const struct known *block) {
    int flag = block->pool ? pool_flag(block->address) : SYNC_UNKNOWN;
    return flag >= 0 ? flag : block->pool ? atomic_load(&sync_default) : SYNC_UNKNOWN;
}

static unsigned long long id_of(const struct known *block) {
    return block->pool ? BLOCK_ID_BASE + pool_block_id(block->address) : IMPORT_ID_BASE + block->id;
}

static CUcontext context_of(const struct known *block) {
    return block->pool ? device_pool_context(block->pool) : block->mapped_in;
}

/* The same for what only pages have to be asked for. */
static bool answer_of_pages(void *data, CUpointer_attribute attribute, const struct known *block) {
    uint64_t start = block->address & ~(MAPPING - 1);
    switch ((unsigned)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        memcpy(data, &(CUcontext){context_of(block)}, sizeof(CUcontext));
        return true;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        memcpy(data, &(unsigned long long){0}, sizeof(long long));
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        memcpy(data, &(CUdeviceptr){start}, sizeof(CUdeviceptr));
        return true;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: {
        uint64_t end = (block->address + block->bytes + MAPPING - 1) & ~(MAPPING - 1);
        memcpy(data, &(size_t){end - start}, sizeof(size_t));
        return true;
    }
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        memcpy(data, &(unsigned long long){id_of(block)}, sizeof(long long));
        return true;
    default:
        return false;
    }
}

/* After the driver's answer, which is as long as it makes it: of pages it says no where it says yes of its own
 * memory. */
static void correct(void *data, CUpointer_attribute attribute, const struct known *block) {
    const struct vmm *pages = in_pages(block) ? (struct vmm *)pool_backend(block->pool) : NULL;
    bool decompress = (unsigned)attribute == CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
    bool ipc = (unsigned)attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    if (pages && ((decompress && vmm_can_decompress(pages)) || (ipc && vmm_can_export(pages)))) {
        *(unsigned char *)data = 1;
    }
}

/* True if the attribute is the block's own, and then its value is in *data. */
static bool answer_of_block(void *data, CUpointer_attribute attribute, const struct known *block) {
    switch ((unsigned)attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        memcpy(data, &(CUdeviceptr){block->address}, sizeof(CUdeviceptr));
        return true;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        memcpy(data, &(size_t){block->bytes}, sizeof(size_t));
        return true;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        memcpy(data, &(unsigned long long){id_of(block)}, sizeof(long long));
        return true;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: {
        int value = sync_memops_of(block);
        if (value != SYNC_UNKNOWN) {
            memcpy(data, &value, sizeof value);
        }
        return value != SYNC_UNKNOWN;
    }
    default:
        return (in_pages(block) || block->mapped_in) && answer_of_pages(data, attribute, block);
    }
}

/* The driver sets SYNC_MEMOPS when it gives the tokens that open memory to a network card. */
static void tokens_given(CUdeviceptr dptr) {
    int value = driver_sync_memops(dptr);
    pool_mark_externally_visible(dptr);
    if (value != SYNC_UNKNOWN) {
        pool_set_flag(dptr, value != 0);
    }
}

static bool ask_for_tokens(unsigned count, const CUpointer_attribute *attributes) {
    unsigned i = 0;
    while (i < count && attributes[i] != CU_POINTER_ATTRIBUTE_P2P_TOKENS) {
        if ((unsigned)attributes[i] > ATTRIBUTES_MOST) {
            return false; /* the driver refuses, and need not read on */
        }
        i++;
    }
    return i < count;
}

CUresult hook_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr dptr) {
    struct known block = {.pool = NULL};
    int r = data ? find_known(dptr, &block) : -ENOENT;
    if (r == -EINVAL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (r == 0 && answer_of_block(data, attribute, &block)) {
        return CUDA_SUCCESS;
    }
    bool tokens = r == 0 && block.pool && attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS;
    if (tokens) {
        keep_sync_default(dptr);
    }
    CUresult result = REAL(cuPointerGetAttribute)(data, attribute, dptr);
    if (tokens) {
        tokens_given(dptr);
    }
    if (r == 0 && result == CUDA_SUCCESS) {
        correct(data, attribute, &block);
    }
    return result;
}

CUresult hook_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                     void **data, CUdeviceptr dptr) {
    struct known block = {.pool = NULL};
    int r = attributes && data ? find_known(dptr, &block) : -ENOENT;
    bool tokens = r == 0 && block.pool && ask_for_tokens(count, attributes);
    if (tokens) {
        keep_sync_default(dptr);
    }
    /* What the driver says of a pointer it does not know, it says of NULL too. */
    CUresult result =
        REAL(cuPointerGetAttributes)(count, attributes, data, r == -EINVAL ? 0 : dptr);
    if (tokens) {
        tokens_given(dptr);
    }
    for (unsigned i = 0; r == -EINVAL && result == CUDA_SUCCESS && i < count; i++) {
        if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER && data[i]) {
            memcpy(data[i], &(void *){(void *)dptr},
                   sizeof(void *)); /* an unknown pointer is the host's */
        }
    }
    for (unsigned i = 0; r == 0 && result == CUDA_SUCCESS && i < count; i++) {
        if (data[i] && !answer_of_block(data[i], attributes[i], &block)) {
            correct(data[i], attributes[i], &block);
        }
    }
    return result;
}

/*
 * Pages have SYNC_MEMOPS from the start, as all memory of the device has (tests/sim/probe-h200.txt), and the driver
 * will not have it set of them, neither on nor off (580, measured). To the program it is set, and more than what it asks
 * for is true.
 */
static CUresult set_sync_memops_of(const void *value, CUdeviceptr dptr, const struct known *block) {
    CUresult r = REAL(cuPointerSetAttribute)(value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, dptr);
    bool refused = r == CUDA_ERROR_NOT_SUPPORTED && value;
    return refused && (in_pages(block) || block->mapped_in) ? CUDA_SUCCESS : r;
}

CUresult hook_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                    CUdeviceptr dptr) {
    struct known block = {.pool = NULL};
    int r = find_known(dptr, &block);
    if (r == -EINVAL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (r != 0 || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
        /* no other one can be set; of pages the driver has another word for that */
        CUresult none = REAL(cuPointerSetAttribute)(value, attribute, dptr);
        return none == CUDA_ERROR_NOT_SUPPORTED && r == 0 && (in_pages(&block) || block.mapped_in)
                   ? CUDA_ERROR_INVALID_VALUE
                   : none;
    }
    if (block.pool && pool_block_id(block.address) == 0) {
        return CUDA_ERROR_OUT_OF_MEMORY; /* no host memory for the block's flag */
    }
    if (block.pool) {
        keep_sync_default(dptr);
    }
    CUresult result = set_sync_memops_of(value, dptr, &block);
    if (block.pool && result == CUDA_SUCCESS) {
        pool_mark_externally_visible(dptr);
        pool_set_flag(block.address, *(const int *)value != 0);
    }
    return result;
}

CUresult hook_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t bytes,
                                            CUmemRangeHandleType type, unsigned long long flags) {
    pool_mark_externally_visible(dptr);
    return REAL(cuMemGetHandleForAddressRange)(handle, dptr, bytes, type, flags);
}
