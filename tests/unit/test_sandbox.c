/*
 * Tests a pool for which membarrier(2) works at the start and fails later, as in a sandbox that the
 * program enters. A thread and the seizer of its cache still exclude each other. No thread waits
 * for an idle one. Each case runs in its own process, because no process can leave a sandbox.
 */
#include "pool_bench.h"
#include "sandboxed.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

/* ---- threads that do nothing ---- */

static pthread_barrier_t meet;
static uint64_t given[2];

static void *ask_and_rest(void *unused) {
    (void)unused;
    int r = pool_alloc(pool, 4096, &given[0]) | pool_alloc(pool, 8192, &given[1]);
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet); /* the main thread seizes this thread's caches in between */
    r |= fake_pool_free(given[1]);
    r |= pool_alloc(pool, 8192, &given[1]) | fake_pool_free(given[1]);
    return (void *)(intptr_t)r;
}

static int seize_a_resting_threads_cache(void) {
    pthread_t thread;
    void *result;
    start(GIB, REUSE_BARRIER, RELAXED);
    pthread_barrier_init(&meet, NULL, 2);
    HOLDS(pthread_create(&thread, NULL, ask_and_rest, NULL) == 0);
    pthread_barrier_wait(&meet);
    SET_UP_SANDBOX();
    HOLDS(fake_pool_free(given[0]) == 0); /* seizes the thread's cache */
    HOLDS(fake_pool_free(given[0]) == -EINVAL);
    HOLDS(pool_trim(pool, false) == 0);
    pthread_barrier_wait(&meet);
    pthread_join(thread, &result);
    HOLDS(result == NULL);
    HOLDS(!biased_is_on(&own_cache()->lock)); /* caches of later threads have no bias either */
    HOLDS(!pool_check(pool));
    return 0;
}

static void nobody_waits_for_a_thread_that_rests(void **state) {
    (void)state;
    in_a_process_of_its_own(seize_a_resting_threads_cache);
}

/* ---- threads that allocate, and free each other's blocks ---- */

#define THREADS 3
#define PLACES 64

static atomic_bool ended;

static _Atomic uint64_t places[PLACES];
static atomic_uint failures;
static atomic_uint turns_made;

static void *swap_blocks(void *seed) {
    uint64_t random = (uint64_t)(uintptr_t)seed * 0x9e3779b97f4a7c15u;
    for (unsigned i = 0; !ended; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        uint64_t bytes = (random >> 40) % (i % 64 ? 20000 : 3 * MIB) + 1, fresh = 0;
        failures += pool_alloc(pool, bytes, &fresh) != 0;
        uint64_t old = atomic_exchange(&places[(random >> 33) % PLACES], fresh);
        failures += old && fake_pool_free(old) != 0; /* fails if the block was handed out twice */
        turns_made++;
    }
    return NULL;
}

static void wait_for_turns(unsigned count) {
    for (unsigned before = turns_made; turns_made - before < count;)
        sched_yield();
}

static int swap_in_a_sandbox(void) {
    pthread_t threads[THREADS];
    start(GIB, REUSE_BARRIER, RELAXED);
    fake->done_every = 10;
    for (uintptr_t i = 0; i < THREADS; i++)
        HOLDS(pthread_create(&threads[i], NULL, swap_blocks, (void *)(i + 1)) == 0);
    wait_for_turns(5000);
    SET_UP_SANDBOX();
    for (unsigned i = 0; i < 60; i++) {
        pool_trim(pool, false);
        wait_for_turns(200);
    }
    ended = true;
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    HOLDS(failures == 0 && !biased_can_start());
    for (unsigned i = 0; i < PLACES; i++)
        HOLDS(!places[i] || fake_pool_free(places[i]) == 0);
    HOLDS(fake_books(pool).requested.current == 0);
    HOLDS(!pool_check(pool));
    return 0;
}

static void threads_go_on_in_a_sandbox(void **state) {
    (void)state;
    in_a_process_of_its_own(swap_in_a_sandbox);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(nobody_waits_for_a_thread_that_rests),
        TEST(threads_go_on_in_a_sandbox),
    };
    return cmocka_run_group_tests_name("sandbox", tests, NULL, NULL);
}
