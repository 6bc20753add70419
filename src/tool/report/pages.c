/* Opens, checks and copies live pages (pages.h). `opened` lists them for the handler of SIGBUS. */
#include "tool/report/pages.h"

#include "base/clock.h"
#include "live/place.h"
#include "tool/common/tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define POLL_NS 1000000       /* between two polls for an answer */
#define SILENT_NS 60000000000 /* after it, a process of another container counts as silent */

static uint64_t own_namespace;

/* ---- one page ---- */

void page_update_state(struct page *page) {
    enum place_life life = place_life(&page->who, own_namespace);
    uint32_t ending = atomic_load(&page->live->ending);
    uint64_t stack = life == PLACE_ALIVE ? place_stack(page->pid) : 0;
    bool other_program = stack != 0 && page->stack != 0 && stack != page->stack;
    page->signal = (int)atomic_load(&page->live->signal);
    if (ending == LIVE_EXIT || ending == LIVE_EXEC || other_program)
        page->state = PAGE_ENDED;
    else if (life == PLACE_ELSEWHERE)
        page->state = page_age_ns(page) < SILENT_NS ? PAGE_ELSEWHERE : PAGE_SILENT;
    else if (life == PLACE_ALIVE)
        page->state = PAGE_RUNNING;
    else
        page->state = ending == LIVE_SIGNAL ? PAGE_SIGNALLED : PAGE_KILLED;
}

static void copy_program(struct page *page, const struct live_page *head) {
    struct program *program = &page->program;
    size_t bytes = head->command_bytes < LIVE_COMMAND ? head->command_bytes : LIVE_COMMAND;
    program->rank = head->rank;
    memcpy(program->name, head->name, sizeof program->name - 1);
    memcpy(program->host, head->host, sizeof program->host - 1);
    memcpy(page->command, head->command, bytes);
    for (size_t at = 0; at < bytes && program->argument_count < PROGRAM_ARGUMENTS;
         at += strlen(page->command + at) + 1)
        program->arguments[program->argument_count++] = page->command + at;
}

#define HEAD_BYTES offsetof(struct live_page, asked)

/** Copies the head of a page. Returns whether it is a page of this version. Reads the file and not
 * the mapping, so that later code uses only the copy. */
static bool read_head(int fd, struct live_page *head, bool *other_version) {
    memset(head, 0, HEAD_BYTES);
    ssize_t got = pread(fd, head, HEAD_BYTES, 0);
    uint64_t magic = atomic_load(&head->magic);
    if (got < (ssize_t)offsetof(struct live_page, who) || (magic ^ LIVE_MAGIC) & LIVE_MAGIC_MASK)
        return false;
    *other_version = magic != LIVE_MAGIC || head->slot_bytes != sizeof(struct live_slot) ||
                     strncmp(head->version, GPUCACHE_VERSION, sizeof head->version) != 0;
    return !*other_version;
}

static bool is_whole(const struct live_page *head, size_t bytes) {
    return bytes >= sizeof *head && head->page_bytes == bytes && head->slots <= STATS_MAX_DEVICES &&
           sizeof *head + head->slots * sizeof(struct live_slot) <= bytes;
}

/* ---- truncated files ---- */

static struct page *opened;

/** Handles SIGBUS: maps zeros, which mean unknown, where the file of a page was truncated. */
static void fill_hole(int number, siginfo_t *info, void *context) {
    uintptr_t bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t at = (uintptr_t)info->si_addr & ~(bytes - 1);
    (void)context;
    for (const struct page *page = opened; page; page = page->next)
        if (at - (uintptr_t)page->live < page->bytes &&
            mmap((void *)at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                 -1, 0) != MAP_FAILED)
            return;
    (void)number;
    abort(); /* a handler of SIGABRT restores the terminal */
}

