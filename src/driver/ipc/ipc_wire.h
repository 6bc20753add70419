/*
 * What exporter and importer of blocks in pages say to each other, and the sockets that carry it.
 *
 *      importer                        exporter's helper thread (ipc_server.c)
 *      token, first page       ---->
 *                              <----   the block's offset, size and pages; descriptors of up to 16 segments that they
 *                                      are in, equally long ones
 *      token, the next page    ---->
 *                              ...
 *
 * Each answer has few descriptors, and the importer closes them before it asks on. So neither side needs many,
 * however large the block is. The socket's name is in the network namespace and has no file: nothing is left of a
 * process that was killed. Each side looks whose process the other one is (SO_PEERCRED).
 *
 * All calls are bare system calls: no cancellation points, and no other preloaded library notices. errno
 * changes.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_WIRE_H
#define GPUCACHE_DRIVER_IPC_IPC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_PAGES 16 /* descriptors in one answer at most */
#define WIRE_MAGIC 0x3270656863617067u
#define WIRE_PATIENCE_MS 10000 /* either side waits so long for the other one's next message, */
#define WIRE_WHOLE_MS 30000    /* and an importer so long for all messages of a block together */

struct wire_request {
    uint64_t magic, token[2], address;
    uint32_t first, unused;
};

struct wire_answer {
    uint64_t magic, offset, bytes;
    uint32_t pages, count;   /* of the block, 2 MiB each; descriptors here */
    uint32_t length, unused; /* of 2 MiB has each of these so many */
};

/** Listens under a name of this number: a descriptor, or a negative errno. */
int wire_listen(uint64_t name);

/** Who waits next, or a negative errno; -EACCES: somebody else's process came. Does not wait. */
int wire_accept(int fd);

/** A connection to whoever listens there, if that is a process of this user; and its end. */
int wire_connect(uint64_t name, int64_t deadline);
void wire_hang_up(int fd);

/** 0 or a negative errno; -EAGAIN: it does not take any now. */
int wire_send(int fd, const void *data, size_t bytes, const int *passed, unsigned count);

/**
 * One message of just so many bytes: 0; -EAGAIN: there is none now; -EPIPE: the other side has gone; -EPROTO:
 * that is no such message. With it come up to WIRE_PAGES descriptors in `passed`, none of which is left in any other
 * case. NULL: what is passed is dropped.
 */
int wire_receive(int fd, void *data, size_t bytes, int *passed, unsigned *count);

/** Until there is something to read. False: not in time. */
bool wire_wait(int fd, int64_t deadline);

int64_t wire_clock_ms(void);
void wire_sleep_ms(unsigned ms);
void wire_close(int fd);

/**
 * Around the time that a thread has descriptors in hand that nobody has written down: those of pages, and new sockets.
 * A fork waits for the end of it, for a while: else they would stay open in a child that knows nothing of them,
 * and the memory with them. Nor does such a time begin during a fork, unless that takes long.
 */
void wire_hold(void);
void wire_let_go(void);

/** Nobody has any, and nobody gets any before wire_go_on(). False: somebody still has some after so long. */
bool wire_stop(unsigned ms);
void wire_go_on(void);

/** In the child of a fork: closes the connections. */
void wire_forked(void);

#endif
