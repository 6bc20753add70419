/*
 * Tests the ledger of unpooled memory over a driver that does nothing. The actions of other threads
 * during a driver call happen between two calls of the test.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/context/fault.h"
#include "driver/limit/charge.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/oom_retry.h"
#include "driver/limit/unpooled.h"
#include "driver/reuse/deferred.h"
#include "stats/holders.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define HANDLE 77
#define AT ((uint64_t)0x7000000)

/* ---- fakes: the rest of the library ---- */

static struct device device;
static CUcontext current;
static uint64_t released;

struct real_entries real_entries;
_Atomic int process_state = PROCESS_STARTED;

bool process_start_if_used(void) {
    return true;
}

static unsigned refusals;  /* number of charges to refuse */
static unsigned came_back; /* number of times that memory is given back during these */
static uint64_t return_count;
static unsigned waits;

uint64_t device_wait_for_in_flight(struct device *where) {
    waits++;
    assert_false(in_flight_wait(&where->in_flight));
    return_count += return_count < came_back;
    return return_count;
}

bool device_charge_or_trim(struct device *where, uint64_t bytes) {
    if (refusals > 0) {
        refusals--;
        return false;
    }
    atomic_fetch_add(&where->charged, bytes);
    return true;
}

void device_uncharge(struct device *where, uint64_t bytes) {
    assert_true(atomic_load(&where->charged) >= bytes);
    atomic_fetch_sub(&where->charged, bytes);
}

void device_refund(struct device *where, uint64_t bytes) {
    device_uncharge(where, bytes);
}

CUcontext context_current_resolved(void) {
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    return context;
}

void fault_record(CUresult code) {
    (void)code;
}

void device_change_metric(struct device *where, struct metric *metric, int64_t change) {
    (void)where;
    assert_true(change >= 0 || counter_get(&metric->current) >= (uint64_t)-change);
    metric_change(metric, change);
}

void device_count_oom(struct device *where, bool at_limit) {
    (void)where, (void)at_limit;
}

void device_count(struct device *where, stat_counter *counter) {
    (void)where;
    counter_add(counter, 1);
}

bool deferred_reclaim_now(void) {
    return false;
}

bool driver_pool_trim(const struct device *where) {
    (void)where;
    return false;
}

uint64_t device_idle_bytes(const struct device *where, const struct device_backend *but) {
    (void)where, (void)but;
    return 0;
}

uint64_t device_available(struct device *where) {
    (void)where;
    return 0;
}

bool device_could_have(struct device *where, uint64_t bytes) {
    (void)where, (void)bytes;
    return true;
}

const struct stats_stacks *stats_stacks(void) {
    return NULL;
}

bool device_pool_wait_for_events_in_free(struct device *where) {
    assert_ptr_equal(where, &device);
    return false;
}

int device_pool_release_idle(struct device *where) {
    (void)where;
    return 0;
}

uint64_t device_deferred_bytes(const struct device *where) {
    (void)where;
    return 0;
}

uint64_t device_unreleasable_bytes(struct device *where) {
    (void)where;
    return 0;
}

static CUdeviceptr given;

void context_address_given(CUdeviceptr address, uint64_t bytes) {
    assert_true(bytes > 0);
    given = address;
}

void driver_pool_subtract(struct driver_pool *pool, uint64_t bytes) {
    (void)pool;
    released += bytes;
}

static CUresult say_current(CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}

static int start(void **state) {
    (void)state;
    memset(&device, 0, sizeof device);
    lock_start(&device.lock, LOCK_DEVICE);
    real_entries.real_cuCtxGetCurrent = say_current;
    current = (CUcontext)1;
    refusals = came_back = waits = 0;
    return_count = 0;
    return 0;
}

/* Checks that the test has freed all memory. */
static int stop(void **state) {
    (void)state;
    return atomic_load(&device.charged) == 0 &&
                   counter_get(&device.unpooled.managed.current) == 0 &&
                   counter_get(&device.unpooled.virtual_memory.current) == 0 &&
                   counter_get(&device.unpooled.ipc_imported.current) == 0
               ? 0
               : -1;
}

static void take(enum unpooled_kind kind, uint64_t bytes, uint64_t key) {
    struct unpooled_call call;
    assert_true(unpooled_begin(&call, kind, &device, bytes));
    unpooled_end(&call, CUDA_SUCCESS, key, 0);
}

static uint64_t managed(void) {
    assert_int_equal(atomic_load(&device.charged), counter_get(&device.unpooled.managed.current));
    return counter_get(&device.unpooled.managed.current);
}

static uint64_t virtual_memory(void) {
    assert_int_equal(atomic_load(&device.charged),
                     counter_get(&device.unpooled.virtual_memory.current));
    return counter_get(&device.unpooled.virtual_memory.current);
}

