/*
 * IPC of blocks: a handle that leads to a block inside a segment.
 *
 * The driver knows the segment only, and gives the same handle for every address in it. So the
 * handle we hand out says in its last eight bytes, which the driver leaves zero (cuda-facts, "Legacy
 * IPC"), where in the segment the block starts and how long it is:
 *
 *      bytes  0..55                 56..63
 *             driver's, inverted    tag, unit of the size, size, offset in units of 512 bytes
 *
 * An importer under this library puts it right again, opens the segment, and answers with the
 * block. An importer without the library holds something that the driver does not take for a handle
 * and gets the driver's error, never another block's memory (inverting the process number alone is
 * not enough: the driver does not look at it).
 *
 * A block at the very start of its segment needs no offset. There the driver's handle is left as it
 * is, for the sake of such importers, but for its last eight bytes:
 *
 *      bytes  0..55                 56..63
 *             driver's              another tag, size
 *
 * Several blocks of one segment are several handles to the program but one to the driver: opened
 * once, counted once.
 */
#include "driver/ipc.h"

#include "driver/device.h"
#include "driver/entries.h"
#include "driver/outside.h"
#include "driver/retry.h"
#include "pool/host.h"
#include "pool/pool.h"
#include "process/process.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#define TAG_SHIFT 56
#define TAG ((uint64_t)0x67 << TAG_SHIFT)
#define TAG_AT_START ((uint64_t)0x68 << TAG_SHIFT)
#define TAG_MASK ((uint64_t)0xff << TAG_SHIFT)
#define UNITS_FLAG ((uint64_t)1 << 55) /* the size is in units, not in bytes */
#define SIZE_SHIFT 28
#define SIZE_MOST (((uint64_t)1 << 27) - 1)
#define OFFSET_MOST (((uint64_t)1 << SIZE_SHIFT) - 1)
#define UNIT_BYTES 512u

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

/*
 * Makes the driver's handle one of a block. False: a block so far into its segment has none. A size
 * above 128 MiB that is no multiple of 512 is rounded up to one.
 */
static bool pack(struct handle_view *view, uint64_t offset, uint64_t bytes) {
    if (offset == 0) {
        view->words[7] = TAG_AT_START | bytes;
        return true;
    }
    uint64_t flag = bytes > SIZE_MOST ? UNITS_FLAG : 0;
    uint64_t size = flag ? (bytes + UNIT_BYTES - 1) / UNIT_BYTES : bytes;
    if (size > SIZE_MOST || offset / UNIT_BYTES > OFFSET_MOST) {
        return false;
    }
    invert(view);
    view->words[7] = TAG | flag | size << SIZE_SHIFT | offset / UNIT_BYTES;
    return true;
}

static bool is_packed(const struct handle_view *view) {
    uint64_t tag = view->words[7] & TAG_MASK;
    return tag == TAG || tag == TAG_AT_START;
}

