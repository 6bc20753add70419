/*
 * Finds programs, and tells from ELF headers and #! lines whether they can load the library
 * (tool.h). run.c and help.c call these functions. They keep no state, so no lock is needed.
 */
#include "tool/common/tool.h"

#include <elf.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCRIPTS_MOST 5    /* files checked at most: a script, its interpreter, and so on */
#define SEGMENTS_MOST 256 /* program headers that are read */
#define LINE 256          /* bytes of the #! line that the kernel reads */

#if defined(__x86_64__)
#define MACHINE EM_X86_64
#elif defined(__aarch64__)
#define MACHINE EM_AARCH64
#endif

enum fit {
    FITS, /* the library can be loaded, or nothing is known about the file */
    SCRIPT,
    STATIC,
    MUSL,
    OF_32_BITS,
    OF_ANOTHER_MACHINE
};

static const struct {
    const char *words;
    bool preload; /* harmless here, and useful for programs that this one starts */
} fits[] = {
    [FITS] = {NULL, true},
    [SCRIPT] = {NULL, true},
    [STATIC] = {"is linked statically: the library is only in programs that it starts", true},
    [MUSL] = {"runs on musl, and the library on glibc: it runs without the library", false},
    [OF_32_BITS] = {"is a 32-bit program, and the library is for 64 bits: it runs without the "
                    "library",
                    false},
    [OF_ANOTHER_MACHINE] = {"is for another kind of processor: it runs without the library", false},
};

bool program_find(const char *name, char path[PATH_MAX]) {
    const char *at = getenv("PATH");
    if (strchr(name, '/')) {
        snprintf(path, PATH_MAX, "%s", name);
        return access(path, X_OK) == 0;
    }
    at = at ? at : "/bin:/usr/bin";
    for (bool last = false; !last; at += strcspn(at, ":") + 1) {
        int length = (int)strcspn(at, ":");
        last = at[length] == '\0';
        int written = snprintf(path, PATH_MAX, "%.*s%s%s", length, at, length > 0 ? "/" : "", name);
        struct stat status;
        if (*name && written < PATH_MAX && access(path, X_OK) == 0 && stat(path, &status) == 0 &&
            S_ISREG(status.st_mode))
            return true;
    }
    return false;
}

static bool read_at(int fd, void *to, size_t bytes, uint64_t offset) {
    return offset < INT64_MAX && pread(fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

static bool is_musl(const char *loader) {
    return strncmp(basename(loader), "ld-musl-", strlen("ld-musl-")) == 0;
}

/** Returns whether a file is a dynamic linker, which has no interpreter but honours LD_PRELOAD. */
static bool is_loader(const char *path) {
    const char *name = basename(path);
    return strncmp(name, "ld-", 3) == 0 || strncmp(name, "ld.so", 5) == 0;
}

/** Returns how an ELF file fits: by its class, its machine and the dynamic linker that it names. */
static enum fit fit_of_elf(int fd, const char *path, const Elf64_Ehdr *header) {
    if (header->e_ident[EI_CLASS] == ELFCLASS32)
        return OF_32_BITS;
#ifdef MACHINE
    if (header->e_machine != MACHINE)
        return OF_ANOTHER_MACHINE;
#endif
    if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum > SEGMENTS_MOST)
        return FITS;
    for (unsigned i = 0; i < header->e_phnum; i++) {
        char loader[PATH_MAX] = "";
        Elf64_Phdr segment;
        if (!read_at(fd, &segment, sizeof segment, header->e_phoff + i * sizeof segment))
            return FITS;
        if (segment.p_type != PT_INTERP)
            continue;
        if (segment.p_filesz >= sizeof loader ||
            !read_at(fd, loader, (size_t)segment.p_filesz, segment.p_offset))
            return FITS;
        return is_musl(loader) ? MUSL : FITS;
    }
    return is_musl(path) ? MUSL : is_loader(path) ? FITS : STATIC;
}

/** Copies the interpreter from a #! line. Returns false if there is none. */
static bool take_interpreter(const char *line, char path[PATH_MAX]) {
    line += strspn(line, " \t");
    size_t length = strcspn(line, " \t\r\n");
    snprintf(path, PATH_MAX, "%.*s", (int)length, line);
    return length > 0;
}

/** Checks one file. Stores the interpreter of a script in `path`. */
static enum fit fit_of(char path[PATH_MAX]) {
    union {
        Elf64_Ehdr elf;
        char text[LINE];
    } front = {.text = ""};
    struct stat status;
    enum fit fit = FITS;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    ssize_t got = fd >= 0 && fstat(fd, &status) == 0 && S_ISREG(status.st_mode)
                      ? pread(fd, &front, sizeof front - 1, 0)
                      : -1;
    if (got >= (ssize_t)sizeof front.elf && memcmp(front.elf.e_ident, ELFMAG, SELFMAG) == 0)
        fit = fit_of_elf(fd, path, &front.elf);
    else if (got > 2 && memcmp(front.text, "#!", 2) == 0 && take_interpreter(front.text + 2, path))
        fit = SCRIPT;
    if (fd >= 0)
        close(fd);
    return fit;
}

bool program_is_elf(const char *path) {
    char front[SELFMAG];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool elf =
        fd >= 0 && read_at(fd, front, sizeof front, 0) && memcmp(front, ELFMAG, SELFMAG) == 0;
    if (fd >= 0)
        close(fd);
    return elf;
}

bool program_takes_library(const char *name) {
    char path[PATH_MAX];
    enum fit fit = program_find(name, path) ? fit_of(path) : FITS;
    bool script = fit == SCRIPT;
    for (unsigned i = 1; fit == SCRIPT && i < SCRIPTS_MOST; i++)
        fit = fit_of(path);
    if (fits[fit].words)
        tool_say("%s: %s%s%s%s", name, script ? "its interpreter " : "", script ? path : "",
                 script ? " " : "", fits[fit].words);
    return fits[fit].preload;
}
