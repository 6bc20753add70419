/*
 * Exports blocks of this process as IPC handles (ipc_handle.h), and opens handles of other
 * processes.
 *
 * Blocks in segments: an importer that runs this library restores the driver's handle, opens the
 * segment, and returns the address of the block. Several handles of one segment are one handle to
 * the driver, which counts the openings. The driver is asked for each opening, because it also
 * answers wrong flags, a missing context, and a stream that is being captured. The segment is
 * counted once in the counters.
 *
 * Blocks in pages: the driver is asked too, and normally answers that the handle is none. Any other
 * error is the answer to the program. Else ipc_pages.h opens the block.
 */
#include "driver/ipc/ipc.h"

#include "backend/vmm.h"
#include "driver/context/context.h"
#include "driver/ipc/ipc_export.h"
#include "driver/ipc/ipc_handle.h"
#include "driver/ipc/ipc_pages.h"
#include "driver/ipc/ipc_server.h"
#include "driver/limit/retry.h"
#include "driver/limit/unpooled.h"
#include "driver/state/address_map.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "pool/pool.h"
#include "process/lock.h"
#include "process/log.h"
#include "process/process.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

/* --- exporting --- */

/*
 * Makes the handle of a block in pages. Returns CUDA_ERROR_NOT_SUPPORTED if the driver exports no
 * descriptors of the pages, or if the server cannot run. Returns CUDA_ERROR_OUT_OF_MEMORY without
 * host memory.
 */
static CUresult export_pages(CUipcMemHandle *handle, const struct pool_block *block) {
    struct ipc_handle view;
    uint64_t exporter;
    if (!vmm_can_export((struct vmm *)pool_backend(block->pool))) {
        log_once(LOG_LEVEL_WARN, "the driver makes no IPC handles of memory in pages; "
                                 "GPUCACHE_BACKEND=segments makes them possible");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!ipc_server_name(&exporter)) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    pool_mark_externally_visible(block->address);
    int r = ipc_export(exporter, block->address, &view);
    if (r == 0) {
        memcpy(handle, &view, sizeof view);
    }
    return r == 0         ? CUDA_SUCCESS
           : r == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY
                          : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr) {
    struct pool_block block;
    struct pool_segment segment;
    int r = handle ? pool_find_segment(dptr, &block, &segment) : -ENOENT;
    CUresult result = REAL(cuIpcGetMemHandle)(handle, r == -EINVAL ? UNKNOWN_ADDRESS : dptr);
    if (r == 0 && backend_maps(pool_backend(block.pool))) {
        bool is_no_handle =
            result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_SUPPORTED;
        /* the driver has no handles of pages */
        return is_no_handle ? export_pages(handle, &block) : result;
    }
    if (r != 0 || result != CUDA_SUCCESS) {
        return result;
    }
    pool_mark_externally_visible(dptr);
    uint64_t offset = block.address - segment.address;
    struct ipc_handle view = ipc_handle_view(handle);
    if (offset == 0 && (block.requested == segment.bytes || view.words[7] != 0)) {
        return result;
    }
    if (view.words[7] != 0 || !ipc_handle_pack(&view, offset, block.requested)) {
        return CUDA_ERROR_NOT_SUPPORTED; /* no handle is better than one of another block */
    }
    memcpy(handle, &view, sizeof view);
    return result;
}

/* --- importing --- */

/*
 * An allocation of another process, opened in one context of this process: whole, by the driver's
 * handle, or for blocks in it, by handles of this library. The driver counts each as an opening.
 */
struct import {
    CUcontext context;
    CUdeviceptr base;
    size_t bytes;           /* 0: not known */
    unsigned blocks, whole; /* number of openings for blocks, and as a whole */
};

/* An open block. The program got its pointer `opened` times. */
struct imported_block {
    CUdeviceptr dptr;
    uint64_t bytes, id;
    struct import *import;
    unsigned opened;
};

_Atomic unsigned ipc_blocks;
_Atomic uint64_t ipc_last_id;
static struct address_map imports, blocks; /* by first address */
static struct host_slab import_slab = {.object_bytes = sizeof(struct import)};
static struct host_slab block_slab = {.object_bytes = sizeof(struct imported_block)};
/* held across driver calls, since a close waits for work */
static struct lock calls = LOCK_INITIALIZER(IPC_CALLS);
static struct lock lock = LOCK_INITIALIZER(IPC);

typedef CUresult open_handle(CUdeviceptr *, CUipcMemHandle, unsigned int);

/* --- the tables; lock held --- */

/*
 * Returns the import of `context` at an address, else one of any context: the program may close it
 * with another context current. NULL if there is none.
 */
static struct import *find_import(CUcontext context, CUdeviceptr base) {
    struct import *found = NULL;
    for (size_t i = address_map_from(&imports, base);
         i < imports.count && imports.rows[i].start == base &&
         !(found && found->context == context);
         i++) {
        found = imports.rows[i].what;
    }
    return found;
}

