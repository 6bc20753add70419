#include "driver/ipc/ipc_server.h"

#include "base/lock.h"
#include "base/log.h"
#include "driver/ipc/ipc_export.h"
#include "driver/ipc/ipc_wire.h"
#include "driver/state/capture.h"
#include "driver/state/shutdown.h"
#include "driver/table/entries.h"
#include "pool/pool.h"
#include "process/ending.h"
#include "process/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PEERS 16       /* importers that are served at a time; others wait */
#define SILENT_MS 1000 /* how long a peer may be silent while no slot is free */
/* As SILENT_MS, before the first request: an importer sends it at once. */
#define FIRST_MS 20
#define PAUSE_MS 50 /* pause after an error that may go away */
#define END_MS 1000 /* how long the end of the process waits for a driver call */

/*
 * Programs close all descriptors that they did not open, and then open others with the same
 * numbers. The server therefore recognises its sockets by their inodes.
 */
struct socket {
    int fd; /* -1: none */
    ino_t file;
    int64_t heard; /* time of the connection or of the last message, in ms */
    bool has_asked;
};

static uint64_t own_name;
static struct socket listener = {.fd = -1}, peers[PEERS];
static struct lock lock = LOCK_INITIALIZER(IPC_SERVER); /* guards the start of the thread */
static atomic_bool is_open;                             /* the thread runs */
static atomic_bool is_over;                             /* the process ends: no export begins */

/* Describes a descriptor, for is_still_ours(). Closes one that it cannot describe. */
static struct socket socket_of(int fd) {
    struct stat file;
    if (fd >= 0 && fstat(fd, &file) == 0)
        return (struct socket){.fd = fd, .file = file.st_ino, .heard = wire_clock_ms()};
    if (fd >= 0)
        wire_close(fd);
    return (struct socket){.fd = -1};
}

/* Returns whether the descriptor still is the socket that the server opened. */
static bool is_still_ours(const struct socket *socket) {
    struct stat file;
    return socket->fd >= 0 && fstat(socket->fd, &file) == 0 && S_ISSOCK(file.st_mode) &&
           file.st_ino == socket->file;
}

/* Closes a socket, unless the program has closed it already. */
static void close_socket(struct socket *socket) {
    wire_hold();
    if (is_still_ours(socket))
        wire_close(socket->fd);
    socket->fd = -1;
    wire_let_go();
}

/* --- an answer --- */

/*
 * Exports handles as descriptors, up to the first that the driver refuses, most likely because the
 * process has no free descriptor number. Returns the count.
 */
static unsigned export_pages(const struct pool_exported *exported, int *fds) {
    const CUmemAllocationHandleType type = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    CUstreamCaptureMode mode = capture_relax();
    unsigned count = 0;
    while (count < exported->count &&
           REAL(cuMemExportToShareableHandle)(&fds[count], exported->handle[count], type, 0) ==
               CUDA_SUCCESS) {
        syscall(SYS_fcntl, fds[count], F_SETFD, FD_CLOEXEC);
        count++;
    }
    capture_restore(mode);
    return count;
}

/*
 * Sends one answer with descriptors of pages. Only this function has descriptors of pages open.
 * Returns 0 or a negative errno.
 */
static int send_handles(int fd, const struct wire_request *request) {
    _Static_assert(POOL_EXPORT_HANDLES <= WIRE_DESCRIPTORS, "one descriptor for each handle");
    struct pool_exported exported;
    int fds[WIRE_DESCRIPTORS];
    unsigned count = 0;
    if (atomic_load(&is_over) || atomic_load(&shutdown_begun))
        return -ESHUTDOWN;
    int r = ipc_export_open(request->token, request->address, request->first, &exported);
    if (r == 0) {
        count = export_pages(&exported, fds);
        pool_export_end(&exported);
        struct wire_answer answer = {
            WIRE_MAGIC, exported.offset, exported.bytes, exported.pages, count, exported.length, 0};
        r = count > 0 ? wire_send(fd, &answer, sizeof answer, fds, count) : -EMFILE;
    }
    for (unsigned i = 0; i < count; i++)
        wire_close(fds[i]);
    return r;
}

/* Answers a request of a peer. Returns false if the peer must be disconnected. */
static bool serve(struct socket *peer) {
    /* Initialised, because gcc may compare the fields before it checks r. */
    struct wire_request request = {0};
    unsigned none;
    int r = wire_receive(peer->fd, &request, sizeof request, NULL, &none);
    if (r == -EAGAIN)
        return true;
    if (r != 0 || request.magic != WIRE_MAGIC || request.unused != 0)
        return false;
    wire_hold();
    r = send_handles(peer->fd, &request);
    wire_let_go();
    /* The process may lack descriptors for a short time only. */
    bool lacks_descriptors = r == -EMFILE || r == -ETOOMANYREFS;
    /* An answer without pages tells the importer not to retry. */
    if (r != 0 && !lacks_descriptors) {
        const struct wire_answer refusal = {.magic = WIRE_MAGIC};
        wire_send(peer->fd, &refusal, sizeof refusal, NULL, 0);
    }
    peer->heard = wire_clock_ms();
    peer->has_asked = true;
    return r == 0;
}

/* --- the thread --- */

static struct socket *free_slot(void) {
    for (unsigned i = 0; i < PEERS; i++)
        if (peers[i].fd < 0)
            return &peers[i];
    return NULL;
}

/* Reopens the listening socket, which the program has closed, under the same socket number. */
static void reopen_listener(void) {
    wire_hold();
    listener = socket_of(wire_listen(own_name));
    wire_let_go();
    if (listener.fd < 0)
        wire_sleep_ms(PAUSE_MS);
}