/* ---- one address ---- */

static void an_address_given_out_again_during_its_free_is_another_row(void **state) {
    (void)state;
    take(UNPOOLED_MANAGED, MIB, AT);
    struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_POINTER, AT, 0);
    assert_int_equal(managed(), MIB); /* the driver has it still */
    take(UNPOOLED_MANAGED, 5 * MIB, AT);
    assert_int_equal(managed(), 6 * MIB);
    unpooled_free_end(freeing, CUDA_SUCCESS);
    assert_int_equal(managed(), 5 * MIB);
    assert_int_equal(unpooled_find(UNPOOLED_POINTER, AT).bytes, 5 * MIB);
    unpooled_free(UNPOOLED_POINTER, AT);
}

static void a_row_whose_free_the_driver_refuses_stays(void **state) {
    (void)state;
    take(UNPOOLED_MANAGED, MIB, AT);
    struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_POINTER, AT, 0);
    assert_null(unpooled_free_begin(UNPOOLED_POINTER, AT, 0)); /* a row being freed is not found */
    unpooled_free_end(freeing, CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(managed(), MIB);
    unpooled_free(UNPOOLED_POINTER, AT);
    unpooled_free(UNPOOLED_POINTER, AT); /* a second free, which the driver would refuse */
}

static void a_refused_allocation_is_not_charged(void **state) {
    (void)state;
    struct unpooled_call call;
    assert_true(unpooled_begin(&call, UNPOOLED_MANAGED, &device, MIB));
    assert_int_equal(atomic_load(&device.charged), MIB);
    unpooled_end(&call, CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
    assert_int_equal(managed(), 0);
}

static void a_row_whose_free_was_missed_is_replaced(void **state) {
    (void)state;
    take(UNPOOLED_MANAGED, MIB, AT);
    take(UNPOOLED_MANAGED, 3 * MIB, AT);
    assert_int_equal(managed(), 3 * MIB);
    unpooled_free(UNPOOLED_POINTER, AT);
}

static void the_same_key_of_two_kinds_is_two_rows(void **state) {
    (void)state;
    take(UNPOOLED_MANAGED, MIB, AT);
    unpooled_enter(UNPOOLED_IPC_IMPORTED, &device, current, MIB, AT, 0);
    unpooled_free(UNPOOLED_IMPORTS, AT);
    assert_int_equal(managed(), MIB);
    unpooled_free(UNPOOLED_POINTER, AT);
}

/* ---- the end of a context ---- */

static void forget(CUcontext handle) {
    const struct context ended = {.handle = handle};
    unpooled_forget(&ended);
}

static void memory_allocated_while_its_context_ended_is_gone(void **state) {
    (void)state;
    struct unpooled_call call;
    assert_true(unpooled_begin(&call, UNPOOLED_MANAGED, &device, MIB));
    forget(current);
    unpooled_end(&call, CUDA_SUCCESS, AT, 0);
    assert_int_equal(managed(), 0);
    assert_int_equal(unpooled_find(UNPOOLED_POINTER, AT).bytes, 0);
}

static void a_row_whose_free_is_refused_ends_with_its_context(void **state) {
    (void)state;
    take(UNPOOLED_MANAGED, MIB, AT);
    struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_POINTER, AT, 0);
    forget(current);
    unpooled_free_end(freeing, CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(managed(), 0);
}

static void an_ended_context_takes_only_its_own_memory_along(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 3000; i++) {
        current = (CUcontext)(uintptr_t)(1 + i % 3);
        take(UNPOOLED_MANAGED, MIB, AT + i * 4096);
    }
    forget((CUcontext)2);
    assert_int_equal(managed(), 2000 * MIB);
    for (uint64_t i = 0; i < 3000; i++) {
        assert_int_equal(unpooled_find(UNPOOLED_POINTER, AT + i * 4096).bytes,
                         i % 3 == 1 ? 0 : MIB);
    }
    forget((CUcontext)1);
    forget((CUcontext)3);
}

/* ---- handles and mappings ---- */

static void map(uint64_t at, uint64_t bytes) {
    struct ledger_row *memory = unpooled_hold(HANDLE);
    assert_non_null(memory);
    unpooled_mapped(CUDA_SUCCESS, memory, 0, at, bytes);
}

static void memory_stays_counted_until_its_last_mapping_is_gone(void **state) {
    (void)state;
    take(UNPOOLED_VIRTUAL, 4 * MIB, HANDLE);
    map(AT, 2 * MIB);
    map(AT + 2 * MIB, 2 * MIB);
    unpooled_free(UNPOOLED_HANDLES, HANDLE);
    assert_int_equal(virtual_memory(), 4 * MIB);
    struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_RANGES, AT, 4 * MIB);
    assert_int_equal(virtual_memory(), 4 * MIB);
    unpooled_free_end(freeing, CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(virtual_memory(), 4 * MIB);
    unpooled_free(UNPOOLED_RANGES, AT);
    assert_int_equal(virtual_memory(), 4 * MIB);
    unpooled_free(UNPOOLED_RANGES, AT + 2 * MIB);
    assert_int_equal(virtual_memory(), 0);
}