static struct imported_block *find_block(CUcontext context, CUdeviceptr dptr) {
    struct imported_block *found = NULL;
    for (size_t i = address_map_from(&blocks, dptr);
         i < blocks.count && blocks.rows[i].start == dptr &&
         !(found && found->import->context == context);
         i++) {
        found = blocks.rows[i].what;
    }
    return found;
}

/*
 * Returns the import of an allocation that the driver has just opened, and adds and counts a new
 * one. Returns NULL without host memory.
 */
static struct import *get_import(CUcontext context, CUdeviceptr base) {
    struct import *import = find_import(context, base);
    if (import && import->context == context) {
        return import;
    }
    import = host_slab_get(&import_slab);
    if (!import) {
        return NULL;
    }
    *import = (struct import){.context = context, .base = base};
    if (!address_map_add(&imports, base, import)) {
        host_slab_put(&import_slab, import);
        return NULL;
    }
    if (REAL(cuMemGetAddressRange_v2)(NULL, &import->bytes, base) != CUDA_SUCCESS) {
        import->bytes = 0;
    } else if (process_ready()) {
        unpooled_enter(UNPOOLED_IPC_IMPORTED, device_current(), import->bytes, base, 0);
    }
    return import;
}

/* Removes an import without openings. */
static void drop_if_unused(struct import *import) {
    if (import->blocks > 0 || import->whole > 0) {
        return;
    }
    address_map_remove(&imports, address_map_find(&imports, import->base, import));
    unpooled_leave(UNPOOLED_IMPORTS, import->base);
    host_slab_put(&import_slab, import);
}

/*
 * Returns the block at `offset` of an import, and adds a new one. Returns NULL without host memory.
 */
static struct imported_block *get_block(struct import *import, uint64_t offset, uint64_t bytes) {
    struct imported_block *block = find_block(import->context, import->base + offset);
    if (!block || block->import != import) {
        block = host_slab_get(&block_slab);
        if (!block) {
            return NULL;
        }
        *block = (struct imported_block){.dptr = import->base + offset,
                                         .id = atomic_fetch_add(&ipc_last_id, 1) + 1,
                                         .import = import};
        if (!address_map_add(&blocks, block->dptr, block)) {
            host_slab_put(&block_slab, block);
            return NULL;
        }
        atomic_fetch_add(&ipc_blocks, 1);
    }
    block->bytes = bytes; /* the exporter may have a new block at this address */
    return block;
}

/* --- opening and closing; `calls` held, lock not held --- */

static CUresult open_whole(CUcontext context, CUdeviceptr *dptr, CUipcMemHandle handle,
                           unsigned int flags, open_handle *native) {
    CUresult r = native(dptr, handle, flags);
    lock_acquire(&lock);
    struct import *import = r == CUDA_SUCCESS ? get_import(context, *dptr) : NULL;
    if (import) {
        import->whole++;
    }
    lock_release(&lock);
    return r;
}

/*
 * Adds an opening of a block in a segment that the driver has just opened. Returns
 * CUDA_ERROR_INVALID_VALUE if the block does not fit in the segment, and CUDA_ERROR_OUT_OF_MEMORY
 * without host memory.
 */
