/*
 * Finds the real dlsym and dlvsym, and answers look-ups of these two names.
 *
 * dlvsym(RTLD_NEXT, "dlsym", version), the usual way, ends in this library's own dlvsym. Therefore
 * loader_find_next() reads libc's dlvsym from its ELF symbol table. It then asks that dlvsym for
 * the next dlsym and dlvsym behind this library. Another preloaded library that overrides them
 * keeps its place in the search order.
 *
 * loader_find_next() calls no libc function until then: libc may not be ready. No lock: several
 * threads may run it at once, and all store the same pointers.
 */
#include "loader/loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stddef.h>

loader_dlsym *loader_next_dlsym, *loader_versioned_dlsym;
loader_dlvsym *loader_next_dlvsym, *loader_versioned_dlvsym;

/*
 * The dynamic loader's list of objects. The symbol is weak, so that nothing but libc must be
 * linked.
 */
extern struct r_debug loader_debug __asm__("_r_debug") __attribute__((weak));

#if defined(__x86_64__)
static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5"};
#else
static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17"};
#endif

static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* The parts of an object's dynamic section that a look-up needs. */
struct symbols {
    const char *strings;
    const ElfW(Sym) * table;
    const uint32_t *hash; /* DT_GNU_HASH */
    const char *soname;
};

/*
 * Returns the address that an entry of the dynamic section means. glibc has relocated most of these
 * addresses in place. An address below the object's base is still an offset from the base.
 */
static const void *pointer(const struct link_map *object, ElfW(Addr) value) {
    return (const void *)(value < object->l_addr ? value + object->l_addr : value);
}

/* Finds the symbol table of an object. Returns false if it lacks a part that find() needs. */
static bool read_symbols(const struct link_map *object, struct symbols *symbols) {
    *symbols = (struct symbols){0};
    ElfW(Xword) soname = 0;
    for (const ElfW(Dyn) *dyn = object->l_ld; dyn && dyn->d_tag != DT_NULL; dyn++) {
        switch (dyn->d_tag) {
        case DT_STRTAB:
            symbols->strings = pointer(object, dyn->d_un.d_ptr);
            break;
        case DT_SYMTAB:
            symbols->table = pointer(object, dyn->d_un.d_ptr);
            break;
        case DT_GNU_HASH:
            symbols->hash = pointer(object, dyn->d_un.d_ptr);
            break;
        case DT_SONAME:
            soname = dyn->d_un.d_val;
            break;
        default:
            break;
        }
    }
    if (!symbols->strings || !symbols->table || !symbols->hash || soname == 0)
        return false;
    symbols->soname = symbols->strings + soname;
    return true;
}

/*
 * Returns the address of a function in one object from its GNU hash table, or NULL. The table has
 * four words (buckets, first symbol, bloom words, shift), then the bloom filter, the buckets, and
 * one hash for each symbol. Bit 0 of a hash is not compared: it marks the end of a bucket.
 */
static void *find(const struct link_map *object, const struct symbols *symbols, const char *name) {
    uint32_t buckets = symbols->hash[0], first = symbols->hash[1], bloom_words = symbols->hash[2];
    const ElfW(Addr) *bloom = (const ElfW(Addr) *)(symbols->hash + 4);
    const uint32_t *bucket = (const uint32_t *)(bloom + bloom_words);
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = gnu_hash(name), i = bucket[hash % buckets];
    if (i < first)
        return NULL;
    for (;; i++) {
        uint32_t other = chain[i - first];
        const ElfW(Sym) *symbol = &symbols->table[i];
        if ((other | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            loader_same(symbols->strings + symbol->st_name, name))
            return (void *)(object->l_addr + symbol->st_value);
        if (other & 1)
            return NULL;
    }
}

/* Returns the dlvsym of libc, or of libdl before glibc 2.34; NULL if neither has one. */
static loader_dlvsym *libc_dlvsym(void) {
    if (!&loader_debug)
        return NULL;
    for (const struct link_map *object = loader_debug.r_map; object; object = object->l_next) {
        struct symbols symbols;
        if (read_symbols(object, &symbols) && (loader_same(symbols.soname, "libc.so.6") ||
                                               loader_same(symbols.soname, "libdl.so.2"))) {
            void *found = find(object, &symbols, "dlvsym");
            if (found)
                return (loader_dlvsym *)found;
        }
    }
    return NULL;
}

/* Returns the next versioned definition of `name` behind this library, or NULL. */
static void *next(loader_dlvsym *look_up, const char *name) {
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        void *found = look_up(RTLD_NEXT, name, versions[i]);
        if (found)
            return found;
    }
    return NULL;
}

