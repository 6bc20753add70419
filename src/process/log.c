/*
 * Messages to the user, and the kept stderr that they and the reports go to.
 *
 * Many programs close stderr in an atexit handler (all of coreutils do), before the last report is
 * written; so a duplicate is kept, under a high number where a program's own descriptors are not in
 * its way. A daemon may in turn close every descriptor it can think of, and the kept number may
 * come back as one of the program's own files: before each use the descriptor is compared with what
 * stderr was, and what is not that same file is never written to.
 */
#include "process/log.h"

#include "process/print.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEPT_MIN 100 /* lowest number for the duplicate, out of the way of the program's own */

enum { UNOPENED = -1, NO_STDERR = -2 };

static _Atomic int wanted_level = LOG_LEVEL_WARN;
static _Atomic int kept_fd = UNOPENED;
/* Which file stderr was. Threads that open at the same time store the same values. */
static _Atomic uint64_t stderr_dev, stderr_ino;

void log_set_level(enum log_level level) {
    atomic_store_explicit(&wanted_level, level, memory_order_relaxed);
}

bool log_enabled(enum log_level level) {
    return (int)level <= atomic_load_explicit(&wanted_level, memory_order_relaxed);
}

static void open_kept(void) {
    int unopened = UNOPENED;
    struct stat file;
    if (fstat(STDERR_FILENO, &file) != 0) {
        atomic_compare_exchange_strong(&kept_fd, &unopened, NO_STDERR);
        return;
    }
    atomic_store(&stderr_dev, file.st_dev);
    atomic_store(&stderr_ino, file.st_ino);
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, KEPT_MIN);
    if (fd < 0) /* RLIMIT_NOFILE may be lower */
        fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int kept = fd < 0 ? STDERR_FILENO : fd;
    if (!atomic_compare_exchange_strong(&kept_fd, &unopened, kept) && fd >= 0)
        syscall(SYS_close, fd);
}

void log_open(void) {
    if (atomic_load(&kept_fd) != UNOPENED)
        return;
    int saved_errno = errno;
    open_kept();
    errno = saved_errno;
}

static bool is_stderr(int fd) {
    struct stat file;
    return fstat(fd, &file) == 0 && file.st_dev == atomic_load(&stderr_dev) &&
           file.st_ino == atomic_load(&stderr_ino);
}

int log_fd(void) {
    int saved_errno = errno;
    log_open();
    int fd = atomic_load(&kept_fd);
    if (fd < 0 || !is_stderr(fd))
        fd = fd != NO_STDERR && is_stderr(STDERR_FILENO) ? STDERR_FILENO : -1;
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
    for (size_t i = sizeof prefix - 1; i < line.used; i++)
        if ((unsigned char)buffer[i] < 0x20 || buffer[i] == 0x7f)
            buffer[i] = '?';
    buffer[line.used++] = '\n';
    int fd = log_fd();
    if (fd >= 0)
        print_write(fd, buffer, line.used);
}
