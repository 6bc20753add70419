/*
 * Hooks of queries about memory: a block answers as an allocation of its own, although the driver
 * knows only the segment around it (docs/design/questions.md). Called with no lock held.
 *
 *   start, size, BUFFER_ID   values of the block
 *   SYNC_MEMOPS              a flag that the pool keeps for each block: the driver keeps it for
 *                            the whole segment
 *   other attributes         the driver's answer
 *   memory not live          the answer for freed memory
 *
 * In the vmm backend the driver knows each handle by itself, as exportable memory without a
 * context. The hooks then give the answers that cuMemAlloc memory gets
 * (tests/sim/probe-h200.txt). The same holds for VMM pages that were opened by an IPC handle.
 */
#include "backend/vmm.h"
#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/context/fault.h"
#include "driver/hooks/hook.h"
#include "driver/ipc/ipc.h"
#include "driver/ipc/ipc_pages.h"
#include "driver/limit/charge.h"
#include "driver/limit/driver_pools.h"
#include "driver/reuse/pinned.h"
#include "driver/state/device.h"
#include "driver/state/partition.h"
#include "driver/state/shutdown.h"
#include "driver/table/entries.h"
#include "heap/page.h"
#include "options/options.h"
#include "pool/pool.h"
#include "process/helper.h"
#include "process/process.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* Base of the buffer identifiers of blocks: never reached by the driver, which counts from 1. */
#define BLOCK_ID_BASE ((unsigned long long)1 << 62)
#define IMPORT_ID_BASE (BLOCK_ID_BASE + ((unsigned long long)1 << 61)) /* of imported blocks */
#define ATTRIBUTES_MOST 1024u /* larger than every attribute of the driver */

/* --- free and total memory --- */

CUresult hook_cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    uint64_t free_now = 0, total = 0;
    CUresult answer =
        REAL(cuMemGetInfo_v2)(free_bytes ? &free_now : NULL, total_bytes ? &total : NULL);
    if (answer != CUDA_SUCCESS)
        return fault_notice(answer);
    struct device *device = device_current();
    if (device) {
        /* The driver's total is smaller than the device if the cgroup has a hard limit. */
        total = total != 0 && total < device->total ? total : device->total;
        driver_pool_query_all(device);
        device_visible_memory(device, &free_now, &total);
        helper_start_requested();
    }
    if (free_bytes)
        *free_bytes = free_now;
    if (total_bytes)
        *total_bytes = total;
    return answer;
}

CUresult hook_cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal) {
    partition_read();
    CUresult answer = REAL(cuDeviceTotalMem_v2)(bytes, ordinal);
    if (answer == CUDA_SUCCESS && process_ready()) {
        uint64_t limit = device_limit_of(ordinal, *bytes);
        if (limit && limit < *bytes)
            *bytes = limit;
    }
    return answer;
}

/* --- addresses --- */

/*
 * Finds the live block at `dptr`. Returns 0, or -ENOENT outside all pools. Returns -EINVAL for
 * freed memory: in a pool, or in a pinned block that the library keeps (pinned.h). After the driver
 * has ended, returns -ENOENT, so that the driver answers by itself.
 */
static int find_block(CUdeviceptr dptr, struct pool_block *block) {
    if (shutdown_over())
        return -ENOENT;
    int r = pool_find(dptr, block);
    return r == -ENOENT && pinned_has((const void *)dptr) ? -EINVAL : r;
}

/* A block that the library knows: of a pool of this process, or imported. */
struct known {
    uint64_t address, bytes;
    struct pool *pool;   /* NULL for an imported block */
    uint64_t id;         /* number of an imported block; unused otherwise */
    CUcontext mapped_in; /* context that imported VMM pages were opened in; else NULL */
};

/* Finds a block of a pool or an imported block. Returns the values of find_block(), and -EINVAL
 * also in an imported segment outside its open blocks (ipc_find()). */
static int find_known(CUdeviceptr dptr, struct known *known) {
    struct pool_block block;
    struct ipc_block import;
    int r = find_block(dptr, &block);
    if (r == 0)
        *known = (struct known){block.address, block.requested, block.pool, 0, NULL};
    else if (r == -ENOENT && (r = ipc_find(dptr, &import)) == 0)
        *known = (struct known){import.address, import.bytes, NULL, import.id, import.mapped_in};
    return r;
}

static bool is_vmm(const struct known *block) {
    return block->pool && backend_maps(pool_backend(block->pool));
}

/*
 * Returns the address to ask the driver about if no context is current. The driver then knows only
 * cuMemAlloc memory of primary contexts, but VMM pages of all contexts. Returns an unknown address
 * for a block of the vmm backend whose context is not primary.
 */
static CUdeviceptr address_without_context(const struct known *block, CUdeviceptr dptr) {
    bool primary =
        !is_vmm(block) || context_primary_pool(device_of_pool(block->pool)->ordinal) == block->pool;
    return primary ? dptr : UNKNOWN_ADDRESS;
}

/*
 * Returns `host`, or an unknown address for a pinned block that the program has freed and for VMM
 * pages of pools or imports. The driver would answer for VMM pages as if they were pinned host
 * memory.
 */
