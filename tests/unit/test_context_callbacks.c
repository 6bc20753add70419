/*
 * Tests which callbacks the end of a context calls, and in which order. The registry runs over a
 * fake driver with a few handles; each callback appends its name to `told`.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/context/active_contexts.h"
#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/control/context_callbacks.h"
#include "driver/hooks/captures.h"
#include "driver/hooks/stream.h"
#include "driver/ipc/ipc.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/unpooled.h"
#include "driver/observe/block_stacks.h"
#include "driver/reuse/deferred.h"
#include "driver/reuse/pinned.h"
#include "driver/state/shutdown.h"
#include "heap/host.h"
#include "heap/page_map.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define CONTEXT ((CUcontext)1)
#define VIEW ((CUcontext)2)
#define OTHER ((CUcontext)3)
#define UNSEEN ((CUcontext)4)
#define GREEN ((CUgreenCtx)4)

/* ---- fakes: the driver and the rest of the library ---- */

static char told[1024];
#define HANDLES 2000

static bool gone[HANDLES];
static unsigned long long lives[HANDLES];

struct real_entries real_entries;
_Atomic int process_state = PROCESS_STARTED;
atomic_bool shutdown_begun;

bool process_start_if_used(void) {
    return true;
}

CUresult CUDAAPI entry_absent(void) {
    return CUDA_ERROR_NOT_INITIALIZED;
}

static CUresult CUDAAPI id_of(CUcontext handle, unsigned long long *id) {
    *id = lives[(uintptr_t)handle];
    return gone[(uintptr_t)handle] ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_SUCCESS;
}

static void tell(const char *who, const struct context *context) {
    char word[64];
    strcpy(word, who);
    strcat(word, context->handle == CONTEXT ? "(context) "
                 : context->handle == VIEW  ? "(view) "
                                            : "(other) ");
    assert_true(strlen(told) + strlen(word) < sizeof told);
    strcat(told, word);
}

