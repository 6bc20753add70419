/*
 * Reads the live pages of other processes (live/page.h).
 *
 * A page changes while it is read. Its process may have been killed during a write, or may be
 * hostile. Readers therefore copy first, check the copy, and use only the copy. The head of a page
 * is copied once, when the page is opened.
 */
#ifndef GPUCACHE_TOOL_REPORT_PAGES_H
#define GPUCACHE_TOOL_REPORT_PAGES_H

#include "base/program.h"
#include "live/page.h"
#include "report/emitter.h"
#include "stats/stats.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum page_state {
    PAGE_RUNNING,
    PAGE_ELSEWHERE, /* in a container whose processes are invisible here, with new values */
    PAGE_SILENT,    /* in such a container, without new values for SILENT_NS */
    PAGE_KILLED,    /* ended without writing its last values */
    PAGE_SIGNALLED, /* ended by a signal that the library handled */
    PAGE_ENDED,     /* exited, or has become another program */
};

struct page {
    struct live_page *live; /* mapped for writing: a reader writes its requests there */
    size_t bytes;
    int fd;
    enum page_state state;
    int pid, signal;
    uint64_t namespace; /* the PID namespace of pid; 0: that of this process */
    struct live_identity who;
    unsigned devices; /* slots of the page; all of them are mapped */
    uint64_t stack, started_ns, real_ns;
    uint32_t asked;
    bool fresh; /* the process has answered the last request */
    char command[LIVE_COMMAND + 1];
    struct program program; /* points into command */
    char version[17];
    struct page *next; /* the list of open pages */
};

struct pages {
    struct page **list;
    size_t count;
    unsigned other_versions; /* number of pages that this version cannot read */
    int *others;             /* their process numbers */
};

/**
 * Opens all pages of this user, or those of one process if `pid` is not 0. Includes processes that
 * a signal has ended, not those that have exited. First removes the pages of dead processes from
 * each folder, except the newest PLACE_KEEP. The process that began first comes first.
 */
void pages_open(struct pages *pages, int pid);
void pages_close(struct pages *pages);

/** Returns the page of a process number: of a running process, else the newest; NULL for none. */
struct page *pages_of(struct pages *pages, int pid);

/** Returns whether the process has a page that this version cannot read. */
bool pages_have_other(const struct pages *pages, int pid);

/** Returns whether several running processes of other containers have the number of the page's
 * process, and none here has it. pages_of() has then returned any of them. */
bool pages_are_ambiguous(const struct pages *pages, const struct page *page);

/** Writes why a folder cannot hold live pages of this user, and returns true. Returns false if the
 * folder is missing or usable. `which` as in place_folder(). */
#define PAGES_REFUSED 512
bool pages_refused(unsigned which, char text[PAGES_REFUSED]);

/** Prints the texts of pages_refused() for all folders to stderr, after a message that there is no
 * process. */
void pages_print_refused(void);

/** Updates the state of the page's process. */
void page_update_state(struct page *page);

/** Asks the process for new values, and to read its order (ctl.c). */
void page_ask(struct page *page);
bool page_has_answered(const struct page *page);

/** Asks all running processes for new values, and waits at most `timeout_ms` for the answers.
 * `sizes` asks for the sizes of live blocks too. */
void pages_ask(struct pages *pages, bool sizes, unsigned timeout_ms);

/** The moment at which a process wrote the values of a device. */
struct page_moment {
    uint64_t read_ns;              /* on the page's clock */
    uint64_t events[FLIGHT_RINGS]; /* the newest event of each ring that the values include */
    struct segment_map map;        /* of the pool, as old as stats->live */
};

#define PAGE_AGE_SHOWN_NS 1000000 /* smallest age that is printed, so that none reads as 0 */

/**
 * Copies the values of a device, all of one moment. Returns false if the device is not used. Sets
 * *sizes_age to the nanoseconds by which stats->live is older; 0: nothing has changed since, or
 * there is no list. sizes_age and moment may be NULL. The texts in `stats` are valid until the next
 * call for the same ordinal, whatever the page.
 */
bool page_device(const struct page *page, unsigned ordinal, struct stats_device *stats,
                 uint64_t *sizes_age, struct page_moment *moment);

/** Copies the call stacks that hold most memory of a device. Returns false if stacks are not
 * recorded. */
bool page_holders(const struct page *page, unsigned ordinal, struct live_holders *holders);

/** Returns the nanoseconds since the process wrote the page's values. */
uint64_t page_age_ns(const struct page *page);

/** Converts a time of the page's clock to nanoseconds since 1970. */
uint64_t page_real_ns(const struct page *page, uint64_t moment_ns);

/** Returns the description of the page's process for a report. */
struct report_process page_process(const struct page *page);

struct page_event {
    uint64_t number, time_ns, address, bytes, duration_ns;
    uint64_t coarse_ns; /* of a large block: time by the coarse clock; gives the order */
    uint32_t thread;
    unsigned kind, device, ring;
};

/** Returns the events of the flight recorder, oldest first. The caller frees the list. */
struct page_event *page_events(const struct page *page, size_t *count);

/** Returns the tool's words for a kind of event. */
const char *page_event_words(unsigned kind);

/*
 * Print an event as a line, the heading of such lines, and the last slow events and large blocks.
 */
extern const char page_event_head[];
void page_print_event(const struct page *page, struct print *out, const struct page_event *event);
void page_print_events(const struct page *page, struct print *out, size_t most);

/** Returns whether the page's process runs, as far as this process can know. */
bool page_is_running(const struct page *page);

/** Returns the state of the page's process in one or two words, for a table. */
const char *page_state_words(const struct page *page);

#endif
