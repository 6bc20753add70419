/*
 * The gpucache command: one file for each of its commands, and what they share.
 */
#ifndef GPUCACHE_TOOL_TOOL_H
#define GPUCACHE_TOOL_TOOL_H

#include <stdbool.h>
#include <stdint.h>

#define TOOL_PROGRAM_NAME 512 /* bytes */
#define TOOL_OPTION_NAME 64   /* bytes */

struct option_info;
struct program;

/* As env(1) and timeout(1) have them. */
enum {
    STATUS_NO_PEAK = 122, /* --max-peak had nothing to judge */
    STATUS_ABOVE_PEAK = 123,
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
int tool_help(char **arguments);

/** Writes `gpucache: ` and one line to stderr, by print_untrusted(): names of files and texts out
 * of files may stand in it. The format is one of print_format(). */
void tool_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Writes `gpucache: what: why` to stderr like tool_say(), and ends the process. */
_Noreturn void fail(int status, const char *what, const char *why);

/** Opens a regular file for reading, and waits for nobody. Returns a descriptor, or a negative
 * errno; -EINVAL: the file is no regular one. */
int tool_open_regular(const char *path);

/**
 * Puts the option `argument`, written as --name or --name=value, into the environment. Ends the
 * process if there is no such option, if its value is NULL, or, strictly, if its value makes no
 * sense.
 */
void tool_take_option(const char *argument, const char *value, bool strictly);

/** Writes the name of an option as the command takes it behind --: `memory-limit`. */
void tool_option_name(const struct option_info *option, char name[TOOL_OPTION_NAME]);

/** Becomes a program, or ends. */
_Noreturn void tool_become(char **program);

/**
 * Runs a program as a child. Returns the exit status: the program's own; where that is 0,
 * STATUS_ABOVE_PEAK if one of its processes held more than `most` bytes of a device, and
 * STATUS_NO_PEAK if none used a device, unless `or_none`.
 */
int tool_judge_peak(uint64_t most, bool or_none, char **program);

/** A process number, or 0: it is none. */
int tool_pid(const char *argument);

/** Writes the name of a program: of an interpreter also the script. */
void tool_program_name(const struct program *program, char name[TOOL_PROGRAM_NAME]);

#endif
