/*
 * IPC of blocks: a handle that leads to a block inside a segment.
 *
 * The driver knows the segment only, and gives the same handle for every address in it. So the
 * handle we hand out says in its last eight bytes, which the driver leaves zero (cuda-facts, "Legacy
 * IPC"), where in the segment the block starts and how long it is:
 *
 *      bytes  0..55                   56..63
 *             driver's, scrambled     tag, unit of the size, size, offset in units of 512 bytes
 *
 * An importer under this library puts it right again, opens the segment, and answers with the
 * block. An importer without the library holds something that the driver does not take for a handle
 * and gets the driver's error, never another block's memory (scrambling the process number alone is
 * not enough: the driver does not look at it). The last eight bytes are what the rest is scrambled
 * with, so that whoever changes one of them holds nothing either.
 *
 * A block at the very start of its segment needs no offset. There the driver's handle is left as it
 * is, for the sake of such importers, but for its last eight bytes:
 *
 *      bytes  0..55                   56..63
 *             driver's                another tag, checksum of the size, size
 *
 * Several blocks of one segment are several handles to the program but one to the driver. It counts
 * how often that is opened, and answers each time: for a flag it does not know, without a context,
 * while a stream is being captured. What was opened that way is counted once in the books.
 */
#include "driver/ipc.h"
#include "driver/context.h"

#include "driver/context.h"
#include "driver/device.h"
#include "driver/entries.h"
#include "driver/outside.h"
#include "driver/retry.h"
#include "driver/spans.h"
#include "pool/host.h"
#include "pool/pool.h"
#include "process/lock.h"
#include "process/log.h"
#include "process/process.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define TAG_SHIFT 56
#define TAG ((uint64_t)0x69 << TAG_SHIFT)
#define TAG_AT_START ((uint64_t)0x6a << TAG_SHIFT)
#define TAG_MASK ((uint64_t)0xff << TAG_SHIFT)
#define UNITS_FLAG ((uint64_t)1 << 55) /* the size is in units, not in bytes */
#define SIZE_SHIFT 28
#define SIZE_MOST (((uint64_t)1 << 27) - 1)
#define OFFSET_MOST (((uint64_t)1 << SIZE_SHIFT) - 1)
#define UNIT_BYTES 512u
#define CHECK_SHIFT 40 /* at the start of a segment: the size below, its checksum above */

struct handle_view {
    uint64_t words[8];
};
_Static_assert(sizeof(struct handle_view) == sizeof(CUipcMemHandle), "a handle is 64 bytes");

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

/* There and back. */
static void scramble(struct handle_view *view) {
    for (unsigned i = 0; i < 7; i++) {
        view->words[i] ^= mix(view->words[7] + i);
    }
}

static struct handle_view view_of(const CUipcMemHandle *handle) {
    struct handle_view view;
    memcpy(&view, handle, sizeof view);
    return view;
}

static uint64_t word_at_start(uint64_t bytes) {
    return TAG_AT_START | (mix(bytes) & 0xffff) << CHECK_SHIFT | bytes;
}

/*
 * Makes the driver's handle one of a block. False: a block so far into its segment has none. A size
 * above 128 MiB that is no multiple of 512 is rounded up to one.
 */
static bool pack(struct handle_view *view, uint64_t offset, uint64_t bytes) {
    if (offset == 0) {
        view->words[7] = word_at_start(bytes);
        return bytes >> CHECK_SHIFT == 0;
    }
    uint64_t flag = bytes > SIZE_MOST ? UNITS_FLAG : 0;
    uint64_t size = flag ? (bytes + UNIT_BYTES - 1) / UNIT_BYTES : bytes;
    if (size > SIZE_MOST || offset / UNIT_BYTES > OFFSET_MOST) {
        return false;
    }
    view->words[7] = TAG | flag | size << SIZE_SHIFT | offset / UNIT_BYTES;
    scramble(view);
    return true;
}

static bool is_packed(const struct handle_view *view) {
    uint64_t tag = view->words[7] & TAG_MASK;
    return tag == TAG || tag == TAG_AT_START;
}

/* The way back. False: somebody has changed it. */
static bool unpack(struct handle_view *view, uint64_t *offset, uint64_t *bytes) {
    uint64_t word = view->words[7];
    bool right = true;
    if ((word & TAG_MASK) == TAG_AT_START) {
        *offset = 0;
        *bytes = word & (((uint64_t)1 << CHECK_SHIFT) - 1);
        right = word == word_at_start(*bytes);
    } else {
        *offset = (word & OFFSET_MOST) * UNIT_BYTES;
        *bytes = (word >> SIZE_SHIFT & SIZE_MOST) * (word & UNITS_FLAG ? UNIT_BYTES : 1);
        scramble(view);
    }
    view->words[7] = 0;
    return right;
}