/* Accepts the next connection into a free slot. */
static void accept_peer(struct socket *slot) {
    wire_hold();
    int fd = wire_accept(listener.fd);
    *slot = socket_of(fd);
    wire_let_go();
    if (fd < 0 && fd != -EAGAIN && fd != -EACCES)
        wire_sleep_ms(PAUSE_MS); /* no descriptor is free, for example */
}

/*
 * Returns until when a peer may be silent, in ms. The time is short if no slot is free, because
 * other importers may wait for one. A slow importer that is disconnected connects again.
 */
static int64_t deadline_of(const struct socket *peer, bool any_slot) {
    return peer->heard + (any_slot ? WIRE_LIMIT_MS : peer->has_asked ? SILENT_MS : FIRST_MS);
}

/*
 * Arguments of a poll. Peers without a socket are left out, since poll accepts at most
 * RLIMIT_NOFILE entries. poll ignores a closed listening socket, whose descriptor is -1.
 */
struct polled {
    struct pollfd fds[PEERS + 1];
    struct socket *of[PEERS + 1];
    unsigned count;
};

static void poll_socket(struct polled *polled, struct socket *socket) {
    polled->fds[polled->count] = (struct pollfd){.fd = socket->fd, .events = POLLIN};
    polled->of[polled->count++] = socket;
}

/* Waits until a socket is readable or a peer was silent for too long. */
static void wait_for_any(struct polled *polled, bool any_slot) {
    int64_t deadline = INT64_MAX;
    polled->count = 0;
    for (unsigned i = 0; i < PEERS; i++) {
        if (peers[i].fd >= 0) {
            int64_t own = deadline_of(&peers[i], any_slot);
            deadline = own < deadline ? own : deadline;
            poll_socket(polled, &peers[i]);
        }
    }
    if (any_slot) {
        poll_socket(polled, &listener);
        /* A closed listening socket is reopened at once, because no importer can connect. */
        deadline = listener.fd < 0 ? 0 : deadline;
    }
    int64_t now = wire_clock_ms(), left = deadline > now ? deadline - now : 0;
    struct timespec limit = {left / 1000, left % 1000 * 1000000};
    struct timespec *until = deadline == INT64_MAX ? NULL : &limit;
    if (syscall(SYS_ppoll, polled->fds, polled->count, until, NULL, 0) < 0) {
        polled->count = 0;
        wire_sleep_ms(PAUSE_MS);
    }
}

/* Answers a peer that has sent a message. Disconnects a peer that was silent for too long. */
static void update_peer(struct socket *peer, bool is_readable, bool any_slot) {
    if (is_readable ? !is_still_ours(peer) || !serve(peer)
                    : wire_clock_ms() >= deadline_of(peer, any_slot))
        close_socket(peer);
}

/* Accepts a peer, if one waits and a slot is free. Reopens a closed listening socket. */
static void update_listener(bool is_readable) {
    struct socket *slot = free_slot();
    if (!is_still_ours(&listener))
        reopen_listener();
    else if (is_readable && slot)
        accept_peer(slot);
}

static void *serve_all(void *unused) {
    for (;;) {
        struct polled polled;
        bool any_slot = free_slot() != NULL;
        wait_for_any(&polled, any_slot);
        for (unsigned i = 0; i < polled.count; i++) {
            bool is_readable = polled.fds[i].revents != 0;
            if (polled.of[i] == &listener)
                update_listener(is_readable);
            else
                update_peer(polled.of[i], is_readable, any_slot);
        }
    }
    return unused;
}

/* Starts the thread. If memory or descriptors are short, the next handle tries again. Lock held. */
static void start(void) {
    for (unsigned i = 0; i < PEERS; i++)
        peers[i].fd = -1;
    wire_hold();
    int fd = ipc_export_draw(&own_name, sizeof own_name) ? wire_listen(own_name) : -ENOSYS;
    listener = socket_of(fd);
    wire_let_go();
    int error = listener.fd >= 0 ? helper_start(serve_all) : -fd;
    atomic_store(&is_open, error == 0);
    if (error != 0) {
        close_socket(&listener);
        log_once(LOG_LEVEL_WARN,
                 "no IPC handles of memory in pages: there is no %s to serve them: error %d; "
                 "GPUCACHE_BACKEND=segments needs none",
                 fd < 0 ? "socket" : "thread", error);
    }
}

bool ipc_server_name(uint64_t *name) {
    int saved = errno;
    if (!atomic_load(&is_open) && process_ready()) {
        lock_acquire(&lock);
        if (!atomic_load(&is_open))
            start();
        lock_release(&lock);
    }
    errno = saved;
    *name = own_name;
    return atomic_load(&is_open);
}

bool ipc_server_is_own(uint64_t name) {
    return atomic_load(&is_open) && name == own_name;
}

/* --- forks and ends --- */

void ipc_server_forked(void) {
    int saved = errno;
    wire_forked();
    if (atomic_exchange(&is_open, false) || listener.fd >= 0) { /* the thread may be starting */
        close_socket(&listener);
        for (unsigned i = 0; i < PEERS; i++)
            close_socket(&peers[i]);
    }
    errno = saved;
}

void ipc_server_finish(void) {
    int saved = errno;
    if (atomic_load(&is_open) && ending_is_own_process() && wire_stop(END_MS))
        wire_go_on();
    errno = saved;
}

/*
 * Waits for exports before the process ends or execs. Without the wait, a program replaced by exec
 * would inherit open descriptors.
 */
void ipc_server_end(enum process_end how, int signal) {
    (void)signal;
    if (atomic_load(&is_open) && ending_is_own_process()) {
        atomic_store(&is_over, how != PROCESS_GOES_ON);
        if (how != PROCESS_GOES_ON)
            ipc_server_finish();
    }
}
