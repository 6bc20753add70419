/*
 * The room's internals: what a report is made of, and the two ways of writing it.
 *
 * walk.c walks the statistics once, row by row of fields.def, and hands each figure to an
 * emitter. Text and JSON are two emitters of the same walk, so they cannot disagree, and a new row
 * in fields.def appears in both by itself.
 */
#ifndef GPUCACHE_REPORT_EMITTER_H
#define GPUCACHE_REPORT_EMITTER_H

#include "process/print.h"
#include "process/program.h"
#include "report/lines.h"
#include "report/report.h"
#include "stats/holders.h"
#include "stats/stats.h"

#include <stdbool.h>

/** Whose report it is. */
struct report_process {
    int64_t pid;
    const char *version; /* of the library that has the figures */
    const struct program *program;
    uint64_t time_ns, uptime_ns; /* when the figures were read: since 1970, and since it started */
};

/** What the report as a whole says. */
struct report_head {
    const struct report_process *process;
    const char *reason;
    int driver_version;                /* 0: not known */
    uint64_t host_bytes;               /* for the library's own descriptors */
    const struct report_oom *oom;      /* NULL unless the reason is one */
    const struct lines *verdict;       /* the OOM in words */
    const struct stats_stacks *stacks; /* NULL: not remembered */
};

/** Figures that follow from a snapshot. */
struct report_derived {
    struct stats_metric outside; /* device memory that passes by the pool, all kinds together */
    bool outside_peak_exact; /* false: the kinds' peaks were added up; the true peak is no higher */
    uint64_t idle;           /* reserved but not allocated: pending and ready */
    uint64_t largest_free;
    uint64_t calls_avoided; /* allocations and frees that made no driver call */
    double internal_fragmentation, external_fragmentation;
    double peak_ratio; /* peak reserved over peak requested; 1 if nothing was requested */
};

void report_derive(const struct stats_device *device, struct report_derived *derived);

/** `a - b`, or 0: books read while they change may be a little apart. */
static inline uint64_t less(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/** How far a metric's peak can be trusted. */
enum peak { PEAK_EXACT, PEAK_AT_LEAST, PEAK_AT_MOST };

/** One report being written. An emitter keeps what it needs between two figures here. */
struct emitter {
    const struct emitter_kind *kind;
    struct print *out;
    const struct report_head *head;
    const struct stats_device *device; /* the one being written, */
    const struct segment_map *map;     /* and its pool, or NULL */
    struct report_derived derived;
    unsigned devices;   /* written so far */
    bool first;         /* JSON: nothing stands in the innermost brackets yet */
    struct lines words; /* text: the sentences below the table */
};

struct emitter_kind {
    void (*begin)(struct emitter *emitter);
    void (*device_begin)(struct emitter *emitter);
    /* label is NULL for a figure that has no row in the text's table; bytes tells bytes from a
     * number of things */
    void (*metric)(struct emitter *emitter, const char *name, const char *label, bool bytes,
                   const struct stats_metric *metric, enum peak peak);
    void (*gauge)(struct emitter *emitter, const char *name, uint64_t value);
    void (*counter)(struct emitter *emitter, const char *name, uint64_t value);
    void (*unpooled_begin)(struct emitter *emitter);
    void (*unpooled_end)(struct emitter *emitter);
    void (*device_end)(struct emitter *emitter);
    void (*end)(struct emitter *emitter);
};

extern const struct emitter_kind text_emitter, json_emitter;

/** Writes a whole report: the beginning, its devices, the end. The emitter, and all that is given here,
 * are the caller's until then. */
void walk_begin(struct emitter *emitter, enum report_format format, struct print *out,
                const struct report_head *head);
void walk_device(struct emitter *emitter, const struct stats_device *device,
                 const struct segment_map *map);
void walk_end(struct emitter *emitter);

/**
 * Explains an OOM in words. `device` and `map`, of its pool, are as of one moment; `device` is
 * NULL if nothing is known of it. `stacks`: call stacks are recorded.
 */
void verdict_write(struct lines *lines, const struct report_oom *oom,
                   const struct stats_device *device, const struct segment_map *map, bool stacks);

/** Says what is still live, and at most so many of its sizes, those that hold most first. */
void live_write(struct lines *lines, const struct stats_device *device, unsigned most);

/** Opens a file of the pattern that did not exist before, with mode GPUCACHE_FILE_MODE, or what is
 * no file. Returns a descriptor or a negative errno; path: its name. */
int file_open(const char *pattern, char *path, size_t size);

/** The same for a file to read and write, never anything that is no file. */
int file_create(const char *pattern, char *path, size_t size);

/** Ends a file that file_open() opened, and takes it away again if it could not be written in full.
 * True if there is a regular file now. */
bool file_close(int fd, const char *path, bool complete);

/** The error in words, without a locale. */
const char *file_error(int error);

#endif
