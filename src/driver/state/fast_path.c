#include "driver/state/fast_path.h"

_Atomic int fast_path_blocks;

void fast_path_forked(void) {
    fast_path_block();
}
