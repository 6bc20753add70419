/*
 * The gpucache command: one file for each of its commands, and what they share.
 */
#ifndef GPUCACHE_TOOL_TOOL_H
#define GPUCACHE_TOOL_TOOL_H

#include <stdbool.h>
#include <stdint.h>

#define TOOL_PROGRAM_NAME 512 /* bytes */

struct program;

/* As env(1) and timeout(1) have them. */
enum {
    STATUS_ABOVE_PEAK = 123, /* which nobody else has */
    STATUS_NO_ANSWER = 124,
    STATUS_OWN_FAILURE = 125,
    STATUS_CANNOT_EXECUTE = 126,
    STATUS_NOT_FOUND = 127
};

/* Each is given what stands behind its name, ended by NULL, and returns the exit status. */
int tool_run(char **arguments);
int tool_options(char **arguments);
int tool_report(char **arguments);
int tool_replay(char **arguments);
int tool_top(char **arguments);
int tool_metrics(char **arguments);
int tool_ctl(char **arguments);
int tool_timeline(char **arguments);
int tool_snapshot(char **arguments);

/** Says `gpucache: what: why` on stderr and ends. */
_Noreturn void fail(int status, const char *what, const char *why);

/** Puts an option into the environment; ends the process if there is no such one, or, strictly, if its value makes no sense. */
void tool_take_option(const char *argument, bool strictly);

/** Becomes a program, or ends. */
_Noreturn void tool_become(char **program);

/** Runs it instead, and fails if one of its processes has held more of a device. Returns the exit status. */
int tool_judge_peak(uint64_t most, char **program);

/** A process number, or 0: it is none. */
int tool_pid(const char *argument);

/** What a program is called: of an interpreter also the script. */
void tool_program_name(const struct program *program, char name[TOOL_PROGRAM_NAME]);

#endif