void loader_find_next(void) {
    loader_dlvsym *look_up = libc_dlvsym();
    if (!look_up)
        __builtin_trap(); /* no libc with a dlvsym: no process can go on without one */
    loader_dlsym *by_version = (loader_dlsym *)next(look_up, "dlsym");
    loader_dlvsym *of_all = (loader_dlvsym *)by_version(RTLD_NEXT, "dlvsym");
    __atomic_store_n(&loader_versioned_dlsym, by_version, __ATOMIC_RELAXED);
    __atomic_store_n(&loader_versioned_dlvsym, (loader_dlvsym *)next(look_up, "dlvsym"),
                     __ATOMIC_RELAXED);
    __atomic_store_n(&loader_next_dlvsym, of_all ? of_all : look_up, __ATOMIC_RELAXED);
    __atomic_store_n(&loader_next_dlsym, (loader_dlsym *)by_version(RTLD_NEXT, "dlsym"),
                     __ATOMIC_RELEASE);
}

void *loader_next(const char *name) {
    loader_know_next();
    return loader_next_dlsym(RTLD_NEXT, name);
}

/*
 * Returns whether the object of `code` is searched before this library: the program, or an earlier
 * preload.
 */
static bool is_searched_before(const void *code) {
    Dl_info info;
    struct link_map *theirs = NULL, *ours = NULL;
    if (!dladdr1(code, &info, (void **)&theirs, RTLD_DL_LINKMAP) ||
        !dladdr1(&loader_next_dlsym, &info, (void **)&ours, RTLD_DL_LINKMAP) || theirs == ours)
        return false;
    while (ours && ours != theirs)
        ours = ours->l_prev;
    return ours;
}

/*
 * Cases of a look-up of dlsym or dlvsym, by another library that overrides them:
 *
 *   1  The caller is searched before this library: it must find our override. Otherwise the names
 *      that the caller looks up would reach the driver, while linked names reach this library.
 *   2  The caller is searched behind this library: it must not find our override. Our override
 *      calls the caller's, and the two would call each other without end.
 *
 * A look-up by RTLD_NEXT from here would search behind this library, not behind the caller. But if
 * our override is the first versioned definition of all, it is also the next one for every caller
 * that is searched before this library.
 */
struct loader_answer loader_answer_itself(void *handle, const char *name, const char *version,
                                          const void *caller) {
    const struct loader_answer none = {NULL, 0};
    bool plain = loader_same(name, "dlsym");
    if ((!plain && !loader_same(name, "dlvsym")) || (handle == RTLD_NEXT && !version))
        return none;
    loader_know_next();
    void *place = handle == RTLD_NEXT ? RTLD_DEFAULT : handle;
    void *found = version ? loader_versioned_dlvsym(place, name, version)
                          : loader_versioned_dlsym(place, name);
    void *ours = plain ? (void *)loader_dlsym_entry : (void *)loader_dlvsym_entry;
    void *by_version = plain ? (void *)loader_dlsym_by_version : (void *)loader_dlvsym_by_version;
    void *behind = plain ? (void *)loader_versioned_dlsym : (void *)loader_versioned_dlvsym;
    if ((found == ours && version) || (found == behind && handle != RTLD_NEXT)) {
        bool before = is_searched_before(caller);
        void *answer = before ? by_version : behind;
        return before || handle != RTLD_NEXT ? (struct loader_answer){answer, 1} : none;
    }
    return none;
}
