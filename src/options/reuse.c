#include "options/reuse.h"

#include <stddef.h>

const char *const reuse_names[REUSE_MODES + 1] = {
    [REUSE_BARRIER] = "barrier",
    [REUSE_WAIT] = "wait",
    [REUSE_SYNC] = "sync",
    [REUSE_MODES] = NULL,
};
