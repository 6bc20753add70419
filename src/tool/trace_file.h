/*
 * A trace (trace/format.h) as a reader sees it: one list of events in the order of time that
 * contradicts nothing.
 *
 *      struct trace_file file;
 *      const char *why;
 *      if (trace_file_read("app.trace", &file, &why) == 0) {
 *          for (size_t i = 0; i < file.count; i++)
 *              look_at(&file.events[i]);
 *          trace_file_free(&file);
 *      }
 *
 * The first `carried` events are what lived when the trace begins, each with the event that brought
 * it (flag TRACE_CARRIED, its own old time): segments (MOMENT_GROW with an address), pages (MAP),
 * blocks (ALLOCATE). Behind them:
 *
 *  - a FREE, GIVE_BACK (with an address) or UNMAP is of what is there at that moment; UNMAP is one
 * for each page
 *  - an ALLOCATE is where nothing is
 *  - a CONTEXT_END comes after a FREE, GIVE_BACK and UNMAP for all that went with the context
 *
 * It may also be of a process that is running: then it ends when the read began.
 */
#ifndef GPUCACHE_TOOL_TRACE_FILE_H
#define GPUCACHE_TOOL_TRACE_FILE_H

#include "tool/trace_callers.h"
#include "tool/trace_live_set.h"

struct trace_file {
    const struct trace_header *header;
    struct trace_event *events;
    size_t count;
    size_t carried;    /* of them */
    uint64_t front_ns; /* what is behind the carried ones came after this moment */
    uint64_t end_ns;   /* of the last event; for a running process, when it was read */
    uint64_t before[STATS_MAX_DEVICES][TRACE_FIGURES]; /* figures at the front (trace_figure()) */
    uint64_t dropped;                                  /* events older than the trace, or cut off */
    bool running;
    bool incredible; /* it ends more that was not there than any process can: some ends are left out
                      */
    char *texts;
    struct trace_callers *callers; /* the stacks that events name */
};

/** Returns whether the file is a trace at all, of any version. */
bool trace_file_is(const char *path);
bool trace_file_is_open(int fd);

/** Reads a trace, which has to be a regular file. Returns 0, or a negative errno, and in *why a
 * text for the user. */
int trace_file_read(const char *path, struct trace_file *file, const char **why);

/** Does the same with an open file, and closes it. */
int trace_file_read_open(int fd, struct trace_file *file, const char **why);

/** Makes the list of a file what stands above; trace_file_read() has done so. */
void trace_file_complete(struct trace_file *file);

/** Keeps the last so many events, and what lived before them as carried. */
void trace_file_cut(struct trace_file *file, size_t last);

void trace_file_free(struct trace_file *file);

/** What the tool calls a kind of event, and of a CARRIED one. */
const char *trace_event_words(unsigned kind);

#endif
