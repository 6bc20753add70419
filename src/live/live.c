/*
 * Makes the file of the live page, publishes statistics, takes the orders of `gpucache ctl`, and
 * records the end of the process. The thread that has set `refreshing` publishes; there is no lock.
 * Invariant: readers see only complete copies of statistics (page.h).
 *
 * Other processes can write to the page: the code keeps private copies of the fields it relies on.
 */
#include "live/live.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/print.h"
#include "base/program.h"
#include "base/user.h"
#include "base/write.h"
#include "live/holders.h"
#include "live/peaks.h"
#include "live/place.h"
#include "options/options.h"
#include "process/guard.h"
#include "report/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * live_refresh() counts the sizes of live blocks if a reader or the caller asks. Without a request
 * it counts only if all devices together have at most SIZES_MOST live blocks. Such counts take at
 * most one part in COST_SHARE of the time.
 */
#define COST_SHARE 1000
#define SIZES_MOST 100000
#define PAGE_UNIT 4096 /* the bytes of a page are a multiple of this */

static char path[PLACE_PATH + PLACE_NAME];        /* of the page; set before live_page */
static size_t mapped;                             /* bytes of the page */
static uint32_t slots;                            /* private copy of page.slots */
static pid_t owner;                               /* the process that made the page */
static atomic_flag refreshing = ATOMIC_FLAG_INIT; /* no lock: live_end() runs in signal handlers */
static uint64_t sizes_due_ns;                     /* used only by the holder of `refreshing` */
static struct live_device fresh;                  /* used only by the holder of `refreshing` */
static _Atomic uint32_t answered;                 /* private copy of page.answered */
static _Atomic int driver_version;

/*
 * Returns the page of this process, or NULL if there is none. A child has no page. Process numbers
 * are compared, because a child may have run no fork handler.
 */
static struct live_page *own_page(void) {
    struct live_page *page = atomic_load(&live_page);
    return page && owner == (pid_t)syscall(SYS_getpid) ? page : NULL;
}

/* --- making the page --- */

/** Creates a file of `bytes` bytes and maps it. Returns NULL if a call fails. */
static struct live_page *make_file(int folder, const char *name, size_t bytes) {
    const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = write_open(folder, name, flags, 0600);
    if (fd == -EEXIST && unlinkat(folder, name, 0) == 0)
        fd = write_open(folder, name, flags, 0600); /* replaces a page from before exec */
    if (fd < 0)
        return NULL;
    struct stat file;
    /* An umask may have removed the user's own rights, and not every file system keeps modes. */
    bool usable = fchmod(fd, 0600) == 0 && fstat(fd, &file) == 0 &&
                  (file.st_mode & 07777) == 0600 && write_reserve(fd, 0, bytes) == 0;
    void *memory = usable
                       ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0)
                       : MAP_FAILED;
    if (memory == MAP_FAILED)
        unlinkat(folder, name, 0);
    else
        guard_mapping(memory, bytes, NULL);
    syscall(SYS_close, fd);
    return memory == MAP_FAILED ? NULL : memory;
}

static void set_path(const char *folder, const char *name) {
    struct print out;
    print_init(&out, -1, path, sizeof path);
    print_str(&out, folder);
    print_char(&out, '/');
    print_str(&out, name);
    print_end(&out);
}

/** Makes the page in the folder that is open as `fd`. Removes pages of dead processes if the folder
 * is full. Returns NULL if the file cannot be made. */
static struct live_page *make_in(int fd, const char *folder, const char *name, size_t bytes) {
    set_path(folder, name);
    struct live_page *page = make_file(fd, name, bytes);
    if (place_is_full(fd))
        place_sweep(fd, PLACE_KEEP, PLACE_SILENT_S);
    return page;
}

/** Logs why a folder cannot be used. `instead`: the folder that is used; NULL: none. */
static void log_unusable(const char *folder, int error, const char *instead) {
    struct stat status;
    const char *then = instead ? "the live page lies in " : "there is no live page";
    instead = instead ? instead : "";
    if (lstat(folder, &status) == 0 && !user_is_own(status.st_uid))
        log_info("%s belongs to user %u: %s%s", folder, (unsigned)status.st_uid, then, instead);
    else
        log_info("%s cannot be used: %s: %s%s", folder,
                 error == -EPERM ? "others may enter it" : file_error(error), then, instead);
}

/**
 * Makes the page in the first folder that can be used. If the last folder is not a folder of this
 * user alone, tries a spare folder (place.h). Returns NULL if no folder can be used.
 */
