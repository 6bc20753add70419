/* Reads the switches of ablation.h. Empty without -Dablation=true. No lock: an atomic word. */
#ifdef GPUCACHE_ABLATION
#include "process/ablation.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define IS_READ ((uint64_t)1 << 63) /* set in the switches when ABLATE has been read */

static const char *const names[] = {
#define MECHANISM(name, what) #name,
#include "process/ablation.def"
#undef MECHANISM
};

/* Returns whether a list with commas contains the name. */
static bool lists(const char *list, const char *name) {
    size_t length = strlen(name);
    const char *at = list;
    while ((at = strstr(at, name)) != NULL) {
        bool begins = at == list || at[-1] == ',', ends = !at[length] || at[length] == ',';
        if (begins && ends)
            return true;
        at += length;
    }
    return false;
}

/* Returns IS_READ, and a bit for each mechanism that ABLATE names. */
static uint64_t read_switches(void) {
    const char *list = getenv("ABLATE");
    uint64_t switches = IS_READ;
    for (unsigned i = 0; list && i < sizeof names / sizeof *names; i++)
        switches |= (uint64_t)lists(list, names[i]) << i;
    return switches;
}

bool is_ablated(enum ablation mechanism) {
    static _Atomic uint64_t known;
    uint64_t switches = atomic_load_explicit(&known, memory_order_relaxed);
    if (switches == 0) {
        switches = read_switches();
        atomic_store_explicit(&known, switches, memory_order_relaxed);
    }
    return switches >> mechanism & 1;
}
#else
typedef int ablation_is_off; /* C allows no empty file */
#endif
