/*
 * A server for one kind of answer: HTTP, one connection at a time.
 */
#ifndef GPUCACHE_TOOL_LISTEN_H
#define GPUCACHE_TOOL_LISTEN_H

#include <stdbool.h>

/** Writes the body of an answer to fd. `open`: as OpenMetrics, which the client prefers; false: as
 * Prometheus's text. Returns 0 or a negative errno. */
typedef int listen_answer(int fd, bool open);

/**
 * Answers GET /metrics at ADDRESS:PORT until the process is ended. PORT alone, or :PORT, is on the
 * loopback address; an IPv6 address stands in brackets; port 0 is any free one. Says the address on
 * stderr when clients may connect. Ends the process if it cannot.
 */
_Noreturn void listen_and_answer(const char *where, listen_answer *answer);

#endif
