/*
 * Formats of the 64 bytes of an IPC handle. hooks/ipc.c and ipc_export.c call the functions, which
 * take no lock. Equal blocks have equal handles, and every byte is defined.
 *
 * | kind of block      | bytes 0..55                      | bytes 56..63                        |
 * | ------------------ | -------------------------------- | ----------------------------------- |
 * | inside a segment   | driver's handle, scrambled       | tag, unit of size, size,            |
 * |                    |                                  | offset / 512                        |
 * | start of a segment | driver's handle                  | second tag, checksum of size, size  |
 * | in pages           | exporter, token, address, zeros; | third tag, checksum of bytes 0..55  |
 * |                    | scrambled                        |                                     |
 *
 * The driver returns one handle for all addresses of a segment, and leaves the last eight bytes
 * zero (docs/cuda-facts.md, "IPC handles"). ipc_handle.c explains the scrambling.
 */
#ifndef GPUCACHE_DRIVER_IPC_IPC_HANDLE_H
#define GPUCACHE_DRIVER_IPC_IPC_HANDLE_H

#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>

struct ipc_handle {
    uint64_t words[8];
};

/** A block in pages, as its handle identifies it. */
struct ipc_ticket {
    uint64_t exporter; /* number of the exporter's socket (ipc_wire.h) */
    uint64_t token[2]; /* random, known only from the handle */
    uint64_t address;  /* address in the exporter */
};

enum ipc_handle_kind { IPC_HANDLE_OF_DRIVER, IPC_HANDLE_IN_SEGMENT, IPC_HANDLE_IN_PAGES };

/** Returns a copy of a handle's bytes. */
struct ipc_handle ipc_handle_view(const CUipcMemHandle *handle);

enum ipc_handle_kind ipc_handle_kind(const struct ipc_handle *view);

/**
 * Converts the driver's handle of a segment to the handle of a block at `offset`, in bytes. Returns
 * false if the offset or size is too large for the format. A size above 128 MiB that is not a
 * multiple of 512 is rounded up to one.
 */
bool ipc_handle_pack(struct ipc_handle *view, uint64_t offset, uint64_t bytes);

/**
 * Restores the driver's handle, and returns the offset and size in bytes. Returns false if the
 * handle was changed.
 */
bool ipc_handle_unpack(struct ipc_handle *view, uint64_t *offset, uint64_t *bytes);

/**
 * Make and read the handle of a block in pages. ipc_handle_read_pages() returns false if the handle
 * was changed.
 */
struct ipc_handle ipc_handle_of_pages(const struct ipc_ticket *ticket);
bool ipc_handle_read_pages(const struct ipc_handle *view, struct ipc_ticket *ticket);

#endif