/* The way back. */
static void unpack(struct handle_view *view, uint64_t *offset, uint64_t *bytes) {
    uint64_t word = view->words[7];
    if ((word & TAG_MASK) == TAG_AT_START) {
        *offset = 0;
        *bytes = word & ~TAG_MASK;
    } else {
        *offset = (word & OFFSET_MOST) * UNIT_BYTES;
        *bytes = (word >> SIZE_SHIFT & SIZE_MOST) * (word & UNITS_FLAG ? UNIT_BYTES : 1);
        invert(view);
    }
    view->words[7] = 0;
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
    if (offset == 0 && (block.requested == block.segment_bytes || view.words[7] != 0)) {
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
 * own handle, or for blocks in it, by ours. Each of the two is one opening for the driver. */
struct import {
    struct handle_view handle; /* the driver's; of blocks only */
    CUcontext context;
    CUdeviceptr base;
    size_t bytes;
    unsigned blocks, whole; /* how often opened in either way */
    struct import *next;
};

/* A pointer the program got from a handle of ours, as often as it got it. */
struct imported_block {
    CUdeviceptr dptr;
    uint64_t bytes, id; /* 0 bytes: not known */
    struct import *import;
    unsigned opened;
    struct imported_block *next;
};

_Atomic unsigned ipc_blocks;
static struct import *imports;
static struct imported_block *blocks;
static uint64_t last_id;
static struct host_slab import_slab = {.object_bytes = sizeof(struct import)};
static struct host_slab block_slab = {.object_bytes = sizeof(struct imported_block)};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef CUresult open_handle(CUdeviceptr *, CUipcMemHandle, unsigned int);

/* All below until the hooks: lock held. */

static struct import *find_import(CUcontext context, CUdeviceptr base) {
    struct import *import = imports;
    while (import && (import->context != context || import->base != base)) {
        import = import->next;
    }
    return import;
}

/* The import of an allocation that the driver has just opened, counted if it is new. */
static struct import *note_import(CUcontext context, CUdeviceptr base) {
    struct import *import = find_import(context, base);
    if (!import && (import = host_slab_get(&import_slab)) != NULL) {
        *import = (struct import){.context = context, .base = base, .next = imports};
        imports = import;
        if (process_ready() &&
            REAL(cuMemGetAddressRange_v2)(NULL, &import->bytes, base) == CUDA_SUCCESS) {
            outside_enter(OUTSIDE_IPC_IMPORTED, device_current(), import->bytes, base, 0);
        }
    }
    return import;
}

static void drop_if_unused(struct import *import) {
    if (import->blocks > 0 || import->whole > 0) {
        return;
    }
    struct import **at = &imports;
    while (*at != import) {
        at = &(*at)->next;
    }
    *at = import->next;
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

/* The segment for one more block in it. */
static CUresult open_segment(CUcontext context, const struct handle_view *handle,
                             unsigned int flags, open_handle *native, struct import **out) {
    for (struct import *import = imports; import; import = import->next) {
        if (import->blocks > 0 && import->context == context &&
            memcmp(&import->handle, handle, sizeof *handle) == 0) {
            import->blocks++;
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
    struct import *import = note_import(context, base);
    if (!import) {
        REAL(cuIpcCloseMemHandle)(base);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    import->handle = *handle;
    import->blocks = 1;
    *out = import;
    return CUDA_SUCCESS;
}

static CUresult close_segment(struct import *import) {
    CUresult r = CUDA_SUCCESS;
    if (--import->blocks == 0) {
        r = REAL(cuIpcCloseMemHandle)(import->base);
        drop_if_unused(import);
    }
    return r;
}

static void remove_block(struct imported_block **at) {
    struct imported_block *gone = *at;
    *at = gone->next;
    host_slab_put(&block_slab, gone);
    atomic_fetch_sub(&ipc_blocks, 1);
}

static CUresult open_block(CUcontext context, CUdeviceptr *dptr, struct handle_view view,
                           unsigned int flags, open_handle *native) {
    uint64_t offset, bytes;
    unpack(&view, &offset, &bytes);
    struct import *import = NULL;
    CUresult r = open_segment(context, &view, flags, native, &import);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    struct imported_block *block = blocks;
    while (block && block->dptr != import->base + offset) {
        block = block->next;
    }
    if (!block && (block = host_slab_get(&block_slab)) != NULL) {
        *block = (struct imported_block){
            .dptr = import->base + offset, .id = ++last_id, .import = import, .next = blocks};
        blocks = block;
        atomic_fetch_add(&ipc_blocks, 1);
    }
    if (!block) {
        close_segment(import);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bool fits = offset < import->bytes && bytes <= import->bytes - offset;
    block->bytes = fits ? bytes : 0; /* the exporter may have a new block in this place */
    block->opened++;
    *dptr = block->dptr;
    return CUDA_SUCCESS;
}

static CUresult close_whole(CUcontext context, CUdeviceptr dptr) {
    CUresult r = REAL(cuIpcCloseMemHandle)(dptr);
    struct import *import = r == CUDA_SUCCESS ? find_import(context, dptr) : NULL;
    for (struct import *any = imports; any && r == CUDA_SUCCESS && !import; any = any->next) {
        import = any->base == dptr ? any : NULL; /* closed with another context current */
    }
    if (import && import->whole > 0) {
        import->whole--;
        drop_if_unused(import);
    }
    return r;
}

static CUresult close_any(CUcontext context, CUdeviceptr dptr) {
    struct imported_block **at = &blocks;
    while (*at && (*at)->dptr != dptr) {
        at = &(*at)->next;
    }
    if (!*at) {
        return close_whole(context, dptr);
    }
    struct import *import = (*at)->import;
    if (--(*at)->opened == 0) {
        remove_block(at);
    }
    return close_segment(import);
}

/* --- asked by the other files of this room --- */

int ipc_look(CUdeviceptr dptr, struct ipc_block *out) {
    const struct import *around = NULL;
    bool exact = true;
    int result = -ENOENT;
    pthread_mutex_lock(&lock);
    for (const struct imported_block *b = blocks; b && result != 0; b = b->next) {
        const struct import *import = b->import;
        if (dptr - import->base >= import->bytes) {
            continue;
        }
        around = import;
        exact &= b->bytes > 0;
        if (dptr - b->dptr < b->bytes) {
            *out = (struct ipc_block){.address = b->dptr, .bytes = b->bytes, .id = b->id};
            result = 0;
        }
    }
    if (result != 0 && around && exact && around->whole == 0) {
        result = -EINVAL;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

void ipc_forget(CUcontext context) {
    pthread_mutex_lock(&lock);
    for (struct imported_block **at = &blocks; *at;) {
        if ((*at)->import->context == context) {
            remove_block(at);
        } else {
            at = &(*at)->next;
        }
    }
    for (struct import **at = &imports; *at;) {
        struct import *import = *at;
        if (import->context == context) {
            *at = import->next;
            host_slab_put(&import_slab, import);
        } else {
            at = &import->next;
        }
    }
    pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
    CUresult r = is_packed(&view) ? open_block(context, dptr, view, flags, native)
                                  : open_whole(context, dptr, handle, flags, native);
    pthread_mutex_unlock(&lock);
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
    pthread_mutex_lock(&lock);
    CUresult r = close_any(context, dptr);
    pthread_mutex_unlock(&lock);
    return r;
}