/* --- exporting --- */

/* Pages are nothing that the driver makes such handles of. */
static CUresult no_handle_of_pages(void) {
    log_once(LOG_LEVEL_WARN, "IPC handles cannot be had of memory in pages; "
                             "GPUCACHE_BACKEND=segments makes them possible");
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr) {
    struct pool_block block;
    struct pool_segment segment;
    int r = handle ? pool_find_segment(dptr, &block, &segment) : -ENOENT;
    CUresult result = REAL(cuIpcGetMemHandle)(handle, r == -EINVAL ? UNKNOWN_ADDRESS : dptr);
    if (r == 0 && backend_maps(pool_backend(block.pool))) {
        return result == CUDA_ERROR_INVALID_VALUE ? no_handle_of_pages() : result;
    }
    if (r != 0 || result != CUDA_SUCCESS) {
        return result;
    }
    pool_mark_reached_from_outside(dptr);
    uint64_t offset = block.address - segment.address;
    struct handle_view view = view_of(handle);
    if (offset == 0 && (block.requested == segment.bytes || view.words[7] != 0)) {
        return result;
    }
    if (view.words[7] != 0 || !pack(&view, offset, block.requested)) {
        return CUDA_ERROR_NOT_SUPPORTED; /* no handle is better than a wrong one */
    }
    memcpy(handle, &view, sizeof view);
    return result;
}

/* --- importing --- */

/* An allocation of another process, opened in one context of this one: as a whole, by the driver's
 * own handle, or for blocks in it, by ours. Each time is an opening for the driver. */
struct import {
    CUcontext context;
    CUdeviceptr base;
    size_t bytes;           /* 0: not known */
    unsigned blocks, whole; /* how often opened in either way */
};

/* A pointer the program got from a handle of ours, as often as it got it. */
struct imported_block {
    CUdeviceptr dptr;
    uint64_t bytes, id;
    struct import *import;
    unsigned opened;
};

_Atomic unsigned ipc_blocks;
static struct spans imports, blocks; /* by where they begin */
static uint64_t last_id;
static struct host_slab import_slab = {.object_bytes = sizeof(struct import)};
static struct host_slab block_slab = {.object_bytes = sizeof(struct imported_block)};
static struct lock lock = LOCK_INITIALIZER(IPC);

typedef CUresult open_handle(CUdeviceptr *, CUipcMemHandle, unsigned int);

/* All below until the hooks: lock held. */

/* Of several at one address that of the context, else any: it may be closed with another one current. */
static struct import *find_import(CUcontext context, CUdeviceptr base) {
    struct import *found = NULL;
    for (size_t i = spans_from(&imports, base);
         i < imports.count && imports.rows[i].start == base &&
         !(found && found->context == context);
         i++) {
        found = imports.rows[i].what;
    }
    return found;
}

static struct imported_block *find_block(CUcontext context, CUdeviceptr dptr) {
    struct imported_block *found = NULL;
    for (size_t i = spans_from(&blocks, dptr); i < blocks.count && blocks.rows[i].start == dptr &&
                                               !(found && found->import->context == context);
         i++) {
        found = blocks.rows[i].what;
    }
    return found;
}

/* The import of an allocation that the driver has just opened, counted if it is new. */
static struct import *note_import(CUcontext context, CUdeviceptr base) {
    struct import *import = find_import(context, base);
    if (import && import->context == context) {
        return import;
    }
    import = host_slab_get(&import_slab);
    if (!import) {
        return NULL;
    }
    *import = (struct import){.context = context, .base = base};
    if (!spans_add(&imports, base, import)) {
        host_slab_put(&import_slab, import);
        return NULL;
    }
    if (REAL(cuMemGetAddressRange_v2)(NULL, &import->bytes, base) != CUDA_SUCCESS) {
        import->bytes = 0;
    } else if (process_ready()) {
        outside_enter(OUTSIDE_IPC_IMPORTED, device_current(), import->bytes, base, 0);
    }
    return import;
}

static void drop_if_unused(struct import *import) {
    if (import->blocks > 0 || import->whole > 0) {
        return;
    }
    spans_remove(&imports, spans_find(&imports, import->base, import));
    outside_leave(OUTSIDE_IMPORTS, import->base);
    host_slab_put(&import_slab, import);
}

static CUresult open_whole(CUcontext context, CUdeviceptr *dptr, CUipcMemHandle handle,
                           unsigned int flags, open_handle *native) {
    CUresult r = native(dptr, handle, flags);
    struct import *import = r == CUDA_SUCCESS ? note_import(context, *dptr) : NULL;
    if (import) {
        import->whole++;
    }
    return r;
}

