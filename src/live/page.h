/*
 * The live page: what a process under the library shows to others, while it runs and after SIGKILL.
 *
 *      head       identity of the process; written once
 *      exchange   questions and orders of readers, and the answers of the process
 *      rings      the flight recorder (flight.h)
 *      slots      two copies of each device's statistics: one published, one to be written
 *
 * The page is a file that the process and every reader map. It lies in a folder that only its user
 * may enter (place.h). A file survives SIGKILL. Each process has a page of its own, so nothing has
 * to be subtracted when a process dies. The process takes no lock: fields that both sides write are
 * atomic. Readers that give orders exclude each other by flock(). Invariant: copy `published % 2`
 * of each slot is complete.
 *
 * The statistics are whole snapshots, as in a report (stats/stats.h). The page does not hold the
 * counters themselves: these are sums over thread caches. Every tool would have to add them up and
 * make them agree, for every version of the pool. The layout belongs to one version of the library.
 * A reader of another version says so and skips the page.
 */
#ifndef GPUCACHE_LIVE_PAGE_H
#define GPUCACHE_LIVE_PAGE_H

#include "stats/stats.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LIVE_MAGIC UINT64_C(0x3165676170757067)    /* "gpupage1" */
#define LIVE_MAGIC_MASK UINT64_C(0xffffffffffffff) /* all bytes but the number of the layout */
#define LIVE_COMMAND 512                           /* bytes of the command line */

/**
 * Identity of a process. The kernel uses a process number again, but not with the same start time.
 */
struct live_identity {
    int32_t pid;
    uint64_t start;         /* ticks since boot; 0: not known */
    uint64_t pid_namespace; /* the namespace of `pid`; 0: not known */
};

/**
 * How a process ended. If the process is gone and its page says LIVE_RUNNING, it was killed before
 * it could write anything.
 */
enum live_ending { LIVE_RUNNING, LIVE_EXIT, LIVE_EXEC, LIVE_SIGNAL };

/** Orders that gpucache ctl gives. */
enum live_order { LIVE_REPORT = 1, LIVE_EMPTY_CACHE, LIVE_RESET_PEAK, LIVE_LIMIT };

/** Why the process does not begin an order yet. */
enum live_hold { LIVE_NOT_HELD_UP, LIVE_IN_CAPTURE, LIVE_AT_ITS_END };

/** Kinds of events in the flight recorder. */
enum flight_kind {
#define FLIGHT(number, kind, words) FLIGHT_##kind = number,
#include "live/flight.def"
#undef FLIGHT
    FLIGHT_KINDS
};

struct flight_event {
    _Atomic uint64_t number;  /* of this event in its ring, from 1; 0: no event */
    _Atomic uint64_t seal;    /* flight_seal() of all other fields */
    _Atomic uint64_t time_ns; /* CLOCK_MONOTONIC; for large blocks CLOCK_MONOTONIC_COARSE */
    _Atomic uint64_t address; /* 0: none */
    _Atomic uint64_t bytes;
    /*
     * 0: not measured. For a large block: the time from `time_ns` to the end of the thread's last
     * slow event, if that is later.
     */
    _Atomic uint64_t duration_ns;
    _Atomic uint64_t rest; /* flight_rest() */
};

/**
 * Returns the checksum of an event. The checksum does not match in a slot that a reader sees half
 * written, nor in one that two writers filled at once, a whole round of the ring apart.
 */
static inline uint64_t flight_seal(uint64_t number, uint64_t time_ns, uint64_t address,
                                   uint64_t bytes, uint64_t duration_ns, uint64_t rest) {
    return number + time_ns * 3 + address * 5 + bytes * 9 + duration_ns * 17 + rest * 33;
}

/**
 * Packs the thread's number, the kind of event (enum flight_kind) and the device into one word.
 * `device`: FLIGHT_NO_DEVICE for none.
 */
static inline uint64_t flight_rest(uint32_t thread, uint16_t kind, uint16_t device) {
    return (uint64_t)thread << 32 | (uint64_t)kind << 16 | device;
}

/** Returns whether question `asked` has been answered. The numbers wrap around. */
static inline bool live_is_answered(uint32_t answered, uint32_t asked) {
    return (int32_t)(answered - asked) >= 0;
}