static struct live_page *make_somewhere(const struct live_identity *self, size_t bytes) {
    struct live_page *page = NULL;
    char folder[PLACE_PATH], spare[PLACE_PATH], name[PLACE_NAME];
    int fd = -ENOENT;
    place_name(self, name);
    for (unsigned i = 0; i < PLACE_FOLDERS && !page; i++) {
        fd = place_folder(i, folder) ? place_open(folder, true) : -ENOENT;
        if (fd >= 0) {
            page = make_in(fd, folder, name, bytes);
            syscall(SYS_close, fd);
        }
    }
    if (!page && (fd == -EPERM || fd == -EACCES || fd == -ENOTDIR || fd == -ELOOP)) {
        int other = place_open_spare(spare);
        page = other >= 0 ? make_in(other, spare, name, bytes) : NULL;
        if (other >= 0)
            syscall(SYS_close, other);
        log_unusable(folder, fd, page ? spare : NULL);
    }
    return page;
}

static void write_head(struct live_page *page, const struct live_identity *self, unsigned devices) {
    const struct program *of = program();
    uint64_t now = clock_ns(CLOCK_MONOTONIC);
    page->page_bytes = (uint32_t)mapped;
    page->slot_bytes = sizeof(struct live_slot);
    strncpy(page->version, GPUCACHE_VERSION, sizeof page->version - 1);
    page->who = *self;
    page->stack = place_stack(self->pid);
    page->started_ns = now - program_uptime_ns();
    page->real_ns = program_time_ns() - now;
    page->rank = of->rank;
    memcpy(page->name, of->name, sizeof of->name);
    memcpy(page->host, of->host, sizeof of->host);
    page->command_bytes = program_copy_command(page->command, sizeof page->command);
    page->slots = slots = devices;
    atomic_store(&page->driver_version, atomic_load(&driver_version));
    atomic_store(&page->magic, LIVE_MAGIC);
}

void live_start(unsigned devices) {
    int saved_errno = errno;
    struct live_identity self;
    if (!options()->live || devices == 0 || devices > STATS_MAX_DEVICES || owner != 0)
        return;
    owner = (pid_t)syscall(SYS_getpid);
    self = place_self();
    mapped = sizeof(struct live_page) + devices * sizeof(struct live_slot);
    mapped = (mapped + PAGE_UNIT - 1) & ~(size_t)(PAGE_UNIT - 1);
    struct live_page *page = make_somewhere(&self, mapped);
    if (page) {
        write_head(page, &self, devices);
        atomic_store_explicit(&live_page, page, memory_order_release);
        live_refresh(false);
    }
    errno = saved_errno;
}

void live_set_driver_version(int version) {
    struct live_page *page = atomic_load(&live_page);
    atomic_store(&driver_version, version);
    if (page)
        atomic_store(&page->driver_version, version);
}

/* --- publishing the statistics --- */

static void copy_text(char *to, size_t size, const char *from) {
    memset(to, 0, size);
    strncpy(to, from ? from : "none", size - 1);
}

/**
 * Records the number of each ring's newest event, before the statistics are read. The statistics
 * include these events. Times cannot tell which are included: events of blocks have the times of a
 * coarse clock.
 */
static void record_events(const struct live_page *page) {
    for (unsigned i = 0; i < FLIGHT_RINGS; i++)
        fresh.events[i] = atomic_load_explicit(&page->rings[i].last, memory_order_acquire);
}

/**
 * Reads the statistics of one device into `fresh`, copies `fresh` to the copy that is not
 * published, and publishes that copy. Without `sizes`, keeps the last count of live sizes.
 */
static void refresh_device(struct live_page *page, int ordinal, bool sizes, uint64_t now) {
    struct live_slot *slot = &page->devices[ordinal];
    uint64_t published = atomic_load(&slot->published);
    const struct live_device *last = &slot->copies[published % 2];
    record_events(page);
    if (!(sizes ? stats_read(ordinal, &fresh.stats, &fresh.map)
                : stats_read_counters(ordinal, &fresh.stats)))
        return;
    peaks_note(ordinal, &fresh.stats);
    if (sizes)
        live_copy_holders(&fresh.holders, ordinal);
    else
        memcpy(&fresh.holders, &last->holders, sizeof fresh.holders);
    fresh.read_ns = fresh.sizes_ns = now;
    fresh.sizes_moves = fresh.stats.allocations.total + fresh.stats.allocations.freed;
    if (!sizes) {
        memcpy(fresh.stats.live, last->stats.live, sizeof fresh.stats.live);
        fresh.stats.live_groups = last->stats.live_groups;
        fresh.sizes_ns = last->sizes_ns;
        fresh.sizes_moves = last->sizes_moves;
        memcpy(&fresh.map, &last->map, sizeof fresh.map);
    }
    copy_text(fresh.backend, sizeof fresh.backend, fresh.stats.backend);
    copy_text(fresh.reuse, sizeof fresh.reuse, fresh.stats.reuse);
    copy_text(fresh.reason, sizeof fresh.reason, fresh.stats.backend_reason);
    copy_text(fresh.limit_source, sizeof fresh.limit_source, fresh.stats.limit_source);
    fresh.stats.backend = fresh.stats.backend_reason = fresh.stats.reuse = NULL;
    fresh.stats.limit_source = NULL;
    /* A reader that sees new bytes in this copy must also see that `published` names the other. */
    atomic_thread_fence(memory_order_release);
    memcpy(&slot->copies[(published + 1) % 2], &fresh, sizeof fresh);
    atomic_store_explicit(&slot->published, published + 1, memory_order_release);
}

