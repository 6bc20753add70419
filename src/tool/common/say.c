/*
 * Writes the tool's messages to stderr.
 */
#include "base/print.h"
#include "tool/common/tool.h"

#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#define TEXT 8192 /* bytes of a message, at most */

void tool_say(const char *format, ...) {
    char buffer[TEXT + 16];
    struct print out;
    va_list values;
    struct print words = PRINT_TEXT(TEXT);
    va_start(values, format);
    print_vformat(&words, format, values);
    va_end(values);
    print_init(&out, STDERR_FILENO, buffer, sizeof buffer);
    print_str(&out, "gpucache: ");
    print_untrusted(&out, print_end(&words));
    print_char(&out, '\n');
    print_flush(&out);
}

void fail(int status, const char *what, const char *why) {
    tool_say("%s: %s", what, why);
    exit(status);
}
