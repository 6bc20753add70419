#include "driver/ipc/ipc_wire.h"

#include "base/clock.h"
#include "base/print.h"
#include "base/user.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define BACKLOG 64     /* backlog of connections that are not accepted yet */
#define FD_LEAST 200   /* least descriptor number: some programs count on low ones */
#define FORK_MS 200    /* how long a fork waits for descriptors to be closed */
#define HOLD_MS 500    /* how long wire_hold() waits for a fork */
#define RETRY_MS 2     /* between two attempts to connect */
#define CONNECTIONS 64 /* connections that the child of a fork can close */

_Static_assert(sizeof(struct wire_request) == 40 && sizeof(struct wire_answer) == 40,
               "no byte of a message is padding");

int64_t wire_clock_ms(void) {
    return (int64_t)(clock_kernel_ns() / 1000000);
}

void wire_sleep_ms(unsigned ms) {
    sleep_despite_signals((uint64_t)ms * 1000000);
}

void wire_close(int fd) {
    syscall(SYS_close, fd);
}

/* --- descriptors and forks --- */

static _Atomic int holder_count, fork_count; /* fork_count > 0: wire_hold() waits */
/* Forks have numbers. timed_out_fork: no thread waits for that fork any more. */
static _Atomic unsigned last_fork, timed_out_fork;
static pthread_once_t watched = PTHREAD_ONCE_INIT;
static _Thread_local bool has_stopped __attribute__((tls_model("initial-exec")));

bool wire_stop(unsigned ms) {
    int64_t deadline = wire_clock_ms() + ms;
    atomic_fetch_add(&last_fork, 1);
    atomic_fetch_add(&fork_count, 1);
    while (atomic_load(&holder_count) > 0) {
        if (wire_clock_ms() >= deadline) {
            wire_go_on();
            return false;
        }
        wire_sleep_ms(1);
    }
    return true;
}

void wire_go_on(void) {
    atomic_fetch_sub(&fork_count, 1);
}

static void before_fork(void) {
    int saved = errno;
    has_stopped = wire_stop(FORK_MS);
    errno = saved;
}

static void after_fork(void) {
    if (has_stopped)
        wire_go_on();
}

static void watch_forks(void) {
    pthread_atfork(before_fork, after_fork, NULL);
}

/* Connections of this process as an importer: descriptor plus one; 0: unused. */
static _Atomic int connections[CONNECTIONS];

static void record_connection(int fd) {
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        int none = 0;
        if (atomic_compare_exchange_strong(&connections[i], &none, fd + 1))
            return;
    }
}

void wire_forked(void) {
    atomic_store(&holder_count, 0);
    atomic_store(&fork_count, 0);
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        int connection = atomic_exchange(&connections[i], 0);
        if (connection > 0)
            wire_close(connection - 1);
    }
}

/* Returns whether a fork is in progress, and is not the one that timed out. */
static bool must_wait_for(unsigned fork) {
    return atomic_load(&fork_count) > 0 && fork != atomic_load(&timed_out_fork);
}

/*
 * Sleeps 1 ms, or gives the fork up at the deadline. The fork may wait for a lock that the program
 * holds while it calls this library.
 */
static void wait_for_fork(unsigned fork, int64_t *deadline) {
    int64_t now = wire_clock_ms();
    *deadline = *deadline == 0 ? now + HOLD_MS : *deadline;
    if (now >= *deadline)
        atomic_store(&timed_out_fork, fork);
    else
        wire_sleep_ms(1);
}

void wire_hold(void) {
    int64_t deadline = 0;
    unsigned fork;
    pthread_once(&watched, watch_forks);
    atomic_fetch_add(&holder_count, 1);
    while (must_wait_for(fork = atomic_load(&last_fork))) {
        atomic_fetch_sub(&holder_count, 1);
        wait_for_fork(fork, &deadline);
        atomic_fetch_add(&holder_count, 1);
    }
}

void wire_let_go(void) {
    atomic_fetch_sub(&holder_count, 1);
}

/* --- sockets --- */

/* The first byte of the name is zero: an abstract socket, without a file. */
static socklen_t address_of(uint64_t name, struct sockaddr_un *address) {
    struct print out;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    print_init(&out, -1, address->sun_path + 1, sizeof address->sun_path - 1);
    print_str(&out, "gpucache-ipc-");
    print_hex(&out, name);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + out.used);
}

static int new_socket(void) {
    int type = SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK;
    int fd = (int)syscall(SYS_socket, AF_UNIX, type, 0);
    return fd < 0 ? -errno : fd;
}

/* Returns whether the peer of a connection, listening or connected, is a process of this user. */
static bool is_same_user(int fd) {
    struct ucred credentials = {.uid = (uid_t)-1};
    socklen_t bytes = sizeof credentials;
    return syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) == 0 &&
           user_is_own(credentials.uid);
}

