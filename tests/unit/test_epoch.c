/*
 * Tests of epochs: stamps, events recorded in frees and elsewhere, barriers, waits, a full list of
 * events, and the end of the context.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fake.h"
#include "source/epoch.h"

#include <errno.h>

static struct fake *fake;
static struct epochs epochs;

static int set_up(void **state) {
    (void)state;
    fake = fake_new(64 * MIB);
    epochs = (struct epochs){.open = 1};
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    int broken = (int)fake->broken_laws;
    fake_free(fake);
    return broken;
}

static int close_outside_free(void) {
    fake_inside_free(false);
    return epochs_close(&epochs, &fake->backend, false);
}

static int close_in_free(void) {
    fake_inside_free(true);
    int r = epochs_close(&epochs, &fake->backend, true);
    fake_inside_free(false);
    return r;
}

/* Submits work and returns the stamp of a free after it. */
static uint64_t work_and_free(void) {
    fake_submit(fake, 0);
    return epochs_stamp(&epochs);
}

/* ---- stamps ---- */

static void memory_is_not_safe_until_its_epoch_closes_and_finishes(void **state) {
    (void)state;
    uint64_t stamp = work_and_free();
    assert_false(epochs_is_safe(&epochs, stamp));
    epochs_poll(&epochs, &fake->backend);
    assert_int_equal(close_outside_free(), 0);
    epochs_poll(&epochs, &fake->backend);
    assert_false(epochs_is_safe(&epochs, stamp));
    fake_finish_all(fake);
    assert_false(epochs_is_safe(&epochs, stamp)); /* not queried yet */
    epochs_poll(&epochs, &fake->backend);
    assert_true(epochs_is_safe(&epochs, stamp));
    epochs_poll(&epochs, &fake->backend);
}

static void memory_freed_after_the_record_is_not_covered_by_it(void **state) {
    (void)state;
    uint64_t before = work_and_free();
    assert_int_equal(close_outside_free(), 0);
    uint64_t after = work_and_free();
    assert_true(after > before);
    fake_finish_one(fake, 0);
    epochs_poll(&epochs, &fake->backend);
    assert_true(epochs_is_safe(&epochs, before));
    assert_false(epochs_is_safe(&epochs, after));
    assert_true(epochs_latest(&epochs) < before); /* the event has finished and was removed */
    assert_true(epochs_latest(&epochs) < after);
}

static void frees_of_one_epoch_share_one_record(void **state) {
    (void)state;
    uint64_t a = work_and_free(), b = work_and_free();
    assert_int_equal(a, b);
    close_outside_free();
    assert_int_equal(fake->records, 1);
    assert_true(epochs_latest(&epochs) >= a);
    assert_int_equal(epochs.closed, 1);
}

/* The stamp of a free during record(): epochs_close() opens the next epoch before it records. */
static uint64_t stamp_inside_record;

static int read_stamp_and_record(struct backend *backend, unsigned slot) {
    (void)backend;
    (void)slot;
    stamp_inside_record = epochs_stamp(&epochs);
    return 0;
}

static void a_free_during_the_record_belongs_to_the_next_epoch(void **state) {
    (void)state;
    struct backend_ops ops = *fake->backend.ops;
    ops.record = read_stamp_and_record;
    struct backend backend = {.ops = &ops, .has_events = true};
    uint64_t before = epochs_stamp(&epochs);
    assert_int_equal(epochs_close(&epochs, &backend, true), 0);
    assert_true(stamp_inside_record > before);
    assert_int_equal(stamp_inside_record, epochs_stamp(&epochs));
}

static void a_refused_record_leaves_its_frees_to_the_next_one(void **state) {
    (void)state;
    uint64_t stamp = work_and_free();
    fake->record_code = -EBUSY;
    assert_int_equal(close_in_free(), -EBUSY);
    fake_finish_all(fake);
    epochs_poll(&epochs, &fake->backend);
    assert_false(epochs_is_safe(&epochs, stamp));
    assert_true(epochs_latest(&epochs) < stamp);
    assert_int_equal(epochs.closed, 0);
    fake->record_code = 0;
    assert_int_equal(close_in_free(), 0);
    assert_true(epochs_latest(&epochs) >= stamp);
    epochs_poll(&epochs, &fake->backend);
    assert_true(epochs_is_safe(&epochs, stamp));
}

static void an_error_of_the_driver_is_returned(void **state) {
    (void)state;
    fake->record_code = 719;
    assert_int_equal(close_outside_free(), 719);
}

/* ---- barriers and waits: only for events recorded in frees ---- */

static void an_event_recorded_later_gets_no_barrier_and_no_wait(void **state) {
    (void)state;
    unsigned slot;
    uint64_t number, stamp = work_and_free();
    close_outside_free();
    assert_int_equal(epochs_barrier(&epochs, &fake->backend), -ENOENT);
    assert_int_equal(epochs_pin(&epochs, stamp, &slot, &number), -ENOENT);
    assert_int_equal(fake->orders, 0);
    assert_false(epochs_is_safe(&epochs, stamp));
}

