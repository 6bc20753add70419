#include "tool/symbols.h"

#include "tool/tool.h"

#ifndef GPUCACHE_LIBDW

#include "report/emitter.h"

#include <stddef.h>
#include <stdio.h>

struct symbols *symbols_open(void) {
    return NULL;
}

void symbols_close(struct symbols *symbols) {
    (void)symbols;
}

void symbols_say_missing(const struct stats_frame *frames, unsigned count) {
    static bool said;
    for (unsigned i = 0; i < count && !said; i++) {
        if (frames[i].function || !frames[i].file || frames[i].offset == 0)
            continue;
        fputs("gpucache: call stacks show files and offsets instead of names: this gpucache was "
              "built without libdw\n",
              stderr);
        said = true;
    }
}

bool symbols_find(struct symbols *symbols, const char *path, const char *build_id, uint64_t offset,
                  struct symbol *symbol) {
    (void)symbols, (void)path, (void)build_id, (void)offset, (void)symbol;
    return false;
}

#else

#include <dlfcn.h>
#include <elfutils/libdwfl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/** A file that was opened, or could not be. */
struct opened {
    char *path;
    Dwfl *session;
    Dwfl_Module *module; /* NULL: nothing is known of it */
    struct opened *next;
};

struct known {
    const struct opened *in;
    uint64_t offset;
    struct symbol symbol;
    char *function, *file;
    struct known *next;
};

#define SLOTS 4096

struct symbols {
    struct opened *files;
    struct known *known[SLOTS];
    char *(*demangle)(const char *name, char *buffer, size_t *size, int *status);
};

void symbols_say_missing(const struct stats_frame *frames, unsigned count) {
    (void)frames, (void)count;
}

static void *allocate(size_t bytes) {
    void *memory = calloc(1, bytes);
    if (!memory)
        fail(STATUS_OWN_FAILURE, "memory", strerror(ENOMEM));
    return memory;
}

struct symbols *symbols_open(void) {
    struct symbols *symbols = allocate(sizeof *symbols);
    void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_LOCAL);
    void *found = library ? dlsym(library, "__cxa_demangle") : NULL;
    memcpy(&symbols->demangle, &found, sizeof found);
    return symbols;
}

void symbols_close(struct symbols *symbols) {
    for (struct opened *file = symbols->files, *next; file; file = next) {
        next = file->next;
        dwfl_end(file->session);
        free(file->path);
        free(file);
    }
    for (size_t i = 0; i < SLOTS; i++) {
        for (struct known *known = symbols->known[i], *next; known; known = next) {
            next = known->next;
            free(known->function);
            free(known->file);
            free(known);
        }
    }
    free(symbols);
}

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

static struct opened *open_file(struct symbols *symbols, const char *path, const char *build_id) {
    for (struct opened *file = symbols->files; file; file = file->next)
        if (strcmp(file->path, path) == 0)
            return file;
    struct opened *file = allocate(sizeof *file);
    file->path = strdup(path);
    file->next = symbols->files;
    symbols->files = file;
    file->session = dwfl_begin(&callbacks);
    dwfl_report_begin(file->session);
    int fd = *path == '/' ? tool_open_regular(path) : -1;
    if (fd >= 0)
        file->module = dwfl_report_elf(file->session, path, path, fd, 0, true);
    if (fd >= 0 && !file->module) /* else the session closes it */
        close(fd);
    dwfl_report_end(file->session, NULL, NULL);
    if (file->module && !has_build_id(file->module, build_id)) {
        tool_say("%s is another file than the one that the report is of", path);
        file->module = NULL;
    }
    return file;
}

/* ---- a name ---- */

/** Without the parameters, which are longer than most lines: the brackets at the end and what they hold. */
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

static char *readable(const struct symbols *symbols, const char *name) {
    int status = -1;
    char *plain = symbols->demangle && strncmp(name, "_Z", 2) == 0
                      ? symbols->demangle(name, NULL, NULL, &status)
                      : NULL;
    if (plain && status == 0)
        shorten(plain);
    return plain ? plain : strndup(name, strcspn(name, "@")); /* without its version */
}

static void look(const struct symbols *symbols, struct known *known) {
    Dwfl_Module *module = known->in->module;
    GElf_Sym symbol;
    GElf_Off offset;
    int line = 0;
    const char *name =
        dwfl_module_addrinfo(module, known->offset, &offset, &symbol, NULL, NULL, NULL);
    if (!name)
        return;
    known->function = readable(symbols, name);
    known->symbol.function = known->function;
    Dwfl_Line *source = dwfl_module_getsrc(module, known->offset);
    const char *file = source ? dwfl_lineinfo(source, NULL, &line, NULL, NULL, NULL) : NULL;
    if (file) {
        known->file = strdup(file);
        known->symbol.file = known->file;
        known->symbol.line = (unsigned)line;
    }
}

bool symbols_find(struct symbols *symbols, const char *path, const char *build_id, uint64_t offset,
                  struct symbol *symbol) {
    const struct opened *file = open_file(symbols, path, build_id);
    struct known **slot = &symbols->known[(offset ^ offset >> 12) % SLOTS], *known = *slot;
    while (known && (known->in != file || known->offset != offset))
        known = known->next;
    if (!known) {
        known = allocate(sizeof *known);
        known->in = file;
        known->offset = offset;
        known->next = *slot;
        *slot = known;
        if (file->module)
            look(symbols, known);
    }
    *symbol = known->symbol;
    return known->symbol.function != NULL;
}

#endif
