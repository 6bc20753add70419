/*
 * A device for the pool's tests: memory that is only numbers, and work that is only counted.
 *
 * Work goes to streams, each of which runs in order. Piece n of a stream is a number; an event
 * captures, for every stream, how many pieces were submitted; it has finished when all those have.
 * A device barrier on an event makes everything submitted later run behind what it captured. So
 * "may this memory be handed out?" is a comparison of numbers, and a test can ask it of every
 * block:
 *
 *      law 2   every piece that touched the memory before it was freed has finished, or is behind a
 *              barrier
 *      law 3   waits only on events recorded inside a free; barriers only while every record not
 *              yet known to have finished was made inside one; synchronising only inside a free
 *
 * The device fails the law by counting in `broken_laws`; nothing finishes unless the test or a wait
 * says so. All of it may be called from many threads.
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
#define FAKE_LOG 256

struct fake_event {
    uint64_t captured[FAKE_STREAMS];
    bool recorded, on_time;
};

struct fake_segment {
    uint64_t address, bytes;
    bool taken;
};

/* A device that maps pages: what lies where, and the last work that was done there. */
#define FAKE_PAGES 4096
#define FAKE_MAPPED 32768 /* 2 MiB each, from `base` on */

struct fake_page {
    bool taken;
    unsigned length;   /* of a page that begins here, in those of 2 MiB */
    unsigned mappings; /* besides those that were left, */
    unsigned left;     /* and these: as long as there is one the memory is not the device's */
    bool given;
};

struct fake_mapping {
    uint32_t page; /* its number, from 1 on; 0: nothing is mapped there */
    bool left;     /* it will be mapped elsewhere, and unmapped here later */
    uint64_t last[FAKE_STREAMS];
};

struct fake {
    struct backend backend; /* first: the pool's pointer to it is ours */
    pthread_mutex_t lock;
    uint64_t submitted[FAKE_STREAMS], completed[FAKE_STREAMS], ordered[FAKE_STREAMS];
    struct fake_event events[BACKEND_SLOTS];
    struct fake_event latest; /* of all records */
    struct fake_segment segments[FAKE_SEGMENTS];
    unsigned segment_count;
    uint64_t base, next;    /* addresses are never reused unless size and alignment are the same */
    uint64_t memory, limit; /* what the driver has; what the limit allows */
    uint64_t reserved, reserved_peak;
    uint64_t on_its_way; /* part of it: released, in a stream that stands behind `returns_behind` */
    uint64_t returns_behind[FAKE_STREAMS];
    int refusal; /* what the next `refusals` calls of reserve() return */
    unsigned refusals;
    int record_code, order_code, wait_code, query_code; /* returned instead of doing anything */
    int return_code;                                    /* what returned() says, if not 0 */
    unsigned record_refusals; /* so many records return their code, then none; 0: all do */
    uint64_t misalign;        /* added to the addresses that reserve() gives */
    bool busy_for_ever;       /* a wait or a synchronise for unfinished work is a hang: counted */
    unsigned done_after;      /* everything submitted finishes after so many queries; 0: never by
                            itself */
    unsigned done_every;      /* the same again and again */
    unsigned reserves, releases, records, queries, orders, waits, synchronizes;
    struct fake_page pages[FAKE_PAGES];
    struct fake_mapping mappings[FAKE_MAPPED];
    unsigned page_count;      /* numbers given */
    int map_code, unmap_code; /* what map() and unmap() return instead of doing it */
    unsigned maps, unmaps;
    unsigned idles;            /* calls of idle() */
    unsigned growing, in_vain; /* growths under way; those that gave something back */
    unsigned answers;          /* return_count() is asked so often until others give back */
    uint64_t others;           /* what they have charged */
    uint64_t came_back;        /* how often they did */
    uint64_t addresses;        /* bytes that are taken */
    void (*meanwhile)(void);   /* called once, while addresses are asked for */
    unsigned broken_laws;      /* waits on late events, releases of memory in use, unknown slots */
    const char *broken;        /* the first of them */
};

/** A new device with `memory` bytes, on addresses no other one ever had. */
struct fake *fake_new(uint64_t memory);
void fake_free(struct fake *fake);

/** The device's context has ended with all memory; another one begins, on addresses from the returned
 * one on. */
uint64_t fake_new_context(struct fake *fake);

/** From now on it maps pages (backend.h). Before the pool is made. */
void fake_map_pages(struct fake *fake);

/** Where the memory at `address` really lies: the same for all addresses that a page is mapped at. */
uint64_t fake_physical(struct fake *fake, uint64_t address);

/** Work `number` of a stream reaches memory by these addresses: they may not be unmapped, or released, before it has
 * finished. */
void fake_reach(struct fake *fake, uint64_t address, uint64_t bytes, unsigned stream,
                uint64_t number);

/** Submits a piece of work; its number. */
uint64_t fake_submit(struct fake *fake, unsigned stream);

/** Everything submitted so far finishes; or one stream's next piece. */
void fake_finish_all(struct fake *fake);
void fake_finish_one(struct fake *fake, unsigned stream);

/** Whether piece `number` of a stream can no longer disturb later work (or the CPU and others, if
 * `outside`). */
bool fake_is_past(struct fake *fake, unsigned stream, uint64_t number, bool outside);

/** pool_free, with the device knowing that it is inside one. */
int fake_pool_free(uint64_t address);

/** Marks the calling thread as inside a free of the program, or no longer. */
void fake_inside_free(bool inside);

/** The pool's current books, with the fields that its readers derive. */
struct stats_device fake_books(struct pool *pool);

#endif
