/*
 * The protocol of exporter and importer for blocks in pages, and its sockets. ipc_fetch.c and
 * ipc_server.c call these functions. No lock: two atomic counts keep forks and descriptors apart.
 *
 *      importer                        exporter's helper thread (ipc_server.c)
 *      token, first page       ---->
 *                              <----   offset, size and pages of the block; descriptors of up to 16
 *                                      of its handles, which are equally long
 *      token, the next page    ---->
 *                              ...
 *
 * The importer closes the descriptors of an answer before the next request, so neither side needs
 * many. Sockets are abstract, so a killed process leaves no file behind. Each side checks the user
 * of the other (SO_PEERCRED). All calls are raw system calls: they are no cancellation points, and
 * no other preloaded library intercepts them. errno changes.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_WIRE_H
#define GPUCACHE_DRIVER_IPC_IPC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_DESCRIPTORS 16            /* most descriptors in one answer */
#define WIRE_MAGIC 0x3270656863617067u /* "gpachep2"; the digit is the version of the messages */
#define WIRE_LIMIT_MS 10000            /* longest wait of either side for the next message */
/* longest wait of an importer for all messages of a block together */
#define WIRE_WHOLE_MS 30000

struct wire_request {
    uint64_t magic, token[2], address;
    uint32_t first, unused;
};

struct wire_answer {
    uint64_t magic, offset, bytes;
    uint32_t pages, count;   /* pages of the block, 2 MiB each; descriptors in this answer */
    uint32_t length, unused; /* pages of 2 MiB in each descriptor */
};

/** Listens under a socket number. Returns a descriptor or a negative errno. */
int wire_listen(uint64_t name);

/**
 * Accepts the next connection, without a wait. Returns a descriptor or a negative errno: -EACCES if
 * the peer belongs to another user.
 */
int wire_accept(int fd);

/**
 * Connect to the socket of an exporter of this user, and close the connection. `deadline` is in ms
 * of wire_clock_ms(). wire_connect() returns a descriptor or a negative errno.
 */
int wire_connect(uint64_t name, int64_t deadline);
void wire_hang_up(int fd);

/**
 * Sends a message with `count` descriptors. Returns 0 or a negative errno: -EAGAIN if the socket
 * takes none now.
 */
int wire_send(int fd, const void *data, size_t bytes, const int *passed, unsigned count);

/**
 * Receives one message of exactly `bytes` bytes, without a wait.
 *
 *     0        received; `passed` has *count descriptors, at most WIRE_DESCRIPTORS
 *     -EAGAIN  no message now
 *     -EPIPE   the peer has disconnected
 *     -EPROTO  the message has another size
 *
 * Keeps no descriptor open in case of an error. Drops all descriptors if `passed` is NULL.
 */
int wire_receive(int fd, void *data, size_t bytes, int *passed, unsigned *count);

/** Waits until `fd` is readable. Returns false at the deadline, in ms, or on an error. */
bool wire_wait(int fd, int64_t deadline);

/** Read the monotonic clock, sleep, and close a descriptor, by raw system calls. */
int64_t wire_clock_ms(void);
void wire_sleep_ms(unsigned ms);
void wire_close(int fd);

/**
 * Bracket the time in which a thread has open descriptors that are recorded nowhere: those of
 * pages, and new sockets. A fork waits for wire_let_go(), within a limit. Otherwise the child would
 * keep the descriptors open, and with them the memory. wire_hold() waits for a fork in progress,
 * within a limit.
 */
void wire_hold(void);
void wire_let_go(void);

/**
 * Waits at most `ms` until no thread is between wire_hold() and wire_let_go(). Then keeps
 * wire_hold() waiting until wire_go_on(). Returns false, with no thread kept waiting, if the time
 * is over.
 */
bool wire_stop(unsigned ms);
void wire_go_on(void);

/** Closes the importer's connections in the child of a fork. */
void wire_forked(void);

#endif
