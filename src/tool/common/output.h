/*
 * Flushes the standard output of a command, and prints why it could not be written: a disk is full.
 * EPIPE has no message, because the reader has ended.
 */
#ifndef GPUCACHE_TOOL_COMMON_OUTPUT_H
#define GPUCACHE_TOOL_COMMON_OUTPUT_H

#include "base/print.h"
#include "tool/common/tool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/** Prints a message for a negative errno of the output. Returns whether there was no error. */
static inline bool tool_output_is_good(int error) {
    if (error != 0 && error != -EPIPE)
        tool_say("the output could not be written: %s", strerror(-error));
    return error == 0;
}

/** Flushes output to the standard output. Returns false if it could not be written. */
static inline bool tool_flush(struct print *out) {
    return tool_output_is_good(print_flush(out));
}

/** Flushes stdout. Returns the exit status: 0 or STATUS_OWN_FAILURE. */
static inline int tool_flush_stdout(void) {
    int error = fflush(stdout) != 0 ? -errno : ferror(stdout) ? -EIO : 0;
    return tool_output_is_good(error) ? 0 : STATUS_OWN_FAILURE;
}

#endif