static struct imported_block *note_block(struct import *import, uint64_t offset, uint64_t bytes) {
    struct imported_block *block = find_block(import->context, import->base + offset);
    if (!block || block->import != import) {
        block = host_slab_get(&block_slab);
        if (!block) {
            return NULL;
        }
        *block = (struct imported_block){
            .dptr = import->base + offset, .id = ++last_id, .import = import};
        if (!spans_add(&blocks, block->dptr, block)) {
            host_slab_put(&block_slab, block);
            return NULL;
        }
        atomic_fetch_add(&ipc_blocks, 1);
    }
    block->bytes = bytes; /* the exporter may have a new block in this place */
    return block;
}

static CUresult open_block(CUcontext context, CUdeviceptr *dptr, struct handle_view view,
                           unsigned int flags, open_handle *native) {
    uint64_t offset, bytes;
    CUipcMemHandle plain;
    CUdeviceptr base;
    bool right = unpack(&view, &offset, &bytes);
    memcpy(&plain, &view, sizeof plain);
    if (HAS(cuIpcOpenMemHandle_v2)) { /* the one that counts openings */
        native = REAL(cuIpcOpenMemHandle_v2);
    }
    CUresult r = native(&base, plain, flags);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    struct import *import = note_import(context, base);
    right &= import && offset < import->bytes && bytes > 0 && bytes <= import->bytes - offset;
    struct imported_block *block = right ? note_block(import, offset, bytes) : NULL;
    if (!block) {
        REAL(cuIpcCloseMemHandle)(base);
        if (import) {
            drop_if_unused(import);
        }
        return import && !right ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    import->blocks++;
    block->opened++;
    *dptr = block->dptr;
    return CUDA_SUCCESS;
}

static CUresult close_whole(CUcontext context, CUdeviceptr dptr) {
    struct import *import = find_import(context, dptr);
    bool only_blocks = import && import->whole == 0; /* the program has not opened this */
    CUresult r = REAL(cuIpcCloseMemHandle)(only_blocks ? UNKNOWN_ADDRESS : dptr);
    if (import && !only_blocks && r == CUDA_SUCCESS) {
        import->whole--;
        drop_if_unused(import);
    }
    return r;
}

static CUresult close_block(struct imported_block *block) {
    struct import *import = block->import;
    CUresult r = REAL(cuIpcCloseMemHandle)(import->base);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    if (--block->opened == 0) {
        spans_remove(&blocks, spans_find(&blocks, block->dptr, block));
        host_slab_put(&block_slab, block);
        atomic_fetch_sub(&ipc_blocks, 1);
    }
    import->blocks--;
    drop_if_unused(import);
    return r;
}

/* --- asked by the other files of this room --- */

int ipc_look(CUdeviceptr dptr, struct ipc_block *out) {
    int result = -ENOENT;
    lock_acquire(&lock);
    const struct imported_block *b = spans_before(&blocks, dptr);
    const struct import *around = spans_before(&imports, dptr);
    if (b && dptr - b->dptr < b->bytes) {
        *out = (struct ipc_block){.address = b->dptr, .bytes = b->bytes, .id = b->id};
        result = 0;
    } else if (around && dptr - around->base < around->bytes && around->whole == 0) {
        result = -EINVAL;
    }
    lock_release(&lock);
    return result;
}

void ipc_forget(const struct context *context) {
    size_t left = 0;
    lock_acquire(&lock);
    for (size_t i = 0; i < blocks.count; i++) {
        struct imported_block *block = blocks.rows[i].what;
        if (block->import->context == context->handle) {
            host_slab_put(&block_slab, block);
            atomic_fetch_sub(&ipc_blocks, 1);
        } else {
            blocks.rows[left++] = blocks.rows[i];
        }
    }
    blocks.count = left;
    left = 0;
    for (size_t i = 0; i < imports.count; i++) {
        struct import *import = imports.rows[i].what;
        if (import->context == context->handle) {
            host_slab_put(&import_slab, import);
        } else {
            imports.rows[left++] = imports.rows[i];
        }
    }
    imports.count = left;
    lock_release(&lock);
}

/* --- the hooks --- */

static CUresult import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
                       open_handle *native) {
    struct handle_view view = view_of(&handle);
    CUcontext context = NULL;
    if (!dptr) {
        return native(dptr, handle, flags);
    }
    REAL(cuCtxGetCurrent)(&context);
    lock_acquire(&lock);
    CUresult r = is_packed(&view) ? open_block(context, dptr, view, flags, native)
                                  : open_whole(context, dptr, handle, flags, native);
    lock_release(&lock);
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
    lock_acquire(&lock);
    struct imported_block *block = find_block(context, dptr);
    CUresult r = block ? close_block(block) : close_whole(context, dptr);
    lock_release(&lock);
    return r;
}
