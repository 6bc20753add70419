/*
 * membarrier(2) is there when the pool begins and refused later, as in a sandbox that a program sets up
 * for itself: threads and whoever seizes their caches are never inside together, and nobody waits for a
 * thread that does nothing. Each case in a process of its own, which cannot leave its sandbox.
 */
#include "../sandbox.h"
#include "pool_bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* For the child: cmocka's checks would go on with the next test there. */
#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            return __LINE__;                                                                       \
        }                                                                                          \
    } while (0)

#define NO_SANDBOX (-2)
#define SET_UP_SANDBOX()                                                                           \
    do {                                                                                           \
        if (!refuse_membarrier())                                                                  \
            return NO_SANDBOX;                                                                     \
    } while (0)

static struct cache *own_cache(void) {
    return cache_find(pool);
}

static void in_a_process_of_its_own(int (*body)(void)) {
    int channel[2], line = -1, status = -1;
    assert_int_equal(pipe(channel), 0);
    pid_t child = fork();
    if (child == 0) {
        line = body();
        _exit(write(channel[1], &line, sizeof line) == sizeof line ? 0 : 1);
    }
    close(channel[1]);
    if (read(channel[0], &line, sizeof line) != sizeof line) {
        line = -1;
    }
    close(channel[0]);
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    if (line == NO_SANDBOX) {
        skip();
    }
    assert_int_equal(line, 0);
}

/* ---- exclusion ---- */

/* Both sides change these two as if alone; together they lose changes. */
static volatile uint64_t changes, mirror;
static atomic_bool ended;
static atomic_ulong torn, entered;
static _Atomic(struct cache *) owned;

static void change(uint64_t linger) {
    torn += changes != mirror;
    changes++;
    while (linger-- > 0) {
        cpu_relax();
    }
    mirror++;
}

static void *owner(void *unused) {
    struct cache *cache = own_cache();
    uint64_t count = 0;
    (void)unused;
    for (owned = cache; !atomic_load_explicit(&ended, memory_order_relaxed); count++) {
        cache_enter(cache);
        change(count % 32 ? 0 : 200);
        cache_leave(cache);
    }
    entered = count;
    return NULL;
}

static void seize_and_change(struct cache *cache, bool all) {
    pthread_mutex_lock(&pool->lock);
    if (all) {
        cache_seize_all(pool);
    } else {
        cache_seize(cache);
    }
    change(0);
    if (all) {
        cache_return_all(pool);
    } else {
        cache_return(cache);
    }
    pthread_mutex_unlock(&pool->lock);
}

#define SEIZURES 8000

static int exclude_each_other(void) {
    pthread_t thread;
    start(GIB, POOL_BARRIER, RELAXED);
    HOLDS(pthread_create(&thread, NULL, owner, NULL) == 0);
    while (!owned) {
        sched_yield();
    }
    bool biased = owned->biased;
    HOLDS(biased == cache_can_bias());
    for (unsigned i = 0; i < SEIZURES; i++) {
        if (i == SEIZURES / 2) {
            SET_UP_SANDBOX();
        }
        seize_and_change(owned, i % 3 == 0);
        for (unsigned turns = 0; turns < i % 64; turns++) {
            cpu_relax();
        }
    }
    ended = true;
    pthread_join(thread, NULL);
    HOLDS(!owned->biased && !cache_can_bias());
    HOLDS(torn == 0 && changes == SEIZURES + entered && mirror == changes);
    HOLDS(pool_check(pool) == 0);
    return 0;
}

static void an_owner_and_a_seizer_are_never_inside_together(void **state) {
    (void)state;
    in_a_process_of_its_own(exclude_each_other);
}

static pthread_barrier_t meet;

static void *stay_inside(void *unused) {
    struct cache *cache = own_cache();
    (void)unused;
    owned = cache;
    cache_enter(cache);
    pthread_barrier_wait(&meet);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    changes++;
    cache_leave(cache);
    cache_enter(cache); /* by another way now */
    changes++;
    cache_leave(cache);
    return NULL;
}