static void an_unmapping_over_a_gap_ends_every_mapping(void **state) {
    (void)state;
    for (uint64_t from = 0; from < 4 * MIB; from += 2 * MIB) { /* a gap inside, then in front too */
        take(UNPOOLED_VIRTUAL, 2 * MIB, HANDLE);
        take(UNPOOLED_VIRTUAL, 2 * MIB, HANDLE + 1);
        map(AT + from, 2 * MIB);
        struct ledger_row *other = unpooled_hold(HANDLE + 1);
        unpooled_mapped(CUDA_SUCCESS, other, 0, AT + 6 * MIB, 2 * MIB);
        unpooled_free(UNPOOLED_HANDLES, HANDLE);
        unpooled_free(UNPOOLED_HANDLES, HANDLE + 1);
        struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_RANGES, AT, 6 * MIB);
        unpooled_free_end(freeing, CUDA_SUCCESS);
        assert_int_equal(virtual_memory(), 2 * MIB);
        freeing = unpooled_free_begin(UNPOOLED_RANGES, AT, 8 * MIB);
        unpooled_free_end(freeing, CUDA_ERROR_INVALID_VALUE);
        assert_int_equal(virtual_memory(), 2 * MIB);
        freeing = unpooled_free_begin(UNPOOLED_RANGES, AT, 8 * MIB);
        unpooled_free_end(freeing, CUDA_SUCCESS);
        assert_int_equal(virtual_memory(), 0);
    }
}

static void a_handle_released_while_it_is_being_mapped_stays_counted(void **state) {
    (void)state;
    take(UNPOOLED_VIRTUAL, 2 * MIB, HANDLE);
    struct ledger_row *memory = unpooled_hold(HANDLE);
    unpooled_free(UNPOOLED_HANDLES, HANDLE); /* another thread */
    unpooled_mapped(CUDA_SUCCESS, memory, 0, AT, 2 * MIB);
    assert_int_equal(virtual_memory(), 2 * MIB);
    unpooled_free(UNPOOLED_RANGES, AT);
}

static void a_release_and_an_unmapping_at_once_count_until_both_are_over(void **state) {
    (void)state;
    take(UNPOOLED_VIRTUAL, 2 * MIB, HANDLE);
    map(AT, 2 * MIB);
    struct ledger_row *handle = unpooled_free_begin(UNPOOLED_HANDLES, HANDLE, 0);
    struct ledger_row *mapping = unpooled_free_begin(UNPOOLED_RANGES, AT, 2 * MIB);
    unpooled_free_end(mapping, CUDA_SUCCESS);
    assert_int_equal(virtual_memory(), 2 * MIB);
    unpooled_free_end(handle, CUDA_SUCCESS);
    assert_int_equal(virtual_memory(), 0);
}

static void a_mapping_that_failed_holds_nothing(void **state) {
    (void)state;
    take(UNPOOLED_VIRTUAL, 2 * MIB, HANDLE);
    unpooled_mapped(CUDA_ERROR_INVALID_VALUE, unpooled_hold(HANDLE), 0, AT, 2 * MIB);
    unpooled_free(UNPOOLED_HANDLES, HANDLE);
    assert_int_equal(virtual_memory(), 0);
}

static void a_handle_s_number_may_come_back_while_its_memory_is_mapped(void **state) {
    (void)state;
    take(UNPOOLED_VIRTUAL, 2 * MIB, HANDLE);
    map(AT, 2 * MIB);
    unpooled_free(UNPOOLED_HANDLES, HANDLE);
    take(UNPOOLED_VIRTUAL, 6 * MIB, HANDLE);
    assert_int_equal(virtual_memory(), 8 * MIB);
    unpooled_free(UNPOOLED_RANGES, AT);
    assert_int_equal(virtual_memory(), 6 * MIB);
    unpooled_free(UNPOOLED_HANDLES, HANDLE);
}

static void imported_memory_counts_its_largest_mapping(void **state) {
    (void)state;
    unpooled_enter(UNPOOLED_HANDLE_IMPORTED, &device, NULL, 0, HANDLE, 0);
    map(AT, 2 * MIB);
    map(AT + 8 * MIB, 4 * MIB);
    assert_int_equal(counter_get(&device.unpooled.ipc_imported.current), 4 * MIB);
    unpooled_free(UNPOOLED_RANGES, AT);
    unpooled_free(UNPOOLED_RANGES, AT + 8 * MIB);
    unpooled_free(UNPOOLED_HANDLES, HANDLE);
    assert_int_equal(atomic_load(&device.charged), 0);
}

