/*
 * The file of a trace (GPUCACHE_TRACE), which the library writes and the tool reads.
 *
 *      header    TRACE_HEADER_BYTES: process, devices, counts of dropped records
 *      slots     TRACE_RECORD_BYTES each, in chunks of TRACE_CHUNK_SLOTS. One thread fills a chunk.
 *                The first slot of a chunk is its head.
 *
 * A record is valid if its kind is neither NONE nor CHUNK and its seal matches: readers read while
 * threads write, and the process may be killed at any time. Readers sort records by ticks, and
 * records with equal ticks by position.
 *
 * When the file has reached its bound, the oldest chunks are reused. The begins of live blocks,
 * segments and pages stay, as TRACE_CARRIED. Records up to header.dropped_until show only what was
 * live then. After that time no event is missing, except those that header.missed counts.
 */
#ifndef GPUCACHE_TRACE_FORMAT_H
#define GPUCACHE_TRACE_FORMAT_H

#include "live/page.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TRACE_MAGIC UINT64_C(0x3265636172747067) /* "gptrace2" */
#define TRACE_HEADER_BYTES 32768
#define TRACE_RECORD_BYTES 64
#define TRACE_CHUNK_SLOTS 64
#define TRACE_CHUNK_RECORDS (TRACE_CHUNK_SLOTS - 1)
#define TRACE_MOMENTS 64     /* kind of the first moment of flight.def */
#define TRACE_ALL UINT64_MAX /* header.events_kept: no bound */
#define TRACE_LABEL_WORDS 5  /* words of a mark's text in one record: address to space */
#define TRACE_LABEL 159      /* bytes of a mark's text, at most */
#define TRACE_NO_DEVICE FLIGHT_NO_DEVICE
#define TRACE_PIECE 48 /* bytes of a STACK, FRAME or MODULE in one record: address to who */
#define TRACE_PIECES(bytes) (((bytes) + TRACE_PIECE - 1) / TRACE_PIECE + ((bytes) == 0))

enum trace_kind {
#define TRACE(number, kind, words) TRACE_##kind = number,
#include "trace/kinds.def"
#undef TRACE
    TRACE_KINDS,
#define FLIGHT(number, kind, words) TRACE_MOMENT_##kind = TRACE_MOMENTS + (number),
#include "live/flight.def"
#undef FLIGHT
};

enum trace_flags {
    TRACE_CARRIED =
        1,          /* older than dropped_until; kept because its block, segment or page was live */
    TRACE_DEAD = 2, /* ended, even if the record of its end is gone; not part of the seal */
    TRACE_BEGINS = 4,  /* ticks are the begin of the moment, not its end */
    TRACE_ORDERED = 8, /* a free in stream order; `detail` is the stream */
};

/**
 * One record. The meaning of its words depends on its kind:
 *
 *      ALLOCATE       address; bytes requested; value: bytes of the block; space
 *      FREE           as ALLOCATE; detail: the stream, if TRACE_ORDERED. `ticks` lies before the
 *                     moment when the block can be handed out again. The low half of `who` has the
 *                     low 32 bits of the ticks of the ALLOCATE; 0: unknown
 *      MAP            address; bytes of one page; space
 *      UNMAP          address; bytes of one or more pages; space
 *      CONTEXT_END    space, whose blocks, segments and pages have all ended; bytes that its pool
 *                     had reserved; detail: as GROW
 *      UNPOOLED_TAKE, UNPOOLED_LEAVE
 *                     address or handle; bytes; value: the kind (enum unpooled_kind);
 *                     detail: bytes of that kind on the device afterwards
 *      MARK, TEXT     TRACE_LABEL_WORDS words of the label, which ends with NUL; a TEXT continues
 *                     the slot before it
 *      moments        address (0: none); bytes; value: duration in nanoseconds (0: not measured);
 *                     space (0: none)
 *      GROW, GIVE_BACK
 *                     also detail: bytes of the device's pools and native blocks afterwards.
 *                     The address is that of the segment, or 0 where memory comes in pages
 *      OOM            also detail: bytes that the driver has free
 *      STACK, FRAME, MODULE
 *                     definitions of numbers, not events; never dropped. `ticks` is
 *                     number << 32 | length in bytes; the other words are the first TRACE_PIECE
 *                     bytes. A stack is the 32-bit numbers of its frames, innermost first
 *                     (0: left out). A frame is a struct trace_frame and its texts. A module is
 *                     its path and its build ID, each with a NUL
 *      MORE           continues the slot before it: `ticks` is number << 32 | index of the piece;
 *                     then TRACE_PIECE bytes
 *
 * `space` identifies the pool of one context. An address of a device is unique while memory is
 * mapped there.
 */
struct trace_record {
    _Atomic uint64_t ticks; /* of the processor's clock, the cheapest to read; see trace_ns() */
    _Atomic uint64_t address, bytes, value, detail, space;
    _Atomic uint64_t who; /* thread << 32 | number of its stack (0: none); FREE: see above */
    /* seal << 32 | device << 16 | flags << 8 | kind. Written last; 0 while other words change. */
    _Atomic uint64_t head;
};

static inline uint64_t trace_head(uint64_t seal, unsigned device, unsigned flags, unsigned kind) {
    return seal << 32 | (uint64_t)(uint16_t)device << 16 | (uint64_t)(uint8_t)flags << 8 |
           (uint8_t)kind;
}

