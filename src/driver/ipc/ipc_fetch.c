#include "driver/ipc/ipc_fetch.h"

#include "driver/ipc/ipc_wire.h"
#include "driver/state/capture.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "heap/page.h"
#include "stats/stats.h"

#include <errno.h>

#define SPAN_MOST ((uint64_t)1 << 47) /* bytes: the size of the address space */
#define TRIES 15                      /* connections to an exporter that disconnects */
#define TRY_MS 100                    /* pause before the next connection */

/* One call of ipc_fetch(). */
struct fetch {
    const struct ipc_ticket *ticket;
    struct ipc_fetched *into; /* span 0: no addresses are reserved yet */
    uint64_t mapped;          /* bytes mapped so far */
    uint64_t peer_devices;    /* devices that need access, a bit for each */
    int64_t budget_ms;        /* time left to wait for the exporter */
    int fd;
};

/* Returns the deadline of a wait for the exporter that begins now. */
static int64_t deadline_of(const struct fetch *fetch, int64_t now) {
    return now + (fetch->budget_ms < WIRE_LIMIT_MS ? fetch->budget_ms : WIRE_LIMIT_MS);
}

/* Subtracts a wait from the time budget. The driver's time for a large block is not subtracted. */
static void subtract_wait(struct fetch *fetch, int64_t begin) {
    fetch->budget_ms -= wire_clock_ms() - begin;
}

/* Requests the next pages. Returns 0 when the answer can be read, else a negative errno. */
static int request_pages(struct fetch *fetch) {
    const struct ipc_ticket *ticket = fetch->ticket;
    const struct wire_request request = {.magic = WIRE_MAGIC,
                                         .token = {ticket->token[0], ticket->token[1]},
                                         .address = ticket->address,
                                         .first = (uint32_t)(fetch->mapped / PAGE_BYTES)};
    int r = wire_send(fetch->fd, &request, sizeof request, NULL, 0);
    int64_t begin = wire_clock_ms();
    if (r == 0 && !wire_wait(fetch->fd, deadline_of(fetch, begin)))
        r = -ETIMEDOUT;
    subtract_wait(fetch, begin);
    return r;
}

/*
 * Checks the offset of the block. In the first answer the block must begin in the first pages;
 * later answers must repeat the offset.
 */
static bool is_offset_valid(const struct fetch *fetch, const struct wire_answer *answer) {
    return fetch->into->span == 0 ? answer->offset < answer->length * PAGE_BYTES
                                  : answer->offset == fetch->into->offset;
}

/*
 * Returns whether an answer is valid. `count` descriptors have arrived, fewer than were sent if
 * this process has too few free descriptors.
 */
static bool is_valid(const struct fetch *fetch, const struct wire_answer *answer, unsigned count) {
    uint64_t span = answer->pages * PAGE_BYTES;
    return answer->magic == WIRE_MAGIC && span > 0 && span <= SPAN_MOST &&
           is_offset_valid(fetch, answer) && answer->bytes > 0 && answer->bytes <= span &&
           answer->offset <= span - answer->bytes &&
           (fetch->into->span == 0 || fetch->into->span == span) && count > 0 &&
           answer->length > 0 && answer->unused == 0 &&
           (uint64_t)count * answer->length <= (span - fetch->mapped) / PAGE_BYTES;
}

/* Reserves the address range at the first answer. */
static CUresult reserve(struct fetch *fetch, const struct wire_answer *answer) {
    struct ipc_fetched *into = fetch->into;
    uint64_t span = answer->pages * PAGE_BYTES;
    if (into->span != 0)
        return CUDA_SUCCESS;
    CUresult r = REAL(cuMemAddressReserve)(&into->base, span, PAGE_BYTES, 0, 0);
    if (r == CUDA_SUCCESS) {
        into->span = span;
        into->offset = answer->offset;
        into->bytes = answer->bytes;
    }
    return r;
}

/* Maps the next `bytes` bytes, the memory behind the descriptor `fd`. */
static CUresult map_one(struct fetch *fetch, int fd, uint64_t bytes) {
    const CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUmemGenericAllocationHandle handle;
    CUresult r = REAL(cuMemImportFromShareableHandle)(&handle, (void *)(intptr_t)fd, type);
    if (r != CUDA_SUCCESS)
        return r;
    r = REAL(cuMemMap)(fetch->into->base + fetch->mapped, bytes, 0, handle, 0);
    REAL(cuMemRelease)(handle); /* the mapping keeps the memory */
    fetch->mapped += r == CUDA_SUCCESS ? bytes : 0;
    return r;
}

