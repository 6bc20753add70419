/*
 * Finds a trace by the name of a file, or by the number of a process that records one.
 */
#ifndef GPUCACHE_TOOL_TRACE_TRACE_SOURCE_H
#define GPUCACHE_TOOL_TRACE_TRACE_SOURCE_H

#include "tool/trace/trace_file.h"

/** Reads a trace, or only its last `last` events (0: all). Prints to stderr if events are missing.
 * On failure prints the reason and returns false. */
bool trace_source_read(const char *source, uint64_t last, struct trace_file *file);

#endif
