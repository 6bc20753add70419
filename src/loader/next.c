/*
 * Finding the real dlsym and dlvsym, and what others find that look for them.
 *
 * The usual way, dlvsym(RTLD_NEXT, "dlsym", version), ends in our own dlvsym. So libc's dlvsym is
 * read out of its ELF symbol table, and asked, with this code as the caller, for the next dlsym and
 * dlvsym behind this library: another preloaded library that overrides them too keeps its place in
 * the chain.
 *
 * No libc function is called before that: the process may not be ready for any. Several threads may
 * do this at once; they all store the same pointers.
 */
#include "loader/loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stddef.h>

loader_dlsym *loader_next_dlsym, *loader_versioned_dlsym;
loader_dlvsym *loader_next_dlvsym, *loader_versioned_dlvsym;

/* The loader's list of objects. Weak: nothing but libc need be linked for it. */
extern struct r_debug loader_debug __asm__("_r_debug") __attribute__((weak));

#if defined(__x86_64__)
static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5"};
#else
static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17"};
#endif

static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name; name++) {
        hash = hash * 33 + (unsigned char)*name;
    }
    return hash;
}

/* The parts of an object's dynamic section that a look-up needs. */
struct symbols {
    const char *strings;
    const ElfW(Sym) * table;
    const uint32_t *hash; /* DT_GNU_HASH */
    const char *soname;
};

/* glibc relocates these pointers in place; where it did not, they are still offsets. */
static const void *pointer(const struct link_map *object, ElfW(Addr) value) {
    return (const void *)(value < object->l_addr ? value + object->l_addr : value);
}

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
    if (!symbols->strings || !symbols->table || !symbols->hash || soname == 0) {
        return false;
    }
    symbols->soname = symbols->strings + soname;
    return true;
}

/* The address of a function in one object, by its GNU hash table. */
static void *find(const struct link_map *object, const struct symbols *symbols, const char *name) {
    uint32_t buckets = symbols->hash[0], first = symbols->hash[1], bloom_words = symbols->hash[2];
    const ElfW(Addr) *bloom = (const ElfW(Addr) *)(symbols->hash + 4);
    const uint32_t *bucket = (const uint32_t *)(bloom + bloom_words);
    const uint32_t *chain = bucket + buckets;
    uint32_t hash = gnu_hash(name), i = bucket[hash % buckets];
    if (i < first) {
        return NULL;
    }
    for (;; i++) {
        uint32_t other = chain[i - first];
        const ElfW(Sym) *symbol = &symbols->table[i];
        if ((other | 1) == (hash | 1) && symbol->st_shndx != SHN_UNDEF &&
            loader_same(symbols->strings + symbol->st_name, name)) {
            return (void *)(object->l_addr + symbol->st_value);
        }
        if (other & 1) {
            return NULL;
        }
    }
}

static loader_dlvsym *libc_dlvsym(void) {
    if (!&loader_debug) {
        return NULL;
    }
    for (const struct link_map *object = loader_debug.r_map; object; object = object->l_next) {
        struct symbols symbols;
        if (read_symbols(object, &symbols) && (loader_same(symbols.soname, "libc.so.6") ||
                                               loader_same(symbols.soname, "libdl.so.2"))) {
            void *found = find(object, &symbols, "dlvsym");
            if (found) {
                return (loader_dlvsym *)found;
            }
        }
    }
    return NULL;
}

static void *next(loader_dlvsym *look_up, const char *name) {
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        void *found = look_up(RTLD_NEXT, name, versions[i]);
        if (found) {
            return found;
        }
    }
    return NULL;
}

void loader_find_next(void) {
    loader_dlvsym *look_up = libc_dlvsym();
    if (!look_up) {
        __builtin_trap(); /* no libc with a dlvsym: nothing in this process could go on */
    }
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
    if (!loader_next_dlsym) {
        loader_find_next();
    }
    return loader_next_dlsym(RTLD_NEXT, name);
}

/* Whether code is searched before ours: the program's own, or that of an earlier preload. */
static bool stands_before_us(const void *code) {
    Dl_info info;
    struct link_map *theirs = NULL, *ours = NULL;
    if (!dladdr1(code, &info, (void **)&theirs, RTLD_DL_LINKMAP) ||
        !dladdr1(&loader_next_dlsym, &info, (void **)&ours, RTLD_DL_LINKMAP) || theirs == ours) {
        return false;
    }
    while (ours && ours != theirs) {
        ours = ours->l_prev;
    }
    return ours;
}

/*
 * Whoever overrides dlsym looks for the next one, and not only by RTLD_NEXT. In front of us it has to find ours, whatever it asks, or
 * the program would be split: what it asks for by name goes to the driver, what it is linked with comes to us. Behind us it must not
 * find ours: we go on to it, and it would come back.
 *
 * RTLD_NEXT cannot be asked from here. But if the first definition of all that has a version is ours, it is the next one for whoever
 * stands before us.
 */
struct loader_answer loader_answer_itself(void *handle, const char *name, const char *version,
                                          const void *caller) {
    const struct loader_answer none = {NULL, 0};
    bool plain = loader_same(name, "dlsym");
    if ((!plain && !loader_same(name, "dlvsym")) || (handle == RTLD_NEXT && !version)) {
        return none;
    }
    if (!loader_next_dlsym) {
        loader_find_next();
    }
    void *place = handle == RTLD_NEXT ? RTLD_DEFAULT : handle;
    void *found = version ? loader_versioned_dlvsym(place, name, version)
                          : loader_versioned_dlsym(place, name);
    void *ours = plain ? (void *)loader_dlsym_entry : (void *)loader_dlvsym_entry;
    void *by_version = plain ? (void *)loader_dlsym_by_version : (void *)loader_dlvsym_by_version;
    void *behind = plain ? (void *)loader_versioned_dlsym : (void *)loader_versioned_dlvsym;
    if ((found == ours && version) || (found == behind && handle != RTLD_NEXT)) {
        bool before = stands_before_us(caller);
        void *answer = before ? by_version : behind;
        return before || handle != RTLD_NEXT ? (struct loader_answer){answer, 1} : none;
    }
    return none;
}
