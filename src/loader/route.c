/*
 * Chooses the answer of a look-up: a real entry of the driver is exchanged for its replacement.
 *
 * The exchange is by pointer, not by name. The driver's answer already respects version, flags and
 * per-thread variant, so none of these has to be understood here. An entry without a row in the
 * table passes unchanged. The real entries are what dlsym returns for the symbols of the table:
 * every answer of cuGetProcAddress is the address of an exported symbol (docs/cuda-facts.md).
 *
 * No lock: a look-up may come from inside dlopen, with the loader's lock held. Every thread fills
 * the hash tables with the same values. dlsym.S and the hooks of cuGetProcAddress call these
 * functions.
 */
#include "loader/loader.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

static _Atomic(const struct loader_entry *) by_name[LOADER_SLOTS];
static _Atomic(const struct loader_entry *) by_real[LOADER_SLOTS];
static atomic_bool names_known, driver_known, nvml_known;

/* Returns the FNV-1a hash of a name, as a slot of by_name. */
static unsigned hash_name(const char *name) {
    unsigned hash = 2166136261u;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 16777619u;
    return (hash ^ hash >> 15) % LOADER_SLOTS;
}

static unsigned hash_real(const void *real) {
    uintptr_t value = (uintptr_t)real >> 4;
    return (unsigned)((value ^ value >> 9) % LOADER_SLOTS);
}

/* Puts a row into a hash table with open addressing, unless another thread has put it there. */
static void put(_Atomic(const struct loader_entry *) *table, unsigned at,
                const struct loader_entry *entry) {
    for (;; at = (at + 1) % LOADER_SLOTS) {
        const struct loader_entry *there = NULL;
        if (atomic_compare_exchange_strong(&table[at], &there, entry) || there == entry)
            return;
    }
}

static void add_names(const struct loader_table *table) {
    for (unsigned i = 0; i < table->count; i++) {
        const struct loader_entry *entry = &table->entries[i];
        if (entry->replacement)
            put(by_name, hash_name(entry->symbol), entry);
    }
}

static void load_names(void) {
    add_names(loader_driver);
    add_names(loader_nvml);
    atomic_store(&names_known, true);
}

/* Returns the row of a name that the library replaces, or NULL. */
static const struct loader_entry *replaced_entry(const char *name) {
    if (!atomic_load(&names_known))
        load_names();
    for (unsigned at = hash_name(name);; at = (at + 1) % LOADER_SLOTS) {
        const struct loader_entry *entry = atomic_load_explicit(&by_name[at], memory_order_acquire);
        if (!entry || loader_same(entry->symbol, name))
            return entry;
    }
}

/*
 * Finds the real entries of a table in its library, if the process has loaded the library. Returns
 * false if not. A library that was found stays loaded.
 */
static bool find_real(const struct loader_table *table, atomic_bool *known) {
    if (atomic_load_explicit(known, memory_order_acquire))
        return true;
    loader_know_next();
    void *handle = dlopen(table->library, RTLD_LAZY | RTLD_NOLOAD);
    if (!handle)
        return false;
    for (unsigned i = 0; i < table->count; i++) {
        const struct loader_entry *entry = &table->entries[i];
        void *real = loader_next_dlsym(handle, entry->symbol);
        if (!real || real == entry->replacement)
            real = table->absent;
        else if (entry->replacement)
            put(by_real, hash_real(real), entry);
        __atomic_store_n(entry->real, real, __ATOMIC_RELEASE);
    }
    dlerror(); /* clears errors of missing symbols: the program did not ask for them */
    atomic_store_explicit(known, true, memory_order_release);
    return true;
}

bool loader_find_driver(void) {
    return find_real(loader_driver, &driver_known);
}

bool loader_find_nvml(void) {
    return find_real(loader_nvml, &nvml_known);
}

/* Returns the replacement of a real entry of a known table, or `real`. */
static void *replaced(void *real) {
    for (unsigned at = hash_real(real);; at = (at + 1) % LOADER_SLOTS) {
        const struct loader_entry *entry = atomic_load_explicit(&by_real[at], memory_order_acquire);
        if (!entry)
            return real;
        if (*entry->real == real)
            return entry->replacement;
    }
}

void *loader_route(void *real) {
    return loader_find_driver() ? replaced(real) : real;
}

static void *ask(void *handle, const char *name, const char *version) {
    return version ? loader_next_dlvsym(handle, name, version) : loader_next_dlsym(handle, name);
}

/*
 * Cases, by handle:
 *
 *   RTLD_NEXT,     The real function answers for its real caller, whose search scope counts. Our
 *   RTLD_DEFAULT   exported entry is a right answer, and so is the wrapper of a library before this
 *                  one. RTLD_DEFAULT must not find our entry without a driver, or if the driver
 *                  lacks the symbol.
 *   any other      The answer does not depend on the caller, so it can be asked for here.
 */
struct loader_answer loader_answer(void *handle, const char *name, const char *version,
                                   const void *caller) {
    const struct loader_answer none = {NULL, 0};
    if (*name == 'd')
        return loader_answer_itself(handle, name, version, caller);
    const struct loader_entry *entry = replaced_entry(name);
    if (!entry || handle == RTLD_NEXT)
        return none;
    loader_know_next();
    const struct loader_table *table = *name == 'n' ? loader_nvml : loader_driver;
    bool known = table == loader_nvml ? loader_find_nvml() : loader_find_driver();
    void *real = __atomic_load_n(entry->real, __ATOMIC_ACQUIRE);
    bool lacks = known && (!real || real == table->absent);
    if (handle == RTLD_DEFAULT && known && !lacks)
        return none;
    void *found = ask(handle, name, version);
    if (!found)
        return none; /* the caller's own look-up then sets dlerror() */
    if (found == entry->replacement) {
        /*
         * The global scope has the name from this library. Natively it has the name only if the
         * driver is in that scope.
         */
        return (struct loader_answer){ask(RTLD_NEXT, name, version) ? found : NULL, 1};
    }
    return handle == RTLD_DEFAULT ? none
                                  : (struct loader_answer){known ? replaced(found) : found, 1};
}
