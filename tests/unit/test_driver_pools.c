/*
 * Tests the counters of the driver's own pools. The actions of other threads during a call happen
 * in the functions that the call uses.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/context/context.h"
#include "driver/limit/driver_pool_state.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/oom_retry.h"
#include "driver/limit/unpooled.h"
#include "driver/state/capture.h"

#define MIB ((uint64_t)1 << 20)
#define AT ((CUdeviceptr)0x7000000)

/* --- the driver --- */

static uint64_t reserve; /* of the only pool */

static CUresult get_pool(CUmemoryPool *pool, CUdevice ordinal) {
    (void)ordinal;
    *pool = (CUmemoryPool)1;
    return CUDA_SUCCESS;
}

static CUresult get_attribute(CUmemoryPool pool, CUmemPool_attribute name, void *value) {
    assert_ptr_equal(pool, (CUmemoryPool)1);
    assert_int_equal(name, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    *(cuuint64_t *)value = reserve;
    return CUDA_SUCCESS;
}

/* --- the rest of the library --- */

static struct device device;
static uint64_t most_charged;

struct real_entries real_entries;
_Atomic int process_state = PROCESS_STARTED;
_Atomic unsigned capture_active;
_Atomic unsigned context_alive = 1;

bool process_start_if_used(void) {
    return true;
}

struct device *device_current(void) {
    return &device;
}

struct device *device_get(int ordinal) {
    return ordinal == 0 ? &device : NULL;
}

struct device *device_used(int ordinal) {
    return device_get(ordinal);
}

bool device_charge_once(struct device *where, uint64_t bytes) {
    device_charge_always(where, bytes);
    return true;
}

void device_charge_always(struct device *where, uint64_t bytes) {
    atomic_fetch_add(&where->charged, bytes);
    most_charged =
        atomic_load(&where->charged) > most_charged ? atomic_load(&where->charged) : most_charged;
}

void device_refund(struct device *where, uint64_t bytes) {
    assert_true(atomic_load(&where->charged) >= bytes);
    atomic_fetch_sub(&where->charged, bytes);
}

void device_uncharge(struct device *where, uint64_t bytes) {
    device_refund(where, bytes);
}

void device_change_metric(struct device *where, struct metric *metric, int64_t change) {
    (void)where;
    metric_change(metric, change);
}

void device_count(struct device *where, stat_counter *counter) {
    (void)where;
    counter_add(counter, 1);
}

void device_count_oom(struct device *where, bool at_limit) {
    (void)where, (void)at_limit;
}

void context_address_given(CUdeviceptr address, uint64_t bytes) {
    (void)address, (void)bytes;
}

bool oom_retry_at_limit(struct device *where, uint64_t bytes, struct oom_retry *oom_retry) {
    (void)where, (void)bytes, (void)oom_retry;
    return false;
}

static bool has_memory;         /* of the host, for a row */
static bool ends_after_entered; /* the context ends as soon as the ledger has the row */
static uint64_t most_promised;  /* live and requested bytes of a pool, while a row is entered */

CUcontext context_current_resolved(void) {
    return (CUcontext)7;
}

bool unpooled_enter(enum unpooled_kind kind, struct device *where, CUcontext context,
                    uint64_t bytes, uint64_t key, uint64_t value) {
    assert_ptr_equal(context, (CUcontext)7); /* the primary context behind a green one */
    assert_int_equal(kind, UNPOOLED_STREAM_ORDERED);
    assert_true(where == &device && key == AT);
    struct driver_pool *pool = (struct driver_pool *)value;
    most_promised = pool->live + pool->in_progress;
    if (ends_after_entered)
        driver_pool_subtract(pool, bytes);
    return has_memory;
}

/* --- tests --- */

static int begin(void **state) {
    (void)state;
    reserve = most_charged = 0;
    has_memory = true;
    ends_after_entered = false;
    driver_pool_query_all(&device);
    assert_int_equal(atomic_load(&device.charged), 0);
    return 0;
}

static void allocate(uint64_t bytes) {
    struct driver_pool_claim claim;
    struct driver_pool *pool = driver_pool_current();
    assert_non_null(pool);
    assert_true(driver_pool_begin(pool, bytes, &claim));
    reserve = 32 * MIB;
    assert_true(driver_pool_end(CUDA_SUCCESS, &claim, AT));
}

static void counts_the_reserve(void **state) {
    (void)state;
    allocate(MIB);
    assert_int_equal(atomic_load(&device.charged), 32 * MIB);
    assert_int_equal(counter_get(&device.unpooled.stream_ordered.current), 32 * MIB);
    driver_pool_subtract(driver_pool_current(), MIB);
}

static void never_counts_less_than_nothing_if_the_context_ends_during_the_call(void **state) {
    (void)state;
    ends_after_entered = true;
    allocate(MIB);
    assert_true(most_charged <= 32 * MIB);
    assert_true(atomic_load(&device.charged) <= 32 * MIB);
}

static void counts_no_live_memory_without_a_ledger_row(void **state) {
    (void)state;
    has_memory = false;
    allocate(MIB);
    reserve = 0;
    driver_pool_query_all(&device);
    assert_int_equal(atomic_load(&device.charged), 0);
}

/* Otherwise a claim of another thread would find too little in the reserve. */
static void a_request_under_a_limit_is_counted_once_at_each_moment(void **state) {
    (void)state;
    atomic_store(&device.limit, 64 * MIB);
    allocate(MIB);
    atomic_store(&device.limit, 0);
    assert_int_equal(most_promised, MIB);
    driver_pool_subtract(driver_pool_current(), MIB);
}

static void a_wait_during_a_capture_leaves_the_query_to_the_next_wait(void **state) {
    (void)state;
    allocate(MIB);
    driver_pool_subtract(driver_pool_current(), MIB);
    reserve = 0;
    atomic_fetch_add(&capture_active, 1);
    assert_int_equal(driver_pool_waited(CUDA_SUCCESS), CUDA_SUCCESS);
    atomic_fetch_sub(&capture_active, 1);
    assert_int_equal(atomic_load(&device.charged), 32 * MIB);
    assert_int_equal(driver_pool_waited(CUDA_SUCCESS), CUDA_SUCCESS);
    assert_int_equal(atomic_load(&device.charged), 0);
}

/* A wait makes the driver release memory, also after another query. */
static void a_wait_after_a_free_queries_although_another_query_came_between(void **state) {
    (void)state;
    allocate(MIB);
    driver_pool_subtract(driver_pool_current(), MIB);
    driver_pool_query_all(&device);
    reserve = 0;
    assert_int_equal(atomic_load(&device.charged), 32 * MIB);
    assert_int_equal(driver_pool_waited(CUDA_SUCCESS), CUDA_SUCCESS);
    assert_int_equal(atomic_load(&device.charged), 0);
}

/* The entry of a destroyed pool is used again between the two steps of driver_pool_subtract(). */
static void a_reused_entry_refunds_what_it_still_counts(void **state) {
    (void)state;
    struct driver_pool *pool = driver_pool_current();
    atomic_fetch_add(&capture_active, 1);
    allocate(MIB);
    atomic_fetch_sub(&capture_active, 1);
    driver_pool_created((CUmemoryPool)1, NULL, false); /* the old pool was destroyed */
    assert_int_equal(atomic_load(&device.charged), MIB);
    atomic_store(&pool->live, 0);
    driver_pool_created((CUmemoryPool)1, &device, true);
    for (uint64_t handle = 2; !pool->handle; handle++)
        driver_pool_created((CUmemoryPool)handle, &device, true);
    assert_int_equal(atomic_load(&device.charged), 0);
    driver_pool_forget_current(0);
}

/* During a capture the driver is not asked, so the charge is that of the live bytes. */
static void a_free_refunds_live_bytes_beyond_the_reserve(void **state) {
    (void)state;
    atomic_fetch_add(&capture_active, 1);
    allocate(MIB);
    assert_int_equal(atomic_load(&device.charged), MIB);
    driver_pool_subtract(driver_pool_current(), MIB);
    assert_int_equal(atomic_load(&device.charged), 0);
    atomic_fetch_sub(&capture_active, 1);
}

static void an_allocation_in_progress_keeps_the_entry_of_its_pool(void **state) {
    (void)state;
    struct driver_pool_claim claim;
    struct driver_pool *pool = driver_pool_current();
    assert_true(driver_pool_begin(pool, MIB, &claim));
    driver_pool_created((CUmemoryPool)1, &device, false); /* the old pool was destroyed */
    assert_ptr_not_equal(driver_pool_of((CUmemoryPool)1), pool);
    assert_true(driver_pool_end(CUDA_ERROR_INVALID_VALUE, &claim, 0));
    driver_pool_forget_current(0);
}

/* Another thread may have looked the entry up before, and go on to charge its device. */
static void the_entry_of_a_destroyed_pool_keeps_its_device(void **state) {
    (void)state;
    struct driver_pool *pool = driver_pool_current();
    driver_pool_created((CUmemoryPool)1, NULL, false); /* the old pool was destroyed */
    assert_ptr_equal(pool->device, &device);
    assert_null(driver_pool_of((CUmemoryPool)1));
    driver_pool_created((CUmemoryPool)1, &device, false);
    assert_ptr_equal(driver_pool_of((CUmemoryPool)1), pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(counts_the_reserve, begin),
        cmocka_unit_test_setup(never_counts_less_than_nothing_if_the_context_ends_during_the_call,
                               begin),
        cmocka_unit_test_setup(counts_no_live_memory_without_a_ledger_row, begin),
        cmocka_unit_test_setup(a_request_under_a_limit_is_counted_once_at_each_moment, begin),
        cmocka_unit_test_setup(a_wait_during_a_capture_leaves_the_query_to_the_next_wait, begin),
        cmocka_unit_test_setup(a_free_refunds_live_bytes_beyond_the_reserve, begin),
        cmocka_unit_test_setup(a_wait_after_a_free_queries_although_another_query_came_between,
                               begin),
        cmocka_unit_test_setup(a_reused_entry_refunds_what_it_still_counts, begin),
        cmocka_unit_test_setup(an_allocation_in_progress_keeps_the_entry_of_its_pool, begin),
        cmocka_unit_test_setup(the_entry_of_a_destroyed_pool_keeps_its_device, begin),
    };
    REAL(cuDeviceGetMemPool) = get_pool;
    REAL(cuMemPoolGetAttribute) = get_attribute;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
