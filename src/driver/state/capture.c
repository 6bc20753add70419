#include "driver/state/capture.h"

#include <sched.h>

_Atomic unsigned capture_active;
_Atomic int capture_unusual;

static _Atomic unsigned held_off; /* threads between capture_hold_off() and capture_let_go() */

bool capture_hold_off(void) {
    atomic_fetch_add(&held_off, 1);
    if (atomic_load(&capture_active) > 0) {
        atomic_fetch_sub(&held_off, 1);
        return false;
    }
    return true;
}

void capture_let_go(void) {
    atomic_fetch_sub(&held_off, 1);
}

void capture_wait_for_holders(void) {
    while (atomic_load(&held_off) > 0) {
        sched_yield(); /* as long as a native free in another thread would block this thread */
    }
}

void capture_forked(void) {
    atomic_fetch_add(&capture_unusual, 1);
}
