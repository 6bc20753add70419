/*
 * The biased lock: owner and seizing thread are never inside together, whether membarrier works, is
 * missing, or begins to fail.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/biased.h"
#include "sandboxed.h"

#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LOCKS 3

/* Both sides change these fields without atomics: if they overlap, changes are lost. */
struct guarded {
    struct biased lock;
    uint64_t changes, mirror, entered;
};

static struct guarded guarded[LOCKS];
static atomic_bool ended;
static atomic_ulong torn;
static atomic_uint begun;

static void change(struct guarded *g, uint64_t linger) {
    torn += g->changes != g->mirror;
    g->changes++;
    atomic_signal_fence(memory_order_seq_cst);
    while (linger-- > 0)
        cpu_relax();
    g->mirror++;
}

static void *own(void *argument) {
    struct guarded *g = argument;
    uint64_t count = 0;
    begun++;
    for (; !atomic_load_explicit(&ended, memory_order_relaxed); count++) {
        biased_enter(&g->lock);
        change(g, count % 32 ? 0 : 200);
        biased_leave(&g->lock);
        for (unsigned turns = count % 8 ? 0 : 400; turns > 0; turns--)
            cpu_relax(); /* a spin lock is not fair */
    }
    g->entered = count;
    return NULL;
}

static unsigned biases_ended;

/* Ends the bias of all locks, as a pool does, although only some locks are being seized. */
static void end_bias(void *with) {
    biases_ended++;
    for (unsigned i = 0; i < LOCKS; i++)
        biased_ask(&((struct guarded *)with)[i].lock);
    biased_wait_for_stores();
    for (unsigned i = 0; i < LOCKS; i++)
        biased_end(&((struct guarded *)with)[i].lock);
}

static void init(bool owned) {
    memset(guarded, 0, sizeof guarded);
    ended = false;
    torn = 0;
    biases_ended = 0;
    begun = 0;
    biased_start();
    for (unsigned i = 0; i < LOCKS; i++)
        biased_init(&guarded[i].lock, owned);
}

static struct biased *link_locks(unsigned count) {
    for (unsigned i = 0; i < count; i++)
        guarded[i].lock.next_seized = i + 1 < count ? &guarded[i + 1].lock : NULL;
    return &guarded[0].lock;
}

static void seize_and_change(unsigned count) {
    struct biased *first = link_locks(count);
    biased_seize(first, end_bias, guarded);
    for (unsigned i = 0; i < count; i++)
        change(&guarded[i], 0);
    biased_return(first);
}

static uint64_t seizures(void) {
    const char *text = getenv("POOL_TEST_OPS");
    return text ? strtoul(text, NULL, 10) / 10 : 20000;
}

/* Seizes all locks and only the first in alternation. Returns 0, or the line of a failed check. */
static int exclude_each_other(uint64_t times, uint64_t sandbox_at) {
    pthread_t threads[LOCKS];
    uint64_t seized[LOCKS] = {0};
    for (unsigned i = 0; i < LOCKS; i++)
        HOLDS(pthread_create(&threads[i], NULL, own, &guarded[i]) == 0);
    while (begun < LOCKS)
        sched_yield();
    for (uint64_t i = 0; i < times; i++) {
        unsigned count = i % 3 == 0 ? LOCKS : 1;
        if (i + 1 == sandbox_at)
            SET_UP_SANDBOX();
        seize_and_change(count);
        for (unsigned j = 0; j < count; j++)
            seized[j]++;
        if (i % 16 == 0)
            sched_yield();
    }
    ended = true;
    for (unsigned i = 0; i < LOCKS; i++)
        pthread_join(threads[i], NULL);
    HOLDS(torn == 0);
    for (unsigned i = 0; i < LOCKS; i++) {
        HOLDS(guarded[i].changes == seized[i] + guarded[i].entered);
        HOLDS(guarded[i].mirror == guarded[i].changes);
    }
    return 0;
}

static void owners_and_a_seizer_are_never_inside_together(void **state) {
    (void)state;
    init(true);
    assert_true(biased_is_on(&guarded[0].lock) == biased_can_start());
    assert_int_equal(exclude_each_other(seizures(), 0), 0);
    assert_int_equal(biases_ended, 0);
    assert_true(biased_is_on(&guarded[0].lock) == biased_can_start());
}

static void a_lock_without_an_owner_is_a_spin_lock(void **state) {
    (void)state;
    init(false);
    assert_false(biased_is_on(&guarded[0].lock));
    assert_false(biased_try_enter(&guarded[0].lock));
    assert_int_equal(exclude_each_other(seizures() / 100, 0), 0);
}

