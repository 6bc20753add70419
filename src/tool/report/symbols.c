/* Looks up names with libdw, and keeps files and results until the process ends (stacks.h). */
#include "tool/report/stacks.h"

#ifndef GPUCACHE_LIBDW

#include <stdio.h>

unsigned symbols_find(const char *path, const char *build_id, uint64_t offset,
                      const struct symbol **list) {
    static bool said;
    (void)path, (void)build_id, (void)offset, (void)list;
    if (!said)
        fputs("gpucache: call stacks show files and offsets instead of names: this gpucache was "
              "built without libdw\n",
              stderr);
    said = true;
    return 0;
}

#else

#include "replay/table.h"
#include "tool/common/tool.h"

#include <dlfcn.h>
#include <dwarf.h>
#include <elfutils/libdwfl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/** A file that was opened, or that could not be opened. */
struct opened {
    char *path, *build_id;
    Dwfl_Module *module; /* NULL: no symbols are known */
    struct table known;  /* offset -> struct known */
    struct opened *next;
};

/** The functions at an offset of a file, kept after the first look-up. */
struct known {
    Dwfl_Module *module;
    uint64_t offset;
    struct symbol *list; /* innermost first; each owns its texts */
    unsigned count;
};

#define INLINED_MOST 64 /* at one address; a damaged file may have any number */

static struct opened *all_opened;

/* ---- a file ---- */

static bool has_build_id(Dwfl_Module *module, const char *wanted) {
    const unsigned char *bits;
    GElf_Addr where;
    int size = dwfl_module_build_id(module, &bits, &where);
    char text[3] = "";
    for (int i = 0; i < size && wanted[2 * i]; i++) {
        snprintf(text, sizeof text, "%02x", bits[i]);
        if (strncmp(text, wanted + 2 * i, 2) != 0)
            return false;
    }
    return size > 0 || !*wanted;
}

static const Dwfl_Callbacks callbacks = {.find_elf = dwfl_build_id_find_elf,
                                         .find_debuginfo = dwfl_standard_find_debuginfo,
                                         .section_address = dwfl_offline_section_address};

/** Opens a file at its first use, and keeps the result. The file has no symbols if its build ID
 * differs, which is printed once. */
static struct opened *open_file(const char *path, const char *build_id) {
    for (struct opened *file = all_opened; file; file = file->next)
        if (strcmp(file->path, path) == 0 && strcmp(file->build_id, build_id) == 0)
            return file;
    struct opened *file = checked(calloc(1, sizeof *file));
    file->path = checked(strdup(path));
    file->build_id = checked(strdup(build_id));
    file->next = all_opened;
    all_opened = file;
    Dwfl *session = dwfl_begin(&callbacks);
    dwfl_report_begin(session);
    int fd = *path == '/' ? tool_open_regular(path) : -1;
    if (fd >= 0)
        file->module = dwfl_report_elf(session, path, path, fd, 0, true);
    if (fd >= 0 && !file->module) /* otherwise the session owns the file */
        close(fd);
    dwfl_report_end(session, NULL, NULL);
    if (file->module && !has_build_id(file->module, build_id)) {
        tool_say("%s is another file than the one that the report is of", path);
        file->module = NULL;
    }
    if (!file->module)
        dwfl_end(session);
    return file;
}

/* ---- a name ---- */

/** Removes the parameters from a name, because they are longer than most lines: the last pair of
 * parentheses and its contents. */
static void shorten(char *name) {
    char *end = strrchr(name, ')');
    int depth = 0;
    for (char *at = end; at && at > name; at--) {
        depth += *at == ')' ? 1 : *at == '(' ? -1 : 0;
        if (depth == 0) {
            *at = '\0';
            return;
        }
    }
}

/** Demangles a name of C++ with libstdc++. Returns NULL for other names and without the library. */
static char *demangle(const char *name, int *status) {
    static char *(*function)(const char *name, char *buffer, size_t *size, int *status);
    static bool looked;
    if (!looked) {
        void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
        void *found = library ? dlsym(library, "__cxa_demangle") : NULL;
        memcpy(&function, &found, sizeof found);
        looked = true;
    }
    return function && strncmp(name, "_Z", 2) == 0 ? function(name, NULL, NULL, status) : NULL;
}

/** Returns the demangled name without parameters, or a copy of the name. */
static char *readable(const char *name) {
    int status = -1;
    char *plain = demangle(name, &status);
    if (plain && status == 0)
        shorten(plain);
    return plain ? plain : strndup(name, strcspn(name, "@")); /* without the symbol version */
}

