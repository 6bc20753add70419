/*
 * Sends random messages between exporter and importer of memory in pages, through real sockets: to
 * the exporter (ipc_server.c), to the importer (ipc_fetch.c), and handles of any source
 * (ipc_handle.c).
 *
 * The driver is a fake. It checks that pages are mapped one behind the other in the addresses that
 * were reserved. After each input no descriptor is left.
 */
#include "fuzz.h"

/* Both sides have names of their own for their own deadlines and pages. */
#define deadline_of importer_deadline_of
#include "driver/ipc/ipc_fetch.c"
#undef deadline_of
#undef PAGE

#include "driver/ipc/ipc_handle.h"

#include "driver/ipc/ipc_server.c"

#include <sys/socket.h>

#define UNIT ((uint64_t)2 << 20)
#define BASE ((CUdeviceptr)1 << 40)
#define MESSAGE_MOST 128

struct real_entries real_entries;
atomic_bool shutdown_begun;

static struct {
    uint64_t reserved, mapped; /* bytes */
    unsigned handles;
    uint8_t refuses; /* the calls until one is refused; 0: none is */
} driver;

/* ---- the driver ---- */

static bool refuses(void) {
    return driver.refuses > 0 && --driver.refuses == 0;
}

static CUresult reserve_addresses(CUdeviceptr *at, size_t bytes, size_t unit, CUdeviceptr wanted,
                                  unsigned long long flags) {
    (void)unit, (void)wanted, (void)flags;
    FUZZ_CHECK(driver.reserved == 0 && bytes > 0 && bytes % UNIT == 0);
    if (refuses())
        return CUDA_ERROR_OUT_OF_MEMORY;
    driver.reserved = bytes;
    *at = BASE;
    return CUDA_SUCCESS;
}

static CUresult free_addresses(CUdeviceptr at, size_t bytes) {
    FUZZ_CHECK(at == BASE && bytes == driver.reserved && driver.mapped == 0);
    driver.reserved = 0;
    return CUDA_SUCCESS;
}

static CUresult import(CUmemGenericAllocationHandle *handle, void *from,
                       CUmemAllocationHandleType type) {
    (void)type;
    FUZZ_CHECK(fcntl((int)(intptr_t)from, F_GETFD) >= 0);
    if (refuses())
        return CUDA_ERROR_INVALID_VALUE;
    driver.handles++;
    *handle = 1;
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle) {
    FUZZ_CHECK(handle == 1 && driver.handles > 0);
    driver.handles--;
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr at, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
    (void)offset, (void)handle, (void)flags;
    FUZZ_CHECK(at == BASE + driver.mapped && bytes > 0 && bytes % UNIT == 0);
    FUZZ_CHECK(bytes <= driver.reserved - driver.mapped);
    if (refuses())
        return CUDA_ERROR_INVALID_VALUE;
    driver.mapped += bytes;
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr at, size_t bytes) {
    FUZZ_CHECK(at == BASE && bytes == driver.mapped);
    driver.mapped = 0;
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *who, size_t count) {
    (void)who;
    FUZZ_CHECK(at == BASE && bytes == driver.mapped && count == 1);
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device) {
    *device = 0;
    return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
    *mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return CUDA_SUCCESS;
}

static CUresult export_handle(void *to, CUmemGenericAllocationHandle handle,
                              CUmemAllocationHandleType type, unsigned long long flags) {
    (void)handle, (void)type, (void)flags;
    if (refuses())
        return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)to = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return CUDA_SUCCESS;
}

/* ---- the exporter's blocks, and its process ---- */

static struct pool_exported block;
static unsigned exports;

int ipc_export_open(const uint64_t token[2], uint64_t address, uint32_t first,
                    struct pool_exported *exported) {
    *exported = block;
    exports += token[0] == 1 && first < block.pages;
    return token[0] != 1 || address != UNIT ? -ENOENT : first < block.pages ? 0 : -EINVAL;
}

void pool_export_end(const struct pool_exported *exported) {
    FUZZ_CHECK(exported->count == block.count);
}

bool ipc_export_draw(void *number, size_t bytes) {
    (void)number, (void)bytes;
    return false;
}

bool ending_is_own_process(void) {
    return true;
}

_Atomic int process_state;
bool process_start_if_used(void) {
    return true;
}

int helper_start(void *(*run)(void *)) {
    (void)run;
    return EAGAIN;
}

/* ---- both sides ---- */

static int lowest_free(void) {
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    close(fd);
    return fd;
}

/** Sends the next message of the input to a socket, with some descriptors, as the other side
 * could. */
