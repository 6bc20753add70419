/*
 * Hooks of legacy IPC: handles of this process's blocks, and openings of other processes' memory.
 * Called with no lock held.
 *
 *   | memory             | handle                        | opened by                            |
 *   | ------------------ | ----------------------------- | ------------------------------------ |
 *   | block in a segment | the driver's, with the offset | the driver: the whole segment. The   |
 *   |                    | and size of the block         | library returns the block's address. |
 *   | block in pages     | the library's                 | the library (ipc/ipc_pages.h). The   |
 *   |                    |                               | driver has answered an error.        |
 *   | other memory       | the driver's                  | the driver                           |
 *
 * The driver is asked in every case: it judges the arguments, the context and captures.
 */
#include "backend/vmm.h"
#include "base/log.h"
#include "driver/context/context.h"
#include "driver/hooks/hook.h"
#include "driver/ipc/ipc_export.h"
#include "driver/ipc/ipc_handle.h"
#include "driver/ipc/ipc_pages.h"
#include "driver/ipc/ipc_server.h"
#include "pool/pool.h"

#include <errno.h>
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
    if (!vmm_can_export((struct vmm_backend *)pool_backend(block->pool))) {
        log_once(LOG_LEVEL_WARN, "the driver makes no IPC handles of memory in pages; "
                                 "GPUCACHE_BACKEND=segments makes them possible");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!ipc_server_name(&exporter))
        return CUDA_ERROR_NOT_SUPPORTED;
    pool_mark_externally_visible(block->address);
    int r = ipc_export(exporter, block->address, &view);
    if (r == 0)
        memcpy(handle, &view, sizeof view);
    return r == 0         ? CUDA_SUCCESS
           : r == -ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY
                          : CUDA_ERROR_NOT_SUPPORTED;
}

/*
 * Adds the offset and size of a block to the driver's handle of its segment. A block at the start
 * of its segment keeps the driver's handle if it fills the segment, or if the driver uses the last
 * eight bytes. Returns CUDA_ERROR_NOT_SUPPORTED if offset and size do not fit in a handle.
 */
static CUresult export_in_segment(CUipcMemHandle *handle, const struct pool_block *block,
                                  const struct pool_segment *segment) {
    uint64_t offset = block->address - segment->address;
    struct ipc_handle view = ipc_handle_view(handle);
    bool as_is = offset == 0 && (block->requested == segment->bytes || view.words[7] != 0);
    if (!as_is && (view.words[7] != 0 || !ipc_handle_pack(&view, offset, block->requested)))
        return CUDA_ERROR_NOT_SUPPORTED;
    pool_mark_externally_visible(block->address);
    memcpy(handle, &view, sizeof view);
    return CUDA_SUCCESS;
}

/* Makes the handle of a pool's block from the driver's answer. The driver makes no handle of
 * pages. */
static CUresult account_exported(CUresult answer, CUipcMemHandle *handle,
                                 const struct pool_block *block,
                                 const struct pool_segment *segment) {
    if (backend_maps(pool_backend(block->pool))) {
        bool no_handle = answer == CUDA_ERROR_INVALID_VALUE || answer == CUDA_ERROR_NOT_SUPPORTED;
        return no_handle ? export_pages(handle, block) : answer;
    }
    return answer == CUDA_SUCCESS ? export_in_segment(handle, block, segment) : answer;
}

CUresult hook_cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr dptr) {
    struct pool_block block;
    struct pool_segment segment;
    int r = handle ? pool_find_segment(dptr, &block, &segment) : -ENOENT;
    CUresult answer = REAL(cuIpcGetMemHandle)(handle, r == -EINVAL ? UNKNOWN_ADDRESS : dptr);
    return fault_notice(r == 0 ? account_exported(answer, handle, &block, &segment) : answer);
}

/* --- opening and closing --- */

typedef CUresult open_entry(CUdeviceptr *, CUipcMemHandle, unsigned int);

