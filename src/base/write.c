/*
 * Opens files, writes reports and messages, and reserves the space of files that are mapped: traces
 * and live pages.
 *
 * The program must not notice a write. libc's write() is a cancellation point, at which a cancelled
 * thread would unwind out of the allocator; the system call is none. write_quietly() suppresses
 * signals. open_again() lets a write to a pipe or terminal time out. write_open() leaves the
 * numbers of stdin, stdout and stderr free. No lock. write_all() and write_in_time() keep errno.
 */
#include "base/write.h"

#include "base/clock.h"
#include "base/print.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define WRITE_LIMIT_NS SECOND_NS /* how long one write waits for a reader, in total */
#define ZEROS_AT_ONCE 64 /* arrays in one write: longer writes make larger pages in the kernel */
#define SPACE_POLL_NS 1000000 /* between two checks of the space in a pipe */

/** Destination of one write. */
struct sink {
    int fd;
    bool socket;
    bool small_steps; /* the write may block: at most PIPE_BUF bytes, which a writable pipe takes */
    uint64_t deadline; /* of clock_kernel_ns(); 0: has not waited yet */
};

/** Returns whether the deadline has passed. The first call sets the deadline. */
static bool is_late(struct sink *to) {
    uint64_t now = clock_kernel_ns();
    if (to->deadline == 0)
        to->deadline = now + WRITE_LIMIT_NS;
    return now >= to->deadline;
}

/**
 * Waits until the descriptor takes more bytes; signals do not end the wait. Returns false at the
 * deadline, which the first call sets, and after an error. After the deadline, still asks once,
 * without a wait: a reader may have come back since the call that timed out.
 */
static bool writable(struct sink *to) {
    struct pollfd wait = {.fd = to->fd, .events = POLLOUT};
    bool late;
    long ready;
    do {
        late = is_late(to);
        uint64_t now = clock_kernel_ns();
        struct timespec left = clock_from_ns(now < to->deadline ? to->deadline - now : 0);
        ready = syscall(SYS_ppoll, &wait, 1, &left, NULL, 0);
    } while (ready < 0 && errno == EINTR && !late);
    return ready > 0;
}

static long write_some(struct sink *to, const char *bytes, size_t length) {
    if (to->socket)
        return syscall(SYS_sendto, to->fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0);
    return syscall(SYS_write, to->fd, bytes, length);
}

