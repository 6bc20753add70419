/*
 * Finds folders of live pages, reads process states from /proc, and removes the pages of dead
 * processes. place.h has the folders and the invariant. There is no lock: another process may add
 * or remove a page at any time. One thread at a time reads a folder (`busy`).
 */
#include "live/place.h"

#include "base/print.h"
#include "base/program.h"
#include "base/user.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STAT_BYTES 1024
#define ENTRIES_BYTES 2048    /* about 50 names */
#define FULL (2 * PLACE_KEEP) /* a folder with more names than this is full */
#define ALIVE_MOST 16         /* live processes for which a sweep reads /proc */
#define SHARED "/dev/shm"
#define SPARE_READS 256 /* reads of about 50 names each in SHARED, to find spare folders */

/* Numbers of the fields of /proc/PID/stat, from proc(5). */
enum { STAT_STATE = 3, STAT_THREADS = 20, STAT_START = 22, STAT_STACK = 28 };

/* --- names in a folder --- */

/* Layout of linux_dirent64, as the kernel writes it. */
struct entry {
    uint64_t inode;
    int64_t next;
    uint16_t length;
    uint8_t type;
    char name[];
};

/* Position in a folder. Only `folder` is set before the first read. */
struct listing {
    int folder;
    unsigned reads; /* reads so far */
    long bytes, at; /* length of `entries`, offset of the next one */
    _Alignas(struct entry) char entries[ENTRIES_BYTES];
};

/*
 * The listing of the only thread that reads a folder, and a flag that this thread sets. Static,
 * because a thread of the program may have the smallest stack, of 16 KiB. Other threads do not
 * wait. place_open_spare() then makes one more spare folder; the library calls it once in a
 * process.
 */
static struct listing listing;
static atomic_flag busy = ATOMIC_FLAG_INIT;

/** Begins to read the folder. Returns false if another thread reads one. */
static bool begin_listing(int folder) {
    if (atomic_flag_test_and_set(&busy))
        return false;
    listing = (struct listing){.folder = folder};
    return true;
}

static void end_listing(void) {
    atomic_flag_clear(&busy);
}

/** Returns the next name, valid until the next call, or NULL after the last one. */
static const char *next_name(void) {
    if (listing.at >= listing.bytes) {
        if (listing.reads++ == 0)
            lseek(listing.folder, 0, SEEK_SET);
        listing.at = 0;
        listing.bytes = syscall(SYS_getdents64, listing.folder, listing.entries, ENTRIES_BYTES);
        if (listing.bytes <= 0)
            return NULL;
    }
    const struct entry *entry = (const struct entry *)(listing.entries + listing.at);
    listing.at += entry->length;
    return entry->name;
}

/* --- identity of a process --- */

/**
 * Returns the text of /proc/PID/stat from field `number` on, or NULL. Counts from the last bracket:
 * field 2, the name of the program in brackets, may contain spaces and brackets.
 */
static const char *stat_field(const char *text, int number) {
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < number; field++)
        at = strchr(at + 1, ' ');
    return at ? at + (*at == ' ') : NULL;
}

/** Reads /proc/PID/stat. Returns false if the process is gone or hidden. */
static bool read_stat(int pid, char text[STAT_BYTES]) {
    char path[32];
    struct print out;
    print_init(&out, -1, path, sizeof path);
    print_str(&out, "/proc/");
    print_i64(&out, pid);
    print_str(&out, "/stat");
    size_t length = program_read_file(print_end(&out), text, STAT_BYTES - 1);
    text[length] = '\0';
    return length > 0;
}

static uint64_t stat_number(const char *text, int field) {
    const char *at = stat_field(text, field);
    return at ? strtoull(at, NULL, 10) : 0;
}

struct live_identity place_self(void) {
    struct live_identity self = {.pid = getpid()};
    char text[STAT_BYTES];
    struct stat namespace;
    if (read_stat(self.pid, text))
        self.start = stat_number(text, STAT_START);
    if (stat("/proc/self/ns/pid", &namespace) == 0)
        self.pid_namespace = namespace.st_ino;
    return self;
}

uint64_t place_stack(int pid) {
    char text[STAT_BYTES];
    uint64_t stack = read_stat(pid, text) ? stat_number(text, STAT_STACK) : 0;
    return stack > 1 ? stack : 0; /* 0 or 1 if the kernel hides the address */
}

bool place_is_stopped(int pid) {
    char text[STAT_BYTES];
    const char *state = read_stat(pid, text) ? stat_field(text, STAT_STATE) : NULL;
    return state && (*state == 'T' || *state == 't');
}

enum place_life place_life(const struct live_identity *who, uint64_t own_namespace) {
    char text[STAT_BYTES];
    if (who->pid_namespace != own_namespace)
        return PLACE_ELSEWHERE;
    if (!read_stat(who->pid, text))
        return kill(who->pid, 0) == 0 || errno == EPERM ? PLACE_ALIVE : PLACE_DEAD;
    const char *state = stat_field(text, STAT_STATE);
    /* The first thread may have ended before the others. */
    bool ended = state && (*state == 'Z' || *state == 'X') && stat_number(text, STAT_THREADS) <= 1;
    bool other = who->start != 0 && who->start != stat_number(text, STAT_START);
    return ended || other ? PLACE_DEAD : PLACE_ALIVE;
}

