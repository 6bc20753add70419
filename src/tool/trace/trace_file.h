/*
 * Reads a trace (trace/format.h) as one consistent list of events, sorted by time.
 *
 *      struct trace_file file;
 *      const char *why;
 *      if (trace_file_read("app.trace", &file, &why) == 0) {
 *          for (size_t i = 0; i < file.count; i++)
 *              look_at(&file.events[i]);
 *          trace_file_free(&file);
 *      }
 */
#ifndef GPUCACHE_TOOL_TRACE_TRACE_FILE_H
#define GPUCACHE_TOOL_TRACE_TRACE_FILE_H

#include "stats/holders.h"
#include "tool/trace/trace_live_set.h"

/**
 * A trace that was read.
 *
 * The first `carried` events began the objects that are live when the trace begins (TRACE_CARRIED,
 * with their old times): segments (MOMENT_GROW with an address), pages (MAP), blocks (ALLOCATE).
 * Later:
 *
 *  - each FREE, GIVE_BACK with an address, and UNMAP ends a live object; UNMAP ends one page
 *  - each ALLOCATE has an address without a block
 *  - each CONTEXT_END follows the ends of all objects of the context
 *
 * The list of a running process ends at the begin of the read.
 */
struct trace_file {
    const struct trace_header *header;
    struct trace_event *events;
    size_t count;
    size_t carried;    /* number of carried events */
    uint64_t front_ns; /* all other events are later */
    uint64_t end_ns;   /* time of the last event; for a running process, of the read */
    uint64_t before[STATS_MAX_DEVICES][TRACE_METRICS]; /* metrics at the front (trace_metric()) */
    uint64_t dropped;                                  /* events older than the trace, or cut off */
    bool running;
    bool incredible; /* the file is damaged: too many ends of unknown objects; some are left out */
    char *texts;
    struct trace_callers *callers; /* the call stacks of the events */
};

/** Returns whether the file is a trace, of any version. */
bool trace_file_is(const char *path);
bool trace_file_is_open(int fd);

/** Reads a trace, which must be a regular file. Returns 0, or a negative errno and in *why a text
 * for the user. */
int trace_file_read(const char *path, struct trace_file *file, const char **why);

/** Reads a trace by the name of its file, or by the number of a process that records one. Keeps
 * only its last `last` events, and at most the GPUCACHE_TRACE_EVENTS of the process (`last` 0: as
 * many). Prints to stderr if events are missing. On failure prints the reason and returns false. */
bool trace_source_read(const char *source, uint64_t last, struct trace_file *file);

/** Reads a trace from an open file as trace_file_read() does, and closes the file. */
int trace_file_read_open(int fd, struct trace_file *file, const char **why);

/**
 * Makes the list of a file consistent, as struct trace_file requires. trace_file_read() calls it.
 */
void trace_file_complete(struct trace_file *file);

/** Keeps only the last `last` events, and carried events for the objects that were live before. */
void trace_file_cut(struct trace_file *file, size_t last);

void trace_file_free(struct trace_file *file);

/** Returns the tool's words for a kind of event. */
const char *trace_event_words(unsigned kind);

/* The call stacks, which events name by number. Stacks that are incomplete in the file are unknown.
 */
struct trace_callers *trace_callers_open(void);
void trace_callers_free(struct trace_callers *callers);

/** Adds a record of a definition, at slot `place` of the file. Called in the order of slots. */
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