static void an_owner_may_seize_its_own_lock(void **state) {
    (void)state;
    init(true);
    for (int i = 0; i < 2; i++) {
        seize_and_change(LOCKS);
        biased_enter(&guarded[0].lock);
        biased_leave(&guarded[0].lock);
    }
}

static void a_seized_lock_cannot_be_entered_until_it_is_returned(void **state) {
    (void)state;
    init(true);
    struct biased *first = link_locks(2);
    biased_seize(first, end_bias, guarded);
    assert_false(biased_try_enter(&guarded[0].lock));
    assert_false(biased_try_enter(&guarded[1].lock));
    biased_return(first);
    bool on = biased_is_on(&guarded[0].lock);
    assert_true(biased_try_enter(&guarded[0].lock) == on);
    if (on)
        biased_leave_owned(&guarded[0].lock);
}

static atomic_bool about_to_seize;

static void *seize_first(void *order) {
    atomic_store(&about_to_seize, true);
    biased_seize(link_locks(1), end_bias, guarded);
    atomic_store((atomic_bool *)order, true);
    biased_return(&guarded[0].lock);
    return NULL;
}

static void an_owner_inside_is_waited_for(void **state) {
    (void)state;
    for (int owned = 0; owned < 2; owned++) {
        init(owned);
        atomic_bool seized = false;
        atomic_store(&about_to_seize, false);
        pthread_t thread;
        biased_enter(&guarded[0].lock);
        assert_int_equal(pthread_create(&thread, NULL, seize_first, &seized), 0);
        while (!atomic_load(&about_to_seize))
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        assert_false(seized);
        biased_leave(&guarded[0].lock);
        pthread_join(thread, NULL);
        assert_true(seized);
    }
}

/* ---- in a sandbox ---- */

static int exclude_each_other_in_a_sandbox(void) {
    init(true);
    bool on = biased_can_start();
    int line = exclude_each_other(8000, 4000);
    if (line != 0)
        return line;
    HOLDS(biases_ended == on);
    for (unsigned i = 0; i < LOCKS; i++)
        HOLDS(!biased_is_on(&guarded[i].lock));
    HOLDS(!biased_can_start());
    biased_init(&guarded[0].lock, true); /* a new lock has no bias either */
    HOLDS(!biased_is_on(&guarded[0].lock));
    return 0;
}

static void owner_and_seizer_are_not_inside_together_in_a_sandbox(void **state) {
    (void)state;
    in_a_process_of_its_own(exclude_each_other_in_a_sandbox);
}

static pthread_barrier_t meet;

static void *stay_inside(void *unused) {
    (void)unused;
    biased_enter(&guarded[0].lock);
    pthread_barrier_wait(&meet);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    guarded[0].changes++;
    biased_leave(&guarded[0].lock);
    biased_enter(&guarded[0].lock); /* as a spin lock now */
    guarded[0].changes++;
    biased_leave(&guarded[0].lock);
    return NULL;
}

/* The owner may be preempted inside. */
static int seize_while_the_owner_is_inside(void) {
    pthread_t thread;
    init(true);
    pthread_barrier_init(&meet, NULL, 2);
    SET_UP_SANDBOX();
    HOLDS(pthread_create(&thread, NULL, stay_inside, NULL) == 0);
    pthread_barrier_wait(&meet);
    biased_seize(link_locks(1), end_bias, guarded);
    uint64_t before = guarded[0].changes;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    bool stayed_out = guarded[0].changes == before && before > 0;
    biased_return(&guarded[0].lock);
    pthread_join(thread, NULL);
    HOLDS(stayed_out && guarded[0].changes == 2 && !biased_is_on(&guarded[0].lock));
    return 0;
}

static void a_seizer_in_a_sandbox_waits_for_the_owner(void **state) {
    (void)state;
    in_a_process_of_its_own(seize_while_the_owner_is_inside);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owners_and_a_seizer_are_never_inside_together),
        cmocka_unit_test(a_lock_without_an_owner_is_a_spin_lock),
        cmocka_unit_test(an_owner_may_seize_its_own_lock),
        cmocka_unit_test(a_seized_lock_cannot_be_entered_until_it_is_returned),
        cmocka_unit_test(an_owner_inside_is_waited_for),
        cmocka_unit_test(owner_and_seizer_are_not_inside_together_in_a_sandbox),
        cmocka_unit_test(a_seizer_in_a_sandbox_waits_for_the_owner),
    };
    return cmocka_run_group_tests_name("biased lock", tests, NULL, NULL);
}
