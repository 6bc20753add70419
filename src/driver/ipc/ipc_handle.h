/*
 * What the 64 bytes of an IPC handle say.
 *
 * A block inside a segment. The driver knows the segment only, and gives the same handle for every
 * address in it. So the handle we hand out says in its last eight bytes, which the driver leaves zero
 * (docs/cuda-facts.md, "IPC handles"), where in the segment the block starts and how long it is:
 *
 *      bytes  0..55                   56..63
 *             driver's, scrambled     tag, unit of the size, size, offset in units of 512 bytes
 *
 * An importer without the library holds something that the driver does not take for a handle and gets
 * the driver's error, never another block's memory (scrambling the process number alone is not enough:
 * the driver does not look at it). The last eight bytes are what the rest is scrambled with, so that
 * whoever changes one of them holds nothing either.
 *
 * A block at the very start of its segment needs no offset. There the driver's handle is left as it
 * is, for the sake of such importers, but for its last eight bytes:
 *
 *      bytes  0..55                   56..63
 *             driver's                another tag, checksum of the size, size
 *
 * A block in pages. The driver has no handle for it; whoever exported it hands its pages over:
 *
 *      bytes  0..31                                32..55      56..63
 *             exporter, token, address; scrambled  zeroes too  a third tag, checksum
 *
 * Equal for equal blocks, and no byte of any is left to chance.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_HANDLE_H
#define GPUCACHE_DRIVER_IPC_IPC_HANDLE_H

#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>

struct ipc_handle {
    uint64_t words[8];
};

/** A block in pages, as its handle names it. */
struct ipc_ticket {
    uint64_t exporter; /* where it listens (ipc_wire.h) */
    uint64_t token[2]; /* which nobody else can know */
    uint64_t address;  /* there */
};

enum ipc_handle_kind { IPC_HANDLE_DRIVERS, IPC_HANDLE_IN_SEGMENT, IPC_HANDLE_IN_PAGES };

struct ipc_handle ipc_handle_view(const CUipcMemHandle *handle);

enum ipc_handle_kind ipc_handle_kind(const struct ipc_handle *view);

/**
 * Makes the driver's handle one of a block. False: a block so far into its segment has none. A size
 * above 128 MiB that is no multiple of 512 is rounded up to one.
 */
bool ipc_handle_pack(struct ipc_handle *view, uint64_t offset, uint64_t bytes);

/** The way back. False: somebody has changed it. */
bool ipc_handle_unpack(struct ipc_handle *view, uint64_t *offset, uint64_t *bytes);

/** The same for blocks in pages. */
struct ipc_handle ipc_handle_of_pages(const struct ipc_ticket *ticket);
bool ipc_handle_read_pages(const struct ipc_handle *view, struct ipc_ticket *ticket);

#endif
