/*
 * A device for tests of the pool. Its memory is only numbers, and its work is only counted.
 *
 * Work is submitted to streams, each of which runs in order. Piece n of a stream is a number. An
 * event captures how many pieces were submitted to every stream, and has completed when all of
 * these have. A barrier on an event makes all later work run behind what the event captured.
 * Whether memory may be handed out is then a comparison of numbers, and a test checks it for every
 * block:
 *
 *      law 2   every piece that touched the memory before its free has completed, or is behind a
 *              barrier
 *      law 3   waits are only for events recorded in a free, or completed; a barrier is only on an
 *              event recorded in a free, and only if the newest record of all events was made in a
 *              free, or has completed; synchronize() only in a free
 *
 * The device counts breaches in `broken_laws`. Work completes only when the test or a wait says so.
 * All functions may be called by several threads.
 */
#ifndef GPUCACHE_TESTS_FAKE_H
#define GPUCACHE_TESTS_FAKE_H

#include "pool/pool.h"
#include "source/backend.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define MIB ((uint64_t)1 << 20)
#define FAKE_STREAMS 4
#define FAKE_SEGMENTS 4096

struct fake_event {
    uint64_t captured[FAKE_STREAMS];
    bool recorded, in_free;
};

struct fake_segment {
    uint64_t address, bytes;
    bool taken;
};

/* A device that maps memory has a table of mappings, with the last work that used each mapping. A
 * handle is a range of pages of 2 MiB. Its value is the number of its first page. */
#define FAKE_PAGES 8192   /* of physical memory, in 2 MiB */
#define FAKE_MAPPED 32768 /* pages of 2 MiB, from `base` on */

struct fake_page {
    bool taken;
    unsigned length;   /* pages of the handle that begins here; 0: no handle begins here */
    unsigned mappings; /* without stale mappings */
    unsigned stale;    /* stale mappings; the device gets the memory back when it is 0 */
    bool released;
};

struct fake_mapping {
    uint32_t page; /* the page, counted from 1; 0: nothing is mapped */
    bool stale;    /* mapped elsewhere too, and to be unmapped here later */
    uint64_t last[FAKE_STREAMS];
};

struct fake {
    struct backend backend; /* first: the pool has a pointer to it */
    pthread_mutex_t lock;
    uint64_t submitted[FAKE_STREAMS], completed[FAKE_STREAMS], ordered[FAKE_STREAMS];
    struct fake_event events[BACKEND_SLOTS];
    struct fake_event latest; /* the last record of any slot */
    struct fake_segment segments[FAKE_SEGMENTS];
    unsigned segment_count;
    uint64_t base, next;    /* a released segment's address is reused only for the same size */
    uint64_t memory, limit; /* bytes that the driver has, bytes that the limit allows */
    uint64_t reserved, reserved_peak;
    uint64_t on_its_way; /* bytes of releases that have not completed; part of `reserved` */
    uint64_t returns_behind[FAKE_STREAMS]; /* the releases complete when this work has */
    int refusal;                           /* the answer of the next `refusals` reservations */
    unsigned refusals;
    int record_code, order_code, wait_code, query_code; /* if not 0, returned without effect */
    int return_code;                                    /* if not 0, the answer of returned() */
    unsigned record_refusals; /* number of records that return record_code; 0: all */
    uint64_t misalign;        /* added to the address of a reservation */
    bool busy_for_ever;       /* a wait for work that has not completed is a hang: a breach */
    unsigned done_after;      /* number of queries after which all work completes; 0: never */
    unsigned done_every;      /* all work completes after each multiple of this number; 0: never */
    unsigned reserves, releases, records, queries, orders, waits, synchronizes;
    struct fake_page pages[FAKE_PAGES];
    struct fake_mapping mappings[FAKE_MAPPED];
    int map_code, unmap_code;  /* if not 0, returned by map() and unmap() without effect */
    uint64_t kept_address;     /* if not 0, unmap() returns -EBUSY for this address */
    unsigned maps, unmaps;     /* pages mapped and unmapped so far */
    unsigned idles;            /* calls of watch_idle() */
    unsigned growing, in_vain; /* running growths; growths that gave something back */
    unsigned answers;   /* calls of wait_for_in_flight() until other threads give memory back */
    uint64_t others;    /* bytes that other threads have charged */
    uint64_t came_back; /* number of times that other threads gave memory back */
    uint64_t addresses; /* bytes of reserved addresses */
    void (*in_reserve)(void); /* called once, in reserve_addresses() */
    /* Number of breaches: waits for events recorded later, releases of used memory and so on. */
    unsigned broken_laws;
    const char *broken; /* the first breach, in words */
};

/** Returns a new device with `memory` bytes, at addresses that no other device ever had. */
struct fake *fake_new(uint64_t memory);
void fake_free(struct fake *fake);

/** Ends the context and its memory. Returns the first address of the next context. */
uint64_t fake_new_context(struct fake *fake);

/** Makes the device map memory, as the vmm backend does. Called before the pool is made. */
void fake_map_pages(struct fake *fake);

/** Returns the physical address of `address`: the same number for every mapping of the memory. */
uint64_t fake_physical(struct fake *fake, uint64_t address);

/** Records that piece `number` of a stream uses these addresses. An unmapping or a release before
 * that piece has completed is a breach. */
void fake_reach(struct fake *fake, uint64_t address, uint64_t bytes, unsigned stream,
                uint64_t number);

/** Submits a piece of work. Returns its number. */
uint64_t fake_submit(struct fake *fake, unsigned stream);

/** Completes all work submitted so far. */
void fake_finish_all(struct fake *fake);

/** Completes the next piece of one stream. */
void fake_finish_one(struct fake *fake, unsigned stream);

/** Returns whether piece `number` of a stream has completed or is behind a barrier. With `outside`,
 * only whether it has completed: a barrier does not hold back users outside the context. */
bool fake_is_past(struct fake *fake, unsigned stream, uint64_t number, bool outside);

/** Calls pool_free() as a free of the program: the device takes records in it as made in a free. */
int fake_pool_free(uint64_t address);

/** Marks the calling thread as inside a free of the program, or as outside. */
void fake_inside_free(bool inside);

/** Returns the pool's current counters, with the fields that readers derive. */
struct stats_device fake_books(struct pool *pool);

#endif
