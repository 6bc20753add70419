/*
 * Creates a new file for each report, trace and OOM snapshot, named by a pattern. Takes no lock.
 *
 * An existing regular file is never written: it belongs to another report, process or the user.
 * O_EXCL ensures this, so any number of processes of a job may share a pattern. One exception: the
 * name of a descriptor, such as /dev/stdout, stands for any file that the program has open there.
 *
 * If a name exists, the next one is tried: the next number for %n, otherwise the suffix .1, .2 and
 * so on. After ATTEMPTS names the suffix is random: another user cannot occupy all names of a
 * shared folder.
 *
 *      the name exists as                       then
 *      /dev/null, a terminal, a FIFO            reports are written to it; traces, snapshots fail
 *      a descriptor, such as /dev/stdout        the same, whatever the descriptor is
 *      a link or FIFO of another user           the next name is tried
 *      a directory or a block device            fails
 */
#include "report/file.h"

#include "base/log.h"
#include "base/print.h"
#include "base/program.h"
#include "base/user.h"
#include "base/write.h"
#include "options/options.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ATTEMPTS 10000 /* names tried before a random one */
#define FLAGS (O_CLOEXEC | O_NOCTTY)

static _Atomic uint64_t next_number = 1; /* value of %n for the next name of this process */

static bool has_number(const char *pattern) {
    for (const char *at = pattern; *at; at++)
        if (*at == '%' && *++at == 'n')
            return true;
    return false;
}

/** Prints a part of a file name. Replaces slashes, invisible characters, and names of only dots, so
 * that the part cannot lead to another directory. */
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
        default: /* options.c refuses other letters */
            return;
        }
    }
}

static int finish(struct print *out) {
    print_end(out);
    return out->error != 0 || out->used == out->capacity - 1 ? -ENAMETOOLONG : 0;
}

/** Creates a new file. Returns a descriptor or a negative errno. */
static int create(const char *path, int access) {
    return write_open(AT_FDCWD, path, access | FLAGS | O_CREAT | O_EXCL, options()->file_mode);
}

/** Returns the number of the descriptor that the path names, or -1. */
static int descriptor_of(const char *path) {
    static const char *const folders[] = {"/dev/fd/", "/proc/self/fd/"};
    if (strcmp(path, "/dev/stdout") == 0)
        return STDOUT_FILENO;
    if (strcmp(path, "/dev/stderr") == 0)
        return STDERR_FILENO;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        if (strncmp(path, folders[i], strlen(folders[i])) == 0) {
            const char *number = path + strlen(folders[i]);
            size_t digits = strspn(number, "0123456789");
            return digits > 0 && digits < 10 && number[digits] == '\0' ? atoi(number) : -1;
        }
    }
    return -1;
}

/**
 * Duplicates a descriptor of the program for a report. The duplicate can be a socket, and shares
 * the position of a file: the report does not overwrite other output. Returns -EBADF if the
 * descriptor is not open for writing, or if the number of stderr belongs to another file by now.
 * Other numbers are not checked: the program may have opened another file there.
 */
static int duplicate(int own) {
    int fd = own == STDERR_FILENO ? log_fd() : own, flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
        return -EBADF;
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    return copy >= 0 ? copy : -errno;
}

static bool is_trusted(uid_t uid) {
    return uid == 0 || user_is_own(uid);
}

/**
 * Checks an existing name. Returns 0, with the inode of the name itself in `named`, if a report may
 * be written to it; -EEXIST if the next name must be tried, as for a regular file; -EISDIR for a
 * directory; -ENOTBLK for a block device. A link or a FIFO of another user gives -EEXIST: that user
 * would get the report or redirect it.
 */
static int check_existing(const char *path, struct stat *named) {
    struct stat file;
    if (lstat(path, named) != 0 || stat(path, &file) != 0 || S_ISREG(file.st_mode))
        return -EEXIST;
    if ((S_ISLNK(named->st_mode) && !is_trusted(named->st_uid)) ||
        (S_ISFIFO(file.st_mode) && !is_trusted(file.st_uid)))
        return -EEXIST;
    return S_ISDIR(file.st_mode) ? -EISDIR : S_ISBLK(file.st_mode) ? -ENOTBLK : 0;
}

