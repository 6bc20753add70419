/*
 * Recall: the windows (layout.h) that the last requests were given, in order.
 *
 *      requests     ... 8 3 40 3 | 8 3 40 3 | 8 3 ?        in slots
 *                        ^- the same ones came here before, so 40 comes next; and got that window
 *
 * Programs repeat themselves. A request that gets the window that it had the last time around leaves everybody else
 * theirs, and after a few periods none is in another one's way. The place in the past is followed step by step; where
 * the program leaves it, one is looked for at which the same last requests came before. Under the pool's lock.
 */
#ifndef GPUCACHE_POOL_RECALL_H
#define GPUCACHE_POOL_RECALL_H

#include "pool/host.h"

#include <stdbool.h>
#include <stdint.h>

struct window;

struct past_request {
    struct window *window;
    uint32_t slots;
};

struct recall {
    struct host_table pasts; /* a ring; what has not been there yet is zero */
    struct host_table
        index;      /* by the last requests: the number of the latest that came after such ones */
    uint64_t now;   /* requests so far */
    uint64_t place; /* that of the past which the last one repeated; 0: none */
};

void recall_start(struct recall *recall);

/** Host memory for it. False: there is none, and nothing else is to be asked of it. */
bool recall_prepare(struct recall *recall);

/** The window that such a request was given when it came here before; NULL: it has not, or that is forgotten. */
struct window *recall_expects(const struct recall *recall, uint32_t slots);

/** Writes down who got a window. Returns the request's number, from 1 on. */
uint64_t recall_note(struct recall *recall, struct window *window, uint32_t slots);

/** Whether a request with that number is remembered. */
bool recall_knows(const struct recall *recall, uint64_t number);

/** Nothing is remembered any more. */
void recall_forget(struct recall *recall);

#endif
