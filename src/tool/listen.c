/*
 * Serves /metrics over HTTP (tool.h).
 *
 * The server answers connections one after another, without threads or locks. A client that neither
 * sends nor reads delays the next one by at most one second per step (base/write.h).
 */
#include "base/write.h"
#include "tool/common/tool.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQUEST 8192 /* bytes; a longer one is refused */
#define TIMEOUT_MS 1000
#define LOOPBACK "127.0.0.1"

/* ---- the address ---- */

/** Splits ADDRESS:PORT into texts of at most `size` bytes each. Returns false for other texts. */
static bool split(const char *where, char *address, char *port, size_t size) {
    const char *colon = strrchr(where, ':'), *begin = where;
    size_t length = colon ? (size_t)(colon - where) : 0;
    if (length >= 2 && where[0] == '[' && where[length - 1] == ']') {
        begin++;
        length -= 2;
    } else if (memchr(where, ':', length)) {
        return false; /* an IPv6 address without brackets */
    }
    const char *digits = colon ? colon + 1 : where;
    if (length >= size || strspn(digits, "0123456789") != strlen(digits) || *digits == '\0' ||
        strlen(digits) > 5 || atoi(digits) > UINT16_MAX)
        return false;
    snprintf(address, size, "%.*s", (int)length, begin);
    if (length == 0)
        snprintf(address, size, LOOPBACK);
    snprintf(port, size, "%s", digits);
    return true;
}

/** Prints the address and port of the socket; port 0 has become a real one. */
static void print_address(int server) {
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    char address[NI_MAXHOST] = "?", port[NI_MAXSERV] = "?";
    if (getsockname(server, (struct sockaddr *)&at, &size) == 0)
        getnameinfo((struct sockaddr *)&at, size, address, sizeof address, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    bool brackets = strchr(address, ':');
    fprintf(stderr, "gpucache: metrics at http://%s%s%s:%s/metrics\n", brackets ? "[" : "", address,
            brackets ? "]" : "", port);
}

static int open_server(const char *where) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE};
    struct addrinfo *found = NULL;
    char address[64], port[64];
    if (!split(where, address, port, sizeof address) ||
        getaddrinfo(address, port, &hints, &found) != 0)
        fail(STATUS_OWN_FAILURE, where,
             "wanted is --listen=ADDRESS:PORT, as in 127.0.0.1:9400 or [::1]:9400");
    int on = 1, server = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (server < 0 || setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        bind(server, found->ai_addr, found->ai_addrlen) != 0 || listen(server, 16) != 0)
        fail(STATUS_OWN_FAILURE, where, strerror(errno));
    freeaddrinfo(found);
    return server;
}

/* ---- one connection ---- */

/** Reads a request up to its final empty line. Returns false if it does not end in TIMEOUT_MS. */
static bool read_request(int fd, char request[REQUEST]) {
    uint64_t deadline = tool_now_ms() + TIMEOUT_MS;
    size_t length = 0;
    request[0] = '\0';
    while (!strstr(request, "\r\n\r\n")) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int64_t left = (int64_t)(deadline - tool_now_ms());
        if (left <= 0 || length + 1 == REQUEST || poll(&ready, 1, (int)left) <= 0)
            return false;
        ssize_t got = recv(fd, request + length, REQUEST - 1 - length, MSG_DONTWAIT);
        if (got <= 0)
            return false;
        length += (size_t)got;
        request[length] = '\0';
    }
    return true;
}

static void write_text(int fd, const char *text) {
    write_in_time(fd, text, strlen(text));
}

static void answer_one(int fd, listen_answer *answer) {
    char request[REQUEST];
    if (!read_request(fd, request)) {
        write_text(fd, "HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\n");
        return;
    }
    if (strncmp(request, "GET ", 4) != 0) {
        write_text(fd,
                   "HTTP/1.0 405 Method Not Allowed\r\nAllow: GET\r\nConnection: close\r\n\r\n");
        return;
    }
    const char *path = request + 4;
    size_t length = strcspn(path, " ?\r");
    if (length != 8 || strncmp(path, "/metrics", length) != 0) {
        write_text(fd, "HTTP/1.0 404 Not Found\r\nContent-Type: text/plain\r\nConnection: close\r\n"
                       "\r\nThe metrics are at /metrics.\n");
        return;
    }
    bool open = strcasestr(request, "application/openmetrics-text");
    write_text(
        fd, open ? "HTTP/1.0 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0; "
                   "charset=utf-8\r\nConnection: close\r\n\r\n"
                 : "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
                   "Connection: close\r\n\r\n");
    answer(fd, open);
}

void listen_and_answer(const char *where, listen_answer *answer) {
    int server = open_server(where);
    print_address(server);
    for (;;) {
        struct pollfd ready = {.fd = server, .events = POLLIN};
        poll(&ready, 1, -1);
        int fd = accept4(server, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
                fail(STATUS_OWN_FAILURE, where, strerror(errno));
            continue; /* the client has closed the connection */
        }
        answer_one(fd, answer);
        shutdown(fd, SHUT_WR);
        close(fd);
    }
}