static void a_driver_pool_is_told_of_its_freed_blocks(void **state) {
    (void)state;
    released = 0;
    unpooled_enter(UNPOOLED_STREAM_ORDERED, &device, current, MIB, AT, 1);
    unpooled_free(UNPOOLED_POINTER, AT);
    assert_int_equal(released, MIB);
}

/* The address may be in the page map for a pool whose context has just ended. */
static void the_context_module_is_told_of_each_new_address(void **state) {
    (void)state;
    struct unpooled_call call;
    given = 0;
    take(UNPOOLED_MANAGED, MIB, AT);
    assert_int_equal(given, AT);
    unpooled_free(UNPOOLED_POINTER, AT);
    given = 0;
    assert_true(unpooled_begin(&call, UNPOOLED_MANAGED, &device, MIB));
    unpooled_end(&call, CUDA_ERROR_INVALID_VALUE, AT, 0);
    assert_int_equal(given, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

/* ---- others at the limit ---- */

static void memory_given_back_during_a_request_is_requested_again(void **state) {
    (void)state;
    struct unpooled_call call;
    refusals = 4; /* the first request, and after each memory given back */
    came_back = 4;
    assert_true(unpooled_begin(&call, UNPOOLED_MANAGED, &device, MIB));
    assert_int_equal(refusals, 0);
    assert_int_equal(atomic_load(&device.in_flight.first.of[0].number),
                     5); /* in flight: other threads can wait for it */
    unpooled_end(&call, CUDA_ERROR_OUT_OF_MEMORY, 0, 0);
    assert_int_equal(atomic_load(&device.in_flight.first.of[0].number), 0);
}

static void without_memory_given_back_a_request_is_refused(void **state) {
    (void)state;
    struct unpooled_call call;
    refusals = 3;
    assert_false(unpooled_begin(&call, UNPOOLED_MANAGED, &device, MIB));
    assert_int_equal(refusals, 1);
    refusals = came_back = 1000; /* the number of repetitions is bounded */
    assert_false(unpooled_begin(&call, UNPOOLED_MANAGED, &device, MIB));
    assert_in_range(refusals, 900, 999);
    assert_int_equal(atomic_load(&device.in_flight.first.of[0].number), 0);
}

/* The request is larger than the device: a wait for another thread's call cannot help. */
static void an_impossible_request_waits_for_no_thread(void **state) {
    (void)state;
    struct unpooled_call call;
    atomic_store(&device.limit, 8 * MIB);
    device.total = 16 * MIB;
    device.in_flight.first.of[0] = (struct in_flight_thread){.who = 1, .number = 1};
    atomic_store(&device.in_flight.asked, 1);
    refusals = 2; /* the first request, and the one after releases by the pools */
    assert_false(unpooled_begin(&call, UNPOOLED_MANAGED, &device, 9 * MIB));
    assert_int_equal(waits, 0);
    struct oom_retry oom_retry = {0};
    assert_false(oom_retry_at_driver(&device, 17 * MIB, &oom_retry));
    assert_false(atomic_load(&device.in_flight.first.of[0].slow));
    assert_true(oom_retry_at_driver(&device, 16 * MIB, &oom_retry));
    assert_true(atomic_load(&device.in_flight.first.of[0].slow));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(an_address_given_out_again_during_its_free_is_another_row),
        TEST(a_row_whose_free_the_driver_refuses_stays),
        TEST(a_refused_allocation_is_not_charged),
        TEST(memory_given_back_during_a_request_is_requested_again),
        TEST(without_memory_given_back_a_request_is_refused),
        TEST(an_impossible_request_waits_for_no_thread),
        TEST(a_row_whose_free_was_missed_is_replaced),
        TEST(the_same_key_of_two_kinds_is_two_rows),
        TEST(memory_allocated_while_its_context_ended_is_gone),
        TEST(a_row_whose_free_is_refused_ends_with_its_context),
        TEST(an_ended_context_takes_only_its_own_memory_along),
        TEST(memory_stays_counted_until_its_last_mapping_is_gone),
        TEST(an_unmapping_over_a_gap_ends_every_mapping),
        TEST(a_handle_released_while_it_is_being_mapped_stays_counted),
        TEST(a_release_and_an_unmapping_at_once_count_until_both_are_over),
        TEST(a_mapping_that_failed_holds_nothing),
        TEST(a_handle_s_number_may_come_back_while_its_memory_is_mapped),
        TEST(imported_memory_counts_its_largest_mapping),
        TEST(a_driver_pool_is_told_of_its_freed_blocks),
        TEST(the_context_module_is_told_of_each_new_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
