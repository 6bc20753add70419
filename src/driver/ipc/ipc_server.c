#include "driver/ipc/ipc_server.h"

#include "driver/ipc/ipc_export.h"
#include "driver/ipc/ipc_wire.h"
#include "driver/state/capture.h"
#include "driver/state/shutdown.h"
#include "driver/table/entries.h"
#include "pool/pool.h"
#include "process/ending.h"
#include "process/helper.h"
#include "process/lock.h"
#include "process/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PEERS 16       /* importers that are served at a time; others wait */
#define SILENT_MS 1000 /* how long a peer may be silent while no slot is free */
/* the same for a peer without a request yet: importers send one as they connect */
#define FIRST_MS 20
#define TURN_MS 50  /* pause after an error that may go away */
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
static struct socket door = {.fd = -1}, peers[PEERS];
static struct lock lock = LOCK_INITIALIZER(IPC_SERVER); /* guards the start of the thread */
static atomic_bool is_open, is_over;

static struct socket socket_of(int fd) {
    struct stat file;
    return fd >= 0 && fstat(fd, &file) == 0
               ? (struct socket){.fd = fd, .file = file.st_ino, .heard = wire_clock_ms()}
               : (struct socket){.fd = -1};
}

static bool is_there(const struct socket *socket) {
    struct stat file;
    return socket->fd >= 0 && fstat(socket->fd, &file) == 0 && S_ISSOCK(file.st_mode) &&
           file.st_ino == socket->file;
}

/* Closes a socket, unless the program has closed it already. */
static void hang_up(struct socket *socket) {
    wire_hold();
    if (is_there(socket)) {
        wire_close(socket->fd);
    }
    socket->fd = -1;
    wire_let_go();
}

/* --- an answer --- */

/*
 * Exports pages as descriptors, as many as this process has free descriptor numbers for. Returns
 * the count.
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
    struct pool_exported exported;
    int fds[WIRE_PAGES];
    unsigned count = 0;
    if (atomic_load(&is_over) || atomic_load(&shutdown_begun)) {
        return -ESHUTDOWN;
    }
    int r = ipc_export_lend(request->token, request->address, request->first, &exported);
    if (r == 0) {
        count = export_pages(&exported, fds);
        pool_export_end(&exported);
        struct wire_answer answer = {
            WIRE_MAGIC, exported.offset, exported.bytes, exported.pages, count, exported.length, 0};
        r = count > 0 ? wire_send(fd, &answer, sizeof answer, fds, count) : -EMFILE;
    }
    for (unsigned i = 0; i < count; i++) {
        wire_close(fds[i]);
    }
    return r;
}

/* Answers a request of a peer. Returns false if the peer must be disconnected. */
static bool serve(struct socket *peer) {
    /* initialised: gcc may compare its fields before it checks r */
    struct wire_request request = {0};
    unsigned none;
    int r = wire_receive(peer->fd, &request, sizeof request, NULL, &none);
    if (r == -EAGAIN) {
        return true;
    }
    if (r != 0 || request.magic != WIRE_MAGIC || request.unused != 0) {
        return false;
    }
    wire_hold();
    r = send_handles(peer->fd, &request);
    wire_let_go();
    /* too few descriptors, maybe for a short time */
    bool is_short = r == -EMFILE || r == -ETOOMANYREFS;
    /* An answer without pages tells the importer not to retry. */
    if (r != 0 && !is_short) {
        const struct wire_answer no = {.magic = WIRE_MAGIC};
        wire_send(peer->fd, &no, sizeof no, NULL, 0);
    }
    peer->heard = wire_clock_ms();
    peer->has_asked = true;
    return r == 0;
}

/* --- the thread --- */

static struct socket *free_place(void) {
    for (unsigned i = 0; i < PEERS; i++) {
        if (peers[i].fd < 0) {
            return &peers[i];
        }
    }
    return NULL;
}

/* Reopens the listening socket under the same number. The program closed it, but not on purpose. */
static void open_door_again(void) {
    wire_hold();
    door = socket_of(wire_listen(own_name));
    wire_let_go();
    if (door.fd < 0) {
        wire_sleep_ms(TURN_MS);
    }
}