#define FLIGHT_NO_DEVICE UINT16_MAX
#define FLIGHT_EVENTS 128 /* in a ring; a power of two */
#define FLIGHT_RINGS 17   /* the first ring for slow events, the others for large blocks */

struct flight_ring {
    _Alignas(64) _Atomic uint64_t last; /* number of the newest event */
    struct flight_event events[FLIGHT_EVENTS];
};

#define LIVE_HOLDERS 5 /* as many as a report names */
#define LIVE_FRAMES 3  /* frames of a holder */

/** A frame that reports name (report/holders.h). The fields are those of struct stats_frame. */
struct live_frame {
    char function[96], file[128]; /* empty: unknown */
    char build_id[68];            /* of a module; empty: unknown */
    uint64_t offset;
    uint32_t line, python;
};

/** Live memory of one call stack, and the innermost of its frames that reports name. */
struct live_holder {
    uint64_t bytes, count;
    uint32_t frames;
    struct live_frame frame[LIVE_FRAMES];
};

/** The call stacks that hold most live memory, if stacks are recorded. */
struct live_holders {
    uint64_t bytes, count; /* of all call stacks */
    uint64_t lost_blocks;  /* allocations so far that were not recorded */
    uint32_t recorded;     /* 0: stacks are not recorded */
    uint32_t rows;
    struct live_holder row[LIVE_HOLDERS];
};

/** Statistics of a device at one moment. */
struct live_device {
    struct stats_device stats;               /* its pointers mean nothing in a reader */
    char backend[16], reuse[16], reason[64]; /* of the backend */
    char limit_source[64];
    uint64_t read_ns;              /* when stats was read, in ns of CLOCK_MONOTONIC */
    uint64_t sizes_ns;             /* when stats.live, map and holders were counted; 0: never */
    uint64_t sizes_moves;          /* number of allocations and frees until sizes_ns */
    uint64_t events[FLIGHT_RINGS]; /* number of each ring's newest event when stats was read */
    struct segment_map map;
    struct live_holders holders;
};

/** Copy `published % 2` is complete. The other copy may be half written. */
struct live_slot {
    _Alignas(64) _Atomic uint64_t published; /* 0: the device has not been used */
    struct live_device copies[2];
};

struct live_page {
    /* --- head --- */
    /* Written last: the head is complete. Every layout has the same fields up to `version`. */
    _Atomic uint64_t magic;
    uint32_t page_bytes, slot_bytes;
    char version[16];
    struct live_identity who;
    uint64_t stack;      /* address where its stack begins, which changes with exec */
    uint64_t started_ns; /* start of the process, in ns of CLOCK_MONOTONIC */
    uint64_t real_ns;    /* ns to add to CLOCK_MONOTONIC for the time since 1970 */
    int64_t rank;        /* -1: none */
    char name[64], host[68];
    char command[LIVE_COMMAND]; /* arguments, each with its NUL */
    uint32_t command_bytes;
    uint32_t slots;
    _Atomic int32_t driver_version;
    _Atomic uint64_t host_bytes; /* stats_host_bytes() at refreshed_ns */

    /* --- exchange --- */
    _Alignas(64) _Atomic uint32_t asked; /* question number; shared futex that wakes the process */
    _Atomic uint32_t sizes_wanted;       /* set before `asked`: count sizes of live blocks too */
    _Atomic uint64_t order_value;        /* written with the file locked by flock() */
    _Atomic uint64_t order_device;       /* UINT64_MAX: all */
    _Atomic uint64_t order_number;       /* raised before `order` is set */
    /* enum live_order, written last. The process sets it to 0 to carry the order out, or the reader
     * to withdraw it. */
    _Atomic uint32_t order;
    _Alignas(64) _Atomic uint32_t answered; /* last question that the statistics answer */
    _Atomic uint32_t order_held_up;         /* enum live_hold: why the order is not begun */
    _Atomic uint64_t refreshed_ns;          /* when the statistics were read */
    _Atomic uint64_t order_done;            /* number of the last order done or withdrawn */
    _Atomic int64_t order_result;           /* its result: 0 or a negative errno */
    _Atomic uint32_t ending, signal;        /* enum live_ending; the signal of LIVE_SIGNAL */

    struct flight_ring rings[FLIGHT_RINGS];
    struct live_slot devices[];
};

_Static_assert((FLIGHT_EVENTS & (FLIGHT_EVENTS - 1)) == 0, "numbers wrap round");

#endif