static CUresult enter_block(CUcontext context, CUdeviceptr *dptr, CUdeviceptr base, uint64_t offset,
                            uint64_t bytes) {
    lock_acquire(&lock);
    struct import *import = get_import(context, base);
    bool is_valid =
        import && offset < import->bytes && bytes > 0 && bytes <= import->bytes - offset;
    struct imported_block *block = is_valid ? get_block(import, offset, bytes) : NULL;
    if (block) {
        import->blocks++;
        block->opened++;
        *dptr = block->dptr;
    } else if (import) {
        drop_if_unused(import);
    }
    lock_release(&lock);
    return block                 ? CUDA_SUCCESS
           : import && !is_valid ? CUDA_ERROR_INVALID_VALUE
                                 : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult open_block(CUcontext context, CUdeviceptr *dptr, struct ipc_handle view,
                           unsigned int flags, open_handle *native) {
    uint64_t offset, bytes;
    CUipcMemHandle plain;
    CUdeviceptr base;
    bool is_valid = ipc_handle_unpack(&view, &offset, &bytes);
    memcpy(&plain, &view, sizeof plain);
    if (HAS(cuIpcOpenMemHandle_v2)) { /* only version 2 counts openings */
        native = REAL(cuIpcOpenMemHandle_v2);
    }
    CUresult r = native(&base, plain, flags);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    r = enter_block(context, dptr, base, offset, is_valid ? bytes : 0);
    if (r != CUDA_SUCCESS) {
        REAL(cuIpcCloseMemHandle)(base);
    }
    return r;
}

static CUresult close_whole(CUcontext context, CUdeviceptr dptr) {
    lock_acquire(&lock);
    struct import *import = find_import(context, dptr);
    /* the program did not open the whole segment */
    bool only_blocks = import && import->whole == 0;
    lock_release(&lock);
    CUresult r = REAL(cuIpcCloseMemHandle)(only_blocks ? UNKNOWN_ADDRESS : dptr);
    lock_acquire(&lock);
    import = find_import(context, dptr); /* the context may have ended during the call */
    if (import && import->whole > 0 && r == CUDA_SUCCESS) {
        import->whole--;
        drop_if_unused(import);
    }
    lock_release(&lock);
    return r;
}

static void close_one_opening(CUdeviceptr dptr, uint64_t id) {
    struct imported_block *block = NULL;
    lock_acquire(&lock);
    for (size_t i = address_map_from(&blocks, dptr);
         !block && i < blocks.count && blocks.rows[i].start == dptr; i++) {
        struct imported_block *candidate = blocks.rows[i].what;
        block = candidate->id == id ? candidate : NULL;
    }
    if (block) { /* its context still exists */
        struct import *import = block->import;
        if (--block->opened == 0) {
            address_map_remove(&blocks, address_map_find(&blocks, dptr, block));
            host_slab_put(&block_slab, block);
            atomic_fetch_sub(&ipc_blocks, 1);
        }
        import->blocks--;
        drop_if_unused(import);
    }
    lock_release(&lock);
}

static CUresult close_any(CUcontext context, CUdeviceptr dptr) {
    lock_acquire(&lock);
    const struct imported_block *block = find_block(context, dptr);
    uint64_t id = block ? block->id : 0;
    CUdeviceptr base = block ? block->import->base : 0;
    lock_release(&lock);
    if (!block) {
        return close_whole(context, dptr);
    }
    CUresult r = REAL(cuIpcCloseMemHandle)(base);
    if (r == CUDA_SUCCESS) {
        close_one_opening(dptr, id);
    }
    return r;
}

/* --- called by other files --- */

int ipc_look(CUdeviceptr dptr, struct ipc_block *out) {
    int result = ipc_pages_look(dptr, out);
    if (result != -ENOENT) {
        return result;
    }
    lock_acquire(&lock);
    const struct imported_block *b = address_map_before(&blocks, dptr);
    const struct import *import_below = address_map_before(&imports, dptr);
    if (b && dptr - b->dptr < b->bytes) {
        *out = (struct ipc_block){.address = b->dptr, .bytes = b->bytes, .id = b->id};
        result = 0;
    } else if (import_below && dptr - import_below->base < import_below->bytes &&
               import_below->whole == 0) {
        result = -EINVAL;
    }
    lock_release(&lock);
    return result;
}

void ipc_forget(const struct context *context) {
    size_t remaining = 0;
    ipc_pages_forget(context);
    lock_acquire(&lock);
    for (size_t i = 0; i < blocks.count; i++) {
        struct imported_block *block = blocks.rows[i].what;
        if (block->import->context == context->handle) {
            host_slab_put(&block_slab, block);
            atomic_fetch_sub(&ipc_blocks, 1);
        } else {
            blocks.rows[remaining++] = blocks.rows[i];
        }
    }
    blocks.count = remaining;
    remaining = 0;
    for (size_t i = 0; i < imports.count; i++) {
        struct import *import = imports.rows[i].what;
        if (import->context == context->handle) {
            host_slab_put(&import_slab, import);
        } else {
            imports.rows[remaining++] = imports.rows[i];
        }
    }
    imports.count = remaining;
    lock_release(&lock);
}

/* --- the hooks --- */

static CUresult import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
                       open_handle *native) {
    struct ipc_handle view = ipc_handle_view(&handle);
    enum ipc_handle_kind kind = ipc_handle_kind(&view);
    struct ipc_ticket ticket;
    CUcontext context = NULL;
    if (!dptr) {
        return native(dptr, handle, flags);
    }
    REAL(cuCtxGetCurrent)(&context);
    if (kind == IPC_HANDLE_IN_PAGES && ipc_handle_read_pages(&view, &ticket)) {
        CUdeviceptr nothing = 0;
        CUresult r = native(&nothing, handle, flags);
        return ipc_pages_open(context, dptr, &ticket, flags, r);
    }
    lock_acquire(&calls);
    CUresult r = kind == IPC_HANDLE_IN_SEGMENT ? open_block(context, dptr, view, flags, native)
                                               : open_whole(context, dptr, handle, flags, native);
    lock_release(&calls);
    return r;
}

CUresult hook_cuIpcOpenMemHandle(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    return RETRY(import(dptr, handle, flags, REAL(cuIpcOpenMemHandle)));
}

CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    return RETRY(import(dptr, handle, flags, REAL(cuIpcOpenMemHandle_v2)));
}

CUresult hook_cuIpcCloseMemHandle(CUdeviceptr dptr) {
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    if (ipc_pages_has(dptr)) {
        return ipc_pages_close(context, dptr, REAL(cuIpcCloseMemHandle)(UNKNOWN_ADDRESS));
    }
    lock_acquire(&calls);
    CUresult r = close_any(context, dptr);
    lock_release(&calls);
    return r;
}
