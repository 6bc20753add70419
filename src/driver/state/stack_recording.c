/* Starts stack recording and the search for requesters. Replaces dlclose(). */
#include "driver/state/stack_recording.h"

#include "driver/state/device.h"
#include "driver/state/fast_path.h"
#include "loader/loader.h"
#include "options/options.h"
#include "process/libc.h"
#include "stacks/requester.h"
#include "stacks/stacks.h"

atomic_bool stacks_recorded;

/* Empties the requesters' table twice: another thread may fill it during the real dlclose(). */
int front_dlclose(void *handle) {
    requester_forget();
    int r = NEXT(dlclose)(handle);
    requester_forget();
    return r;
}

static struct requester_row *requesters_of(int ordinal) {
    struct device *device = device_used(ordinal);
    return device ? device->requesters : NULL;
}

void stack_recording_start(void) {
    stacks_requesters = requesters_of;
    requester_start(loader_next_dlsym);
    if (options()->stacks > 0 && stacks_start(options()->stacks, loader_next_dlsym)) {
        fast_path_block();
        atomic_store(&stacks_recorded, true);
    }
}
