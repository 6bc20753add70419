/*
 * The live page: what a process under the library shows to others, while it runs and after it was
 * killed.
 *
 *      head       who it is; written once
 *      exchange   what readers ask for, and what the process answers
 *      rings      the flight recorder (flight.h)
 *      slots      a device's figures, twice: one copy is published, the next one is written
 *
 * It is a file in a folder that only its user may enter (place.h), mapped by the process and by
 * every reader. A file survives SIGKILL, and is nobody's shared state: one process, one page, so
 * nothing has to be subtracted when a process dies.
 *
 * The figures are whole snapshots, as a report's are (stats/stats.h). The counters themselves could
 * lie here and would never be old, but they are sums over thread caches that only make sense after
 * the library has added them up and made them agree; every tool would have to repeat that, for every
 * version of the pool.
 *
 * The layout is that of one version of the library. A reader of another one says so and goes on.
 */
#ifndef GPUCACHE_LIVE_PAGE_H
#define GPUCACHE_LIVE_PAGE_H

#include "stats/stats.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define LIVE_MAGIC UINT64_C(0x3165676170757067)    /* "gpupage1" */
#define LIVE_MAGIC_MASK UINT64_C(0xffffffffffffff) /* all of it but the layout's number */
#define LIVE_COMMAND 512                           /* bytes of the command line */

/** Who a process is. Its number comes back; number and start together do not. */
struct live_identity {
    int32_t pid;
    uint64_t start;         /* ticks since boot; 0: not known */
    uint64_t pid_namespace; /* in which pid means something; 0: not known */
};

/** How a process ended. A page of a process that is gone and that says LIVE_RUNNING is of one that
 * was killed without a last word. */
enum live_ending { LIVE_RUNNING, LIVE_EXIT, LIVE_EXEC, LIVE_SIGNAL };

/** What gpucache ctl asks for. */
enum live_order { LIVE_REPORT = 1, LIVE_EMPTY_CACHE, LIVE_RESET_PEAK, LIVE_LIMIT };

/** Why the process leaves an order in the page for now. */
enum live_hold { LIVE_NOT_HELD_UP, LIVE_IN_CAPTURE, LIVE_AT_ITS_END };

/** A moment of the flight recorder. */
enum flight_kind {
#define FLIGHT(number, kind, words) FLIGHT_##kind = number,
#include "live/flight.def"
#undef FLIGHT
    FLIGHT_KINDS
};

struct flight_event {
    _Atomic uint64_t number;  /* of this event in its ring, from 1; 0: none */
    _Atomic uint64_t seal;    /* flight_seal() of all the others */
    _Atomic uint64_t time_ns; /* CLOCK_MONOTONIC; of large blocks CLOCK_MONOTONIC_COARSE */
    _Atomic uint64_t address; /* 0: none */
    _Atomic uint64_t bytes;
    /* 0: not measured. Of large blocks: how much later the thread's last slow event had ended. */
    _Atomic uint64_t duration_ns;
    _Atomic uint64_t rest; /* flight_rest() */
};

/** What is read while it is written, or was written by two that are a whole round apart, has no such seal. */
static inline uint64_t flight_seal(uint64_t number, uint64_t time_ns, uint64_t address,
                                   uint64_t bytes, uint64_t duration_ns, uint64_t rest) {
    return number + time_ns * 3 + address * 5 + bytes * 9 + duration_ns * 17 + rest * 33;
}

/** The thread's number, the kind of event (enum flight_kind) and the device (FLIGHT_NO_DEVICE: none). */
static inline uint64_t flight_rest(uint32_t thread, uint16_t kind, uint16_t device) {
    return (uint64_t)thread << 32 | (uint64_t)kind << 16 | device;
}

/** Whether question `asked` has been answered. The numbers wrap round. */
static inline bool live_is_answered(uint32_t answered, uint32_t asked) {
    return (int32_t)(answered - asked) >= 0;
}

#define FLIGHT_NO_DEVICE UINT16_MAX
#define FLIGHT_EVENTS 128 /* in a ring; a power of two */
#define FLIGHT_RINGS 17   /* the first one for slow events, the others for large blocks */

struct flight_ring {
    _Alignas(64) _Atomic uint64_t last; /* number of the newest event */
    struct flight_event events[FLIGHT_EVENTS];
};

/** A device's figures as they were at one moment. */
struct live_device {
    struct stats_device stats;               /* its pointers mean nothing here */
    char backend[16], reuse[16], reason[64]; /* of the backend */
    uint64_t read_ns;                        /* that moment */
    uint64_t sizes_ns;                       /* when stats.live was counted, and map; 0: never */
    uint64_t sizes_moves;                    /* allocations and frees until then */
    uint64_t events[FLIGHT_RINGS]; /* number of the newest event of each ring when stats was read */
    struct segment_map map;
};

/** Copy `published % 2` is whole; the other one may be in the middle of being written. */
struct live_slot {
    _Alignas(64) _Atomic uint64_t published; /* 0: the device has not been used */
    struct live_device copies[2];
};

struct live_page {
    /* --- head --- */
    _Atomic uint64_t
        magic; /* last of all: what stands here is complete. This much of a head, up to the
                               version, is the same in every layout */
    uint32_t page_bytes, slot_bytes;
    char version[16];
    struct live_identity who;
    uint64_t stack;               /* where its stack begins: another one after exec */
    uint64_t started_ns, real_ns; /* CLOCK_MONOTONIC, and what to add for the time since 1970 */
    int64_t rank;                 /* -1: none */
    char name[64], host[68];
    char command[LIVE_COMMAND]; /* arguments, each with its NUL */
    uint32_t command_bytes;
    uint32_t slots;
    _Atomic int32_t driver_version;
    _Atomic uint64_t host_bytes; /* as of the newest figures */

    /* --- exchange --- */
    _Alignas(64) _Atomic uint32_t asked; /* raised, and woken (a shared futex), by who wants fresh
                                            figures, */
    _Atomic uint32_t sizes_wanted;       /* and those of what is live */
    _Atomic uint64_t order_value;        /* written by who has locked the file, */
    _Atomic uint64_t order_device;       /* UINT64_MAX: all, */
    _Atomic uint64_t order_number;       /* raised, */
    _Atomic uint32_t order; /* and then enum live_order: whoever makes that 0 has the order,
                                            to carry it out or to give it up */
    _Alignas(64) _Atomic uint32_t answered; /* the figures are as new as this question */
    _Atomic uint32_t order_held_up;         /* enum live_hold: why the order is not begun */
    _Atomic uint64_t refreshed_ns;          /* when they were read */
    _Atomic uint64_t order_done;            /* the last order that was carried out or given up, */
    _Atomic int64_t order_result;           /* and what came of it: 0 or a negative errno */
    _Atomic uint32_t ending, signal;        /* enum live_ending; LIVE_SIGNAL: which one */

    struct flight_ring rings[FLIGHT_RINGS];
    struct live_slot devices[];
};

_Static_assert((FLIGHT_EVENTS & (FLIGHT_EVENTS - 1)) == 0, "numbers wrap round");

#endif
