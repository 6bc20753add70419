/*
 * Gives numbers to frames and writes definitions (callers.h). A definition lies in adjacent slots
 * of one chunk. Invariant: a stack's bit is set only after its definition was written.
 */
#include "trace/callers.h"

#include "heap/host.h"
#include "trace/format.h"
#include "trace/ring.h"

#include <string.h>

#define FRAMES ((uint32_t)1 << 17) /* a power of two; a frame's number is its index plus 1 */
#define MOST_FRAMES (FRAMES / 4 * 3)
#define MODULES 1024
#define MOST_OF_STACK 128 /* frames, native ones and Python's */
#define NAME_BYTES 512    /* a name of a frame, and its NUL */
#define TEXT_BYTES 1152   /* a frame with two names, or a path and its build id */

_Static_assert(sizeof(struct trace_frame) + 2 * NAME_BYTES <= TEXT_BYTES, "a frame has two names");
_Static_assert(TRACE_PIECES(TEXT_BYTES) <= TRACE_CHUNK_RECORDS &&
                   TRACE_PIECES(MOST_OF_STACK * 4) <= TRACE_CHUNK_RECORDS,
               "a definition lies in one chunk");

_Atomic uint64_t callers_written[CALLERS_STACKS / 64];

/* The ring's lock (ring_hold()) protects the variables below. */
static struct ring_place place;
static uint64_t *frames; /* hash table of the written frames: their hashes; 0: an empty entry */
static uint32_t frame_count;
static uint64_t modules_written[MODULES / 64];

/** Writes the definition of a number to adjacent slots. Returns false if the file has no space. */
static bool put(unsigned kind, uint32_t number, const void *what, uint32_t bytes, uint32_t thread) {
    unsigned count = TRACE_PIECES(bytes);
    if (place.left < count && !ring_take_for_good(&place, thread))
        return false;
    for (unsigned i = 0; i < count; i++) {
        uint64_t words[7] = {(uint64_t)number << 32 | (i == 0 ? bytes : i)};
        uint32_t at = i * TRACE_PIECE, left = bytes - at;
        memcpy(words + 1, (const char *)what + at, left < TRACE_PIECE ? left : TRACE_PIECE);
        trace_put(place.next++, words, TRACE_NO_DEVICE, 0, i == 0 ? kind : TRACE_MORE);
        place.left--;
    }
    return true;
}

/** Writes the modules not written yet. Runs for each stack: new stacks may add modules. */
static void write_modules(const struct stats_stacks *stacks, uint32_t thread) {
    const char *path, *build_id;
    for (uint32_t i = 0; i < MODULES && stacks->module(stacks->of, i, &path, &build_id); i++) {
        char text[TEXT_BYTES];
        size_t length = strlen(path) + 1, id = strlen(build_id) + 1;
        if (modules_written[i / 64] >> (i % 64) & 1 || length + id > sizeof text)
            continue;
        memcpy(text, path, length);
        memcpy(text + length, build_id, id);
        if (!put(TRACE_MODULE, i + 1, text, (uint32_t)(length + id), thread))
            return;
        modules_written[i / 64] |= (uint64_t)1 << (i % 64);
    }
}

/** Hashes the addresses of the names: each name is stored once, so equal names share an address. */
static uint64_t hash_of(const struct stats_frame *frame) {
    const uint64_t words[] = {(uint64_t)(uintptr_t)frame->file,
                              (uint64_t)(uintptr_t)frame->function, frame->offset, frame->line};
    uint64_t hash = UINT64_C(0x6672616d65);
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++) {
        hash = (hash ^ words[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash | 1;
}

/** Appends a text and its NUL, or nothing if `text` is NULL. Cuts a text that is too long. */
static uint32_t append(char parts[TEXT_BYTES], uint32_t used, const char *text) {
    size_t length = text ? strnlen(text, NAME_BYTES - 1) : 0;
    if (!text)
        return used;
    memcpy(parts + used, text, length);
    parts[used + length] = '\0';
    return used + (uint32_t)length + 1;
}

/** Packs a frame as FRAME records have it. Returns the number of bytes. */
static uint32_t pack(const struct stats_frame *frame, char parts[TEXT_BYTES]) {
    const struct trace_frame head = {.offset = frame->offset,
                                     .line = frame->line,
                                     .parts = (frame->function ? TRACE_FRAME_FUNCTION : 0u) |
                                              (frame->file ? TRACE_FRAME_FILE : 0u) |
                                              (frame->python ? TRACE_FRAME_PYTHON : 0u)};
    memcpy(parts, &head, sizeof head);
    return append(parts, append(parts, sizeof head, frame->function), frame->file);
}

/** Returns the number of a frame, and writes the frame first if it is new. 0: no space. */
static uint32_t number_of(const struct stats_frame *frame, uint32_t thread) {
    uint64_t hash = hash_of(frame);
    uint32_t at = (uint32_t)(hash >> 32) & (FRAMES - 1);
    for (; frames[at] != 0; at = (at + 1) & (FRAMES - 1))
        if (frames[at] == hash)
            return at + 1;
    char parts[TEXT_BYTES];
    uint32_t bytes = pack(frame, parts);
    if (frame_count >= MOST_FRAMES || !put(TRACE_FRAME, at + 1, parts, bytes, thread))
        return 0;
    frames[at] = hash;
    frame_count++;
    return at + 1;
}

static bool write_stack(const struct stats_stacks *stacks, uint32_t stack, uint32_t thread) {
    uint32_t numbers[MOST_OF_STACK], count = 0;
    struct stats_frame frame;
    if (!frames && !(frames = host_map(FRAMES * sizeof *frames, 4096)))
        return false;
    write_modules(stacks, thread);
    while (count < MOST_OF_STACK && stacks->frame(stacks->of, stack, count, &frame))
        numbers[count++] = number_of(&frame, thread);
    return put(TRACE_STACK, stack, numbers, count * (uint32_t)sizeof *numbers, thread);
}

bool callers_write(const struct stats_stacks *stacks, uint32_t stack, uint32_t thread) {
    if (stack == 0 || stack >= CALLERS_STACKS)
        return false;
    ring_hold();
    bool written = callers_has(stack) || write_stack(stacks, stack, thread);
    if (written)
        atomic_fetch_or(&callers_written[stack / 64], (uint64_t)1 << (stack % 64));
    ring_release();
    return written;
}