/** A place in the source; file NULL: unknown. */
struct place {
    const char *file;
    unsigned line;
};

static void add(struct known *known, char *function, struct place place) {
    char *file = place.file ? checked(strdup(place.file)) : NULL;
    *APPEND(known->list, known->count) = (struct symbol){checked(function), file, place.line};
}

static char *name_of(Dwarf_Die *die) {
    Dwarf_Attribute attribute;
    Dwarf_Attribute *linkage = dwarf_attr_integrate(die, DW_AT_linkage_name, &attribute);
    const char *name = linkage ? dwarf_formstring(linkage) : NULL;
    name = name ? name : dwarf_diename(die);
    return readable(name ? name : "?");
}

static Dwarf_Word number_of(Dwarf_Die *die, unsigned name) {
    Dwarf_Attribute attribute;
    Dwarf_Word value = 0;
    Dwarf_Attribute *found = dwarf_attr(die, name, &attribute);
    return found && dwarf_formudata(found, &value) == 0 ? value : 0;
}

static struct place call_of(Dwarf_Die *unit, Dwarf_Die *inlined) {
    Dwarf_Files *files;
    size_t count = 0;
    Dwarf_Word file = number_of(inlined, DW_AT_call_file);
    bool known = dwarf_getsrcfiles(unit, &files, &count) == 0 && file < count;
    return (struct place){known ? dwarf_filesrc(files, file, NULL, NULL) : NULL,
                          (unsigned)number_of(inlined, DW_AT_call_line)};
}

/**
 * Adds the functions that were inlined at the address, innermost first. Returns the place of the
 * outermost call in the function around them, or the place of the address if none was inlined.
 */
static struct place add_inlined(struct known *known, struct place place) {
    Dwarf_Addr bias;
    Dwarf_Die *unit = dwfl_module_addrdie(known->module, known->offset, &bias);
    Dwarf_Die *scopes = NULL, *around = NULL;
    /*
     * dwarf_getscopes() lists the scopes around the address up to the innermost inlined function,
     * and then the scopes around the definition of that function. dwarf_getscopes_die() lists the
     * scopes around its call instead.
     */
    int count = unit ? dwarf_getscopes(unit, known->offset - bias, &scopes) : 0;
    count = count > 0 ? dwarf_getscopes_die(&scopes[0], &around) : 0;
    for (int i = 0; i < count && known->count < INLINED_MOST; i++) {
        if (dwarf_tag(&around[i]) == DW_TAG_subprogram)
            break;
        if (dwarf_tag(&around[i]) == DW_TAG_inlined_subroutine) {
            add(known, name_of(&around[i]), place);
            place = call_of(unit, &around[i]);
        }
    }
    free(scopes);
    free(around);
    return place;
}

/*
 * Returns the row of the line table for the address, or NULL. Checks that the address lies in the
 * unit: otherwise libdw may answer with the last row of the unit before it.
 */
static Dwfl_Line *line_of(Dwfl_Module *module, uint64_t offset) {
    Dwarf_Addr bias;
    Dwarf_Die *unit = dwfl_module_addrdie(module, offset, &bias);
    return unit && dwarf_haspc(unit, offset - bias) > 0 ? dwfl_module_getsrc(module, offset) : NULL;
}

static void find_functions(struct known *known) {
    Dwfl_Module *module = known->module;
    GElf_Sym symbol;
    GElf_Off offset;
    int line = 0;
    const char *name =
        dwfl_module_addrinfo(module, known->offset, &offset, &symbol, NULL, NULL, NULL);
    if (!name)
        return;
    Dwfl_Line *source = line_of(module, known->offset);
    const char *file = source ? dwfl_lineinfo(source, NULL, &line, NULL, NULL, NULL) : NULL;
    struct place place = {file, file ? (unsigned)line : 0};
    place = add_inlined(known, place);
    add(known, readable(name), place);
}

unsigned symbols_find(const char *path, const char *build_id, uint64_t offset,
                      const struct symbol **list) {
    struct opened *file = open_file(path, build_id);
    struct known *known = (void *)(uintptr_t)table_find(&file->known, offset);
    if (!known) {
        known = checked(calloc(1, sizeof *known));
        known->module = file->module;
        known->offset = offset;
        table_set(&file->known, offset, (uintptr_t)known);
        if (file->module)
            find_functions(known);
    }
    *list = known->list;
    return known->count;
}

#endif