static void a_barrier_on_the_event_of_a_free_covers_older_events_recorded_elsewhere(void **state) {
    (void)state;
    uint64_t stamp = work_and_free();
    close_outside_free();
    uint64_t later = work_and_free();
    close_in_free();
    assert_int_equal(epochs_barrier(&epochs, &fake->backend), 0);
    assert_true(epochs_is_safe(&epochs, stamp));
    assert_true(epochs_is_safe(&epochs, later));
    assert_int_equal(fake->orders, 1);
    assert_int_equal(epochs.barriers, 1);
}

static void a_barrier_makes_an_epoch_safe_but_not_finished(void **state) {
    (void)state;
    uint64_t stamp = work_and_free();
    close_in_free();
    assert_int_equal(epochs_barrier(&epochs, &fake->backend), 0);
    assert_true(epochs_is_safe(&epochs, stamp));
    assert_true(epochs.finished < stamp);
    fake_finish_all(fake);
    epochs_poll(&epochs, &fake->backend);
    assert_true(epochs.finished >= stamp);
}

/* On a GPU a barrier waits for every earlier record of the context, whatever event it names. */
static void a_barrier_names_the_newest_event(void **state) {
    (void)state;
    uint64_t first = work_and_free();
    close_in_free();
    uint64_t second = work_and_free();
    close_in_free();
    assert_int_equal(epochs_barrier(&epochs, &fake->backend), 0);
    assert_true(epochs_is_safe(&epochs, first));
    assert_true(epochs_is_safe(&epochs, second));
    assert_int_equal(fake->ordered[0], 2);
}

static void no_barrier_after_an_event_recorded_later(void **state) {
    (void)state;
    uint64_t stamp = work_and_free();
    close_in_free();
    fake_submit(fake, 1);
    close_outside_free();
    assert_false(epochs_barrier_allowed(&epochs));
    assert_int_equal(epochs_barrier(&epochs, &fake->backend), -ENOENT);
    unsigned slot;
    uint64_t number;
    assert_int_equal(epochs_pin(&epochs, stamp, &slot, &number), 0); /* a wait is still allowed */
    assert_int_equal(number, stamp);
    epochs_unpin(&epochs, slot, number, -EINTR);
    work_and_free();
    close_in_free();
    assert_int_equal(epochs_barrier(&epochs, &fake->backend), 0);
    assert_int_equal(fake->broken_laws, 0);
}

static void no_barrier_after_an_application_recorded_event(void **state) {
    (void)state;
    work_and_free();
    close_in_free();
    epochs.application_recorded = true;
    assert_int_equal(epochs_barrier(&epochs, &fake->backend), -ENOENT);
    close_outside_free();
    assert_true(epochs.application_recorded);
    close_in_free();
    assert_int_equal(epochs_barrier(&epochs, &fake->backend), 0);
}

static void a_refused_barrier_makes_nothing_safe(void **state) {
    (void)state;
    uint64_t stamp = work_and_free();
    close_in_free();
    fake->order_code = -EBUSY;
    assert_int_equal(epochs_barrier(&epochs, &fake->backend), -EBUSY);
    assert_false(epochs_is_safe(&epochs, stamp));
    assert_int_equal(epochs.barriers, 0);
}

static void a_wait_finishes_its_epoch_and_those_before(void **state) {
    (void)state;
    unsigned slot;
    uint64_t number, first = work_and_free();
    close_outside_free();
    uint64_t second = work_and_free();
    close_in_free();
    uint64_t third = work_and_free();
    assert_int_equal(epochs_pin(&epochs, first, &slot, &number), 0);
    assert_int_equal(number, second);
    assert_int_equal(fake->backend.ops->wait(&fake->backend, slot), 0);
    epochs_unpin(&epochs, slot, number, 0);
    assert_true(epochs_is_safe(&epochs, second));
    assert_true(epochs.finished >= second);
    assert_false(epochs_is_safe(&epochs, third));
}

static void a_failed_wait_finishes_nothing(void **state) {
    (void)state;
    unsigned slot;
    uint64_t number, stamp = work_and_free();
    close_in_free();
    assert_int_equal(epochs_pin(&epochs, stamp, &slot, &number), 0);
    epochs_unpin(&epochs, slot, number, 700);
    assert_false(epochs_is_safe(&epochs, stamp));
    assert_int_equal(epochs.broken, 700);
}

/* ---- the list of events ---- */