static void *only_live_host(void *host) {
    bool hidden = !shutdown_over() && (pinned_has(host) || vmm_touches((CUdeviceptr)host, 1) ||
                                       ipc_pages_touch((CUdeviceptr)host, 1));
    return hidden ? (void *)UNKNOWN_ADDRESS : host;
}

CUresult hook_cuMemHostGetFlags(unsigned int *flags, void *host) {
    return REAL(cuMemHostGetFlags)(flags, only_live_host(host));
}

CUresult hook_cuMemHostGetDevicePointer_v2(CUdeviceptr *dptr, void *host, unsigned int flags) {
    return REAL(cuMemHostGetDevicePointer_v2)(dptr, only_live_host(host), flags);
}

CUresult hook_cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr dptr) {
    struct known block = {.pool = NULL};
    int r = find_known(dptr, &block);
    if (r != 0)
        return REAL(cuMemGetAddressRange_v2)(base, bytes, r == -EINVAL ? UNKNOWN_ADDRESS : dptr);
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current);
    if (!block.pool || !current || context_of_pool(block.pool) != current) {
        /* The driver may refuse: no context, or another context that has ended or has a fault. */
        CUdeviceptr asked = current ? dptr : address_without_context(&block, dptr);
        CUresult answer = REAL(cuMemGetAddressRange_v2)(base, bytes, asked);
        if (answer != CUDA_SUCCESS)
            return answer;
    } else if (fault_of(block.pool)) {
        return fault_of(block.pool);
    }
    if (base)
        *base = block.address;
    if (bytes)
        *bytes = block.bytes;
    return CUDA_SUCCESS;
}

/* --- attributes --- */

/*
 * The SYNC_MEMOPS value of every block whose flag was never set. The driver keeps the attribute for
 * a whole segment, so its value changes for all blocks of the segment. This variable keeps the
 * driver's value from before the first change.
 */
#define SYNC_UNKNOWN (-1) /* no flag was set yet */
static _Atomic int sync_default = SYNC_UNKNOWN;

/* Returns the driver's value of SYNC_MEMOPS at `dptr`, or SYNC_UNKNOWN if the driver refuses. */
static int driver_sync_memops(CUdeviceptr dptr) {
    int value = SYNC_UNKNOWN;
    CUresult r = REAL(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, dptr);
    return r == CUDA_SUCCESS ? value : SYNC_UNKNOWN;
}

/*
 * Keeps the driver's value in sync_default. Must run before the driver changes the attribute: from
 * then on the driver has the new value for every block of the segment.
 */
static void keep_sync_default(CUdeviceptr dptr) {
    int none = SYNC_UNKNOWN;
    if (atomic_load(&sync_default) == SYNC_UNKNOWN)
        atomic_compare_exchange_strong(&sync_default, &none, driver_sync_memops(dptr));
}

/* Returns the value of SYNC_MEMOPS, or SYNC_UNKNOWN if the driver's answer is right. */
static int sync_memops_of(const struct known *block) {
    int flag = block->pool ? pool_flag(block->address) : SYNC_UNKNOWN;
    return flag >= 0 ? flag : block->pool ? atomic_load(&sync_default) : SYNC_UNKNOWN;
}

static unsigned long long id_of(const struct known *block) {
    return block->pool ? BLOCK_ID_BASE + pool_block_id(block->address) : IMPORT_ID_BASE + block->id;
}

static CUcontext context_of(const struct known *block) {
    return block->pool ? context_of_pool(block->pool) : block->mapped_in;
}

/*
 * Writes an attribute to *data that the driver answers wrongly for VMM pages: the values are those
 * of cuMemAlloc memory. Returns false if the driver's answer is right.
 */
static bool answer_of_pages(void *data, CUpointer_attribute attribute, const struct known *block) {
    uint64_t start = block->address & ~(PAGE_BYTES - 1);
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
        uint64_t end = (block->address + block->bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
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

/*
 * Corrects the driver's answer in *data for a block of the vmm backend. The driver answers "no" to
 * two attributes of VMM pages, and "yes" for cuMemAlloc memory. Changes only the first byte: only
 * the driver, which was asked before, knows how many bytes the answer has.
 */
static void correct(void *data, CUpointer_attribute attribute, const struct known *block) {
    const struct vmm_backend *pages =
        is_vmm(block) ? (struct vmm_backend *)pool_backend(block->pool) : NULL;
    bool decompress = (unsigned)attribute == CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE;
    bool ipc = (unsigned)attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    if (pages && ((decompress && vmm_can_decompress(pages)) || (ipc && vmm_can_export(pages))))
        *(unsigned char *)data = 1;
}

/* Returns true, with the value in *data, if the block has a value of its own for the attribute. */
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
        if (value != SYNC_UNKNOWN)
            memcpy(data, &value, sizeof value);
        return value != SYNC_UNKNOWN;
    }
    default:
        return (is_vmm(block) || block->mapped_in) && answer_of_pages(data, attribute, block);
    }
}