/* --- folders and files of pages --- */

static long open_folder(const char *path) {
    return syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool is_own_folder(const struct stat *folder) {
    return S_ISDIR(folder->st_mode) && user_is_own(folder->st_uid) && !(folder->st_mode & 077);
}

/**
 * Returns whether $XDG_RUNTIME_DIR may be used: this user's folder, in which nobody else can write.
 * `sudo -E` and `su` may leave that of another user, who could then replace the folder of pages.
 */
static bool is_runtime_folder(const char *path) {
    struct stat folder;
    return path && *path == '/' && stat(path, &folder) == 0 && S_ISDIR(folder.st_mode) &&
           user_is_own(folder.st_uid) && !(folder.st_mode & 022);
}

static void print_shared(struct print *out) {
    print_str(out, SHARED "/gpucache-");
    print_u64(out, geteuid());
}

/**
 * Returns the name of the spare folder of this user that has `before` others before it in SHARED,
 * or NULL. Gives up after SPARE_READS reads: other users can put any number of files into SHARED.
 * Call between begin_listing() and end_listing().
 */
static const char *spare_name(unsigned before) {
    char prefix[PLACE_PATH];
    struct print out;
    const char *name = NULL;
    bool found = false;
    print_init(&out, -1, prefix, sizeof prefix);
    print_shared(&out);
    print_char(&out, '-');
    const char *begin = print_end(&out) + strlen(SHARED "/");
    while (!found && listing.reads < SPARE_READS && (name = next_name())) {
        struct stat folder;
        found = strncmp(name, begin, strlen(begin)) == 0 &&
                fstatat(listing.folder, name, &folder, AT_SYMLINK_NOFOLLOW) == 0 &&
                is_own_folder(&folder) && before-- == 0;
    }
    return found ? name : NULL;
}

/** Writes the path of the spare folder with `before` others before it. False: there is none. */
static bool find_spare(unsigned before, char path[PLACE_PATH]) {
    struct print out;
    int shared = (int)open_folder(SHARED);
    *path = '\0';
    if (shared < 0)
        return false;
    if (begin_listing(shared)) {
        const char *name = spare_name(before);
        if (name) {
            print_init(&out, -1, path, PLACE_PATH);
            print_str(&out, SHARED "/");
            print_str(&out, name);
            print_end(&out);
        }
        end_listing();
    }
    syscall(SYS_close, shared);
    return *path != '\0';
}

bool place_folder(unsigned which, char path[PLACE_PATH]) {
    struct print out;
    if (which >= PLACE_SPARE)
        return find_spare(which - PLACE_SPARE, path);
    const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
    print_init(&out, -1, path, PLACE_PATH);
    if (which == 0 && is_runtime_folder(runtime)) {
        print_str(&out, runtime);
    } else if (which == 1) {
        print_shared(&out);
    } else if (which == 2) {
        print_str(&out, "/run/user/");
        print_u64(&out, geteuid());
        if (runtime && strcmp(print_end(&out), runtime) == 0)
            return false;
    }
    if (which != 1 && out.used > 0)
        print_str(&out, "/gpucache");
    print_end(&out);
    return out.error == 0 && out.used > 0 && out.used < PLACE_PATH - 1;
}

int place_open(const char *path, bool make) {
    long fd = open_folder(path);
    if (fd < 0 && errno == ENOENT && make) {
        bool made = mkdir(path, 0700) == 0; /* if not, another process may just have made it */
        fd = open_folder(path);
        /* An umask may have removed even the user's own rights. */
        if (fd < 0 && errno == EACCES && made && chmod(path, 0700) == 0)
            fd = open_folder(path);
    }
    if (fd < 0)
        return -errno;
    struct stat folder;
    if (fstat((int)fd, &folder) != 0 || !is_own_folder(&folder)) {
        syscall(SYS_close, fd);
        return -EPERM;
    }
    return (int)fd;
}

int place_open_spare(char path[PLACE_PATH]) {
    struct print out;
    uint64_t number;
    if (find_spare(0, path))
        return place_open(path, false);
    if (syscall(SYS_getrandom, &number, sizeof number, GRND_NONBLOCK) != (long)sizeof number)
        return -ENOSYS;
    print_init(&out, -1, path, PLACE_PATH);
    print_shared(&out);
    print_char(&out, '-');
    print_hex(&out, number);
    print_end(&out);
    int folder = place_open(path, true);
    if (folder < 0)
        rmdir(path); /* made, and then not opened */
    return folder;
}

void place_name(const struct live_identity *who, char name[PLACE_NAME]) {
    struct print out;
    print_init(&out, -1, name, PLACE_NAME);
    print_i64(&out, who->pid);
    print_char(&out, '-');
    print_u64(&out, who->start);
    print_char(&out, '-');
    print_u64(&out, who->pid_namespace);
    print_end(&out);
}

bool place_parse(const char *name, struct live_identity *who) {
    char *end, again[PLACE_NAME];
    *who = (struct live_identity){.pid = (int32_t)strtol(name, &end, 10)};
    if (*end != '-' || who->pid <= 0)
        return false;
    who->start = strtoull(end + 1, &end, 10);
    if (*end != '-')
        return false;
    who->pid_namespace = strtoull(end + 1, &end, 10);
    place_name(who, again);
    return strcmp(name, again) == 0;
}

/* --- removing pages of dead processes --- */

struct dead {
    int64_t changed_ns;
    char name[PLACE_NAME];
};

struct sweep {
    int folder;
    unsigned alive; /* processes found alive; /proc is read for at most ALIVE_MOST of them */
    uint64_t own_namespace, silent_s;
    unsigned keep, kept, removed;
    struct dead newest[PLACE_KEEP]; /* the `kept` newest pages of dead processes, unsorted */
};

static void remove_page(struct sweep *sweep, const char *name) {
    sweep->removed += unlinkat(sweep->folder, name, 0) == 0;
}

/**
 * Keeps a dead process's page among the newest ones. If `keep` pages are kept already, the oldest
 * is removed.
 */
static void add_dead(struct sweep *sweep, const struct dead *dead) {
    if (sweep->kept < sweep->keep) {
        sweep->newest[sweep->kept++] = *dead;
        return;
    }
    unsigned oldest = 0;
    for (unsigned i = 1; i < sweep->kept; i++)
        if (sweep->newest[i].changed_ns < sweep->newest[oldest].changed_ns)
            oldest = i;
    if (sweep->kept == 0 || dead->changed_ns <= sweep->newest[oldest].changed_ns) {
        remove_page(sweep, dead->name);
    } else {
        remove_page(sweep, sweep->newest[oldest].name);
        sweep->newest[oldest] = *dead;
    }
}

/**
 * Returns whether a process in another PID namespace counts as dead: the statistics in its page are
 * older than `silent_s` seconds. A process that was only stopped loses its page then.
 */
static bool is_silent(const struct sweep *sweep, const char *name) {
    uint64_t refreshed = 0;
    struct timespec now;
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    long fd = syscall(SYS_openat, sweep->folder, name, flags);
    if (fd < 0)
        return false;
    bool read = syscall(SYS_pread64, fd, &refreshed, sizeof refreshed,
                        offsetof(struct live_page, refreshed_ns)) == (long)sizeof refreshed;
    syscall(SYS_close, fd);
    clock_gettime(CLOCK_MONOTONIC, &now);
    return read && refreshed / 1000000000 + sweep->silent_s < (uint64_t)now.tv_sec;
}

/**
 * Returns the state of a process, as place_life() does, at less cost. After ALIVE_MOST live
 * processes, a process counts as alive if any process has its number.
 */
static enum place_life life_in_sweep(struct sweep *sweep, const struct live_identity *who) {
    bool here = who->pid_namespace == sweep->own_namespace;
    if (here && kill(who->pid, 0) != 0 && errno == ESRCH)
        return PLACE_DEAD;
    if (here && sweep->alive >= ALIVE_MOST)
        return PLACE_ALIVE;
    enum place_life life = place_life(who, sweep->own_namespace);
    sweep->alive += life == PLACE_ALIVE;
    return life;
}

/** Adds the page of this name to the dead ones, if its process is dead. */
static void sweep_page(struct sweep *sweep, const char *name) {
    struct live_identity who;
    struct stat file;
    struct dead dead;
    if (!place_parse(name, &who))
        return;
    enum place_life life = life_in_sweep(sweep, &who);
    if (life == PLACE_ALIVE || (life == PLACE_ELSEWHERE && !is_silent(sweep, name)) ||
        fstatat(sweep->folder, name, &file, AT_SYMLINK_NOFOLLOW) != 0)
        return;
    dead.changed_ns = (int64_t)file.st_ctim.tv_sec * 1000000000 + file.st_ctim.tv_nsec;
    strcpy(dead.name, name);
    add_dead(sweep, &dead);
}

bool place_is_full(int folder) {
    unsigned count = 0;
    if (!begin_listing(folder))
        return false;
    while (count <= FULL && next_name())
        count++;
    end_listing();
    return count > FULL;
}

unsigned place_sweep(int folder, unsigned keep, uint64_t silent_s) {
    static struct sweep sweep; /* static as `listing`, and used only between begin and end of it */
    if (!begin_listing(folder))
        return 0;
    sweep = (struct sweep){.folder = folder,
                           .own_namespace = place_self().pid_namespace,
                           .silent_s = silent_s,
                           .keep = keep < PLACE_KEEP ? keep : PLACE_KEEP};
    for (const char *name; (name = next_name());)
        sweep_page(&sweep, name);
    unsigned removed = sweep.removed;
    end_listing();
    return removed;
}
