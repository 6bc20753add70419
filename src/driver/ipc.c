/*
 * IPC of blocks: a handle that leads to a block inside a segment.
 *
 * The driver knows the segment only, and gives the same handle for every address in it. So the
 * handle we hand out carries where in the segment the block starts, in its last eight bytes, which
 * the driver leaves zero (cuda-facts, "Legacy IPC"):
 *
 *      bytes  0..55                 56..63
 *             driver's, inverted     tag, offset in units of 512 bytes
 *
 * An importer under this library puts it right again, opens the segment, and answers with the
 * block. One without it holds something that the driver does not take for a handle and gets the
 * driver's error, never another block's memory (inverting the process number alone is not enough:
 * the driver does not look at it). A block at the very start of its segment needs none of that and
 * keeps the driver's handle.
 *
 * Several blocks of one segment are several handles to the program but one to the driver: opened
 * once, counted here.
 */
#include "driver/device.h"
#include "driver/entries.h"
#include "driver/outside.h"
#include "pool/host.h"
#include "pool/pool.h"
#include "process/process.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

#define TAG ((uint64_t)0x6763u << 48) /* "gc" */
#define TAG_MASK ((uint64_t)0xffffu << 48)
#define OFFSET_UNIT 512u

struct handle_view {
    uint64_t words[8];
};
_Static_assert(sizeof(struct handle_view) == sizeof(CUipcMemHandle), "a handle is 64 bytes");

static void invert(struct handle_view *view) {
    for (unsigned i = 0; i < 7; i++) {
        view->words[i] = ~view->words[i];
    }
}

static struct handle_view view_of(const CUipcMemHandle *handle) {
    struct handle_view view;
    memcpy(&view, handle, sizeof view);
    return view;
}

/* --- exporting --- */

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr) {
    struct pool_block block;
    int r = handle ? pool_find(dptr, &block) : -ENOENT;
    if (r == -EINVAL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUresult result = REAL(cuIpcGetMemHandle)(handle, dptr);
    if (r != 0 || result != CUDA_SUCCESS) {
        return result;
    }
    pool_mark_reached_from_outside(dptr);
    uint64_t offset = block.address - block.segment_address;
    struct handle_view view = view_of(handle);
    if (offset == 0) {
        return result;
    }
    if (view.words[7] != 0) {
        return CUDA_ERROR_NOT_SUPPORTED; /* a driver that uses these bytes: no handle is better than
                                            a wrong one */
    }
    invert(&view);
    view.words[7] = TAG | offset / OFFSET_UNIT;
    memcpy(handle, &view, sizeof view);
    return result;
}

/* --- importing --- */

/* A segment of another process, opened in one context of this one. */
struct import {
    struct handle_view handle;
    CUcontext context;
    CUdeviceptr base;
    unsigned opened;
    struct import *next;
};

/* A pointer the program got from a handle, as often as it got it. */
struct imported_block {
    CUdeviceptr dptr;
    struct import *import;
    unsigned opened;
    struct imported_block *next;
};

static struct import *imports;
static struct imported_block *blocks;
static struct host_slab import_slab = {.object_bytes = sizeof(struct import)};
static struct host_slab block_slab = {.object_bytes = sizeof(struct imported_block)};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef CUresult open_handle(CUdeviceptr *, CUipcMemHandle, unsigned int);

/* The segment, opened in the current context; lock held. */
static CUresult open_segment(const struct handle_view *handle, unsigned int flags,
                             open_handle *native, struct import **out) {
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    for (struct import *import = imports; import; import = import->next) {
        if (import->context == context && memcmp(&import->handle, handle, sizeof *handle) == 0) {
            import->opened++;
            *out = import;
            return CUDA_SUCCESS;
        }
    }
    CUipcMemHandle plain;
    CUdeviceptr base;
    memcpy(&plain, handle, sizeof plain);
    CUresult r = native(&base, plain, flags);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    struct import *import = host_slab_get(&import_slab);
    if (!import) {
        REAL(cuIpcCloseMemHandle)(base);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *import = (struct import){*handle, context, base, 1, imports};
    *out = imports = import;
    return CUDA_SUCCESS;
}

static CUresult close_segment(struct import *import) {
    if (--import->opened > 0) {
        return CUDA_SUCCESS;
    }
    for (struct import **at = &imports; *at; at = &(*at)->next) {
        if (*at == import) {
            *at = import->next;
            break;
        }
    }
    CUresult r = REAL(cuIpcCloseMemHandle)(import->base);
    host_slab_put(&import_slab, import);
    return r;
}

static CUresult open_block(CUdeviceptr *dptr, struct handle_view view, unsigned int flags,
                           open_handle *native) {
    uint64_t offset = (view.words[7] & ~TAG_MASK) * OFFSET_UNIT;
    invert(&view);
    view.words[7] = 0;
    pthread_mutex_lock(&lock);
    struct import *import = NULL;
    CUresult r = open_segment(&view, flags, native, &import);
    if (r == CUDA_SUCCESS) {
        struct imported_block *block = blocks;
        while (block && block->dptr != import->base + offset) {
            block = block->next;
        }
        if (!block && (block = host_slab_get(&block_slab)) != NULL) {
            *block = (struct imported_block){import->base + offset, import, 0, blocks};
            blocks = block;
        }
        if (block) {
            block->opened++;
            *dptr = block->dptr;
        } else {
            close_segment(import);
            r = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    pthread_mutex_unlock(&lock);
    return r;
}

/* True if `dptr` came from a handle of ours; then *result answers its close. */
static bool close_block(CUdeviceptr dptr, CUresult *result) {
    pthread_mutex_lock(&lock);
    struct imported_block **at = &blocks;
    while (*at && (*at)->dptr != dptr) {
        at = &(*at)->next;
    }
    struct imported_block *block = *at;
    if (block) {
        *result = close_segment(block->import);
        if (--block->opened == 0) {
            *at = block->next;
            host_slab_put(&block_slab, block);
        }
    }
    pthread_mutex_unlock(&lock);
    return block != NULL;
}

static CUresult import(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags,
                       open_handle *native) {
    struct handle_view view = view_of(&handle);
    bool ours = dptr && (view.words[7] & TAG_MASK) == TAG;
    CUresult r = ours ? open_block(dptr, view, flags, native) : native(dptr, handle, flags);
    size_t bytes = 0;
    if (dptr && r == CUDA_SUCCESS && process_ready() &&
        REAL(cuMemGetAddressRange_v2)(NULL, &bytes, *dptr) == CUDA_SUCCESS) {
        outside_end(r, OUTSIDE_IPC_IMPORTED, device_current(), bytes, *dptr);
    }
    return r;
}

CUresult hook_cuIpcOpenMemHandle(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    return import(dptr, handle, flags, REAL(cuIpcOpenMemHandle));
}

CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    return import(dptr, handle, flags, REAL(cuIpcOpenMemHandle_v2));
}

CUresult hook_cuIpcCloseMemHandle(CUdeviceptr dptr) {
    CUresult r;
    if (!close_block(dptr, &r)) {
        r = REAL(cuIpcCloseMemHandle)(dptr);
    }
    if (r == CUDA_SUCCESS) {
        outside_leave(OUTSIDE_POINTER, dptr);
    }
    return r;
}