static void send_one(int fd, struct fuzz_input *input) {
    uint8_t message[MESSAGE_MOST];
    int passed[WIRE_DESCRIPTORS];
    size_t bytes = fuzz_take_byte(input) % sizeof message;
    unsigned count = fuzz_take_byte(input) % (WIRE_DESCRIPTORS + 1);
    fuzz_take(input, message, bytes);
    for (unsigned i = 0; i < count; i++)
        passed[i] = STDERR_FILENO;
    wire_send(fd, message, bytes, passed, count);
}

static void import_from(struct fuzz_input *input) {
    const struct ipc_ticket ticket = {1, {2, 3}, UNIT};
    struct ipc_fetched fetched = {0};
    struct fetch fetch = {.ticket = &ticket, .into = &fetched, .budget_ms = WIRE_WHOLE_MS};
    int pair[2];
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    int next = lowest_free();
    for (unsigned i = 0; i < 8 && input->left > 0; i++)
        send_one(pair[1], input);
    shutdown(pair[1], SHUT_WR); /* the rest would be waited for */
    fetch.fd = pair[0];
    int r = fetch_all(&fetch);
    FUZZ_CHECK(lowest_free() == next);
    FUZZ_CHECK(driver.handles == 0 && driver.mapped == fetch.mapped);
    FUZZ_CHECK(fetched.span == driver.reserved);
    if (r == 0) {
        FUZZ_CHECK(fetch.mapped == fetched.span && fetched.bytes <= fetched.span);
        FUZZ_CHECK(fetched.offset <= fetched.span - fetched.bytes);
    }
    close(pair[0]);
    close(pair[1]);
}

static void export_to(struct fuzz_input *input) {
    int pair[2];
    block = (struct pool_exported){.bytes = UNIT, .length = 1};
    block.count = fuzz_take_byte(input) % (WIRE_DESCRIPTORS + 1);
    block.pages = block.count;
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
    struct socket peer = {.fd = pair[0]};
    bool served = true;
    int next = lowest_free();
    exports = 0;
    for (unsigned i = 0; i < 4 && input->left > 0 && served; i++) {
        send_one(pair[1], input);
        served = serve(&peer);
        struct wire_answer answer;
        int passed[WIRE_DESCRIPTORS];
        unsigned count = 0;
        if (wire_receive(pair[1], &answer, sizeof answer, passed, &count) == 0) {
            FUZZ_CHECK(answer.magic == WIRE_MAGIC && answer.count == count);
            FUZZ_CHECK(count == 0 || exports > 0);
        }
        for (unsigned k = 0; k < count; k++)
            close(passed[k]);
        FUZZ_CHECK(lowest_free() == next);
    }
    close(pair[0]);
    close(pair[1]);
}

static void read_handle(struct fuzz_input *input) {
    CUipcMemHandle handle;
    fuzz_take(input, &handle, sizeof handle);
    struct ipc_handle view = ipc_handle_view(&handle), again;
    struct ipc_ticket ticket;
    uint64_t offset, bytes;
    switch (ipc_handle_kind(&view)) {
    case IPC_HANDLE_IN_SEGMENT:
        again = view;
        if (ipc_handle_unpack(&again, &offset, &bytes) && ipc_handle_pack(&again, offset, bytes)) {
            uint64_t offset_again, bytes_again;
            FUZZ_CHECK(ipc_handle_unpack(&again, &offset_again, &bytes_again));
            FUZZ_CHECK(offset_again == offset && bytes_again == bytes);
        }
        break;
    case IPC_HANDLE_IN_PAGES:
        if (ipc_handle_read_pages(&view, &ticket)) {
            again = ipc_handle_of_pages(&ticket);
            FUZZ_CHECK(ipc_handle_kind(&again) == IPC_HANDLE_IN_PAGES);
        }
        break;
    default:
        break;
    }
}

static void start_driver(void) {
    REAL(cuMemAddressReserve) = reserve_addresses;
    REAL(cuMemAddressFree) = free_addresses;
    REAL(cuMemImportFromShareableHandle) = import;
    REAL(cuMemExportToShareableHandle) = export_handle;
    REAL(cuMemRelease) = release;
    REAL(cuMemMap) = map;
    REAL(cuMemUnmap) = unmap;
    REAL(cuMemSetAccess) = set_access;
    REAL(cuCtxGetDevice) = get_device;
    REAL(cuThreadExchangeStreamCaptureMode) = exchange_mode;
}

int fuzz_one(const uint8_t *data, size_t size) {
    struct fuzz_input input = {data, size};
    int before = lowest_free();
    uint8_t side = fuzz_take_byte(&input);
    start_driver();
    memset(&driver, 0, sizeof driver);
    driver.refuses = fuzz_take_byte(&input);
    if (side % 4 == 0)
        read_handle(&input);
    else if (side % 4 == 1)
        export_to(&input);
    else
        import_from(&input);
    FUZZ_CHECK(lowest_free() == before);
    return 0;
}
