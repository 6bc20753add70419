/*
 * An importer without this library must get the driver's error, never another block's memory. For a
 * block inside a segment, the first 56 bytes of the handle are scrambled, and the driver does not
 * recognise the result. Scrambling the process number alone is not enough: the driver ignores that
 * number. The last eight bytes are the key, so the driver also refuses a handle in which any of
 * them was changed.
 *
 * A block at the start of its segment needs no offset. The first 56 bytes stay the driver's, so
 * importers without this library can open the segment. Only the last eight bytes change.
 */
#include "driver/ipc/ipc_handle.h"

#include <string.h>

#define TAG_SHIFT 56
#define TAG ((uint64_t)0x69 << TAG_SHIFT)
#define TAG_AT_START ((uint64_t)0x6a << TAG_SHIFT)
#define TAG_PAGES ((uint64_t)0x6b << TAG_SHIFT)
#define TAG_MASK ((uint64_t)0xff << TAG_SHIFT)
#define UNITS_FLAG ((uint64_t)1 << 55) /* the size is in units of UNIT_BYTES */
#define SIZE_SHIFT 28
#define SIZE_MOST (((uint64_t)1 << 27) - 1)
#define OFFSET_MOST (((uint64_t)1 << SIZE_SHIFT) - 1)
#define UNIT_BYTES 512u
/* for a block at the start of its segment: size below this bit, checksum of the size above */
#define CHECK_SHIFT 40

_Static_assert(sizeof(struct ipc_handle) == sizeof(CUipcMemHandle), "a handle is 64 bytes");

/* Hashes a word: each bit of the result depends on all bits of `x`. No cryptography. */
static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

/* Scrambles the first seven words with the last one, or restores them. */
static void scramble(struct ipc_handle *view) {
    for (unsigned i = 0; i < 7; i++)
        view->words[i] ^= mix(view->words[7] + i);
}

struct ipc_handle ipc_handle_view(const CUipcMemHandle *handle) {
    struct ipc_handle view;
    memcpy(&view, handle, sizeof view);
    return view;
}

enum ipc_handle_kind ipc_handle_kind(const struct ipc_handle *view) {
    uint64_t tag = view->words[7] & TAG_MASK;
    return tag == TAG || tag == TAG_AT_START ? IPC_HANDLE_IN_SEGMENT
           : tag == TAG_PAGES                ? IPC_HANDLE_IN_PAGES
                                             : IPC_HANDLE_OF_DRIVER;
}

/* --- in a segment --- */

/* Returns the last word of the handle of a block at the start of its segment. */
static uint64_t word_at_start(uint64_t bytes) {
    return TAG_AT_START | (mix(bytes) & 0xffff) << CHECK_SHIFT | bytes;
}

bool ipc_handle_pack(struct ipc_handle *view, uint64_t offset, uint64_t bytes) {
    if (offset == 0) {
        view->words[7] = word_at_start(bytes);
        return bytes >> CHECK_SHIFT == 0;
    }
    uint64_t flag = bytes > SIZE_MOST ? UNITS_FLAG : 0;
    uint64_t size = flag ? (bytes + UNIT_BYTES - 1) / UNIT_BYTES : bytes;
    if (size > SIZE_MOST || offset / UNIT_BYTES > OFFSET_MOST)
        return false;
    view->words[7] = TAG | flag | size << SIZE_SHIFT | offset / UNIT_BYTES;
    scramble(view);
    return true;
}

bool ipc_handle_unpack(struct ipc_handle *view, uint64_t *offset, uint64_t *bytes) {
    uint64_t word = view->words[7];
    bool is_valid = true;
    if ((word & TAG_MASK) == TAG_AT_START) {
        *offset = 0;
        *bytes = word & (((uint64_t)1 << CHECK_SHIFT) - 1);
        is_valid = word == word_at_start(*bytes);
    } else {
        *offset = (word & OFFSET_MOST) * UNIT_BYTES;
        *bytes = (word >> SIZE_SHIFT & SIZE_MOST) * (word & UNITS_FLAG ? UNIT_BYTES : 1);
        scramble(view);
    }
    view->words[7] = 0;
    return is_valid;
}

/* --- in pages --- */

/* Returns the last word of the handle of a block in pages: the tag, and a checksum of the
 * others. */
static uint64_t word_of_pages(const struct ipc_handle *view) {
    uint64_t sum = 0;
    for (unsigned i = 0; i < 7; i++)
        sum = mix(sum + view->words[i]);
    return TAG_PAGES | sum >> 8;
}

struct ipc_handle ipc_handle_of_pages(const struct ipc_ticket *ticket) {
    struct ipc_handle view = {
        {ticket->exporter, ticket->token[0], ticket->token[1], ticket->address}};
    view.words[7] = word_of_pages(&view);
    scramble(&view);
    return view;
}

bool ipc_handle_read_pages(const struct ipc_handle *view, struct ipc_ticket *ticket) {
    struct ipc_handle plain = *view;
    scramble(&plain);
    *ticket = (struct ipc_ticket){plain.words[0], {plain.words[1], plain.words[2]}, plain.words[3]};
    return plain.words[7] == word_of_pages(&plain);
}
