/*
 * The commands of gpucache, one file each, and the functions that they share. The tool has one
 * thread, except in a replay.
 */
#ifndef GPUCACHE_TOOL_COMMON_TOOL_H
#define GPUCACHE_TOOL_COMMON_TOOL_H

#include "base/print.h"
#include "replay/memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOOL_PROGRAM_NAME 512 /* bytes */
#define TOOL_OPTION_NAME 64   /* bytes */
#define TOOL_COUNTER_KEY 64   /* bytes */

struct option_info;
struct program;

/* Exit statuses, as in env(1) and timeout(1). */
enum {
    STATUS_NO_PEAK = 122, /* --max-peak had nothing to judge */
    STATUS_ABOVE_PEAK = 123,
    STATUS_NO_ANSWER = 124,
    STATUS_OWN_FAILURE = 125,
    STATUS_CANNOT_EXECUTE = 126,
    STATUS_NOT_FOUND = 127
};
_Static_assert((int)STATUS_OWN_FAILURE == MEMORY_MISSING, "memory is missing: an own failure");

/* The commands. Each gets the words after its name, ended by NULL, and returns the exit status. */
#define COMMAND(name, operands, meaning, example) int tool_##name(char **arguments);
#include "tool/common/commands.def"

/** Writes `gpucache: ` and one line to stderr. Uses print_untrusted(), because the line may contain
 * file names and texts from files. The format is that of print_format(). */
void tool_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Writes `gpucache: what: why` to stderr like tool_say(), and ends the process. */
_Noreturn void fail(int status, const char *what, const char *why);

/**
 * Opens a regular file for reading, without blocking. The names of such files come from another
 * process: a report names modules, and /proc/PID/maps names mapped files. The owner of such a name
 * may replace the file by a FIFO or a device at any moment. Returns a descriptor or a negative
 * errno; -EINVAL: the file is not regular.
 */
int tool_open_regular(const char *path);

/** Returns an output to the standard output. All calls share one buffer. */
struct print tool_stdout(void);

/** Flushes output to the standard output. If it could not be written, prints why and returns false.
 */
bool tool_flush(struct print *out);

/** Flushes stdout as tool_flush() does. Returns the exit status: 0 or STATUS_OWN_FAILURE. */
int tool_flush_stdout(void);

/**
 * Puts an option, written as --name or --name=value, into the environment. Ends the process if the
 * option is unknown or its value is NULL. `strictly` also ends the process if the value is invalid.
 */
void tool_take_option(const char *argument, const char *value, bool strictly);

/** Writes the name of an option for the command line, without the dashes: `memory-limit`. */
void tool_option_name(const struct option_info *option, char name[TOOL_OPTION_NAME]);

/** Finds the file that execvp() would run. Returns false if there is none. */
bool program_find(const char *name, char path[PATH_MAX]);

/** Returns whether a file begins as an ELF file. */
bool program_is_elf(const char *path);

/**
 * Prints one line to stderr if the library cannot be loaded into a program. Returns whether to
 * preload it anyway. Returns false if the preload would end the program, or if its dynamic linker
 * would print an error.
 */
bool program_takes_library(const char *name);

/** Replaces this process by a program, or ends it with a message. */
_Noreturn void tool_become(char **program);

/**
 * Runs a program as a child. Ends like the program if the program failed. Otherwise returns:
 *
 *      STATUS_ABOVE_PEAK   one of its processes held more than `most` bytes of a device
 *      STATUS_NO_PEAK      none used a device, and `or_none` is false
 *      0                   otherwise
 */
int tool_judge_peak(uint64_t most, bool or_none, char **program);

/** Writes the body of an answer to fd: OpenMetrics if `open`, because the client accepts it, else
 * Prometheus's text. Returns 0 or a negative errno, which the server ignores. */
typedef int listen_answer(int fd, bool open);

/**
 * Answers GET /metrics at ADDRESS:PORT until the process ends, one connection at a time. PORT or
 * :PORT means the loopback address. An IPv6 address stands in brackets. Port 0 means any free port.
 * Prints the address to stderr when clients can connect. Ends the process on an error.
 */
_Noreturn void listen_and_answer(const char *where, listen_answer *answer);

/** Parses a process number. Returns 0 for other texts. */
int tool_pid(const char *argument);

/** Writes the key of a counter in reports: where the name ends in _ns, the key ends in _seconds.
 * Returns whether the counter has a time. */
bool tool_counter_key(const char *name, char key[TOOL_COUNTER_KEY]);

/** Returns the milliseconds of the monotonic clock. */
uint64_t tool_now_ms(void);

/** Writes the name of a program, and of the script if the program is Python. */
void tool_program_name(const struct program *program, char name[TOOL_PROGRAM_NAME]);

#endif
