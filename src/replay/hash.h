/*
 * A hash of numbers that come out of files. The seed is another one in each process, so nobody can
 * write a file whose keys all fall on one place of a table.
 */
#ifndef GPUCACHE_REPLAY_HASH_H
#define GPUCACHE_REPLAY_HASH_H

#include <stdint.h>

/** Returns 64 bits, all of which depend on all of the key. */
uint64_t hash_key(uint64_t key);

#endif