static void a_pinned_event_keeps_its_slot(void **state) {
    (void)state;
    unsigned slot, other;
    uint64_t number, stamp = work_and_free();
    close_in_free();
    assert_int_equal(epochs_pin(&epochs, stamp, &slot, &number), 0);
    fake_finish_all(fake);
    epochs_poll(&epochs, &fake->backend);
    /* The event has completed, but a thread is still in its wait: new events use other slots. */
    for (int i = 0; i < 3 * BACKEND_SLOTS; i++) {
        fake->events[slot].in_free = true;
        uint64_t captured = fake->events[slot].captured[0];
        work_and_free();
        close_in_free();
        fake_finish_all(fake);
        epochs_poll(&epochs, &fake->backend);
        assert_int_equal(fake->events[slot].captured[0], captured);
    }
    assert_int_equal(epochs_pin(&epochs, stamp, &other, &number), 0);
    epochs_unpin(&epochs, other, number, 0);
    epochs_unpin(&epochs, slot, stamp, 0);
    epochs_poll(&epochs, &fake->backend);
    assert_int_equal(epochs.count, 0);
}

static void a_full_list_replaces_its_newest_event(void **state) {
    (void)state;
    uint64_t stamps[BACKEND_SLOTS + 8];
    for (int i = 0; i < BACKEND_SLOTS + 8; i++) {
        stamps[i] = work_and_free();
        assert_int_equal(close_in_free(), 0);
    }
    assert_int_equal(epochs.count, BACKEND_SLOTS);
    assert_true(epochs_latest(&epochs) >= stamps[BACKEND_SLOTS + 7]);
    for (int i = 0; i < BACKEND_SLOTS + 8; i++) {
        assert_false(epochs_is_safe(&epochs, stamps[i]));
        /* Memory is safe only after all work submitted before its free has completed. */
        fake_finish_one(fake, 0);
        epochs_poll(&epochs, &fake->backend);
        for (int j = i + 1; j < BACKEND_SLOTS + 8; j++)
            assert_false(epochs_is_safe(&epochs, stamps[j]));
    }
    assert_true(epochs_is_safe(&epochs, stamps[BACKEND_SLOTS + 7]));
    assert_int_equal(epochs.count, 0);
}

static void an_event_of_a_free_is_not_replaced_by_one_recorded_later(void **state) {
    (void)state;
    for (int i = 0; i < BACKEND_SLOTS; i++) {
        work_and_free();
        close_in_free();
    }
    uint64_t open = epochs_stamp(&epochs);
    assert_int_equal(close_outside_free(), -EAGAIN);
    assert_int_equal(epochs_stamp(&epochs), open);
    assert_int_equal(epochs_barrier(&epochs, &fake->backend), 0);
    assert_int_equal(close_in_free(), 0); /* the event of a newer free may replace it */
    assert_int_equal(epochs_stamp(&epochs), open + 1);
}

static void fill_and_pin(unsigned from, unsigned *slots, uint64_t *numbers) {
    for (unsigned i = 0; i < BACKEND_SLOTS; i++) {
        uint64_t stamp = work_and_free();
        close_in_free();
        if (i >= from)
            assert_int_equal(epochs_pin(&epochs, stamp, &slots[i], &numbers[i]), 0);
    }
}

static void a_full_list_of_pinned_events_takes_nothing(void **state) {
    (void)state;
    unsigned slots[BACKEND_SLOTS];
    uint64_t numbers[BACKEND_SLOTS];
    fill_and_pin(0, slots, numbers);
    assert_int_equal(close_in_free(), -EAGAIN);
    epochs_unpin(&epochs, slots[7], numbers[7], -EINTR);
    assert_int_equal(close_in_free(), 0);
}

static void a_full_list_replaces_the_newest_event_that_nobody_waits_for(void **state) {
    (void)state;
    enum { WAITED_FOR = 3 };
    unsigned slots[BACKEND_SLOTS], slot;
    uint64_t numbers[BACKEND_SLOTS], number;
    fill_and_pin(BACKEND_SLOTS - WAITED_FOR, slots, numbers);
    uint64_t replaced = numbers[BACKEND_SLOTS - WAITED_FOR] - 1, stamp = work_and_free();
    assert_int_equal(close_in_free(), 0);
    assert_int_equal(epochs_latest_in_free(&epochs), stamp);
    /* The next event covers the replaced one. */
    assert_int_equal(epochs_pin(&epochs, replaced, &slot, &number), 0);
    assert_int_equal(number, replaced + 1);
    epochs_unpin(&epochs, slot, number, -EINTR);
    for (unsigned i = BACKEND_SLOTS - WAITED_FOR; i < BACKEND_SLOTS; i++) {
        assert_int_equal(fake->events[slots[i]].captured[0], i + 1); /* not recorded again */
        epochs_unpin(&epochs, slots[i], numbers[i], -EINTR);
    }
    for (unsigned i = 0; i <= BACKEND_SLOTS; i++) {
        assert_int_equal(epochs.finished, i == replaced ? i - 1 : i);
        fake_finish_one(fake, 0);
        epochs_poll(&epochs, &fake->backend);
    }
    assert_int_equal(epochs.count, 0);
}

