/*
 * The segments of other processes that are open here, and the blocks in them.
 *
 *      handle of the library  ->  driver's handle, offset, bytes
 *      driver's handle        ->  import: a segment, opened as a whole or for its blocks
 *      import + offset        ->  imported block
 *
 * The handles of all blocks of a segment are one handle to the driver, which counts the openings.
 * The hooks (hooks/ipc.c) ask the driver for each opening and each closing, because it also answers
 * wrong flags, a missing context, and a stream that is being captured. Unpooled memory counts a
 * segment once.
 *
 * The lock IPC protects the tables. Invariant: while no thread holds the lock IPC_CALLS, the
 * openings of an import are the openings that the driver counts.
 */
#include "driver/ipc/ipc.h"

#include "base/lock.h"
#include "driver/context/context.h"
#include "driver/ipc/ipc_pages.h"
#include "driver/limit/unpooled.h"
#include "driver/state/address_map.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "process/process.h"

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
static struct host_freelist import_freelist = {.object_bytes = sizeof(struct import)};
static struct host_freelist block_freelist = {.object_bytes = sizeof(struct imported_block)};
/* IPC_CALLS is held across driver calls, also while a close waits for work. */
static struct lock calls = LOCK_INITIALIZER(IPC_CALLS);
static struct lock lock = LOCK_INITIALIZER(IPC);

/* --- the tables; lock held --- */

/*
 * Returns the import of `context` at an address, else an import of any context: the program may
 * close an import with another context current. Returns NULL if there is none.
 */
static struct import *find_import(CUcontext context, CUdeviceptr base) {
    struct import *found = NULL;
    for (size_t i = address_map_from(&imports, base);
         i < imports.count && imports.rows[i].start == base &&
         !(found && found->context == context);
         i++)
        found = imports.rows[i].what;
    return found;
}

/* Returns the open block that begins at `dptr`, with the same preference for `context`. */
static struct imported_block *find_block(CUcontext context, CUdeviceptr dptr) {
    struct imported_block *found = NULL;
    for (size_t i = address_map_from(&blocks, dptr);
         i < blocks.count && blocks.rows[i].start == dptr &&
         !(found && found->import->context == context);
         i++)
        found = blocks.rows[i].what;
    return found;
}

/*
 * Returns the import of an allocation that the driver has just opened. Adds a new import to the
 * table and to the ledger. Returns NULL without host memory.
 */
static struct import *get_import(CUcontext context, CUdeviceptr base) {
    struct import *import = find_import(context, base);
    if (import && import->context == context)
        return import;
    import = host_freelist_get(&import_freelist);
    if (!import)
        return NULL;
    *import = (struct import){.context = context, .base = base};
    if (!address_map_add(&imports, base, import)) {
        host_freelist_put(&import_freelist, import);
        return NULL;
    }
    if (REAL(cuMemGetAddressRange_v2)(NULL, &import->bytes, base) != CUDA_SUCCESS)
        import->bytes = 0;
    else if (process_ready())
        unpooled_enter(UNPOOLED_IPC_IMPORTED, device_current(), context, import->bytes, base, 0);
    return import;
}

/* Removes an import without openings. */
static void drop_if_unused(struct import *import) {
    if (import->blocks > 0 || import->whole > 0)
        return;
    address_map_remove(&imports, address_map_find(&imports, import->base, import));
    unpooled_free(UNPOOLED_IMPORTS, import->base);
    host_freelist_put(&import_freelist, import);
}

/* Returns the block at `offset` of an import; adds a new block. Returns NULL without host
 * memory. */