/*
 * Requests pages and maps them. Returns 0, a negative errno, or the driver's positive error code.
 */
static int map_some(struct fetch *fetch) {
    struct wire_answer answer;
    int fds[WIRE_DESCRIPTORS];
    unsigned count = 0;
    CUresult driver = CUDA_SUCCESS;
    int r = request_pages(fetch);
    wire_hold();
    r = r == 0 ? wire_receive(fetch->fd, &answer, sizeof answer, fds, &count) : r;
    r = r == 0 && !is_valid(fetch, &answer, count) ? -EPROTO : r;
    /* Short of descriptors: closes half of those received, because the driver needs some too. */
    if (r == 0 && count < answer.count)
        for (unsigned keep = (count + 1) / 2; count > keep; count--)
            wire_close(fds[count - 1]);
    if (r == 0)
        driver = reserve(fetch, &answer);
    for (unsigned i = 0; i < count; i++) {
        if (r == 0 && driver == CUDA_SUCCESS)
            driver = map_one(fetch, fds[i], answer.length * PAGE_BYTES);
        wire_close(fds[i]);
    }
    wire_let_go();
    return r != 0 ? r : (int)driver;
}

/* Gives access to the current device and to those of `peer_devices`. */
static CUresult give_access(const struct fetch *fetch) {
    CUdevice here;
    CUresult r = REAL(cuCtxGetDevice)(&here);
    r = r == CUDA_SUCCESS ? ipc_fetch_grant_access(fetch->into, here) : r;
    for (CUdevice i = 0; i < STATS_MAX_DEVICES && r == CUDA_SUCCESS; i++) {
        bool other = i != here && (fetch->peer_devices & device_bit(i)) != 0;
        r = other ? ipc_fetch_grant_access(fetch->into, i) : r;
    }
    return r;
}

/* Fetches all pages over one connection. Returns the values of map_some(). */
static int fetch_all(struct fetch *fetch) {
    int r = 0;
    do {
        r = map_some(fetch);
    } while (r == 0 && fetch->mapped < fetch->into->span);
    return r == 0 ? (int)give_access(fetch) : r;
}

/*
 * Connects to the exporter and fetches the block. Connects again, and continues with the next page,
 * if the exporter disconnects. Reasons: its program has closed the listening socket, which the
 * server reopens; or this process was stopped for too long. Treats a refused first connection as
 * the end of the exporter, although its program may just have closed the listening socket.
 */
static int connect_and_fetch(struct fetch *fetch) {
    int r = -ECONNREFUSED;
    for (unsigned i = 0; i < TRIES; i++) {
        int64_t begin = wire_clock_ms();
        int fd = wire_connect(fetch->ticket->exporter, deadline_of(fetch, begin));
        subtract_wait(fetch, begin);
        if (fd >= 0) {
            fetch->fd = fd;
            r = fetch_all(fetch);
            wire_hang_up(fd);
        }
        bool disconnected =
            fd >= 0 ? r == -EPIPE || r == -ECONNRESET : fd == -ECONNREFUSED && i > 0;
        if (!disconnected)
            return fd >= 0 ? r : fd;
        wire_sleep_ms(TRY_MS);
    }
    return r;
}

int ipc_fetch(const struct ipc_ticket *ticket, uint64_t peer_devices, struct ipc_fetched *fetched) {
    struct fetch fetch = {.ticket = ticket,
                          .into = fetched,
                          .peer_devices = peer_devices,
                          .budget_ms = WIRE_WHOLE_MS};
    int saved = errno;
    *fetched = (struct ipc_fetched){0};
    CUstreamCaptureMode mode = capture_relax();
    int r = connect_and_fetch(&fetch);
    if (r != 0 && fetched->span > 0) {
        if (fetch.mapped > 0)
            REAL(cuMemUnmap)(fetched->base, fetch.mapped);
        REAL(cuMemAddressFree)(fetched->base, fetched->span);
    }
    capture_restore(mode);
    errno = saved;
    return r;
}

void ipc_fetch_undo(const struct ipc_fetched *fetched) {
    CUstreamCaptureMode mode = capture_relax();
    if (REAL(cuMemUnmap)(fetched->base, fetched->span) == CUDA_SUCCESS)
        REAL(cuMemAddressFree)(fetched->base, fetched->span);
    capture_restore(mode);
}

CUresult ipc_fetch_grant_access(const struct ipc_fetched *fetched, CUdevice device) {
    const CUmemAccessDesc access = {
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
        .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = REAL(cuMemSetAccess)(fetched->base, fetched->span, &access, 1);
    capture_restore(mode);
    return r;
}
