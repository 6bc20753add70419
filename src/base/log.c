/*
 * Messages to the user, and the stderr that messages and reports are written to.
 *
 * The library does not write into a file of the program. A program that was started without a
 * stderr gives descriptor 2 to the first file that it opens. A constructor records whether there
 * was a stderr, because this cannot be found out later. log_open() records the file that is stderr
 * at the first use of CUDA. Each write first checks that the descriptor still is that file.
 *
 * Many programs close stderr in an atexit handler (all of coreutils do), before the last report. A
 * duplicate is therefore kept if reports go to stderr. Its number is high, away from the program's
 * descriptors: a program may expect the lowest free number from open(). A process with very few
 * descriptors has no duplicate. A daemon may close every descriptor, and that number may then
 * become a file of the program: the check applies to the duplicate too. No lock; the state is
 * atomic.
 */
#include "base/log.h"

#include "base/print.h"
#include "base/write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEPT_MIN 100         /* lowest number for the duplicate, above the program's descriptors */
#define KEPT_TRIES 16        /* numbers that are tried if all from KEPT_MIN on are refused */
#define KEPT_LIMIT 32        /* with fewer descriptors, the program may need all of them */
#define DESCRIPTORS_SEEN 256 /* has_another_descriptor() checks the numbers below */

/* Identity of a file; 0, 0: none. */
struct identity {
    dev_t dev;
    ino_t ino;
};

enum { UNOPENED, OPEN, NO_STDERR }; /* values of `state` */

static _Atomic int wanted_level = LOG_LEVEL_WARN;
/* The file that stderr was at the start, and the file that messages go to. Threads that are in
 * log_open() at the same time store the same values. */
static struct identity at_start, target;
static _Atomic bool is_start_known;
static _Atomic int state = UNOPENED;
static _Atomic int kept_fd = -1;

void log_set_level(enum log_level level) {
    atomic_store_explicit(&wanted_level, level, memory_order_relaxed);
}

bool log_enabled(enum log_level level) {
    return (int)level <= atomic_load_explicit(&wanted_level, memory_order_relaxed);
}

static struct identity identify(int fd) {
    struct stat file;
    return fstat(fd, &file) == 0 ? (struct identity){file.st_dev, file.st_ino}
                                 : (struct identity){0, 0};
}

static bool same_file(struct identity a, struct identity b) {
    return a.ino != 0 && a.dev == b.dev && a.ino == b.ino;
}

/* Runs at the start of the program, unless the constructor of another library uses CUDA before. */
__attribute__((constructor)) static void record_start(void) {
    int saved_errno = errno;
    if (!atomic_load(&is_start_known)) {
        at_start = identify(STDERR_FILENO);
        atomic_store(&is_start_known, true);
    }
    errno = saved_errno;
}

/* Returns whether a descriptor other than stderr is open on the file: stdout, or the argument of
 * dup2(), which mostly stays open. */
static bool has_another_descriptor(struct identity file) {
    for (int fd = 0; fd < DESCRIPTORS_SEEN; fd++)
        if (fd != STDERR_FILENO && same_file(file, identify(fd)))
            return true;
    return false;
}

/*
 * Returns whether another file, `now`, has descriptor 2 on purpose. A program that closes stderr
 * gives the number to the next file or socket that it opens, perhaps to one with its data. Accepted
 * are files that have another descriptor too, terminals and other devices, pipes, and files that
 * can only be written or are appended to, as logs are. A file that is closed on exec is not meant
 * as stderr.
 */
static bool is_meant_as_stderr(struct identity now) {
    struct stat file;
    int flags = fcntl(STDERR_FILENO, F_GETFL), access = flags & O_ACCMODE;
    if (flags < 0 || access == O_RDONLY || (fcntl(STDERR_FILENO, F_GETFD) & FD_CLOEXEC) != 0 ||
        fstat(STDERR_FILENO, &file) != 0)
        return false;
    return has_another_descriptor(now) || S_ISCHR(file.st_mode) || S_ISFIFO(file.st_mode) ||
           (S_ISREG(file.st_mode) && (access == O_WRONLY || (flags & O_APPEND) != 0));
}

/*
 * Records the file that messages go to: what stderr is now, if that is meant as stderr. Otherwise
 * what stderr was at the start, in case the program makes it stderr again, as a test does that
 * captures output. Returns false if there was no stderr at the start.
 */
static bool record_stderr(void) {
    struct identity now = identify(STDERR_FILENO);
    target = now.ino != 0 && is_meant_as_stderr(now) ? now : at_start;
    return at_start.ino != 0;
}

void log_open(void) {
    if (atomic_load(&state) != UNOPENED)
        return;
    int saved_errno = errno;
    record_start();
    atomic_store(&state, record_stderr() ? OPEN : NO_STDERR);
    errno = saved_errno;
}

static bool is_stderr(int fd) {
    return same_file(target, identify(fd));
}

/*
 * Duplicates stderr to a number from KEPT_MIN on. If that fails, mostly because RLIMIT_NOFILE is
 * lower, tries the KEPT_TRIES numbers below KEPT_MIN and the limit, from the highest down. Returns
 * the descriptor, or -1 if no such number is free.
 */
static int duplicate_stderr(void) {
    struct rlimit limit;
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, KEPT_MIN);
    if (fd >= 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < KEPT_LIMIT)
        return fd;
    int end = limit.rlim_cur < KEPT_MIN ? (int)limit.rlim_cur : KEPT_MIN;
    for (int tries = 1; fd < 0 && tries <= KEPT_TRIES; tries++)
        fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, end - tries);
    return fd;
}

void log_keep(void) {
    int saved_errno = errno, none = -1;
    log_open();
    if (atomic_load(&state) == OPEN && atomic_load(&kept_fd) < 0 && is_stderr(STDERR_FILENO)) {
        int fd = duplicate_stderr();
        if (fd >= 0 && !atomic_compare_exchange_strong(&kept_fd, &none, fd))
            syscall(SYS_close, fd);
    }
    errno = saved_errno;
}

void log_forked(void) {
    int saved_errno = errno, fd = atomic_exchange(&kept_fd, -1);
    if (fd >= 0 && is_stderr(fd))
        syscall(SYS_close, fd);
    errno = saved_errno;
}

int log_fd(void) {
    int saved_errno = errno;
    log_open();
    int fd = -1, kept = atomic_load(&kept_fd);
    if (atomic_load(&state) == OPEN) {
        bool usable = kept >= 0 && is_stderr(kept);
        fd = usable ? kept : is_stderr(STDERR_FILENO) ? STDERR_FILENO : -1;
    }
    errno = saved_errno;
    return fd;
}

void log_line(enum log_level level, const char *format, ...) {
    if (!log_enabled(level))
        return;
    static const char prefix[] = "gpucache: ";
    char buffer[LOG_LINE];
    struct print line;
    print_init(&line, -1, buffer, sizeof buffer - 1);
    print_str(&line, prefix);
    va_list values;
    va_start(values, format);
    print_vformat(&line, format, values);
    va_end(values);
    if (line.error != 0)
        memcpy(buffer + line.used - 3, "...", 3);
    /*
     * Replaces line breaks and escape sequences in names and values, so that the line stays one
     * line.
     */
    buffer[line.used] = '\0';
    for (size_t i = sizeof prefix - 1, length; i < line.used; i += length) {
        length = print_visible_length(buffer + i);
        if (length == 0) {
            buffer[i] = '?';
            length = 1;
        }
    }
    buffer[line.used++] = '\n';
    int fd = log_fd();
    if (fd >= 0)
        write_in_time(fd, buffer, line.used);
}
