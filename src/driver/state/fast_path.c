#include "driver/state/fast_path.h"

_Atomic int fast_path_blocks;
