/*
 * Live pages as a reader sees them (live/page.h).
 *
 * A page is another process's memory: it changes while it is read, and the process may have been
 * killed in the middle of a write, or may be hostile. So readers copy first, check the copy, and
 * use the copy alone. The head of the page is copied once, when the page is opened.
 */
#ifndef GPUCACHE_TOOL_PAGES_H
#define GPUCACHE_TOOL_PAGES_H

#include "live/page.h"
#include "process/program.h"
#include "report/emitter.h"
#include "stats/stats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum page_state {
    PAGE_RUNNING,
    PAGE_ELSEWHERE, /* in a container whose processes are not seen here, with new figures */
    PAGE_SILENT,    /* there, without any for a while */
    PAGE_KILLED,    /* gone without a last word */
    PAGE_SIGNALLED, /* died of a signal that the library saw */
    PAGE_ENDED,     /* exited, or is another program by now */
};

struct page {
    struct live_page *live; /* mapped for writing: a reader asks there */
    size_t bytes;
    int fd;
    enum page_state state;
    int pid, signal;
    uint64_t namespace; /* in which pid means something; 0: in this process's */
    struct live_identity who;
    unsigned devices; /* slots of the page; the mapping holds that many */
    uint64_t stack, started_ns, real_ns;
    uint32_t asked;
    bool fresh; /* the last question was answered */
    char command[LIVE_COMMAND + 1];
    struct program program; /* points into command */
    char version[17];
    struct page *next; /* of all that are open */
};

struct pages {
    struct page **list;
    size_t count;
    unsigned other_versions; /* pages that this version cannot read, */
    int *others;             /* and whose they are */
};

/** All pages of this user, those of dead processes too, or those of one process; longest running
 * first. */
void pages_open(struct pages *pages, int pid);
void pages_close(struct pages *pages);

/** The page meant by a process number: the running one, else the newest. NULL: there is none. */
struct page *pages_of(struct pages *pages, int pid);

/** Whether that process has a page that this version cannot read. */
bool pages_have_other(const struct pages *pages, int pid);

/** Whether it may mean another page as well: the numbers of other containers are not known here. */
bool pages_are_ambiguous(const struct pages *pages, const struct page *page);

/** Writes why a folder for live pages can hold none of this user, and returns true; false: the
 * folder is missing or usable. `which` as in place_folder(). */
#define PAGES_BARRED 512
bool pages_barred(unsigned which, char text[PAGES_BARRED]);

/** Writes that of all folders to stderr: beside the message that there is no process. */
void pages_say_barred(void);

/** Looks again whether the process is there. */
void page_look(struct page *page);

/** Asks the process for fresh figures, and to look at its order. */
void page_ask(struct page *page);
bool page_has_answered(const struct page *page);

/** Asks all running processes for fresh figures, with the sizes of what is live if wanted, and
 * waits for the answers, but no longer than so many milliseconds. */
void pages_ask(struct pages *pages, bool sizes, unsigned timeout_ms);

/** The moment at which the numbers of a device were read. */
struct page_moment {
    uint64_t read_ns;              /* when they were read, by the page's clock */
    uint64_t events[FLIGHT_RINGS]; /* the newest event of each ring that they contain */
    struct segment_map map;        /* of its pool, as old as stats->live */
};

/** Copies a device's figures, as of one moment. Returns false if it is not used. *sizes_age: by
 * how much stats->live is older, in nanoseconds; 0: nothing has changed since, or it is not
 * there. Both pointers behind may be NULL. */
bool page_device(const struct page *page, unsigned ordinal, struct stats_device *stats,
                 uint64_t *sizes_age, struct page_moment *moment);
unsigned page_devices(const struct page *page);

/** Nanoseconds since its figures were read. */
uint64_t page_age_ns(const struct page *page);

/** Since 1970, of a moment of the page's clock. */
uint64_t page_real_ns(const struct page *page, uint64_t moment_ns);

/** Whose report one from this page is. */
struct report_process page_process(const struct page *page);

struct page_event {
    uint64_t number, time_ns, address, bytes, duration_ns;
    uint64_t coarse_ns; /* of a large block: events with different ones came in their order */
    uint32_t thread;
    unsigned kind, device, ring;
};

/** The flight recorder, oldest first; the caller frees it. */
struct page_event *page_events(const struct page *page, size_t *count);

/** Returns the tool's words for a kind of event. */
const char *page_event_words(unsigned kind);

/** One event as a line, what stands above such lines, and the last so many slow ones and large
 * blocks. */
extern const char page_event_head[];
void page_print_event(const struct page *page, struct print *out, const struct page_event *event);
void page_print_events(const struct page *page, struct print *out, size_t most);

/** Whether its figures are those of a process that is there, as far as anybody can tell. */
bool page_is_running(const struct page *page);

/** In a word or two, for a table. */
const char *page_state_words(const struct page *page);

#endif