/* A call of the program that opens a handle. */
struct opening {
    CUdeviceptr *dptr;
    unsigned flags;
    CUcontext context;
    enum ipc_handle_kind kind;
    CUipcMemHandle handle;    /* for the driver */
    struct ipc_ticket ticket; /* of a block in pages */
    uint64_t offset, bytes;   /* of a block in a segment; 0 bytes: the handle was changed */
};

/* Describes a call. The driver answers for a changed handle of pages, and if `dptr` is NULL. */
static struct opening enter_opening(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    struct opening call = {.dptr = dptr, .flags = flags, .handle = handle};
    struct ipc_handle view = ipc_handle_view(&handle);
    call.kind = dptr ? ipc_handle_kind(&view) : IPC_HANDLE_OF_DRIVER;
    call.context = context_current_resolved();
    if (call.kind == IPC_HANDLE_IN_PAGES && !ipc_handle_read_pages(&view, &call.ticket))
        call.kind = IPC_HANDLE_OF_DRIVER;
    if (call.kind == IPC_HANDLE_IN_SEGMENT) {
        if (!ipc_handle_unpack(&view, &call.offset, &call.bytes))
            call.bytes = 0;
        memcpy(&call.handle, &view, sizeof call.handle);
    }
    return call;
}

/*
 * Counts an opening of the segment at `base`, which may be for a block in it: then returns the
 * block's address in *call->dptr. Closes the driver's opening again if the block cannot be counted.
 */
static CUresult account_opened(const struct opening *call, CUdeviceptr base) {
    if (call->kind != IPC_HANDLE_IN_SEGMENT) {
        ipc_opened_whole(call->context, base);
        return CUDA_SUCCESS;
    }
    CUresult answer = ipc_opened_block(call->context, base, call->offset, call->bytes, call->dptr);
    if (answer != CUDA_SUCCESS)
        REAL(cuIpcCloseMemHandle)(base);
    return answer;
}

/*
 * Opens a handle once: the steps original and account (hook.h), under the lock IPC_CALLS. RETRY()
 * repeats the whole function, because RETRY() waits and must not hold that lock.
 */
static CUresult open_once(const struct opening *call, open_entry *original) {
    CUdeviceptr base = 0;
    if (call->kind == IPC_HANDLE_IN_PAGES) {
        CUresult answer = original(&base, call->handle, call->flags);
        return ipc_pages_open(call->context, call->dptr, &call->ticket, call->flags, answer);
    }
    ipc_open_begin();
    CUdeviceptr *result = call->kind == IPC_HANDLE_IN_SEGMENT ? &base : call->dptr;
    CUresult answer = original(result, call->handle, call->flags);
    if (answer == CUDA_SUCCESS)
        answer = account_opened(call, *result);
    ipc_open_end();
    return answer;
}

/* Opens a block in a segment by version 2 of the entry, if the driver has it: version 1 does not
 * count openings. */
CUresult hook_cuIpcOpenMemHandle(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    const struct opening call = enter_opening(dptr, handle, flags);
    bool counts = call.kind == IPC_HANDLE_IN_SEGMENT && HAS(cuIpcOpenMemHandle_v2);
    open_entry *original = counts ? REAL(cuIpcOpenMemHandle_v2) : REAL(cuIpcOpenMemHandle);
    return RETRY(open_once(&call, original));
}

CUresult hook_cuIpcOpenMemHandle_v2(CUdeviceptr *dptr, CUipcMemHandle handle, unsigned int flags) {
    const struct opening call = enter_opening(dptr, handle, flags);
    return RETRY(open_once(&call, REAL(cuIpcOpenMemHandle_v2)));
}

CUresult hook_cuIpcCloseMemHandle(CUdeviceptr dptr) {
    CUcontext context = context_current_resolved();
    if (ipc_pages_has(dptr)) {
        CUresult answer = REAL(cuIpcCloseMemHandle)(UNKNOWN_ADDRESS);
        return ipc_pages_close(context, dptr, answer);
    }
    struct ipc_closing closing = ipc_close_begin(context, dptr);
    CUresult answer = REAL(cuIpcCloseMemHandle)(closing.address);
    return ipc_close_end(&closing, answer);
}