/* Its thread may have lost its processor there. */
static int seize_while_the_owner_is_inside(void) {
    pthread_t thread;
    start(GIB, POOL_BARRIER, RELAXED);
    pthread_barrier_init(&meet, NULL, 2);
    SET_UP_SANDBOX();
    HOLDS(pthread_create(&thread, NULL, stay_inside, NULL) == 0);
    pthread_barrier_wait(&meet);
    pthread_mutex_lock(&pool->lock);
    cache_seize(owned);
    uint64_t before = changes;
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    bool stayed_out = changes == before && before > 0;
    cache_return(owned);
    pthread_mutex_unlock(&pool->lock);
    pthread_join(thread, NULL);
    HOLDS(stayed_out && changes == 2 && !owned->biased);
    return 0;
}

static void an_owner_that_is_inside_is_waited_for(void **state) {
    (void)state;
    in_a_process_of_its_own(seize_while_the_owner_is_inside);
}

/* ---- threads that do nothing ---- */

static uint64_t given[2];

static void *ask_and_rest(void *unused) {
    (void)unused;
    int r = pool_alloc(pool, 4096, &given[0]) | pool_alloc(pool, 8192, &given[1]);
    pthread_barrier_wait(&meet);
    pthread_barrier_wait(&meet); /* meanwhile its caches are seized */
    r |= fake_pool_free(given[1]);
    r |= pool_alloc(pool, 8192, &given[1]) | fake_pool_free(given[1]);
    return (void *)(intptr_t)r;
}

static int seize_a_resting_threads_cache(void) {
    pthread_t thread;
    void *result;
    start(GIB, POOL_BARRIER, RELAXED);
    pthread_barrier_init(&meet, NULL, 2);
    HOLDS(pthread_create(&thread, NULL, ask_and_rest, NULL) == 0);
    pthread_barrier_wait(&meet);
    SET_UP_SANDBOX();
    HOLDS(fake_pool_free(given[0]) == 0); /* which shares the thread's number */
    HOLDS(fake_pool_free(given[0]) == -EINVAL);
    HOLDS(pool_trim(pool, false) == 0);
    pthread_barrier_wait(&meet);
    pthread_join(thread, &result);
    HOLDS(result == NULL);
    HOLDS(!own_cache()->biased); /* also that of a thread that comes later */
    HOLDS(pool_check(pool) == 0);
    return 0;
}

static void nobody_waits_for_a_thread_that_rests(void **state) {
    (void)state;
    in_a_process_of_its_own(seize_a_resting_threads_cache);
}

/* ---- threads that allocate, and free each other's blocks ---- */

#define THREADS 3
#define PLACES 64

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
        failures += old && fake_pool_free(old) != 0; /* also if it was handed out twice */
        turns_made++;
    }
    return NULL;
}

static void wait_for_turns(unsigned count) {
    for (unsigned before = turns_made; turns_made - before < count;) {
        sched_yield();
    }
}

static int swap_in_a_sandbox(void) {
    pthread_t threads[THREADS];
    start(GIB, POOL_BARRIER, RELAXED);
    fake->done_every = 10;
    for (uintptr_t i = 0; i < THREADS; i++) {
        HOLDS(pthread_create(&threads[i], NULL, swap_blocks, (void *)(i + 1)) == 0);
    }
    wait_for_turns(5000);
    SET_UP_SANDBOX();
    for (unsigned i = 0; i < 60; i++) {
        pool_trim(pool, false);
        wait_for_turns(200);
    }
    ended = true;
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    HOLDS(failures == 0 && !cache_can_bias());
    for (unsigned i = 0; i < PLACES; i++) {
        HOLDS(!places[i] || fake_pool_free(places[i]) == 0);
    }
    HOLDS(fake_books(pool).requested.current == 0);
    HOLDS(pool_check(pool) == 0);
    return 0;
}

static void threads_go_on_in_a_sandbox(void **state) {
    (void)state;
    in_a_process_of_its_own(swap_in_a_sandbox);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(an_owner_and_a_seizer_are_never_inside_together),
        TEST(an_owner_that_is_inside_is_waited_for),
        TEST(nobody_waits_for_a_thread_that_rests),
        TEST(threads_go_on_in_a_sandbox),
    };
    return cmocka_run_group_tests_name("sandbox", tests, NULL, NULL);
}
