/*
 * A hash of numbers from files. Each process has another seed, so nobody can write a file whose
 * keys all have the same hash.
 */
#ifndef GPUCACHE_REPLAY_HASH_H
#define GPUCACHE_REPLAY_HASH_H

#include <stdint.h>

/** Returns a hash of 64 bits, each of which depends on all bits of the key. */
uint64_t hash_key(uint64_t key);

#endif
