/*
 * An HTTP server for /metrics, which answers one connection at a time.
 */
#ifndef GPUCACHE_TOOL_LISTEN_H
#define GPUCACHE_TOOL_LISTEN_H

#include <stdbool.h>

/** Writes the body of an answer to fd: OpenMetrics if `open`, because the client prefers it, else
 * Prometheus's text. Returns 0 or a negative errno. */
typedef int listen_answer(int fd, bool open);

/**
 * Answers GET /metrics at ADDRESS:PORT until the process ends. PORT or :PORT means the loopback
 * address. An IPv6 address stands in brackets. Port 0 means any free port. Prints the address to
 * stderr when clients can connect. Ends the process on an error.
 */
_Noreturn void listen_and_answer(const char *where, listen_answer *answer);

#endif
