/*
 * Where a trace is: a file's name, or the number of a process that records one.
 */
#ifndef GPUCACHE_TOOL_TRACE_SOURCE_H
#define GPUCACHE_TOOL_TRACE_SOURCE_H

#include "tool/trace_file.h"

/** Reads the trace that is meant, the last `last` events of it (0: all), or says on stderr why not
 * and returns false. Says what the trace lacks, too. */
bool trace_source_read(const char *source, uint64_t last, struct trace_file *file);

#endif