#define ENDED(name)                                                                                \
    void name(const struct context *context) {                                                     \
        tell(#name, context);                                                                      \
    }
#define QUIET(name)                                                                                \
    void name(const struct context *context, bool suspended) {                                     \
        tell(suspended ? #name ":on" : #name ":off", context);                                     \
    }
ENDED(active_contexts_remove)
ENDED(ipc_forget)
ENDED(unpooled_forget)
ENDED(pinned_forget)
ENDED(block_stacks_forget)
ENDED(driver_pools_invalidate)
ENDED(stream_forget)
ENDED(capture_forget)
ENDED(deferred_forget)
ENDED(device_pool_forget)
QUIET(deferred_suspend)
QUIET(device_pool_suspend)

static unsigned entered, all_awake; /* calls of active_contexts_add(), ..._keep_all() */

void active_contexts_add(CUcontext context) {
    (void)context;
    entered++;
}

void active_contexts_may_deactivate(CUcontext context) {
    (void)context;
}

bool active_contexts_switched(CUcontext now) {
    (void)now;
    return false;
}

bool active_contexts_keep_all(void) {
    all_awake++;
    return false;
}

/* If true, there is no host memory for descriptors. */
static bool no_memory;

void *__real_host_freelist_get(struct host_freelist *slab);
void *__wrap_host_freelist_get(struct host_freelist *slab);

void *__wrap_host_freelist_get(struct host_freelist *slab) {
    return no_memory ? NULL : __real_host_freelist_get(slab);
}

bool active_contexts_is_due(CUcontext context) {
    (void)context;
    return false;
}

uint64_t active_contexts_activations(void) {
    return 0;
}

static unsigned drains; /* of the barriers of all pools */

void active_contexts_drained(uint64_t until) {
    (void)until;
    drains++;
}

static struct device here, *device_now;

struct device *device_current(void) {
    return device_now;
}

struct device *device_used(int ordinal) {
    (void)ordinal;
    return NULL;
}

static struct device_pool pools[5]; /* by the number of their context */
static bool no_pool;                /* the device starts none */

struct device_pool *device_pool_start(CUcontext context, struct device *device,
                                      uint64_t peer_devices) {
    (void)device, (void)peer_devices;
    struct device_pool *entry = &pools[(uintptr_t)context];
    entry->pool = (struct pool *)entry; /* nobody looks into it */
    return no_pool ? NULL : entry;
}

CUresult device_pool_grant_access(struct device_pool *pool, CUdevice by) {
    (void)pool, (void)by;
    return CUDA_SUCCESS;
}

void device_pool_drain_barriers(struct device *device) {
    (void)device;
}

/* ---- tests ---- */

#define ALL_OF_A_CONTEXT                                                                           \
    "active_contexts_remove(context) ipc_forget(context) unpooled_forget(context) "                \
    "pinned_forget(context) "                                                                      \
    "block_stacks_forget(context) driver_pools_invalidate(context) stream_forget(context) "        \
    "capture_forget(context) "                                                                     \
    "deferred_forget(context) device_pool_forget(context) "

static int start(void **state) {
    (void)state;
    real_entries.real_cuCtxGetId = id_of;
    for (unsigned i = 0; i < 5; i++) {
        gone[i] = false;
        lives[i]++;
    }
    context_register(CONTEXT, CONTEXT_RETAINED, 0);
    context_register_view(VIEW, GREEN, CONTEXT, 0);
    context_register(OTHER, CONTEXT_CREATED, 1);
    assert_int_equal(context_count(), 2);
    told[0] = 0;
    return 0;
}

/* Ends the contexts that a test has left. The callbacks' records are not checked. */
static int stop(void **state) {
    (void)state;
    struct context_ending ending = {.handle = CONTEXT, .primary_of = -1};
    memset(gone, true, sizeof gone);
    told[0] = 0;
    context_end_begin(&ending);
    context_end_done(&ending, true);
    assert_int_equal(context_count(), 0);
    return 0;
}

static void a_context_that_ends_takes_its_views_along(void **state) {
    (void)state;
    struct context_ending ending = {.handle = CONTEXT, .primary_of = -1};
    context_end_begin(&ending);
    assert_string_equal(told, "deferred_suspend:on(context) device_pool_suspend:on(context) "
                              "deferred_suspend:on(view) ");
    told[0] = 0;
    context_end_done(&ending, true);
    assert_string_equal(told, "capture_forget(view) deferred_forget(view) " ALL_OF_A_CONTEXT);
    assert_int_equal(context_count(), 1);
}

static void a_call_that_failed_to_end_a_context_resumes_it(void **state) {
    (void)state;
    struct context_ending ending = {.primary_of = 0};
    context_end_begin(&ending);
    told[0] = 0;
    context_end_done(&ending, false);
    assert_string_equal(told, "deferred_suspend:off(context) device_pool_suspend:off(context) "
                              "deferred_suspend:off(view) ");
}

static void a_view_ends_alone(void **state) {
    (void)state;
    struct context_ending ending = {.primary_of = -1, .green = GREEN};
    context_end_begin(&ending);
    told[0] = 0;
    context_end_done(&ending, true);
    assert_string_equal(told, "capture_forget(view) deferred_forget(view) "
                              "deferred_suspend:off(context) device_pool_suspend:off(context) ");
    assert_int_equal(context_count(), 2);
}

static void a_missed_end_is_told_when_the_handle_is_reused(void **state) {
    (void)state;
    lives[(uintptr_t)CONTEXT]++;
    context_register(CONTEXT, CONTEXT_RETAINED, 0);
    assert_string_equal(told, "capture_forget(view) deferred_forget(view) " ALL_OF_A_CONTEXT);
    assert_int_equal(context_count(), 2);
}

static CUcontext current;

static CUresult CUDAAPI current_is(CUcontext *context) {
    *context = current;
    return CUDA_SUCCESS;
}

/* Returns the pool of a context, after giving it `bytes` at `address` in the page map. */
static struct pool *with_memory(CUcontext context, uint64_t address, uint64_t bytes) {
    real_entries.real_cuCtxGetCurrent = current_is;
    device_now = &here;
    current = context;
    struct pool *pool = context_find_pool();
    device_now = NULL;
    assert_non_null(pool);
    assert_int_equal(page_map_prepare(address, bytes), 0);
    page_map_set_owner(address, bytes, pool);
    return pool;
}

/* The pages of an address that the driver returns may have belonged to several contexts. */
static void all_contexts_that_had_an_address_before_are_forgotten(void **state) {
    (void)state;
    const uint64_t at = (uint64_t)1 << 40;
    struct pool *own = with_memory(CONTEXT, at, PAGE_BYTES);
    struct pool *other = with_memory(OTHER, at + PAGE_BYTES, PAGE_BYTES);
    context_address_given(at, 2 * PAGE_BYTES); /* the contexts are alive: an error of the driver */
    assert_int_equal(context_count(), 2);
    gone[(uintptr_t)CONTEXT] = gone[(uintptr_t)OTHER] = true;
    context_address_given(at, 2 * PAGE_BYTES);
    assert_int_equal(context_count(), 0);
    page_map_remove(at, PAGE_BYTES, own);
    page_map_remove(at + PAGE_BYTES, PAGE_BYTES, other);
}

/* The driver reuses the handle at once, before the thread that ended the context reports the end.
 */
static void a_view_of_the_next_generation_is_not_one_of_the_last(void **state) {
    (void)state;
    struct context_ending ending = {.primary_of = -1, .green = GREEN};
    lives[(uintptr_t)CONTEXT]++;
    context_register_view(VIEW, GREEN, CONTEXT, 0);
    told[0] = 0;
    context_end_begin(&ending);
    assert_string_equal(told, "deferred_suspend:on(context) device_pool_suspend:on(context) "
                              "deferred_suspend:on(view) ");
    context_end_done(&ending, true);
}

/* Another thread creates the next green context, which has the handles of the one that ended,
 * before the end is reported. */
static void the_next_view_with_the_same_handles_goes_on(void **state) {
    (void)state;
    struct context_ending ending = {.primary_of = 0, .green = GREEN};
    context_end_begin(&ending);
    told[0] = 0;
    context_register_view(VIEW, GREEN, CONTEXT, 0);
    assert_string_equal(told, "capture_forget(view) deferred_forget(view) ");
    told[0] = 0;
    context_end_done(&ending, true);
    assert_string_equal(told, "deferred_suspend:off(context) device_pool_suspend:off(context) "
                              "deferred_suspend:off(view) ");
}

/* Its view was removed with an earlier primary context, and the driver does not name its device. */
static void a_green_context_of_an_unknown_device_may_end_any_primary_one(void **state) {
    (void)state;
    struct context_ending ending = {.primary_of = -1, .green = (CUgreenCtx)5};
    context_end_begin(&ending);
    assert_string_equal(told, "deferred_suspend:on(context) device_pool_suspend:on(context) "
                              "deferred_suspend:on(view) ");
    gone[(uintptr_t)CONTEXT] = true;
    told[0] = 0;
    context_end_done(&ending, true);
    assert_string_equal(told, "capture_forget(view) deferred_forget(view) " ALL_OF_A_CONTEXT);
}

static void an_unknown_green_context_may_end_the_primary_one(void **state) {
    (void)state;
    struct context_ending ending = {.primary_of = 0, .green = (CUgreenCtx)5};
    context_end_begin(&ending);
    assert_string_equal(told, "deferred_suspend:on(context) device_pool_suspend:on(context) "
                              "deferred_suspend:on(view) ");
    told[0] = 0;
    context_end_done(&ending, true);
    assert_string_equal(told, "deferred_suspend:off(context) device_pool_suspend:off(context) "
                              "deferred_suspend:off(view) ");
}

static CUcontext pushed;

static CUresult CUDAAPI push(CUcontext context) {
    pushed = context;
    return CUDA_SUCCESS;
}

static CUresult CUDAAPI pop(CUcontext *context) {
    *context = pushed;
    pushed = NULL;
    return CUDA_SUCCESS;
}

/* The device of an unseen context is 2. Only the pushed context is current. */
static CUresult CUDAAPI device_of_pushed(CUdevice *device) {
    *device = 2;
    return pushed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* Makes the registry find UNSEEN first, which gets no pool, and then CONTEXT on device 0. */
static void see_without_pool(struct device *device) {
    struct context_ending first = {.handle = CONTEXT, .primary_of = -1};
    context_end_begin(&first);
    context_end_done(&first, true);
    real_entries.real_cuCtxGetCurrent = current_is;
    current = UNSEEN;
    device_now = device;
    no_pool = true;
    assert_null(context_find_pool());
    device_now = NULL;
    no_pool = false;
    lives[(uintptr_t)CONTEXT]++;
    context_register(CONTEXT, CONTEXT_RETAINED, 0);
}

static void a_context_of_an_unknown_device_is_the_primary_one_of_none(void **state) {
    (void)state;
    struct context_ending reset = {.primary_of = 0};
    see_without_pool(NULL);
    told[0] = 0;
    context_end_begin(&reset);
    assert_string_equal(told, "deferred_suspend:on(context) device_pool_suspend:on(context) ");
    context_end_done(&reset, false);
}

static void a_context_without_a_pool_may_be_the_primary_one(void **state) {
    (void)state;
    struct device second = {.ordinal = 1};
    struct context_ending reset = {.primary_of = 1};
    see_without_pool(&second);
    told[0] = 0;
    context_end_begin(&reset);
    assert_string_equal(told, "deferred_suspend:on(other) device_pool_suspend:on(other) ");
    context_end_done(&reset, false);
}

/* A release begins while no primary context is registered. Another thread then retains one, and
 * releases it. The first release has not reached the driver yet, and may end that context. */
static void a_context_retained_during_a_release_stays_suspended(void **state) {
    (void)state;
    struct context_ending ended = {.handle = CONTEXT, .primary_of = -1};
    struct context_ending late = {.primary_of = 0}, early = {.primary_of = 0};
    context_end_begin(&ended);
    context_end_done(&ended, true);
    context_end_begin(&late);
    lives[(uintptr_t)CONTEXT]++;
    context_register(CONTEXT, CONTEXT_RETAINED, 0);
    context_end_begin(&early);
    told[0] = 0;
    context_end_done(&early, false);
    assert_null(strstr(told, ":off"));
    gone[(uintptr_t)CONTEXT] = true;
    told[0] = 0;
    context_end_done(&late, false);
    assert_string_equal(told, ALL_OF_A_CONTEXT);
}

static atomic_bool early_returns;

/* Reports the end of a call that returned from the driver a millisecond before. */
static void *report_late(void *ending) {
    while (!atomic_load(&early_returns))
        sched_yield();
    usleep(1000);
    context_end_done(ending, false);
    return NULL;
}

/* Two releases have returned from the driver, and one of them has ended the context. The thread
 * that reports first must not go on before the context's memory has ceased to count. */
static void a_release_waits_for_the_report_of_another_one(void **state) {
    (void)state;
    unsigned removed = 0; /* a busy machine may hold the other thread up for longer than the wait */
    for (int i = 0; i < 20; i++) {
        struct context_ending late = {.primary_of = 0}, early = {.primary_of = 0};
        pthread_t thread;
        atomic_store(&early_returns, false);
        context_end_begin(&late);
        context_end_begin(&early);
        gone[(uintptr_t)CONTEXT] = true;
        assert_int_equal(pthread_create(&thread, NULL, report_late, &late), 0);
        unsigned before = context_count();
        atomic_store(&early_returns, true);
        context_end_done(&early, false);
        removed += context_count() < before;
        pthread_join(thread, NULL);
        gone[(uintptr_t)CONTEXT] = false;
        lives[(uintptr_t)CONTEXT]++;
        context_register(CONTEXT, CONTEXT_RETAINED, 0);
        told[0] = 0;
    }
    assert_true(removed > 0);
}

static void a_context_retained_during_a_release_is_resumed_after_it(void **state) {
    (void)state;
    struct context_ending late = {.primary_of = 0}, early = {.primary_of = 0};
    context_end_begin(&late);
    context_end_begin(&early);
    context_end_done(&early, false);
    told[0] = 0;
    context_end_done(&late, false);
    assert_string_equal(told, "deferred_suspend:off(context) device_pool_suspend:off(context) "
                              "deferred_suspend:off(view) ");
}

/* The registry does not know whether UNSEEN is the primary context of the device. */
static void a_reset_ends_only_the_context_that_the_driver_ended(void **state) {
    (void)state;
    struct context_ending reset = {.primary_of = 0};
    see_without_pool(&here);
    unsigned before = context_count();
    context_end_begin(&reset);
    gone[(uintptr_t)CONTEXT] = true;
    told[0] = 0;
    context_end_done(&reset, true);
    assert_string_equal(
        told, "deferred_suspend:off(other) device_pool_suspend:off(other) " ALL_OF_A_CONTEXT);
    assert_int_equal(context_count(), before - 1);
}

/* No hook saw the creation of the context. Its first known call enables peer access. */
static void a_context_first_seen_as_a_peer_is_the_primary_one_of_its_own_device(void **state) {
    (void)state;
    struct context_ending first = {.handle = CONTEXT, .primary_of = -1};
    struct context_ending reset = {.primary_of = 0}, reset_other = {.primary_of = 2};
    real_entries.real_cuCtxPushCurrent_v2 = push;
    real_entries.real_cuCtxPopCurrent_v2 = pop;
    real_entries.real_cuCtxGetDevice = device_of_pushed;
    context_end_begin(&first);
    context_end_done(&first, true); /* the next context gets this entry of the registry */
    unsigned before = drains;
    assert_int_equal(context_grant_access(UNSEEN, 1), CUDA_SUCCESS);
    assert_int_equal(drains, before + 1);
    assert_int_equal(context_peer_devices(UNSEEN), 2);
    assert_null(pushed);
    lives[(uintptr_t)CONTEXT]++;
    context_register(CONTEXT, CONTEXT_RETAINED, 0);

    told[0] = 0;
    context_end_begin(&reset);
    assert_string_equal(told, "deferred_suspend:on(context) device_pool_suspend:on(context) ");
    context_end_done(&reset, false);
    told[0] = 0;
    context_end_begin(&reset_other);
    assert_string_equal(told, "deferred_suspend:on(other) device_pool_suspend:on(other) ");
    context_end_done(&reset_other, false);
}

/* An older registry had a fixed number of entries. */
static void any_number_of_contexts_is_known(void **state) {
    (void)state;
    const unsigned first = 5, last = 1500;
    unsigned before = context_count();
    for (unsigned i = first; i <= last; i++) {
        gone[i] = false;
        lives[i] = i;
        context_register((CUcontext)(uintptr_t)i, CONTEXT_CREATED, -1);
        told[0] = 0;
    }
    assert_int_equal(context_count(), before + last - first + 1);
    for (unsigned i = first; i <= last; i++) {
        struct context_ending ending = {.handle = (CUcontext)(uintptr_t)i, .primary_of = -1};
        told[0] = 0;
        context_end_begin(&ending);
        assert_non_null(ending.context);
        gone[i] = true;
        context_end_done(&ending, true);
    }
    assert_int_equal(context_count(), before);
    told[0] = 0;
}

/* Registers contexts until one cannot be entered in the registry. Returns its handle. */
static uintptr_t first_unknown(void) {
    uintptr_t handle = 5;
    unsigned before;
    do {
        before = context_count();
        gone[handle] = false;
        context_register((CUcontext)handle++, CONTEXT_CREATED, -1);
        told[0] = 0;
    } while (handle < HANDLES && context_count() == before + 1);
    assert_int_equal(context_count(), before + 2);
    return handle - 1;
}

/* A live context that cannot be entered counts as two, so no other context is ever the only one.
 * This state cannot be undone, so the test is the last one. */
static void a_context_without_host_memory_counts_next_to_every_other_one(void **state) {
    (void)state;
    unsigned activations = all_awake, enter_calls = entered;
    no_memory = true;
    uintptr_t unknown = first_unknown();
    assert_int_equal(all_awake, activations + 1);
    assert_int_equal(entered, enter_calls + unknown - 5 + 1);
    for (uintptr_t handle = 5; handle <= unknown; handle++) {
        struct context_ending ending = {.handle = (CUcontext)handle, .primary_of = -1};
        told[0] = 0;
        context_end_begin(&ending);
        gone[handle] = true;
        context_end_done(&ending, true);
    }
    assert_int_equal(context_count(), 2);
    uint64_t changes = context_changes;
    no_memory = false;
    gone[unknown] = false;
    context_register((CUcontext)unknown, CONTEXT_CREATED,
                     -1); /* registered now, and not the only context */
    assert_int_equal(context_count(), 3);
    assert_true(context_changes > changes);
    assert_null(context_whole_pool());
}

int main(void) {
    context_callbacks_start();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_context_that_ends_takes_its_views_along, start, stop),
        cmocka_unit_test_setup_teardown(a_call_that_failed_to_end_a_context_resumes_it, start,
                                        stop),
        cmocka_unit_test_setup_teardown(a_view_ends_alone, start, stop),
        cmocka_unit_test_setup_teardown(a_missed_end_is_told_when_the_handle_is_reused, start,
                                        stop),
        cmocka_unit_test_setup_teardown(a_view_of_the_next_generation_is_not_one_of_the_last, start,
                                        stop),
        cmocka_unit_test_setup_teardown(all_contexts_that_had_an_address_before_are_forgotten,
                                        start, stop),
        cmocka_unit_test_setup_teardown(an_unknown_green_context_may_end_the_primary_one, start,
                                        stop),
        cmocka_unit_test_setup_teardown(
            a_context_first_seen_as_a_peer_is_the_primary_one_of_its_own_device, start, stop),
        cmocka_unit_test_setup_teardown(a_context_of_an_unknown_device_is_the_primary_one_of_none,
                                        start, stop),
        cmocka_unit_test_setup_teardown(a_context_without_a_pool_may_be_the_primary_one, start,
                                        stop),
        cmocka_unit_test_setup_teardown(the_next_view_with_the_same_handles_goes_on, start, stop),
        cmocka_unit_test_setup_teardown(
            a_green_context_of_an_unknown_device_may_end_any_primary_one, start, stop),
        cmocka_unit_test_setup_teardown(a_release_waits_for_the_report_of_another_one, start, stop),
        cmocka_unit_test_setup_teardown(a_context_retained_during_a_release_stays_suspended, start,
                                        stop),
        cmocka_unit_test_setup_teardown(a_context_retained_during_a_release_is_resumed_after_it,
                                        start, stop),
        cmocka_unit_test_setup_teardown(a_reset_ends_only_the_context_that_the_driver_ended, start,
                                        stop),
        cmocka_unit_test_setup_teardown(any_number_of_contexts_is_known, start, stop),
        cmocka_unit_test(a_context_without_host_memory_counts_next_to_every_other_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