static void link_page(struct page *page) {
    const struct sigaction action = {.sa_sigaction = fill_hole, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
    page->next = opened;
    opened = page;
}

static void close_page(struct page *page) {
    struct page **at = &opened;
    while (*at != page)
        at = &(*at)->next;
    *at = page->next;
    munmap(page->live, page->bytes);
    close(page->fd);
    free(page);
}

static void copy_head(struct page *page, const struct live_page *head) {
    page->who = head->who;
    page->pid = head->who.pid;
    page->namespace = head->who.pid_namespace == own_namespace ? 0 : head->who.pid_namespace;
    page->devices = head->slots;
    page->stack = head->stack;
    page->started_ns = head->started_ns;
    page->real_ns = head->real_ns;
    memcpy(page->version, head->version, sizeof head->version);
    copy_program(page, head);
}

/** Opens and maps one page. Returns NULL if the file is no valid page of this version. */
static struct page *open_page(int folder, const char *name, bool *other_version) {
    static struct live_page head; /* only HEAD_BYTES are used */
    struct stat file;
    int fd = openat(folder, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return NULL;
    bool ours = fstat(fd, &file) == 0 && S_ISREG(file.st_mode) &&
                read_head(fd, &head, other_version) && is_whole(&head, (size_t)file.st_size);
    size_t bytes = ours ? (size_t)file.st_size : 0;
    void *memory = ours ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        close(fd);
        return NULL;
    }
    struct page *page = checked(calloc(1, sizeof *page));
    page->live = memory;
    page->bytes = bytes;
    page->fd = fd;
    link_page(page);
    copy_head(page, &head);
    page_update_state(page);
    return page;
}

/* ---- all pages ---- */

bool pages_have_other(const struct pages *pages, int pid) {
    for (unsigned i = 0; i < pages->other_versions; i++)
        if (pages->others[i] == pid)
            return true;
    return false;
}

/** Opens all pages in a folder, except those of ended processes. Closes `folder`. */
static void open_folder(struct pages *pages, int folder, int pid) {
    DIR *entries = fdopendir(folder);
    struct dirent *entry;
    while (entries && (entry = readdir(entries))) {
        struct live_identity who;
        bool other_version = false;
        if (!place_parse(entry->d_name, &who) || (pid != 0 && who.pid != pid))
            continue;
        struct page *page = open_page(folder, entry->d_name, &other_version);
        if (other_version)
            *APPEND(pages->others, pages->other_versions) = who.pid;
        if (page && page->state != PAGE_ENDED)
            *APPEND(pages->list, pages->count) = page;
        else if (page)
            close_page(page);
    }
    if (entries)
        closedir(entries);
}

static int by_start(const void *a, const void *b) {
    uint64_t first = (*(struct page *const *)a)->started_ns;
    uint64_t second = (*(struct page *const *)b)->started_ns;
    return (first > second) - (first < second);
}

/* Returns whether `folder` is one of the `count` folders in `known`. If not, adds it there. Two
 * paths name one folder if $XDG_RUNTIME_DIR is a link, or ends with a slash. */
static bool is_known(int folder, struct stat *known, unsigned *count) {
    struct stat *now = &known[*count];
    if (fstat(folder, now) != 0)
        return false;
    for (unsigned i = 0; i < *count; i++)
        if (known[i].st_dev == now->st_dev && known[i].st_ino == now->st_ino)
            return true;
    ++*count;
    return false;
}

void pages_open(struct pages *pages, int pid) {
    char path[PLACE_PATH];
    struct stat known[PLACE_READ];
    unsigned known_count = 0;
    *pages = (struct pages){0};
    own_namespace = place_self().pid_namespace;
    for (unsigned i = 0; i < PLACE_READ; i++) {
        int folder = place_folder(i, path) ? place_open(path, false) : -ENOENT;
        if (folder >= 0 && is_known(folder, known, &known_count)) {
            close(folder);
            folder = -EEXIST;
        }
        if (folder < 0)
            continue;
        place_sweep(folder, PLACE_KEEP, PLACE_SILENT_S);
        lseek(folder, 0, SEEK_SET);
        open_folder(pages, folder, pid);
    }
    if (pages->count > 1)
        qsort(pages->list, pages->count, sizeof(struct page *), by_start);
}

bool pages_refused(unsigned which, char text[PAGES_REFUSED]) {
    char path[PLACE_PATH];
    struct stat file;
    int folder = place_folder(which, path) ? place_open(path, false) : -ENOENT;
    if (folder >= 0)
        close(folder);
    if (folder >= 0 || lstat(path, &file) != 0)
        return false;
    if (file.st_uid != geteuid())
        snprintf(text, PAGES_REFUSED, "%s belongs to user %u: no live page of yours can lie there",
                 path, (unsigned)file.st_uid);
    else if (!S_ISDIR(file.st_mode))
        snprintf(text, PAGES_REFUSED, "%s is no folder: no live page can lie there", path);
    else if ((file.st_mode & 07777) == 0700)
        return false; /* another error prevents opening the page, and may be temporary */
    else
        snprintf(text, PAGES_REFUSED,
                 "%s has mode %04o instead of 0700: no live page can lie there", path,
                 (unsigned)file.st_mode & 07777);
    return true;
}

void pages_print_refused(void) {
    char text[PAGES_REFUSED];
    for (unsigned i = 0; i < PLACE_READ; i++)
        if (pages_refused(i, text))
            tool_say("%s", text);
}

void pages_close(struct pages *pages) {
    for (size_t i = 0; i < pages->count; i++)
        close_page(pages->list[i]);
    free(pages->list);
    free(pages->others);
    *pages = (struct pages){0};
}

struct page *pages_of(struct pages *pages, int pid) {
    struct page *newest = NULL;
    for (size_t i = 0; i < pages->count; i++) {
        struct page *page = pages->list[i];
        if (page->pid == pid && (!newest || newest->state != PAGE_RUNNING))
            newest = page;
    }
    return newest;
}

bool pages_are_ambiguous(const struct pages *pages, const struct page *page) {
    unsigned same = 0;
    for (size_t i = 0; i < pages->count; i++)
        same += pages->list[i]->pid == page->pid && pages->list[i]->state == PAGE_ELSEWHERE;
    return page->state != PAGE_RUNNING && same > 1;
}

void page_ask(struct page *page) {
    page->asked = atomic_fetch_add(&page->live->asked, 1) + 1;
    syscall(SYS_futex, &page->live->asked, FUTEX_WAKE, 1, NULL, NULL, 0);
}

bool page_has_answered(const struct page *page) {
    return live_is_answered(atomic_load_explicit(&page->live->answered, memory_order_acquire),
                            page->asked);
}

void pages_ask(struct pages *pages, bool sizes, unsigned timeout_ms) {
    const struct timespec turn = {0, POLL_NS};
    bool all = true;
    for (size_t i = 0; i < pages->count; i++) {
        struct page *page = pages->list[i];
        if (sizes)
            atomic_store(&page->live->sizes_wanted, 1);
        page_ask(page);
    }
    uint64_t end = clock_ns(CLOCK_MONOTONIC) + (uint64_t)timeout_ms * 1000000;
    do {
        all = true;
        for (size_t i = 0; i < pages->count; i++) {
            struct page *page = pages->list[i];
            page->fresh = page_has_answered(page);
            all &= page->fresh || !page_is_running(page);
        }
    } while (!all && clock_ns(CLOCK_MONOTONIC) < end && nanosleep(&turn, NULL) == 0);
}

/* ---- values ---- */

/** Returns the published copy of a device, valid until the next call. NULL: the process has not
 * used the device. */
static struct live_device *copy_device(const struct page *page, unsigned ordinal) {
    static struct live_device copy;
    if (ordinal >= page->devices)
        return NULL;
    const struct live_slot *slot = &page->live->devices[ordinal];
    for (;;) {
        uint64_t published = atomic_load_explicit(&slot->published, memory_order_acquire);
        if (published == 0)
            return NULL;
        memcpy(&copy, &slot->copies[published % 2], sizeof copy);
        atomic_thread_fence(memory_order_acquire);
        /* The process writes to this copy only after it has published the next one. */
        if (atomic_load_explicit(&slot->published, memory_order_relaxed) == published)
            return &copy;
    }
}

bool page_device(const struct page *page, unsigned ordinal, struct stats_device *stats,
                 uint64_t *sizes_age, struct page_moment *moment) {
    static char texts[STATS_MAX_DEVICES][4][sizeof((struct live_device *)0)->reason];
    struct live_device *copy = copy_device(page, ordinal);
    if (!copy)
        return false;
    memcpy(texts[ordinal][0], copy->backend, sizeof copy->backend - 1);
    memcpy(texts[ordinal][1], copy->reuse, sizeof copy->reuse - 1);
    memcpy(texts[ordinal][2], copy->reason, sizeof copy->reason - 1);
    memcpy(texts[ordinal][3], copy->limit_source, sizeof copy->limit_source - 1);
    *stats = copy->stats;
    unsigned char exact; /* in a damaged page neither 0 nor 1 */
    memcpy(&exact, &copy->stats.peaks_exact, sizeof exact);
    stats->peaks_exact = exact != 0;
    stats->backend = texts[ordinal][0];
    stats->reuse = texts[ordinal][1];
    stats->backend_reason = texts[ordinal][2];
    stats->limit_source = stats->limit_bytes != 0 ? texts[ordinal][3] : NULL;
    stats->name[sizeof stats->name - 1] = stats->uuid[sizeof stats->uuid - 1] = '\0';
    if (stats->live_groups > STATS_LIVE_SIZES)
        stats->live_groups = STATS_LIVE_SIZES;
    if (stats->requester_count > STATS_REQUESTERS)
        stats->requester_count = STATS_REQUESTERS;
    for (size_t i = 0; i < stats->requester_count; i++)
        stats->requesters[i].name[STATS_NAME - 1] = '\0';
    bool same = stats->allocations.total + stats->allocations.freed == copy->sizes_moves;
    if (sizes_age)
        *sizes_age = same || copy->sizes_ns == 0 ? 0 : minus_or_zero(copy->read_ns, copy->sizes_ns);
    if (moment) {
        moment->read_ns = copy->read_ns;
        memcpy(moment->events, copy->events, sizeof moment->events);
        moment->map = copy->map;
        moment->map.count =
            copy->map.count < SEGMENT_MAP_PIECES ? copy->map.count : SEGMENT_MAP_PIECES;
    }
    return true;
}

bool page_holders(const struct page *page, unsigned ordinal, struct live_holders *holders) {
    const struct live_device *copy = copy_device(page, ordinal);
    if (!copy || !copy->holders.recorded)
        return false;
    *holders = copy->holders;
    holders->rows = holders->rows < LIVE_HOLDERS ? holders->rows : LIVE_HOLDERS;
    for (unsigned i = 0; i < LIVE_HOLDERS; i++) {
        struct live_holder *row = &holders->row[i];
        row->frames = row->frames < LIVE_FRAMES ? row->frames : LIVE_FRAMES;
        for (unsigned k = 0; k < LIVE_FRAMES; k++) {
            struct live_frame *frame = &row->frame[k];
            frame->function[sizeof frame->function - 1] = frame->file[sizeof frame->file - 1] = 0;
            frame->build_id[sizeof frame->build_id - 1] = 0;
        }
    }
    return true;
}

uint64_t page_age_ns(const struct page *page) {
    return minus_or_zero(clock_ns(CLOCK_MONOTONIC), atomic_load(&page->live->refreshed_ns));
}

uint64_t page_real_ns(const struct page *page, uint64_t moment_ns) {
    return moment_ns + page->real_ns;
}

struct report_process page_process(const struct page *page) {
    uint64_t read_ns = atomic_load(&page->live->refreshed_ns);
    return (struct report_process){.pid = page->pid,
                                   .version = page->version,
                                   .program = &page->program,
                                   .time_ns = page_real_ns(page, read_ns),
                                   .uptime_ns = minus_or_zero(read_ns, page->started_ns)};
}

bool page_is_running(const struct page *page) {
    return page->state == PAGE_RUNNING || page->state == PAGE_ELSEWHERE;
}

const char *page_state_words(const struct page *page) {
    switch (page->state) {
    case PAGE_RUNNING:
        return "running";
    case PAGE_ELSEWHERE:
        return "elsewhere";
    case PAGE_SILENT:
        return "elsewhere, silent";
    case PAGE_KILLED:
        return "killed";
    case PAGE_SIGNALLED:
        return strsignal(page->signal);
    case PAGE_ENDED:
        break;
    }
    return "ended";
}
