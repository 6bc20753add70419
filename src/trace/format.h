/*
 * The file of a trace (GPUCACHE_TRACE): what the library writes and the tool reads.
 *
 *      header    TRACE_HEADER_BYTES: who it is, its devices, what was dropped
 *      slots     of TRACE_RECORD_BYTES, in chunks of TRACE_CHUNK_SLOTS; a chunk belongs to one thread while that fills it,
 *                and its first slot is its head
 *
 * A record counts if its kind is not NONE or CHUNK and its seal is right: it may be read while it is written, and the process may be
 * killed at any time. Records lie in no order. Their times tell it, and those of one time and thread their places.
 *
 * Time is in ticks of the processor's clock, which costs least to read; trace_ns() makes it nanoseconds.
 *
 * The oldest chunks are used again once there are as many as are to be kept (the bound). What then still lives of them (blocks, segments,
 * mapped pages) stays, as TRACE_CARRIED, so that everything that lived at the front of the trace is known: header.dropped_until.
 * A record up to that time only says what there was then; after it nothing is missing. But where blocks are more than may be kept, some
 * are forgotten: header.lost.
 */
#ifndef GPUCACHE_TRACE_FORMAT_H
#define GPUCACHE_TRACE_FORMAT_H

#include "live/page.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define TRACE_MAGIC UINT64_C(0x3165636172747067) /* "gptrace1" */
#define TRACE_HEADER_BYTES 32768
#define TRACE_RECORD_BYTES 64
#define TRACE_CHUNK_SLOTS 64
#define TRACE_CHUNK_RECORDS (TRACE_CHUNK_SLOTS - 1)
#define TRACE_MOMENTS 64     /* kind of the first moment of flight.def */
#define TRACE_ALL UINT64_MAX /* header.events_kept: no bound was asked for */
#define TRACE_LABEL_WORDS 5  /* of a mark in one record: address to space */
#define TRACE_LABEL 159      /* bytes of a mark's text at most */
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
    TRACE_CARRIED = 1, /* older than the trace, of something that lived then */
    TRACE_DEAD =
        2, /* of something known to have gone meanwhile, though its end may be forgotten; not part of the seal */
    TRACE_BEGINS = 4,  /* a moment's time is that of its begin, not of its end */
    TRACE_ORDERED = 8, /* a free in the order of a stream, `detail` */
};

/**
 * The meaning of the words, by kind:
 *
 *      ALLOCATE       address; bytes asked for; value: bytes of its block; space
 *      FREE           the same; detail: the stream, if TRACE_ORDERED. The time is that before the block can be had again. Instead of
 *                     a stack's number the low 32 bits of the ticks of its ALLOCATE; 0: not known
 *      MAP            address; bytes, of one page; space
 *      UNMAP          address; bytes, of one or more pages; space
 *      CONTEXT_END    space: all its blocks, segments and pages are gone; bytes: that it had from the driver
 *      OUTSIDE_TAKE, OUTSIDE_LEAVE      address, or handle; bytes; value: which kind (enum unpooled_kind); detail: bytes of that kind
 *                     on the device after it
 *      MARK, TEXT     the label, TRACE_LABEL_WORDS words of it each, ended by NUL; a TEXT goes on where the slot before it ended
 *      moments        address (0: none); bytes; value: nanoseconds that it took (0: not measured); space (0: none);
 *                     of GROW and GIVE_BACK detail: bytes that the pools of the device have from the driver after it. GROW has the address
 *                     of a new segment, and 0 where memory comes in pages
 *
 *                     of OOM detail: bytes that the driver has left
 *
 *      STACK, FRAME, MODULE      no events, but what numbers stand for; they stay. In the place of ticks: number << 32 | bytes of the whole,
 *                     and then TRACE_PIECE of them. A stack is the numbers of its frames, 32 bits each, innermost first (0: left
 *                     out); a frame a text as reports have it; a module its path and its build ID, each ended by NUL
 *      MORE           goes on where the slot before it ended: number << 32 | which piece it is; TRACE_PIECE bytes
 *
 * `space` tells one context's pool from another; addresses of a device are unique as long as something lies there.
 */
struct trace_record {
    _Atomic uint64_t ticks;
    _Atomic uint64_t address, bytes, value, detail, space;
    _Atomic uint64_t who; /* thread << 32 | number of its stack (0: none); of FREE see above */
    _Atomic uint64_t
        head; /* seal << 32 | device << 16 | flags << 8 | kind; last, and 0 while the others change */
};

