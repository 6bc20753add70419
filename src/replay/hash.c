#include "replay/hash.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/auxv.h>

/** Sets the seed to the 16 random bytes that the kernel gives each process (AT_RANDOM). */
static void read_seed(_Atomic uint64_t seed[2]) {
    uint64_t random[2] = {0};
    const void *bytes = (const void *)getauxval(AT_RANDOM);
    if (bytes)
        memcpy(random, bytes, sizeof random);
    atomic_store_explicit(&seed[1], random[1], memory_order_relaxed);
    atomic_store_explicit(&seed[0], random[0] | 1, memory_order_release);
}

uint64_t hash_key(uint64_t key) {
    static _Atomic uint64_t seed[2]; /* the first is odd; 0: not read yet */
    uint64_t factor = atomic_load_explicit(&seed[0], memory_order_acquire);
    if (factor == 0) {
        read_seed(seed);
        factor = atomic_load_explicit(&seed[0], memory_order_relaxed);
    }
    uint64_t mixed = key ^ atomic_load_explicit(&seed[1], memory_order_relaxed);
    unsigned __int128 product = (unsigned __int128)mixed * factor;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}