int wire_listen(uint64_t name) {
    struct sockaddr_un address;
    socklen_t length = address_of(name, &address);
    int low_fd = new_socket();
    if (low_fd < 0)
        return low_fd;
    int fd = (int)syscall(SYS_fcntl, low_fd, F_DUPFD_CLOEXEC, FD_LEAST);
    if (fd >= 0)
        wire_close(low_fd);
    else /* RLIMIT_NOFILE may be lower than FD_LEAST */
        fd = low_fd;
    if (syscall(SYS_bind, fd, &address, length) != 0 || syscall(SYS_listen, fd, BACKLOG) != 0) {
        int error = errno;
        wire_close(fd);
        return -error;
    }
    return fd;
}

int wire_accept(int fd) {
    int peer = (int)syscall(SYS_accept4, fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (peer < 0)
        return -errno;
    if (!is_same_user(peer)) {
        wire_close(peer);
        return -EACCES;
    }
    return peer;
}

void wire_hang_up(int fd) {
    wire_hold();
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        int connection = fd + 1;
        if (atomic_compare_exchange_strong(&connections[i], &connection, 0))
            break;
    }
    wire_close(fd);
    wire_let_go();
}

/* Connects, and retries while the exporter's backlog is full. */
int wire_connect(uint64_t name, int64_t deadline) {
    struct sockaddr_un address;
    socklen_t length = address_of(name, &address);
    wire_hold();
    int fd = new_socket();
    if (fd >= 0)
        record_connection(fd);
    wire_let_go();
    if (fd < 0)
        return fd;
    while (syscall(SYS_connect, fd, &address, length) != 0) {
        if ((errno != EAGAIN && errno != EINTR) || wire_clock_ms() >= deadline) {
            int error = errno;
            wire_hang_up(fd);
            return -error;
        }
        wire_sleep_ms(RETRY_MS);
    }
    if (!is_same_user(fd)) {
        wire_hang_up(fd);
        return -EACCES;
    }
    return fd;
}

/* --- messages --- */

union control {
    struct cmsghdr header; /* aligns the bytes */
    char bytes[CMSG_SPACE(WIRE_DESCRIPTORS * sizeof(int))];
};

int wire_send(int fd, const void *data, size_t bytes, const int *passed, unsigned count) {
    union control control;
    struct iovec data_part = {(void *)data, bytes};
    struct msghdr message = {.msg_iov = &data_part, .msg_iovlen = 1};
    memset(&control, 0, sizeof control);
    if (count > 0) {
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(&control.header), passed, count * sizeof(int));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
    }
    long sent;
    do {
        sent = syscall(SYS_sendmsg, fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    return sent == (long)bytes ? 0 : sent < 0 ? -errno : -EPROTO;
}

/* Copies descriptors of a message to `passed`. The kernel drops those beyond WIRE_DESCRIPTORS. */
static unsigned copy_passed(struct msghdr *message, int *passed) {
    unsigned received = 0;
    for (struct cmsghdr *at = CMSG_FIRSTHDR(message); at; at = CMSG_NXTHDR(message, at)) {
        if (at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_RIGHTS) {
            size_t bytes = at->cmsg_len - CMSG_LEN(0);
            memcpy(passed + received, CMSG_DATA(at), bytes);
            received += (unsigned)(bytes / sizeof(int));
        }
    }
    return received;
}

int wire_receive(int fd, void *data, size_t bytes, int *passed, unsigned *count) {
    union control control;
    char excess; /* received only if the message is too long */
    struct iovec parts[2] = {{data, bytes}, {&excess, 1}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (passed) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
    }
    long got;
    do {
        got = syscall(SYS_recvmsg, fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    } while (got < 0 && errno == EINTR);
    if (got < 0)
        return errno == ECONNRESET ? -EPIPE : -errno;
    unsigned received = passed ? copy_passed(&message, passed) : 0;
    if (got == (long)bytes) {
        *count = received;
        return 0;
    }
    for (unsigned i = 0; i < received; i++)
        wire_close(passed[i]);
    return got == 0 ? -EPIPE : -EPROTO;
}

bool wire_wait(int fd, int64_t deadline) {
    for (;;) {
        int64_t left = deadline - wire_clock_ms();
        struct timespec limit = {left / 1000, left % 1000 * 1000000};
        struct pollfd wanted = {.fd = fd, .events = POLLIN};
        if (left <= 0)
            return false;
        long ready = syscall(SYS_ppoll, &wanted, 1, &limit, NULL, 0);
        if (ready > 0)
            return true;
        if (ready < 0 && errno != EINTR)
            return false;
    }
}
