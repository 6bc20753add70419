/*
 * Reads a trace of the library as histories.
 */
#ifndef GPUCACHE_TOOL_REPLAY_REPLAY_TRACE_H
#define GPUCACHE_TOOL_REPLAY_REPLAY_TRACE_H

#include "replay/history.h"

/** Reads a trace. Returns 0, or a negative errno with a text in histories->why. */
int replay_trace_read(const char *path, struct histories *histories);

#endif