static struct imported_block *get_block(struct import *import, uint64_t offset, uint64_t bytes) {
    struct imported_block *block = find_block(import->context, import->base + offset);
    if (!block || block->import != import) {
        block = host_freelist_get(&block_freelist);
        if (!block)
            return NULL;
        *block = (struct imported_block){.dptr = import->base + offset,
                                         .id = atomic_fetch_add(&ipc_last_id, 1) + 1,
                                         .import = import};
        if (!address_map_add(&blocks, block->dptr, block)) {
            host_freelist_put(&block_freelist, block);
            return NULL;
        }
        atomic_fetch_add(&ipc_blocks, 1);
    }
    block->bytes = bytes; /* the exporter may have a new block at this address */
    return block;
}

/* --- openings; `calls` held, lock not held --- */

void ipc_open_begin(void) {
    lock_acquire(&calls);
}

void ipc_open_end(void) {
    lock_release(&calls);
}

void ipc_opened_whole(CUcontext context, CUdeviceptr base) {
    lock_acquire(&lock);
    struct import *import = get_import(context, base);
    if (import)
        import->whole++;
    lock_release(&lock);
}

CUresult ipc_opened_block(CUcontext context, CUdeviceptr base, uint64_t offset, uint64_t bytes,
                          CUdeviceptr *dptr) {
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

/* --- closings --- */

struct ipc_closing ipc_close_begin(CUcontext context, CUdeviceptr dptr) {
    struct ipc_closing closing = {.context = context, .address = dptr};
    lock_acquire(&calls);
    lock_acquire(&lock);
    struct imported_block *block = find_block(context, dptr);
    const struct import *import = find_import(context, dptr);
    if (block) {
        closing.address = block->import->base;
        closing.block = dptr;
        closing.id = block->id;
    } else if (import && import->whole == 0) {
        closing.address = UNKNOWN_ADDRESS; /* the program opened only blocks of the segment */
    }
    lock_release(&lock);
    return closing;
}

/* Subtracts an opening of a block, unless the block ended with its context. Lock held. */
static void subtract_block(CUdeviceptr dptr, uint64_t id) {
    struct imported_block *block = NULL;
    for (size_t i = address_map_from(&blocks, dptr);
         !block && i < blocks.count && blocks.rows[i].start == dptr; i++) {
        struct imported_block *candidate = blocks.rows[i].what;
        block = candidate->id == id ? candidate : NULL;
    }
    if (!block)
        return;
    struct import *import = block->import;
    if (--block->opened == 0) {
        address_map_remove(&blocks, address_map_find(&blocks, dptr, block));
        host_freelist_put(&block_freelist, block);
        atomic_fetch_sub(&ipc_blocks, 1);
    }
    import->blocks--;
    drop_if_unused(import);
}

/* Subtracts an opening of a whole segment, unless it ended with its context. Lock held. */
static void subtract_whole(CUcontext context, CUdeviceptr base) {
    struct import *import = find_import(context, base);
    if (import && import->whole > 0) {
        import->whole--;
        drop_if_unused(import);
    }
}

CUresult ipc_close_end(const struct ipc_closing *closing, CUresult answer) {
    lock_acquire(&lock);
    if (answer == CUDA_SUCCESS && closing->id != 0)
        subtract_block(closing->block, closing->id);
    else if (answer == CUDA_SUCCESS)
        subtract_whole(closing->context, closing->address);
    lock_release(&lock);
    lock_release(&calls);
    return answer;
}

/* --- called by other files --- */

int ipc_find_open(CUdeviceptr dptr, struct ipc_block *out) {
    int result = ipc_pages_find(dptr, out);
    if (result != -ENOENT)
        return result;
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
            host_freelist_put(&block_freelist, block);
            atomic_fetch_sub(&ipc_blocks, 1);
        } else {
            blocks.rows[remaining++] = blocks.rows[i];
        }
    }
    blocks.count = remaining;
    remaining = 0;
    for (size_t i = 0; i < imports.count; i++) {
        struct import *import = imports.rows[i].what;
        if (import->context == context->handle)
            host_freelist_put(&import_freelist, import);
        else
            imports.rows[remaining++] = imports.rows[i];
    }
    imports.count = remaining;
    lock_release(&lock);
}