static inline uint64_t trace_head(uint64_t seal, unsigned device, unsigned flags, unsigned kind) {
    return seal << 32 | (uint64_t)(uint16_t)device << 16 | (uint64_t)(uint8_t)flags << 8 |
           (uint8_t)kind;
}

/** 32 bits; of the words in their order, all but the head. */
static inline uint64_t trace_seal(const uint64_t words[7], unsigned device, unsigned flags,
                                  unsigned kind) {
    uint64_t sum = trace_head(0, device, flags & ~(unsigned)TRACE_DEAD, kind) + 1;
    for (unsigned i = 0; i < 7; i++) {
        sum += words[i] * (2 * i + 3);
    }
    return sum * UINT64_C(0x9e3779b97f4a7c15) >> 32;
}

/** Writes a record to a slot that nobody else writes to. */
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

/* Figures of a device that a record's `detail` says: its reserve, and then memory outside the pool
 * by the number of its kind (driver/limit/unpooled_kind.def). The header has room for so many, so their
 * count never changes. */
#define TRACE_FIGURES 12
#define TRACE_OUTSIDE_MOST (TRACE_FIGURES - 2) /* the highest number of a kind that has a figure */
static inline unsigned trace_figure(unsigned kind, uint64_t value) {
    switch (kind) {
    case TRACE_MOMENT_GROW:
    case TRACE_MOMENT_GIVE_BACK:
    case TRACE_CONTEXT_END:
        return 0;
    case TRACE_OUTSIDE_TAKE:
    case TRACE_OUTSIDE_LEAVE:
        return value <= TRACE_OUTSIDE_MOST ? 1 + (unsigned)value : TRACE_FIGURES;
    default:
        return TRACE_FIGURES;
    }
}

struct trace_device {
    char name[64], uuid[48]; /* empty: not used */
    uint64_t total_bytes;
    char backend[16];
    struct {
        _Atomic uint64_t ticks, bytes;
    } before[TRACE_FIGURES]; /* as the newest records say that were dropped */
};

struct trace_header {
    _Atomic uint64_t magic; /* last of all */
    uint32_t header_bytes, record_bytes, chunk_slots;
    char version[16];
    struct live_identity who;
    uint64_t started_ns, real_ns;   /* CLOCK_MONOTONIC, and what to add for the time since 1970 */
    uint64_t first_ticks, first_ns; /* one moment; */
    _Atomic uint64_t tick_ns;       /* and nanoseconds of a tick, times 2^32 */
    int64_t rank;                   /* -1: none */
    char name[64], host[68];
    char command[LIVE_COMMAND]; /* arguments, each with its NUL */
    uint32_t command_bytes;
    uint64_t events_kept;           /* asked for; or TRACE_ALL */
    _Atomic uint64_t slots;         /* that the file has */
    _Atomic uint64_t dropped;       /* records, carried ones not counted */
    _Atomic uint64_t dropped_until; /* ticks of the newest of them; 0: none */
    _Atomic uint64_t lost;          /* things that lived when they were forgotten */
    _Atomic uint64_t missed;        /* records that found no place: all chunks were some thread's */
    _Atomic int32_t refused;        /* the file cannot grow: the errno; 0: it can */
    _Atomic int32_t driver_version;
    char options[4096]; /* in force, as NAME=VALUE lines */
    struct trace_device devices[STATS_MAX_DEVICES];
};

/** CLOCK_MONOTONIC. */
static inline uint64_t trace_ns(const struct trace_header *header, uint64_t ticks) {
    uint64_t rate = atomic_load(&header->tick_ns);
    bool before = ticks < header->first_ticks;
    uint64_t since = before ? header->first_ticks - ticks : ticks - header->first_ticks;
    uint64_t ns = (uint64_t)((unsigned __int128)since * rate >> 32);
    return before ? header->first_ns - ns : header->first_ns + ns;
}

_Static_assert(sizeof(struct trace_record) == TRACE_RECORD_BYTES, "records are one cache line");
_Static_assert(sizeof(struct trace_header) <= TRACE_HEADER_BYTES, "the header has its room");
_Static_assert(TRACE_KINDS <= TRACE_MOMENTS, "moments come after all others");

#endif