static void let_in(struct socket *slot) {
    wire_hold();
    int fd = wire_accept(door.fd);
    *slot = socket_of(fd);
    wire_let_go();
    if (fd < 0 && fd != -EAGAIN && fd != -EACCES) {
        wire_sleep_ms(TURN_MS); /* no descriptor is free, for example */
    }
}

/*
 * Returns until when a peer may be silent. The time is short while others may wait for its slot. An
 * importer that was disconnected for slowness connects again.
 */
static int64_t deadline_of(const struct socket *peer, bool any_place) {
    return peer->heard + (any_place ? WIRE_PATIENCE_MS : peer->has_asked ? SILENT_MS : FIRST_MS);
}

/*
 * Arguments of a poll. Only open sockets are in the list, since poll accepts at most RLIMIT_NOFILE
 * entries.
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
static void wait_for_any(struct polled *polled, bool any_place) {
    int64_t deadline = INT64_MAX;
    polled->count = 0;
    for (unsigned i = 0; i < PEERS; i++) {
        if (peers[i].fd >= 0) {
            int64_t own = deadline_of(&peers[i], any_place);
            deadline = own < deadline ? own : deadline;
            poll_socket(polled, &peers[i]);
        }
    }
    if (any_place) {
        poll_socket(polled, &door);
        deadline =
            /*
             * A closed listening socket is reopened at once, since no importer can connect until
             * then.
             */
            door.fd < 0 ? 0 : deadline;
    }
    int64_t now = wire_clock_ms(), left = deadline > now ? deadline - now : 0;
    struct timespec limit = {left / 1000, left % 1000 * 1000000};
    struct timespec *until = deadline == INT64_MAX ? NULL : &limit;
    if (syscall(SYS_ppoll, polled->fds, polled->count, until, NULL, 0) < 0) {
        polled->count = 0;
        wire_sleep_ms(TURN_MS);
    }
}

static void look_at_peer(struct socket *peer, bool spoke, bool any_place) {
    if (spoke ? !is_there(peer) || !serve(peer) : wire_clock_ms() >= deadline_of(peer, any_place)) {
        hang_up(peer);
    }
}

static void look_at_door(bool spoke) {
    struct socket *slot = free_place();
    if (!is_there(&door)) {
        open_door_again();
    } else if (spoke && slot) {
        let_in(slot);
    }
}

static void *serve_all(void *unused) {
    for (;;) {
        struct polled polled;
        bool any_place = free_place() != NULL;
        wait_for_any(&polled, any_place);
        for (unsigned i = 0; i < polled.count; i++) {
            bool spoke = polled.fds[i].revents != 0;
            if (polled.of[i] == &door) {
                look_at_door(spoke);
            } else {
                look_at_peer(polled.of[i], spoke, any_place);
            }
        }
    }
    return unused;
}

/* Starts the thread. If memory or descriptors are short, the next handle tries again. Lock held. */
static void start(void) {
    for (unsigned i = 0; i < PEERS; i++) {
        peers[i].fd = -1;
    }
    wire_hold();
    int fd = ipc_export_draw(&own_name, sizeof own_name) ? wire_listen(own_name) : -ENOSYS;
    door = socket_of(fd);
    wire_let_go();
    int error = door.fd >= 0 ? helper_start(serve_all) : -fd;
    atomic_store(&is_open, error == 0);
    if (error != 0) {
        hang_up(&door);
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
        if (!atomic_load(&is_open)) {
            start();
        }
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
    if (atomic_exchange(&is_open, false) || door.fd >= 0) { /* the thread may be starting */
        hang_up(&door);
        for (unsigned i = 0; i < PEERS; i++) {
            hang_up(&peers[i]);
        }
    }
    errno = saved;
}

void ipc_server_finish(void) {
    int saved = errno;
    if (atomic_load(&is_open) && ending_is_own_process() && wire_stop(END_MS)) {
        wire_go_on();
    }
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
        if (how != PROCESS_GOES_ON) {
            ipc_server_finish();
        }
    }
}
