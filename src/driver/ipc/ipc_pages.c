#include "driver/ipc/ipc_pages.h"

#include "base/lock.h"
#include "driver/context/context.h"
#include "driver/context/current.h"
#include "driver/context/fault.h"
#include "driver/ipc/ipc_fetch.h"
#include "driver/ipc/ipc_server.h"
#include "driver/limit/unpooled.h"
#include "driver/limit/wait_by_free.h"
#include "driver/state/address_map.h"
#include "driver/state/capture.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "process/process.h"
#include "stats/stats.h"

#include <errno.h>
#include <string.h>

/* A block that is open in a context, and its mapping. */
struct opened {
    CUcontext context;
    struct ipc_ticket ticket;
    struct ipc_fetched fetched;
    uint64_t id;    /* ipc_block.id: unique in the process */
    unsigned times; /* openings not closed; 0: the last close waits for work, or its wait failed */
    unsigned ends;  /* how often `times` has become 0 */
};

static struct address_map all; /* by first mapped address, which is unique */
static struct host_freelist freelist = {.object_bytes = sizeof(struct opened)};
static struct lock lock = LOCK_INITIALIZER(IPC_PAGES);

static CUdeviceptr start_of(const struct opened *opened) {
    return opened->fetched.base + opened->fetched.offset;
}

/* --- the table; lock held --- */

static struct opened *find_in_context(CUcontext context, const struct ipc_ticket *ticket) {
    for (size_t i = 0; i < all.count; i++) {
        struct opened *opened = all.rows[i].what;
        if (opened->context == context && memcmp(&opened->ticket, ticket, sizeof *ticket) == 0)
            return opened;
    }
    return NULL;
}

/* Returns the block whose pages cover `dptr`, or NULL. */
static struct opened *covering(CUdeviceptr dptr) {
    struct opened *opened = address_map_before(&all, dptr);
    return opened && dptr - opened->fetched.base < opened->fetched.span ? opened : NULL;
}

/* Returns the open block that begins at `dptr`, or NULL. */
static struct opened *starting(CUdeviceptr dptr) {
    struct opened *opened = covering(dptr);
    return opened && opened->times > 0 && start_of(opened) == dptr ? opened : NULL;
}

/* Adds a mapping to the table. Returns NULL without host memory. */
static struct opened *enter(const struct opened *fresh) {
    struct opened *opened = host_freelist_get(&freelist);
    if (!opened)
        return NULL;
    *opened = *fresh;
    if (!address_map_add(&all, opened->fetched.base, opened)) {
        host_freelist_put(&freelist, opened);
        return NULL;
    }
    opened->id = atomic_fetch_add(&ipc_last_id, 1) + 1;
    atomic_fetch_add(&ipc_blocks, 1);
    return opened;
}

static void remove_opened(struct opened *opened) {
    address_map_remove(&all, address_map_find(&all, opened->fetched.base, opened));
    host_freelist_put(&freelist, opened);
    atomic_fetch_sub(&ipc_blocks, 1);
}

/*
 * Adds an opening if the context has a mapping of the block, also while the last close waits for
 * work. Returns whether it has one.
 */
static bool reopen(CUcontext context, const struct ipc_ticket *ticket, CUdeviceptr *dptr) {
    struct opened *opened = find_in_context(context, ticket);
    if (opened) {
        opened->times++;
        *dptr = start_of(opened);
    }
    return opened != NULL;
}

/* --- opening --- */

/* Returns whether the call fails natively for a reason other than its handle or address. */
static bool concerns_call(CUresult r, CUcontext context) {
    return r == CUDA_ERROR_NOT_INITIALIZED || r == CUDA_ERROR_DEINITIALIZED || !context ||
           r == CUDA_ERROR_CONTEXT_IS_DESTROYED || r == CUDA_ERROR_NOT_PERMITTED ||
           (r >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
            r <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) ||
           fault_is_sticky(r);
}

/*
 * Gives access to the peer devices that the context got since the set `before` was read. Their
 * ipc_pages_grant_access() may have run before the block was in the table. Call without the lock:
 * context_peer_devices() acquires REGISTRY.
 */
static void grant_access_since(CUcontext context, const struct ipc_fetched *fetched,
                               uint64_t before) {
    uint64_t since = context_peer_devices(context) & ~before;
    for (CUdevice i = 0; i < STATS_MAX_DEVICES; i++)
        if (since >> i & 1)
            ipc_fetch_grant_access(fetched, i);
}

/* Maps a block that is not open in the context. If another thread opens the block during the call,
 * uses that thread's mapping and unmaps the new one. */
