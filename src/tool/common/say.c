/*
 * Writes the tool's messages to stderr.
 */
#include "base/print.h"
#include "tool/common/tool.h"

#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

void tool_say(const char *format, ...) {
    char text[8192], buffer[sizeof text + 16];
    struct print words, out;
    va_list values;
    print_init(&words, -1, text, sizeof text);
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
