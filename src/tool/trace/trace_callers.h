/*
 * Reads the call stacks that a trace's events name by number (trace/callers.h), and finds the names
 * of native frames. Stacks that are incomplete in the file are unknown.
 */
#ifndef GPUCACHE_TOOL_TRACE_TRACE_CALLERS_H
#define GPUCACHE_TOOL_TRACE_TRACE_CALLERS_H

#include "stats/holders.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct trace_callers;

struct trace_callers *trace_callers_open(void);
void trace_callers_free(struct trace_callers *callers);

/** Returns whether a record of this kind is part of a definition, and not an event. */
bool trace_callers_are(unsigned kind);

/** Adds the record at slot `place` of the file. Called in the order of slots. */
void trace_callers_take(struct trace_callers *callers, unsigned kind, const uint64_t words[7],
                        size_t place);

/**
 * Returns the numbers of a stack's frames, innermost first, valid until the next call. If the stack
 * has Python frames, returns only these. *count is 0 if the stack is unknown.
 */
const uint32_t *trace_callers_stack(struct trace_callers *callers, uint32_t stack, unsigned *count);

/**
 * Returns a function of a frame, given the frame's number. `index` counts the functions, innermost
 * first; all but the last were inlined. NULL beyond the last one. The texts stay valid.
 */
const struct stats_frame *trace_callers_frame(struct trace_callers *callers, uint32_t frame,
                                              unsigned index);

/* Return a bound that all numbers of stacks, or of frames, are less than. */
uint32_t trace_callers_stacks(const struct trace_callers *callers);
uint32_t trace_callers_frames(const struct trace_callers *callers);

#endif