static CUresult open_new(CUcontext context, CUdeviceptr *dptr, const struct ipc_ticket *ticket,
                         CUresult native) {
    struct opened fresh = {.context = context, .ticket = *ticket, .times = 1};
    uint64_t peer_devices = context_peer_devices(context);
    int r = ipc_fetch(ticket, peer_devices, &fresh.fetched);
    if (r == -ECONNREFUSED) /* the exporter has ended: the driver's native answer */
        return CUDA_ERROR_INVALID_HANDLE;
    if (r != 0)
        return r == CUDA_ERROR_OUT_OF_MEMORY || fault_is_sticky((CUresult)r) ? (CUresult)r : native;
    lock_acquire(&lock);
    bool reopened = reopen(context, ticket, dptr);
    struct opened *opened = reopened ? NULL : enter(&fresh);
    if (opened) {
        unpooled_enter(UNPOOLED_IPC_IMPORTED, device_current(), context, fresh.fetched.bytes,
                       fresh.fetched.base, 0);
        *dptr = start_of(&fresh);
    }
    lock_release(&lock);
    if (opened)
        grant_access_since(context, &fresh.fetched, peer_devices);
    else /* the program got no address in this mapping */
        ipc_fetch_undo(&fresh.fetched);
    return opened || reopened ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult ipc_pages_open(CUcontext context, CUdeviceptr *dptr, const struct ipc_ticket *ticket,
                        unsigned flags, CUresult native) {
    if (native == CUDA_SUCCESS || !(flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) ||
        concerns_call(native, context) || !process_ready())
        return native;
    if (ipc_server_is_own(ticket->exporter))
        return CUDA_ERROR_INVALID_CONTEXT; /* the native answer */
    lock_acquire(&lock);
    bool reopened = reopen(context, ticket, dptr);
    lock_release(&lock);
    return reopened ? CUDA_SUCCESS : open_new(context, dptr, ticket, native);
}

/* --- closing --- */

/* Waits for all work of a context, also while a stream is being captured. */
static CUresult wait_for_context(CUcontext context) {
    if (!capture_hold_off())
        return wait_by_free(context);
    CUresult r = current_synchronize(context);
    capture_let_go();
    return r;
}

bool ipc_pages_has(CUdeviceptr dptr) {
    if (atomic_load(&ipc_blocks) == 0)
        return false;
    lock_acquire(&lock);
    bool has = starting(dptr) != NULL;
    lock_release(&lock);
    return has;
}

/*
 * Unmaps a block that `id` and `ends` identify, unless it was opened again since. The thread that
 * closes that later opening waits for work that this thread did not wait for.
 */
static void unmap_unused(CUdeviceptr dptr, uint64_t id, unsigned ends) {
    struct ipc_fetched fetched = {0};
    lock_acquire(&lock);
    struct opened *opened = covering(dptr);
    if (opened && opened->id == id && opened->times == 0 && opened->ends == ends) {
        fetched = opened->fetched;
        unpooled_free(UNPOOLED_IMPORTS, fetched.base);
        remove_opened(opened);
    }
    lock_release(&lock);
    if (fetched.span > 0)
        ipc_fetch_undo(&fetched);
}

CUresult ipc_pages_close(CUcontext context, CUdeviceptr dptr, CUresult native) {
    uint64_t id = 0;
    unsigned ends = 0;
    if (concerns_call(native, context))
        return native;
    lock_acquire(&lock);
    struct opened *opened = starting(dptr);
    CUcontext owner = opened ? opened->context : NULL;
    bool last = opened && --opened->times == 0;
    if (last) {
        id = opened->id;
        ends = ++opened->ends;
    }
    lock_release(&lock);
    if (last && wait_for_context(owner) == CUDA_SUCCESS)
        unmap_unused(dptr, id, ends);
    return owner ? CUDA_SUCCESS : native;
}

/* --- called by other files --- */

int ipc_pages_find(CUdeviceptr dptr, struct ipc_block *block) {
    int r = -ENOENT;
    lock_acquire(&lock);
    const struct opened *opened = covering(dptr);
    if (opened) {
        CUdeviceptr start = start_of(opened);
        bool inside = opened->times > 0 && dptr >= start && dptr - start < opened->fetched.bytes;
        *block = (struct ipc_block){start, opened->fetched.bytes, opened->id, opened->context};
        r = inside ? 0 : -EINVAL;
    }
    lock_release(&lock);
    return r;
}

bool ipc_pages_touch(CUdeviceptr dptr, uint64_t bytes) {
    if (atomic_load(&ipc_blocks) == 0 || bytes == 0)
        return false;
    lock_acquire(&lock);
    const struct opened *opened = address_map_before_end(&all, dptr, bytes);
    bool touched = opened && opened->fetched.base + opened->fetched.span > dptr;
    lock_release(&lock);
    return touched;
}

CUresult ipc_pages_grant_access(CUcontext context, CUdevice device) {
    CUresult r = CUDA_SUCCESS;
    lock_acquire(&lock);
    for (size_t i = 0; i < all.count && r == CUDA_SUCCESS; i++) {
        const struct opened *opened = all.rows[i].what;
        r = opened->context == context ? ipc_fetch_grant_access(&opened->fetched, device) : r;
    }
    lock_release(&lock);
    return r;
}

bool ipc_pages_access_all(void) {
    CUdevice device;
    bool any = false;
    if (atomic_load(&ipc_blocks) == 0 || REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return false;
    lock_acquire(&lock);
    for (size_t i = 0; i < all.count; i++) {
        const struct opened *opened = all.rows[i].what;
        any |= ipc_fetch_grant_access(&opened->fetched, device) == CUDA_SUCCESS;
    }
    lock_release(&lock);
    return any;
}

void ipc_pages_forget(const struct context *context) {
    lock_acquire(&lock);
    for (size_t i = all.count; i > 0; i--) {
        struct opened *opened = all.rows[i - 1].what;
        if (opened->context == context->handle) {
            ipc_fetch_undo(&opened->fetched);
            remove_opened(opened);
        }
    }
    lock_release(&lock);
}