/* The thread that waited for the pinned event has not called epochs_unpin() yet. */
static void finished_events_behind_a_pinned_one_free_their_slots(void **state) {
    (void)state;
    unsigned slot;
    uint64_t number, stamp = work_and_free();
    close_in_free();
    assert_int_equal(epochs_pin(&epochs, stamp, &slot, &number), 0);
    for (unsigned i = 1; i < BACKEND_SLOTS; i++) {
        work_and_free();
        close_in_free();
    }
    fake_finish_all(fake);
    epochs_poll(&epochs, &fake->backend);
    assert_int_equal(epochs.count, 1);
    epochs_unpin(&epochs, slot, number, 0);
    assert_int_equal(epochs.count, 0);
}

/* ---- ends ---- */

static void a_dead_context_is_noticed_by_a_query(void **state) {
    (void)state;
    uint64_t stamp = work_and_free();
    close_outside_free();
    fake->query_code = 700;
    epochs_poll(&epochs, &fake->backend);
    assert_int_equal(epochs.broken, 700);
    assert_false(epochs_is_safe(&epochs, stamp));
}

static void after_a_forget_old_stamps_are_safe_and_numbers_go_on(void **state) {
    (void)state;
    uint64_t old = work_and_free();
    close_in_free();
    uint64_t open = work_and_free();
    epochs_forget(&epochs);
    assert_true(epochs_is_safe(&epochs, old));
    assert_true(epochs_is_safe(&epochs, open));
    assert_int_equal(epochs.count, 0);
    uint64_t fresh = work_and_free();
    assert_true(fresh > open);
    assert_false(epochs_is_safe(&epochs, fresh));
    close_outside_free();
    assert_false(epochs_is_safe(&epochs, fresh));
}

/* A wait returns after the end of its context. Its error code must not break the next context. */
static void a_wait_that_fails_after_a_forget_breaks_nothing(void **state) {
    (void)state;
    unsigned slot;
    uint64_t number, stamp = work_and_free();
    close_in_free();
    assert_int_equal(epochs_pin(&epochs, stamp, &slot, &number), 0);
    epochs_forget(&epochs);
    epochs_unpin(&epochs, slot, number, 709);
    assert_int_equal(epochs_broken(&epochs), 0);
    assert_int_equal(epochs.count, 0);
}

static void a_finished_number_covers_all_before_it(void **state) {
    (void)state;
    uint64_t a = work_and_free();
    close_outside_free();
    uint64_t b = work_and_free();
    epochs_finish(&epochs, b);
    assert_true(epochs_is_safe(&epochs, a));
    assert_true(epochs_is_safe(&epochs, b));
    epochs_finish(&epochs, a); /* an older number changes nothing */
    assert_true(epochs_is_safe(&epochs, b));
    assert_true(epochs.finished >= b);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(memory_is_not_safe_until_its_epoch_closes_and_finishes),
        TEST(memory_freed_after_the_record_is_not_covered_by_it),
        TEST(frees_of_one_epoch_share_one_record),
        TEST(a_free_during_the_record_belongs_to_the_next_epoch),
        TEST(a_refused_record_leaves_its_frees_to_the_next_one),
        TEST(an_error_of_the_driver_is_returned),
        TEST(an_event_recorded_later_gets_no_barrier_and_no_wait),
        TEST(a_barrier_on_the_event_of_a_free_covers_older_events_recorded_elsewhere),
        TEST(a_barrier_makes_an_epoch_safe_but_not_finished),
        TEST(a_barrier_names_the_newest_event),
        TEST(no_barrier_after_an_event_recorded_later),
        TEST(no_barrier_after_an_application_recorded_event),
        TEST(a_refused_barrier_makes_nothing_safe),
        TEST(a_wait_finishes_its_epoch_and_those_before),
        TEST(a_failed_wait_finishes_nothing),
        TEST(a_pinned_event_keeps_its_slot),
        TEST(a_full_list_replaces_its_newest_event),
        TEST(an_event_of_a_free_is_not_replaced_by_one_recorded_later),
        TEST(a_full_list_of_pinned_events_takes_nothing),
        TEST(a_full_list_replaces_the_newest_event_that_nobody_waits_for),
        TEST(finished_events_behind_a_pinned_one_free_their_slots),
        TEST(a_dead_context_is_noticed_by_a_query),
        TEST(after_a_forget_old_stamps_are_safe_and_numbers_go_on),
        TEST(a_wait_that_fails_after_a_forget_breaks_nothing),
        TEST(a_finished_number_covers_all_before_it),
    };
    return cmocka_run_group_tests_name("epochs", tests, NULL, NULL);
}