/*
 * Records that the driver gave out P2P tokens: a network card can reach the block, and the driver
 * has set SYNC_MEMOPS. Runs before the hook returns: the program cannot pass the tokens to a card
 * before it has them, and a correct program does not free the block during its query.
 */
static void note_tokens(CUdeviceptr dptr) {
    int value = driver_sync_memops(dptr);
    pool_mark_externally_visible(dptr);
    if (value != SYNC_UNKNOWN)
        pool_set_flag(dptr, value != 0);
}

/* Returns whether the program asks for P2P tokens. */
static bool asks_for_tokens(unsigned count, const CUpointer_attribute *attributes) {
    unsigned i = 0;
    while (i < count && attributes[i] != CU_POINTER_ATTRIBUTE_P2P_TOKENS) {
        if ((unsigned)attributes[i] > ATTRIBUTES_MOST)
            return false; /* the driver refuses the list; the rest may be unreadable */
        i++;
    }
    return i < count;
}

CUresult hook_cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr dptr) {
    struct known block = {.pool = NULL};
    int r = data ? find_known(dptr, &block) : -ENOENT;
    if (r == -EINVAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (r == 0 && answer_of_block(data, attribute, &block))
        return CUDA_SUCCESS;
    bool tokens = r == 0 && block.pool && attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS;
    if (tokens)
        keep_sync_default(dptr);
    CUresult answer = REAL(cuPointerGetAttribute)(data, attribute, dptr);
    if (tokens && answer == CUDA_SUCCESS)
        note_tokens(dptr);
    if (r == 0 && answer == CUDA_SUCCESS)
        correct(data, attribute, &block);
    return answer;
}

CUresult hook_cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes,
                                     void **data, CUdeviceptr dptr) {
    struct known block = {.pool = NULL};
    int r = attributes && data ? find_known(dptr, &block) : -ENOENT;
    bool tokens = r == 0 && block.pool && asks_for_tokens(count, attributes);
    if (tokens)
        keep_sync_default(dptr);
    /* The driver answers for NULL as for an unknown pointer. */
    CUresult answer =
        REAL(cuPointerGetAttributes)(count, attributes, data, r == -EINVAL ? 0 : dptr);
    if (tokens && answer == CUDA_SUCCESS)
        note_tokens(dptr);
    for (unsigned i = 0; r == -EINVAL && answer == CUDA_SUCCESS && i < count; i++) {
        if (attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER && data[i]) {
            /* The host pointer of an unknown pointer is the pointer itself. */
            memcpy(data[i], &(void *){(void *)dptr}, sizeof(void *));
        }
    }
    for (unsigned i = 0; r == 0 && answer == CUDA_SUCCESS && i < count; i++)
        if (data[i] && !answer_of_block(data[i], attributes[i], &block))
            correct(data[i], attributes[i], &block);
    return answer;
}

/*
 * Sets SYNC_MEMOPS, and succeeds for VMM pages although the driver refuses. All device memory has
 * SYNC_MEMOPS set from the start (tests/sim/probe-h200.txt). The driver refuses to set or clear it
 * for VMM pages (measured with driver 580). The pool's flag then has the program's value; the
 * driver synchronises as if the attribute were set, which is at least what the program asked for.
 */
static CUresult set_sync_memops_of(const void *value, CUdeviceptr dptr, const struct known *block) {
    CUresult r = REAL(cuPointerSetAttribute)(value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, dptr);
    bool refused = r == CUDA_ERROR_NOT_SUPPORTED && value;
    return refused && (is_vmm(block) || block->mapped_in) ? CUDA_SUCCESS : r;
}

CUresult hook_cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                                    CUdeviceptr dptr) {
    struct known block = {.pool = NULL};
    int r = find_known(dptr, &block);
    if (r == -EINVAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (r != 0 || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
        /* No other attribute can be set. The driver's error for VMM pages differs from that for
         * cuMemAlloc memory. */
        CUresult none = REAL(cuPointerSetAttribute)(value, attribute, dptr);
        if (none == CUDA_SUCCESS)
            pinned_attribute_was_set();
        return none == CUDA_ERROR_NOT_SUPPORTED && r == 0 && (is_vmm(&block) || block.mapped_in)
                   ? CUDA_ERROR_INVALID_VALUE
                   : none;
    }
    if (block.pool && pool_block_id(block.address) == 0)
        return CUDA_ERROR_OUT_OF_MEMORY; /* no host memory for the block's flag */
    if (block.pool)
        keep_sync_default(dptr);
    CUresult answer = set_sync_memops_of(value, dptr, &block);
    if (block.pool && answer == CUDA_SUCCESS) {
        pool_mark_externally_visible(dptr);
        pool_set_flag(block.address, *(const int *)value != 0);
    }
    return answer;
}

CUresult hook_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t bytes,
                                            CUmemRangeHandleType type, unsigned long long flags) {
    struct known block;
    /* Freed memory may still be mapped. The driver answers for NULL as for an unknown pointer. */
    if (find_known(dptr, &block) == -EINVAL)
        dptr = 0;
    pool_mark_externally_visible(dptr);
    return REAL(cuMemGetHandleForAddressRange)(handle, dptr, bytes, type, flags);
}
