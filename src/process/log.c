/*
 * Messages to the user, and the stderr that they and the reports go to.
 *
 * Never into a file of the program's own. A program that was started without a stderr gives its
 * number to the first file that it opens: so a constructor looks whether there was one, and nothing
 * else can tell. And what stderr was at the first use of CUDA is compared before each use.
 *
 * Many programs close stderr in an atexit handler (all of coreutils do), before the last report is
 * written; so a duplicate is kept where reports go there, under a high number where a program's own
 * descriptors are not in its way. A daemon may in turn close every descriptor it can think of, and
 * the kept number may come back as one of the program's own files: hence the same comparison.
 */
#include "process/log.h"

#include "process/print.h"
#include "process/write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEPT_MIN 100 /* lowest number for the duplicate, out of the way of the program's own */

/* Which file something is; none: 0, 0. */
struct identity {
    dev_t dev;
    ino_t ino;
};

enum { UNOPENED, OPEN, NO_STDERR };

static _Atomic int wanted_level = LOG_LEVEL_WARN;
static struct identity at_start, at_use; /* threads that open at the same time store the same */
static _Atomic bool looked;
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

/* At the start of the program, unless something else's constructor uses CUDA before. */
__attribute__((constructor)) static void look(void) {
    int saved_errno = errno;
    if (!atomic_load(&looked)) {
        at_start = identify(STDERR_FILENO);
        atomic_store(&looked, true);
    }
    errno = saved_errno;
}

/*
 * The program may have put another file in stderr's place on purpose, and then means that one. But one that is closed on exec is meant
 * for nobody but the program.
 */
static bool note_stderr(void) {
    at_use = identify(STDERR_FILENO);
    if (at_start.ino == 0 || at_use.ino == 0)
        return false;
    return same_file(at_start, at_use) || (fcntl(STDERR_FILENO, F_GETFD) & FD_CLOEXEC) == 0;
}

void log_open(void) {
    if (atomic_load(&state) != UNOPENED)
        return;
    int saved_errno = errno;
    look();
    atomic_store(&state, note_stderr() ? OPEN : NO_STDERR);
    errno = saved_errno;
}

static bool is_stderr(int fd) {
    return same_file(at_use, identify(fd));
}

void log_keep(void) {
    int saved_errno = errno, none = -1;
    log_open();
    if (atomic_load(&state) == OPEN && atomic_load(&kept_fd) < 0) {
        int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, KEPT_MIN);
        if (fd < 0) /* RLIMIT_NOFILE may be lower */
            fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
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
    /* a name or a value with a line break or an escape sequence in it stays on its line */
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
