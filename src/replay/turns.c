#include "replay/turns.h"

#include "replay/history.h"

#include <errno.h>
#include <pthread.h>

static struct {
    pthread_mutex_t lock; /* of whoever acts */
    pthread_cond_t changed;
    int turn;
    turns_act *act;
    void *with;
} turns = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *take_turns(void *number) {
    int own = *(const int *)number;
    pthread_mutex_lock(&turns.lock);
    while (turns.turn != TURNS_OVER) {
        if (turns.turn == own) {
            turns.turn = turns.act(turns.with);
            pthread_cond_broadcast(&turns.changed);
        } else {
            pthread_cond_wait(&turns.changed, &turns.lock);
        }
    }
    pthread_mutex_unlock(&turns.lock);
    return NULL;
}

int turns_take(unsigned threads, int first, turns_act *act, void *with) {
    pthread_t thread[HISTORY_THREADS_MOST];
    int number[HISTORY_THREADS_MOST], r = 0;
    unsigned started = 0;
    turns.turn = first;
    turns.act = act;
    turns.with = with;
    if (threads == 1) {
        while (turns.turn != TURNS_OVER) {
            turns.turn = act(with);
        }
        return 0;
    }
    pthread_mutex_lock(&turns.lock); /* none begins before all are there */
    while (started < threads && r == 0) {
        number[started] = (int)started;
        r = pthread_create(&thread[started], NULL, take_turns, &number[started]) ? -EAGAIN : 0;
        started += r == 0;
    }
    turns.turn = r == 0 ? first : TURNS_OVER;
    pthread_mutex_unlock(&turns.lock);
    while (started > 0) {
        pthread_join(thread[--started], NULL);
    }
    return r;
}
