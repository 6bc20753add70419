/* Starts stack recording. */
#include "driver/state/stack_recording.h"

#include "driver/state/capture.h"
#include "loader/loader.h"
#include "process/options.h"
#include "stacks/stacks.h"

atomic_bool stacks_recorded;

void stack_recording_start(void) {
    if (options()->stacks > 0 && stacks_start(options()->stacks, loader_next_dlsym)) {
        atomic_fetch_add(&capture_unusual, 1);
        atomic_store(&stacks_recorded, true);
    }
}