/* Returns whether the sizes of live blocks must be counted, and clears the request of a reader. */
static bool sizes_due(struct live_page *page, uint64_t now) {
    uint64_t blocks = 0;
    for (uint32_t i = 0; i < slots; i++) {
        uint64_t published = atomic_load(&page->devices[i].published);
        blocks += page->devices[i].copies[published % 2].stats.allocations.current;
    }
    return atomic_exchange(&page->sizes_wanted, 0) != 0 ||
           (now >= sizes_due_ns && blocks <= SIZES_MOST);
}

/* Updates all devices, then answers the questions that were asked before the update began. The
 * caller has set `refreshing`. */
static void refresh(struct live_page *page, bool sizes) {
    uint32_t asked = atomic_load(&page->asked);
    uint64_t begun = clock_ns(CLOCK_MONOTONIC), cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    sizes |= sizes_due(page, begun);
    for (uint32_t i = 0; i < slots; i++)
        refresh_device(page, (int)i, sizes, begun);
    if (sizes)
        sizes_due_ns = begun + (clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu) * COST_SHARE;
    atomic_store(&page->refreshed_ns, begun);
    atomic_store(&page->host_bytes, stats_host_bytes());
    atomic_store(&answered, asked);
    atomic_store_explicit(&page->answered, asked, memory_order_release);
}

void live_refresh(bool sizes) {
    int saved_errno = errno;
    struct live_page *page = own_page();
    if (page && !atomic_flag_test_and_set_explicit(&refreshing, memory_order_acquire)) {
        refresh(page, sizes);
        atomic_flag_clear_explicit(&refreshing, memory_order_release);
    }
    errno = saved_errno;
}

void live_wait(uint64_t ns) {
    int saved_errno = errno;
    struct live_page *page = own_page();
    const struct timespec time = clock_from_ns(ns);
    long r =
        page ? syscall(SYS_futex, &page->asked, FUTEX_WAIT, atomic_load(&answered), &time, NULL, 0)
             : -1;
    /* The futex cannot wait: there is no page, or somebody has truncated its file. */
    if (r != 0 && (!page || (errno != EAGAIN && errno != EINTR && errno != ETIMEDOUT)))
        sleep_ns(ns);
    errno = saved_errno;
}

/* --- orders --- */

enum live_order live_next_order(void) {
    struct live_page *page = own_page();
    return page ? (enum live_order)atomic_load(&page->order) : (enum live_order)0;
}

void live_hold_up(enum live_hold why) {
    struct live_page *page = own_page();
    if (page)
        atomic_store(&page->order_held_up, why);
}

bool live_take_order(struct live_request *wish) {
    struct live_page *page = own_page();
    uint32_t order = page && atomic_load(&page->order) ? atomic_exchange(&page->order, 0) : 0;
    if (order == 0)
        return false;
    uint64_t device = atomic_load(&page->order_device);
    *wish = (struct live_request){.number = atomic_load(&page->order_number),
                                  .value = atomic_load(&page->order_value),
                                  .order = (enum live_order)order,
                                  .device = device < STATS_MAX_DEVICES ? (int)device : -1};
    return true;
}

void live_order_done(const struct live_request *wish, int result) {
    struct live_page *page = own_page();
    if (page) {
        atomic_store(&page->order_result, result);
        atomic_store_explicit(&page->order_done, wish->number, memory_order_release);
    }
}

/* --- end of the process --- */

void live_forked(void) {
    atomic_store(&live_page, NULL);
}

static void remove_page(struct live_page *page) {
    int saved_errno = errno;
    atomic_store(&page->ending, LIVE_EXIT);
    unlink(path);
    errno = saved_errno;
}

void live_end(enum process_end how, int signal) {
    struct live_page *page = own_page();
    if (!page)
        return;
    switch (how) {
    case PROCESS_EXITS:
        remove_page(page);
        break;
    case PROCESS_EXECS:
        atomic_store(&page->ending, LIVE_EXEC);
        break;
    case PROCESS_GOES_ON:
        atomic_store(&page->ending, LIVE_RUNNING);
        break;
    case PROCESS_DIES:
        atomic_store(&page->signal, (uint32_t)signal);
        atomic_store(&page->ending, LIVE_SIGNAL);
        live_refresh(true);
        break;
    }
}
