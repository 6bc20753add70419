/*
 * The tables of modules: `modules` for frames, `watched` to detect closed modules (module.h). The
 * lock of the sites protects writes to both; their counts are atomic for readers without a lock.
 */
#include "stacks/module.h"

#include "base/libraries.h"
#include "stacks/text.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 1024
#define HEAD_BYTES 4096 /* one host page, which the loader maps as a whole */

/* glibc's struct dl_find_object, as glibc 2.35 and later define it. Older headers lack it. */
struct found_object {
    unsigned long long int flags;
    void *start, *end;
    struct link_map *map;
    void *rest[8];
};

struct module {
    struct module_info info;
    uint64_t start;
    bool closed;
};

/* A module that a recorded stack, or a walk of the unwinder, leads through. */
struct watched {
    uint64_t start, end;
    char build_id[MODULE_BUILD_ID];
    atomic_bool closed;
};

static int (*find_object)(void *address, struct found_object *found);
static struct module modules[MODULES];
static _Atomic uint32_t count;
static struct watched watched[MODULES];
static _Atomic uint32_t watched_count;
static bool watched_is_full; /* some module could not be watched */
static char program_path[512];

void module_start(stacks_look_up *look_up) {
    void *found = look_up(RTLD_DEFAULT, "_dl_find_object");
    memcpy(&find_object, &found, sizeof find_object);
    ssize_t length = readlink("/proc/self/exe", program_path, sizeof program_path - 1);
    strcpy(program_path + (length > 0 ? length : 0), length > 0 ? "" : "program");
}

struct search {
    uint64_t address;
    struct module_place *place;
};

/*
 * Finds the module of an address, for glibc before 2.35. dl_iterate_phdr() holds the loader's lock
 * while the list changes, but not while a module's initialisers run.
 */
static int check_module(struct dl_phdr_info *info, size_t size, void *with) {
    const struct search *search = with;
    (void)size;
    uint64_t start = UINT64_MAX, end = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type == PT_LOAD) {
            uint64_t first = info->dlpi_addr + header->p_vaddr, last = first + header->p_memsz;
            start = first < start ? first : start;
            end = last > end ? last : end;
        }
    }
    if (search->address < start || search->address >= end)
        return 0;
    *search->place = (struct module_place){start, end, info->dlpi_addr, info->dlpi_name, false};
    return 1;
}

bool module_place_of(uint64_t address, struct module_place *place) {
    struct found_object found;
    struct search search = {address, place};
    if (find_object) {
        if (find_object((void *)(uintptr_t)address, &found) != 0)
            return false;
        *place = (struct module_place){(uintptr_t)found.start, (uintptr_t)found.end,
                                       found.map->l_addr, found.map->l_name, false};
    } else if (libraries_visit(check_module, &search) == 0) {
        return false;
    }
    place->is_program = !place->path || !*place->path;
    place->path = place->is_program ? program_path : place->path;
    return true;
}

static void write_build_id(const unsigned char *id, size_t size, char *to) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < size && 2 * i + 2 < MODULE_BUILD_ID; i++) {
        *to++ = digits[id[i] >> 4];
        *to++ = digits[id[i] & 15];
    }
    *to = '\0';
}

/* Searches one segment of notes for the build id. Returns false if it is not there. */
static bool find_build_id(const char *at, uint64_t bytes, char *to) {
    const char *end = at + bytes;
    while (end - at >= (ptrdiff_t)sizeof(ElfW(Nhdr))) {
        ElfW(Nhdr) note;
        memcpy(&note, at, sizeof note);
        const char *owner = at + sizeof note, *content = owner + ((note.n_namesz + 3) & ~3u);
        if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
            content + note.n_descsz <= end && memcmp(owner, "GNU", 4) == 0) {
            write_build_id((const unsigned char *)content, note.n_descsz, to);
            return true;
        }
        at = content + ((note.n_descsz + 3) & ~3u);
    }
    return false;
}

static bool lies_in(const ElfW(Phdr) * part, const ElfW(Phdr) * segment) {
    return segment->p_type == PT_LOAD && (segment->p_flags & PF_R) &&
           part->p_vaddr >= segment->p_vaddr &&
           part->p_vaddr + part->p_filesz <= segment->p_vaddr + segment->p_filesz;
}

/*
 * Reads the build id through the ELF header at the start of the module. Reads only notes that a
 * loaded segment covers.
 */
