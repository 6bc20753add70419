/* Starts stack recording, and gives reports the recorded call stacks. */
#include "driver/state/stack_recording.h"

#include "driver/state/capture.h"
#include "loader/loader.h"
#include "process/options.h"
#include "stacks/stacks.h"
#include "stats/holders.h"

atomic_bool stacks_recorded;

const struct stats_stacks *stats_stacks(void) {
    return stack_recording_is_on() ? stacks_view() : NULL;
}

void stack_recording_start(void) {
    if (options()->stacks > 0 && stacks_start(options()->stacks, loader_next_dlsym)) {
        atomic_fetch_add(&capture_unusual, 1);
        atomic_store(&stacks_recorded, true);
    }
}
