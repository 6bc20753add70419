/*
 * The call stacks that a trace's events name by number (trace/callers.h), as far as they stand in
 * the file in one piece; with the names that the library left to be found.
 */
#ifndef GPUCACHE_TOOL_TRACE_CALLERS_H
#define GPUCACHE_TOOL_TRACE_CALLERS_H

#include "stats/holders.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trace_callers;

struct trace_callers *trace_callers_open(void);
void trace_callers_free(struct trace_callers *callers);

/** Whether a record is one of theirs, and no event. */
bool trace_callers_are(unsigned kind);

/** Takes a record in, whose place in the file is `place`; in the order of places. */
void trace_callers_take(struct trace_callers *callers, unsigned kind, const uint64_t words[7],
                        size_t place);

/**
 * The numbers of a stack's frames, innermost first; where there are lines of Python those alone.
 * *count 0: nothing is known of it. Good until the next call.
 */
const uint32_t *trace_callers_stack(struct trace_callers *callers, uint32_t stack, unsigned *count);

/**
 * A frame, by its number; `index` counts the functions there, innermost first, of which all but the
 * last were inlined. NULL beyond the last one. Its texts stay.
 */
const struct stats_frame *trace_callers_frame(struct trace_callers *callers, uint32_t frame,
                                              unsigned index);

/** Numbers of stacks and frames are less. */
uint32_t trace_callers_stacks(const struct trace_callers *callers);
uint32_t trace_callers_frames(const struct trace_callers *callers);

#endif
