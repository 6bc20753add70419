/*
 * A trace of the library's own as histories.
 */
#ifndef GPUCACHE_TOOL_REPLAY_TRACE_H
#define GPUCACHE_TOOL_REPLAY_TRACE_H

#include "replay/history.h"

/** 0, or a negative errno and histories->why. */
int replay_trace_read(const char *path, struct histories *histories);

#endif
