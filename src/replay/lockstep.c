/* Passes the right to run from thread to thread, by one semaphore for each (rerun.h). */
#include "replay/rerun.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

static struct lockstep {
    lockstep_act *act;
    void *with;
    unsigned threads;
    bool over;
    struct turn {
        pthread_t thread;
        sem_t may_run;
    } of[HISTORY_THREADS_MOST];
} lockstep;

/** Ends all threads. Called by the thread that runs, or before any thread runs. */
static void end(void) {
    lockstep.over = true;
    for (unsigned i = 0; i < lockstep.threads; i++)
        sem_post(&lockstep.of[i].may_run);
}

static void wait_for_turn(struct turn *own) {
    while (sem_wait(&own->may_run) != 0) { /* interrupted by a signal handler */
    }
}

static void *run_in_step(void *own) {
    for (wait_for_turn(own); !lockstep.over; wait_for_turn(own)) {
        int next = lockstep.act(lockstep.with);
        if (next == LOCKSTEP_OVER)
            end();
        else
            sem_post(&lockstep.of[next].may_run);
    }
    return NULL;
}

int lockstep_run(unsigned threads, int first, lockstep_act *act, void *with) {
    int next = first, r = 0;
    lockstep = (struct lockstep){.act = act, .with = with};
    while (threads == 1 && next != LOCKSTEP_OVER)
        next = act(with);
    while (threads > 1 && lockstep.threads < threads && r == 0) {
        struct turn *turn = &lockstep.of[lockstep.threads];
        sem_init(&turn->may_run, 0, 0);
        r = pthread_create(&turn->thread, NULL, run_in_step, turn) ? -EAGAIN : 0;
        lockstep.threads += r == 0;
    }
    if (lockstep.threads > 0 && r == 0)
        sem_post(&lockstep.of[first].may_run);
    else
        end();
    for (unsigned i = 0; i < lockstep.threads; i++)
        pthread_join(lockstep.of[i].thread, NULL);
    return r;
}
