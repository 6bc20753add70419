#include "driver/state/capture.h"

#include "base/clock.h"

_Atomic unsigned capture_active;

static _Atomic unsigned waiters; /* threads between capture_hold_off() and capture_let_go() */

bool capture_hold_off(void) {
    atomic_fetch_add(&waiters, 1);
    if (atomic_load(&capture_active) > 0) {
        atomic_fetch_sub(&waiters, 1);
        return false;
    }
    return true;
}

void capture_let_go(void) {
    atomic_fetch_sub(&waiters, 1);
}

void capture_wait_for_holders(void) {
    /* natively, the other thread's free would block this thread as long */
    for (unsigned turn = 0; atomic_load(&waiters) > 0; turn++)
        let_others_run(turn);
}
