/*
 * Where reports go: from a pattern to a file of its own for every report.
 *
 * A file that exists is never written to, not even behind its end: it is another report, another
 * process's, or the user's. O_EXCL decides that, so any number of processes of a job may share one
 * pattern. With %n in the pattern the running number goes on until a name is free; without, a
 * suffix .1, .2, ... is tried. What is no file at all (/dev/null, a FIFO, a terminal) is meant as
 * it is and written to.
 */
#include "report/emitter.h"

#include "process/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ATTEMPTS 10000 /* names tried before a report gives up on its pattern */

static _Atomic uint64_t next_number = 1; /* %n; not taken by this process before */

static bool has_number(const char *pattern) {
    for (const char *at = pattern; *at; at++)
        if (*at == '%' && *++at == 'n')
            return true;
    return false;
}

/** A part of a file name: no slash, nothing that cannot be seen, and no way to another directory. */
static void print_name(struct print *out, const char *text) {
    bool dots = text[strspn(text, ".")] == '\0';
    while (*text) {
        size_t length = dots || *text == '/' ? 0 : print_visible_length(text);
        print_bytes(out, length > 0 ? text : "_", length > 0 ? length : 1);
        text += length > 0 ? length : 1;
    }
}

static void print_pattern(struct print *out, const char *pattern, uint64_t number) {
    for (const char *at = pattern; *at; at++) {
        if (*at != '%') {
            print_char(out, *at);
            continue;
        }
        switch (*++at) {
        case 'p':
            print_i64(out, getpid());
            break;
        case 'h':
            print_name(out, program()->host);
            break;
        case 'e':
            print_name(out, program()->name);
            break;
        case 'r':
            print_i64(out, program()->rank < 0 ? 0 : program()->rank);
            break;
        case 'n':
            print_u64(out, number);
            break;
        case '%':
            print_char(out, '%');
            break;
        default: /* options.c lets no other letter pass */
            return;
        }
    }
}

static int finish(struct print *out) {
    print_end(out);
    return out->error != 0 || out->used == out->capacity - 1 ? -ENAMETOOLONG : 0;
}

/** Opens path as a new file. */
static int open_file(const char *path) {
    const int flags = O_WRONLY | O_CLOEXEC | O_NOCTTY;
    long fd = syscall(SYS_openat, AT_FDCWD, path, flags | O_CREAT | O_EXCL, 0644);
    return fd >= 0 ? (int)fd : -errno;
}

/** The same. -ESPIPE: it is there, and is no file. */
static int open_only_file(const char *path) {
    struct stat file;
    int error = open_file(path);
    bool other = error == -EEXIST && stat(path, &file) == 0 && !S_ISREG(file.st_mode);
    return !other ? error : S_ISDIR(file.st_mode) ? -EISDIR : -ESPIPE;
}

/** The same, or as what it is if it is no file. -EEXIST: it is a file that exists. */
static int open_new(const char *path) {
    const int flags = O_WRONLY | O_CLOEXEC | O_NOCTTY;
    int error = open_file(path);
    if (error >= 0)
        return error;
    struct stat file;
    if (error != -EEXIST || stat(path, &file) != 0 || S_ISREG(file.st_mode))
        return error;
    /* O_NONBLOCK: a FIFO that nobody reads must not hold the program back */
    long fd = syscall(SYS_openat, AT_FDCWD, path, flags | O_APPEND | O_NONBLOCK);
    if (fd < 0)
        return -errno;
    if (fstat((int)fd, &file) != 0 || S_ISREG(file.st_mode)) { /* exchanged meanwhile */
        syscall(SYS_close, fd);
        return -EEXIST;
    }
    return (int)fd;
}

static int open_pattern(const char *pattern, char *path, size_t size, int (*open)(const char *)) {
    bool numbered = has_number(pattern);
    int result = -EEXIST;
    for (uint64_t attempt = 0; result == -EEXIST && attempt < ATTEMPTS; attempt++) {
        struct print out;
        print_init(&out, -1, path, size);
        print_pattern(&out, pattern, numbered ? atomic_fetch_add(&next_number, 1) : 0);
        if (!numbered && attempt > 0) {
            print_char(&out, '.');
            print_u64(&out, attempt);
        }
        result = finish(&out);
        if (result == 0)
            result = open(path);
    }
    return result;
}

int file_open(const char *pattern, char *path, size_t size) {
    return open_pattern(pattern, path, size, open_new);
}

int file_create(const char *pattern, char *path, size_t size) {
    int fd = open_pattern(pattern, path, size, open_only_file);
    if (fd >= 0)
        syscall(SYS_close, fd);
    return fd < 0 ? fd : 0;
}

bool file_close(int fd, const char *path, bool complete) {
    struct stat file, named;
    bool regular = fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
    /* half a report reads as a broken one; only the very file that was opened is taken away */
    if (!complete && regular && lstat(path, &named) == 0 && file.st_dev == named.st_dev &&
        file.st_ino == named.st_ino)
        unlink(path);
    syscall(SYS_close, fd);
    return complete && regular;
}

const char *file_error(int error) {
    switch (error < 0 ? -error : error) {
    case EACCES:
        return "permission denied";
    case EPERM:
        return "operation not permitted";
    case ENOENT:
        return "no such directory";
    case ENOTDIR:
        return "not a directory";
    case EISDIR:
        return "is a directory";
    case ESPIPE:
        return "not a file";
    case EEXIST:
        return "too many files of that name exist";
    case ENOSPC:
        return "no space left on the device";
    case EDQUOT:
        return "disk quota exceeded";
    case EFBIG:
        return "file size limit exceeded";
    case EROFS:
        return "read-only file system";
    case ENAMETOOLONG:
        return "name too long";
    case EMFILE:
    case ENFILE:
        return "too many open files";
    case ELOOP:
        return "too many symbolic links";
    case EIO:
        return "input/output error";
    case EPIPE:
    case ENXIO:
        return "nobody reads it";
    case EAGAIN:
        return "its reader does not keep up";
    default:
        return NULL;
    }
}
