#include "driver/state/capture.h"

#include <sched.h>

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
    while (atomic_load(&waiters) > 0)
        sched_yield(); /* natively, the other thread's free would block this thread as long */
}
