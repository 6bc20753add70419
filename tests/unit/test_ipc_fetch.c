/*
 * Tests how long an importer waits for an exporter, over fakes of sockets, driver and clock.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/ipc/ipc_fetch.h"
#include "driver/ipc/ipc_wire.h"
#include "driver/table/entries.h"

#include <errno.h>

#define PAGE ((uint64_t)2 << 20)
#define SOCKET 5
#define DESCRIPTOR 6

struct real_entries real_entries;

/* The clock, and the times that the exporter and the driver take, in milliseconds. */
static int64_t now, answer_ms, map_ms;
static uint32_t pages;
static bool hangs_up;
static unsigned open_sockets, mapped;

/* ---- the sockets ---- */

int64_t wire_clock_ms(void) {
    return now;
}

void wire_sleep_ms(unsigned ms) {
    now += ms;
}

void wire_close(int fd) {
    assert_int_equal(fd, DESCRIPTOR);
}

void wire_hold(void) {}

void wire_let_go(void) {}

int wire_connect(uint64_t name, int64_t deadline) {
    (void)name;
    assert_true(deadline <= now + WIRE_LIMIT_MS);
    open_sockets++;
    return SOCKET;
}

void wire_hang_up(int fd) {
    assert_int_equal(fd, SOCKET);
    open_sockets--;
}

int wire_send(int fd, const void *data, size_t bytes, const int *passed, unsigned count) {
    (void)data, (void)bytes, (void)passed;
    assert_int_equal(fd, SOCKET);
    assert_int_equal(count, 0);
    return 0;
}

bool wire_wait(int fd, int64_t deadline) {
    (void)fd;
    bool in_time = now + answer_ms <= deadline;
    now = in_time ? now + answer_ms : deadline > now ? deadline : now;
    return in_time;
}

int wire_receive(int fd, void *data, size_t bytes, int *passed, unsigned *count) {
    (void)fd;
    assert_int_equal(bytes, sizeof(struct wire_answer));
    if (hangs_up)
        return -EPIPE;
    *(struct wire_answer *)data = (struct wire_answer){
        .magic = WIRE_MAGIC, .bytes = pages * PAGE, .pages = pages, .count = 1, .length = 1};
    passed[0] = DESCRIPTOR;
    *count = 1;
    return 0;
}

/* ---- the driver ---- */

static CUresult reserve(CUdeviceptr *at, size_t bytes, size_t unit, CUdeviceptr wanted,
                        unsigned long long flags) {
    (void)bytes, (void)unit, (void)wanted, (void)flags;
    *at = PAGE;
    return CUDA_SUCCESS;
}

static CUresult release_addresses(CUdeviceptr at, size_t bytes) {
    (void)at, (void)bytes;
    return CUDA_SUCCESS;
}

static CUresult import(CUmemGenericAllocationHandle *handle, void *from,
                       CUmemAllocationHandleType type) {
    (void)from, (void)type;
    *handle = 1;
    return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle) {
    (void)handle;
    return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr at, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
    (void)at, (void)bytes, (void)offset, (void)handle, (void)flags;
    now += map_ms;
    mapped++;
    return CUDA_SUCCESS;
}

static CUresult unmap(CUdeviceptr at, size_t bytes) {
    (void)at;
    mapped -= (unsigned)(bytes / PAGE);
    return CUDA_SUCCESS;
}

static CUresult set_access(CUdeviceptr at, size_t bytes, const CUmemAccessDesc *who, size_t count) {
    (void)at, (void)bytes, (void)who, (void)count;
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

/* ---- the tests ---- */

static int fetch_after(int64_t answer, int64_t driver, uint32_t count, bool hanging_up) {
    const struct ipc_ticket ticket = {1, {2, 3}, PAGE};
    struct ipc_fetched fetched;
    answer_ms = answer;
    map_ms = driver;
    pages = count;
    hangs_up = hanging_up;
    now = 1000000;
    mapped = 0;
    int r = ipc_fetch(&ticket, 0, &fetched);
    now -= 1000000;
    assert_int_equal(open_sockets, 0);
    assert_int_equal(mapped, r == 0 ? count : 0);
    return r;
}

static void one_silent_exporter_costs_one_time_budget(void **state) {
    (void)state;
    assert_int_equal(fetch_after(WIRE_LIMIT_MS + 1, 0, 3, false), -ETIMEDOUT);
    assert_int_equal(now, WIRE_LIMIT_MS);
}

/* Each single answer is in time. */
static void a_slow_exporter_has_one_limit_for_all_its_answers(void **state) {
    (void)state;
    assert_int_equal(fetch_after(3000, 0, 65536, false), -ETIMEDOUT);
    assert_int_equal(now, WIRE_WHOLE_MS);
    assert_int_equal(fetch_after(WIRE_LIMIT_MS - 1, 0, 3, false), 0);
}

static void an_exporter_that_hangs_up_again_and_again_has_one_limit(void **state) {
    (void)state;
    assert_true(fetch_after(9000, 0, 3, true) < 0);
    assert_true(now <= WIRE_WHOLE_MS + 15 * 100);
}

/* The import of a large block takes long, which is no fault of the exporter. */
static void time_in_the_importing_driver_does_not_count(void **state) {
    (void)state;
    assert_int_equal(fetch_after(10, 1000, 1000, false), 0);
    assert_true(now > WIRE_WHOLE_MS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_silent_exporter_costs_one_time_budget),
        cmocka_unit_test(a_slow_exporter_has_one_limit_for_all_its_answers),
        cmocka_unit_test(an_exporter_that_hangs_up_again_and_again_has_one_limit),
        cmocka_unit_test(time_in_the_importing_driver_does_not_count),
    };
    REAL(cuMemAddressReserve) = reserve;
    REAL(cuMemAddressFree) = release_addresses;
    REAL(cuMemImportFromShareableHandle) = import;
    REAL(cuMemRelease) = release;
    REAL(cuMemMap) = map;
    REAL(cuMemUnmap) = unmap;
    REAL(cuMemSetAccess) = set_access;
    REAL(cuCtxGetDevice) = get_device;
    REAL(cuThreadExchangeStreamCaptureMode) = exchange_mode;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