/**
 * Creates a new file for a trace or snapshot. Returns as create(), or -ESPIPE for a device, FIFO,
 * terminal or descriptor.
 */
static int create_only(const char *path) {
    struct stat named;
    if (descriptor_of(path) >= 0)
        return -ESPIPE;
    int fd = create(path, O_RDWR), taken = fd == -EEXIST ? check_existing(path, &named) : fd;
    return fd >= 0 ? fd : taken == 0 || taken == -ENOTBLK ? -ESPIPE : taken;
}

/**
 * Creates a new file, opens a device, FIFO or terminal of that name, or duplicates the descriptor
 * of that name. Returns as create().
 */
static int create_or_open(const char *path) {
    struct stat named, again, file;
    int own = descriptor_of(path);
    if (own >= 0)
        return duplicate(own);
    int error = create(path, O_WRONLY);
    if (error != -EEXIST)
        return error;
    error = check_existing(path, &named);
    if (error != 0)
        return error;
    /* O_NONBLOCK: a FIFO without a reader must not block the program */
    int fd = write_open(AT_FDCWD, path, O_WRONLY | FLAGS | O_APPEND | O_NONBLOCK, 0);
    if (fd < 0)
        return fd;
    /* Another user may have replaced the name since check_existing(). */
    if (fstat(fd, &file) != 0 || S_ISREG(file.st_mode) || S_ISBLK(file.st_mode) ||
        check_existing(path, &again) != 0 || again.st_dev != named.st_dev ||
        again.st_ino != named.st_ino) {
        syscall(SYS_close, fd);
        return -EEXIST;
    }
    return fd;
}

/** Returns a random number, or the time if the system has no random number yet. */
static uint64_t random_number(void) {
    uint64_t number;
    bool drawn = syscall(SYS_getrandom, &number, sizeof number, 1 /* GRND_NONBLOCK */) ==
                 (long)sizeof number;
    return drawn ? number : program_time_ns();
}

/** Prints the name of one attempt: the pattern's name, then names with a number, then a random one.
 * Returns 0 or -ENAMETOOLONG. */
static int print_attempt(const char *pattern, uint64_t attempt, char *path, size_t size) {
    bool numbered = has_number(pattern);
    struct print out;
    print_init(&out, -1, path, size);
    print_pattern(&out, pattern, numbered ? atomic_fetch_add(&next_number, 1) : 0);
    if (attempt == ATTEMPTS) {
        print_char(&out, '.');
        print_hex(&out, random_number());
    } else if (!numbered && attempt > 0) {
        print_char(&out, '.');
        print_u64(&out, attempt);
    }
    return finish(&out);
}

static int open_pattern(const char *pattern, char *path, size_t size, int (*open)(const char *)) {
    int result = -EEXIST;
    for (uint64_t attempt = 0; result == -EEXIST && attempt <= ATTEMPTS; attempt++) {
        result = print_attempt(pattern, attempt, path, size);
        if (result == 0)
            result = open(path);
    }
    return result;
}

int file_open(const char *pattern, char *path, size_t size) {
    return open_pattern(pattern, path, size, create_or_open);
}

int file_create(const char *pattern, char *path, size_t size) {
    return open_pattern(pattern, path, size, create_only);
}

bool file_close(int fd, const char *path, bool complete) {
    struct stat file, named;
    bool regular = descriptor_of(path) < 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
    /* An incomplete report would look damaged. The name is deleted only if it is still the file
     * that was opened. */
    if (!complete && regular && lstat(path, &named) == 0 && file.st_dev == named.st_dev &&
        file.st_ino == named.st_ino)
        unlink(path);
    syscall(SYS_close, fd);
    return complete && regular;
}

const char *file_shown(char buffer[FILE_SHOWN], const char *path) {
    struct print out;
    print_init(&out, -1, buffer, FILE_SHOWN);
    print_str(&out, path);
    print_end(&out);
    if (strlen(path) >= FILE_SHOWN)
        strcpy(buffer + FILE_SHOWN - sizeof "...", "...");
    return buffer;
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
    case ENOTBLK:
        return "is a block device";
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
    case EBADF:
        return "not open for writing";
    case EPIPE:
    case ENXIO:
        return "nobody reads it";
    case EAGAIN:
        return "its reader does not keep up";
    default:
        return NULL;
    }
}
