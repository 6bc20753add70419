/*
 * Functions that the commands share (tool.h): process numbers and names, regular files, and the
 * standard output.
 */
#include "tool/common/tool.h"

#include "base/clock.h"
#include "base/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int tool_pid(const char *argument) {
    char *end;
    long pid = strtol(argument, &end, 10);
    bool number = *argument >= '1' && *argument <= '9' && *end == '\0';
    return number && pid <= INT_MAX ? (int)pid : 0;
}

bool tool_counter_key(const char *name, char key[TOOL_COUNTER_KEY]) {
    size_t length = strlen(name);
    bool time = length > 3 && strcmp(name + length - 3, "_ns") == 0;
    snprintf(key, TOOL_COUNTER_KEY, "%.*s%s", (int)(time ? length - 3 : length), name,
             time ? "_seconds" : "");
    return time;
}

uint64_t tool_now_ms(void) {
    return clock_ns(CLOCK_MONOTONIC) / 1000000;
}

void tool_program_name(const struct program *program, char name[TOOL_PROGRAM_NAME]) {
    const char *script = program->argument_count > 1 ? program->arguments[1] : "-";
    bool runs_script = strncmp(program->name, "python", 6) == 0 && *script != '-';
    snprintf(name, TOOL_PROGRAM_NAME, "%s%s%s", program->name, runs_script ? " " : "",
             runs_script ? basename(script) : "");
}

int tool_open_regular(const char *path) {
    struct stat file;
    /* Checks before opening, because opening a FIFO unblocks its writer. */
    if (stat(path, &file) != 0)
        return -errno;
    int fd = S_ISREG(file.st_mode) ? open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
    if (S_ISREG(file.st_mode) && fd < 0)
        return -errno;
    /* Checks again: the name may be another file now. */
    if (fd >= 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode))
        return fd;
    if (fd >= 0)
        close(fd);
    return S_ISDIR(file.st_mode) ? -EISDIR : -EINVAL;
}

/* ---- the standard output ---- */

struct print tool_stdout(void) {
    static char buffer[65536];
    struct print out;
    print_init(&out, STDOUT_FILENO, buffer, sizeof buffer);
    return out;
}

/** Prints a message for a negative errno of the output, such as that of a full disk. EPIPE has no
 * message, because the reader has ended. Returns whether there was no error. */
static bool is_written(int error) {
    if (error != 0 && error != -EPIPE)
        tool_say("the output could not be written: %s", strerror(-error));
    return error == 0;
}

bool tool_flush(struct print *out) {
    return is_written(print_flush(out));
}

int tool_flush_stdout(void) {
    int error = fflush(stdout) != 0 ? -errno : ferror(stdout) ? -EIO : 0;
    return is_written(error) ? 0 : STATUS_OWN_FAILURE;
}