/** Returns the 32-bit checksum of a record: of its words in order, and of the head without DEAD. */
static inline uint64_t trace_seal(const uint64_t words[7], unsigned device, unsigned flags,
                                  unsigned kind) {
    uint64_t sum = trace_head(0, device, flags & ~(unsigned)TRACE_DEAD, kind) + 1;
    for (unsigned i = 0; i < 7; i++)
        sum += words[i] * (2 * i + 3);
    return sum * UINT64_C(0x9e3779b97f4a7c15) >> 32;
}

/** Copies the words of a record before its head. A thread may be writing them: the seal tells. */
static inline void trace_get(const struct trace_record *slot, uint64_t words[7]) {
    const _Atomic uint64_t *from = &slot->ticks;
    for (unsigned i = 0; i < 7; i++)
        words[i] = atomic_load_explicit(&from[i], memory_order_relaxed);
}

/** Writes a record to a slot of the calling thread's chunk: no other thread may write to it. */
static inline void trace_put(struct trace_record *slot, const uint64_t words[7], unsigned device,
                             unsigned flags, unsigned kind) {
    uint64_t head = trace_head(trace_seal(words, device, flags, kind), device, flags, kind);
#define SET(field, value) atomic_store_explicit(&slot->field, value, memory_order_relaxed)
    SET(ticks, words[0]);
    SET(address, words[1]);
    SET(bytes, words[2]);
    SET(value, words[3]);
    SET(detail, words[4]);
    SET(space, words[5]);
    SET(who, words[6]);
#undef SET
    atomic_store_explicit(&slot->head, head, memory_order_release);
}

/*
 * Metrics of a device that `detail` of a record may have. 0 is reserved memory; 1 and up are the
 * kinds of unpooled memory (driver/limit/unpooled_kind.def). The header has an array of them.
 * Therefore the count is part of the format and never changes.
 */
#define TRACE_METRICS 12
#define TRACE_UNPOOLED_MOST (TRACE_METRICS - 2) /* the highest kind that has a metric */

/** Returns the metric that `detail` of a record has, or TRACE_METRICS for none. */
static inline unsigned trace_metric(unsigned kind, uint64_t value) {
    switch (kind) {
    case TRACE_MOMENT_GROW:
    case TRACE_MOMENT_GIVE_BACK:
    case TRACE_CONTEXT_END:
        return 0;
    case TRACE_UNPOOLED_TAKE:
    case TRACE_UNPOOLED_LEAVE:
        return value <= TRACE_UNPOOLED_MOST ? 1 + (unsigned)value : TRACE_METRICS;
    default:
        return TRACE_METRICS;
    }
}

/** The first bytes of a FRAME. Function and file follow, each with a NUL, if `parts` has them. */
struct trace_frame {
    uint64_t offset;
    uint32_t line, parts;
};

enum trace_frame_parts { TRACE_FRAME_FUNCTION = 1, TRACE_FRAME_FILE = 2, TRACE_FRAME_PYTHON = 4 };

struct trace_device {
    char name[64], uuid[48]; /* empty: the device is not used */
    uint64_t total_bytes;
    char backend[16];
    struct {
        _Atomic uint64_t ticks, bytes;
    } before[TRACE_METRICS]; /* metrics after the newest dropped record of each */
};

struct trace_header {
    _Atomic uint64_t magic; /* written last */
    uint32_t header_bytes, record_bytes, chunk_slots;
    char version[16];
    struct live_identity who;
    uint64_t started_ns, real_ns;   /* CLOCK_MONOTONIC; and its difference to the time since 1970 */
    uint64_t first_ticks, first_ns; /* the same moment on both clocks */
    _Atomic uint64_t tick_ns;       /* nanoseconds per tick, times 2^32 */
    int64_t rank;                   /* -1: none */
    char name[64], host[68];
    char command[LIVE_COMMAND]; /* arguments, each with its NUL */
    uint32_t command_bytes;
    uint64_t events_kept;           /* GPUCACHE_TRACE_EVENTS, or TRACE_ALL */
    _Atomic uint64_t slots;         /* slots in the file */
    _Atomic uint64_t dropped;       /* dropped records, without carried ones */
    _Atomic uint64_t dropped_until; /* ticks of the newest dropped record; 0: none */
    _Atomic uint64_t lost;          /* live blocks, segments and pages whose records were dropped */
    _Atomic uint64_t missed;        /* records not written: other threads had every chunk */
    _Atomic int32_t refused;        /* errno with which the file failed to grow; 0: none */
    _Atomic int32_t driver_version;
    char options[4096]; /* the options in force, as NAME=VALUE lines */
    struct trace_device devices[STATS_MAX_DEVICES];
};

/** Converts ticks to nanoseconds of CLOCK_MONOTONIC. */
static inline uint64_t trace_ns(const struct trace_header *header, uint64_t ticks) {
    uint64_t rate = atomic_load(&header->tick_ns);
    bool before = ticks < header->first_ticks;
    uint64_t since = before ? header->first_ticks - ticks : ticks - header->first_ticks;
    uint64_t ns = (uint64_t)((unsigned __int128)since * rate >> 32);
    return before ? header->first_ns - ns : header->first_ns + ns;
}

_Static_assert(sizeof(struct trace_record) == TRACE_RECORD_BYTES, "records are one cache line");
_Static_assert(sizeof(struct trace_header) <= TRACE_HEADER_BYTES, "the header fits");
_Static_assert(TRACE_KINDS <= TRACE_MOMENTS, "moments come after all others");

#endif