static int write_parts(struct sink *to, const char *bytes, size_t length) {
    while (length > 0) {
        size_t part = to->small_steps && length > PIPE_BUF ? PIPE_BUF : length;
        if (to->small_steps && !writable(to))
            return -EAGAIN;
        long written = write_some(to, bytes, part);
        if (written > 0) {
            bytes += written;
            length -= (size_t)written;
        } else if (written == 0) {
            return -EIO;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            /* Some descriptors poll as writable and refuse each write: the deadline ends this. */
            if (is_late(to) || !writable(to))
                return -EAGAIN;
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

/**
 * Writes as write_parts(), without a signal that the write causes. Three signals are blocked during
 * the write. SIGPIPE and SIGXFSZ are removed from the thread if this write caused them.
 *
 *   | signal  | cause                                              | would                     |
 *   | ------- | -------------------------------------------------- | ------------------------- |
 *   | SIGPIPE | the reader is gone                                 | end the program           |
 *   | SIGXFSZ | the file size limit                                | end the program           |
 *   | SIGTTOU | a background job; the terminal has `stty tostop`   | stop the program for ever |
 *
 * The kernel does not send SIGTTOU to a thread that blocks it: the terminal then takes the bytes.
 */
static int write_quietly(struct sink *to, const char *bytes, size_t length) {
    sigset_t blocked, before, pending_before, pending_after;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGPIPE);
    sigaddset(&blocked, SIGXFSZ);
    sigaddset(&blocked, SIGTTOU);
    sigemptyset(&pending_before);
    sigpending(&pending_before);
    bool masked = pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0;

    int result = write_parts(to, bytes, length);

    if (masked) {
        int caused = result == -EPIPE ? SIGPIPE : result == -EFBIG ? SIGXFSZ : 0;
        if (caused != 0 && !sigismember(&pending_before, caused) &&
            sigpending(&pending_after) == 0 && sigismember(&pending_after, caused)) {
            sigset_t only;
            sigemptyset(&only);
            sigaddset(&only, caused);
            const struct timespec at_once = {0, 0};
            while (syscall(SYS_rt_sigtimedwait, &only, NULL, &at_once, _NSIG / 8) < 0 &&
                   errno == EINTR)
                continue;
        }
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    return result;
}

int write_all(int fd, const void *bytes, size_t length) {
    int saved_errno = errno;
    struct sink to = {.fd = fd};
    int result = write_quietly(&to, bytes, length);
    errno = saved_errno;
    return result;
}

/**
 * Opens the same file again, for writes that do not block. Returns a descriptor or a negative
 * errno. A blocking write into a pipe that nobody reads would never end. O_NONBLOCK cannot be set
 * on `fd` itself: the flag belongs to the open file, which other processes share.
 */
static int open_again(int fd) {
    char path[32];
    struct print out;
    print_init(&out, -1, path, sizeof path);
    print_str(&out, "/proc/self/fd/");
    print_i64(&out, fd);
    return write_open(AT_FDCWD, print_end(&out), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY, 0);
}

/**
 * Waits until the unread bytes of a pipe leave space for all bytes, which are then mostly written
 * in one piece. Not always: an unread write that does not fill its last page takes the whole page.
 * Bytes that a pipe can never hold at once are written in pieces. Returns false at the deadline.
 */
static bool has_space(struct sink *to, size_t length) {
    int capacity = fcntl(to->fd, F_GETPIPE_SZ), unread = 0;
    while (capacity > 0 && length <= (size_t)capacity && ioctl(to->fd, FIONREAD, &unread) == 0 &&
           (size_t)capacity - (size_t)unread < length) {
        struct pollfd reader = {.fd = to->fd};
        struct timespec pause_time = {0, SPACE_POLL_NS};
        if (is_late(to))
            return false;
        if (syscall(SYS_ppoll, &reader, 1, &pause_time, NULL, 0) > 0)
            break; /* the pipe has no reader any more: the write reports it */
    }
    return true;
}

int write_in_time(int fd, const void *bytes, size_t length) {
    static _Atomic bool given_up; /* the last call has timed out: this one does not wait */
    int saved_errno = errno;
    struct stat file;
    struct sink to = {.fd = fd, .deadline = atomic_load(&given_up) ? 1 : 0};
    bool known = fstat(fd, &file) == 0;
    to.socket = known && S_ISSOCK(file.st_mode);
    bool pipe = known && S_ISFIFO(file.st_mode);
    bool terminal = known && S_ISCHR(file.st_mode) && isatty(fd);
    int again = pipe || terminal ? open_again(fd) : -1;
    to.fd = again >= 0 ? again : fd;
    to.small_steps = again < 0 && (pipe || terminal);
    int result = pipe && !has_space(&to, length) ? -EAGAIN : write_quietly(&to, bytes, length);
    atomic_store(&given_up, result == -EAGAIN);
    if (again >= 0)
        syscall(SYS_close, again);
    errno = saved_errno;
    return result;
}

/* --- opening --- */

static bool is_closed(int fd) {
    return fcntl(fd, F_GETFD) < 0;
}

/** Moves a descriptor to a number above stderr's. Returns the new one or a negative errno. */
static int move_up(int fd) {
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int result = copy >= 0 ? copy : -errno;
    syscall(SYS_close, fd);
    return result;
}

int write_open(int folder, const char *path, int flags, unsigned mode) {
    int placeholders[STDERR_FILENO + 1], count = 0;
    /* A write to an O_PATH descriptor fails with EBADF, as to a closed one. */
    while (count <= STDERR_FILENO &&
           (is_closed(STDIN_FILENO) || is_closed(STDOUT_FILENO) || is_closed(STDERR_FILENO))) {
        long fd = syscall(SYS_openat, AT_FDCWD, "/", O_PATH | O_CLOEXEC);
        if (fd < 0)
            break;
        placeholders[count++] = (int)fd;
    }
    long fd = syscall(SYS_openat, folder, path, flags, mode);
    int result = fd >= 0 ? (int)fd : -errno;
    while (count > 0) {
        int own = placeholders[--count], now = fcntl(own, F_GETFL);
        if (now >= 0 && (now & O_PATH)) /* else the program has put its own file there */
            syscall(SYS_close, own);
    }
    /* Another thread in this function may have closed its placeholders before the openat(). */
    return result >= 0 && result <= STDERR_FILENO ? move_up(result) : result;
}

/* --- space in a file --- */

/**
 * Writes zeros: if the file system cannot reserve space, only written bytes have it. Returns 0 or a
 * negative errno.
 */
static int write_zeros(int fd, uint64_t from, uint64_t bytes) {
    static char zeros[16384]; /* not const, because it would take space in the library's file */
    struct iovec pieces[ZEROS_AT_ONCE];
    while (bytes > 0) {
        unsigned count = 0;
        for (uint64_t left = bytes; left > 0 && count < ZEROS_AT_ONCE; count++) {
            size_t piece = left < sizeof zeros ? (size_t)left : sizeof zeros;
            pieces[count] = (struct iovec){zeros, piece};
            left -= piece;
        }
        long written = syscall(SYS_pwritev, fd, pieces, count, (long)from, (long)(from >> 32));
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return written < 0 ? -errno : -ENOSPC;
        from += (uint64_t)written;
        bytes -= (uint64_t)written;
    }
    return 0;
}

int write_reserve(int fd, uint64_t from, uint64_t bytes) {
    struct rlimit largest;
    /* Above this limit the kernel would not only refuse, but raise SIGXFSZ. */
    if (getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur < from + bytes)
        return -EFBIG;
    if (syscall(SYS_fallocate, fd, 0, (off_t)from, (off_t)bytes) == 0)
        return 0;
    /* EINTR: some file systems give up at any signal. A profiler's timer may interrupt each try. */
    bool can_write = errno == EOPNOTSUPP || errno == ENOSYS || errno == EINTR;
    return can_write ? write_zeros(fd, from, bytes) : -errno;
}

void write_pages(int fd, uint64_t from, uint64_t bytes) {
    struct statfs system;
    if (fstatfs(fd, &system) == 0 && system.f_type != TMPFS_MAGIC)
        write_zeros(fd, from, bytes);
}