static void read_build_id(const struct module_place *place, char *to) {
    const ElfW(Ehdr) *head = (const void *)(uintptr_t)place->start;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_phoff % 8 != 0 ||
        head->e_phoff + head->e_phnum * sizeof(ElfW(Phdr)) > HEAD_BYTES)
        return;
    const ElfW(Phdr) *parts = (const void *)(uintptr_t)(place->start + head->e_phoff);
    for (unsigned i = 0; i < head->e_phnum; i++) {
        bool mapped = false;
        for (unsigned k = 0; k < head->e_phnum && parts[i].p_type == PT_NOTE; k++)
            mapped |= lies_in(&parts[i], &parts[k]);
        const char *notes = (const char *)(uintptr_t)(place->bias + parts[i].p_vaddr);
        if (mapped && find_build_id(notes, parts[i].p_filesz, to))
            return;
    }
}

/*
 * Returns the absolute form of a path that the program opened relative to its working directory.
 * The result is wrong if the directory has changed since.
 */
static const char *absolute(const char *path) {
    /* protected by the lock of the sites; static because the stack may be small */
    static char buffer[PATH_BYTES];
    size_t used, length = strlen(path);
    if (*path == '/' || !strchr(path, '/') || !getcwd(buffer, PATH_BYTES))
        return path;
    used = strlen(buffer);
    if (used + 1 + length >= PATH_BYTES)
        return path;
    buffer[used] = '/';
    memcpy(buffer + used + 1, path, length + 1);
    return buffer;
}

uint32_t module_number(const struct module_place *place) {
    const char *path = absolute(place->path);
    uint32_t known = atomic_load_explicit(&count, memory_order_relaxed);
    for (uint32_t i = 0; i < known; i++)
        if (modules[i].start == place->start && !modules[i].closed &&
            strcmp(modules[i].info.path, path) == 0)
            return i;
    const char *kept = known < MODULES ? text_keep(path, strlen(path)) : NULL;
    if (!kept)
        return MODULE_NONE;
    modules[known].start = place->start;
    modules[known].info.path = kept;
    read_build_id(place, modules[known].info.build_id);
    atomic_store_explicit(&count, known + 1, memory_order_release);
    return known;
}

const struct module_info *module_info(uint32_t number) {
    return number < atomic_load_explicit(&count, memory_order_acquire) ? &modules[number].info
                                                                       : NULL;
}

/* --- closed modules --- */

void module_watch(const struct module_place *place) {
    uint32_t known = atomic_load_explicit(&watched_count, memory_order_relaxed);
    for (uint32_t i = 0; i < known; i++)
        if (watched[i].start == place->start && !watched[i].closed)
            return;
    if (known == MODULES) {
        watched_is_full = true;
        return;
    }
    watched[known].start = place->start;
    watched[known].end = place->end;
    read_build_id(place, watched[known].build_id);
    atomic_store_explicit(&watched_count, known + 1, memory_order_release);
}

static int read_closings(struct dl_phdr_info *info, size_t size, void *closings) {
    (void)size;
    *(uint64_t *)closings = info->dlpi_subs;
    return 1;
}

uint64_t module_closings(void) {
    uint64_t closings = 0;
    libraries_visit(read_closings, &closings);
    return closings;
}

/*
 * Marks a watched module as open if its start and build id match. The loader unmaps nothing while
 * it walks its list, so notes can be read.
 */
static int mark_open(struct dl_phdr_info *info, size_t size, void *with) {
    struct module_open *open = with;
    struct module_place place = {.start = UINT64_MAX, .bias = info->dlpi_addr};
    char build_id[MODULE_BUILD_ID] = "";
    bool is_program = !info->dlpi_name || !*info->dlpi_name;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uint64_t first = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && first < place.start)
            place.start = first & ~(uint64_t)(HEAD_BYTES - 1);
    }
    for (uint32_t i = 0; i < open->count; i++) {
        if (watched[i].start != place.start || watched[i].closed)
            continue;
        read_build_id(&place, build_id);
        if (is_program || (*build_id && strcmp(build_id, watched[i].build_id) == 0))
            open->is_open[i / 64] |= UINT64_C(1) << i % 64;
    }
    return 0;
}

void module_find_open(struct module_open *open) {
    *open =
        (struct module_open){.count = atomic_load_explicit(&watched_count, memory_order_acquire)};
    libraries_visit(mark_open, open);
}

/* Closes the table's entries of a module, so that a new module there gets a new number. */
static void close_at(uint64_t start) {
    for (uint32_t i = 0; i < count; i++)
        modules[i].closed |= modules[i].start == start;
}

bool module_forget_closed(const struct module_open *open,
                          void (*forget)(uint64_t start, uint64_t end)) {
    bool any = watched_is_full;
    for (uint32_t i = 0; i < open->count; i++) {
        if (!watched[i].closed && !(open->is_open[i / 64] >> i % 64 & 1)) {
            watched[i].closed = any = true;
            close_at(watched[i].start);
            forget(watched[i].start, watched[i].end);
        }
    }
    return any;
}
