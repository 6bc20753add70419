/* Passes the right to run from thread to thread, by one semaphore for each (turns.h). */
#include "replay/turns.h"

#include "replay/history.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>

static struct turns {
    turns_act *act;
    void *with;
    unsigned threads;
    bool over;
    struct turn {
        pthread_t thread;
        sem_t may_run;
    } of[HISTORY_THREADS_MOST];
} turns;

/** Ends all threads. Called by the thread that runs, or before any thread runs. */
static void end(void) {
    turns.over = true;
    for (unsigned i = 0; i < turns.threads; i++)
        sem_post(&turns.of[i].may_run);
}

static void wait_for_turn(struct turn *own) {
    while (sem_wait(&own->may_run) != 0) { /* interrupted by a signal handler */
    }
}

static void *take_turns(void *own) {
    for (wait_for_turn(own); !turns.over; wait_for_turn(own)) {
        int next = turns.act(turns.with);
        if (next == TURNS_OVER)
            end();
        else
            sem_post(&turns.of[next].may_run);
    }
    return NULL;
}

int turns_take(unsigned threads, int first, turns_act *act, void *with) {
    int next = first, r = 0;
    turns = (struct turns){.act = act, .with = with};
    while (threads == 1 && next != TURNS_OVER)
        next = act(with);
    while (threads > 1 && turns.threads < threads && r == 0) {
        struct turn *turn = &turns.of[turns.threads];
        sem_init(&turn->may_run, 0, 0);
        r = pthread_create(&turn->thread, NULL, take_turns, turn) ? -EAGAIN : 0;
        turns.threads += r == 0;
    }
    if (turns.threads > 0 && r == 0)
        sem_post(&turns.of[first].may_run);
    else
        end();
    for (unsigned i = 0; i < turns.threads; i++)
        pthread_join(turns.of[i].thread, NULL);
    return r;
}
