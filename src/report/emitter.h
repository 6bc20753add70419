/*
 * The parts of a report, and the emitters that write them: the interface inside this module.
 *
 * walk.c goes through a snapshot of the statistics and calls an emitter for each row of fields.def.
 * Text and JSON are two emitters of this walk. The JSON has all rows. The text's table has only the
 * metrics with a label. The caller owns all state. No function takes a lock or allocates.
 */
#ifndef GPUCACHE_REPORT_EMITTER_H
#define GPUCACHE_REPORT_EMITTER_H

#include "base/json_put.h"
#include "base/print.h"
#include "base/program.h"
#include "report/derived.h"
#include "report/lines.h"
#include "report/report.h"
#include "stats/holders.h"
#include "stats/stats.h"

#include <stdbool.h>

/** The process that a report describes. */
struct report_process {
    int64_t pid;
    const char *version; /* of the library in the process */
    const struct program *program;
    uint64_t time_ns;   /* when the values were read, since 1970 */
    uint64_t uptime_ns; /* the same moment, since the process started */
};

/** The parts of a report that belong to no device. */
struct report_head {
    const struct report_process *process;
    const char *reason;
    int driver_version;                /* 0: unknown */
    uint64_t host_bytes;               /* host memory of the library's descriptors */
    const struct report_oom *oom;      /* NULL unless the reason is an OOM */
    const struct lines *verdict;       /* the explanation of the OOM */
    const struct stats_stacks *stacks; /* NULL: stacks are not recorded */
};

/** Returns `a - b`, or 0 if b is larger: counters read while they change may disagree a little. */
static inline uint64_t minus_or_zero(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

/** The accuracy of a metric's peak. */
enum peak { PEAK_EXACT, PEAK_AT_LEAST, PEAK_AT_MOST };

/** One report being written, and the state that an emitter keeps between two values. */
struct emitter {
    const struct emitter_kind *kind;
    struct print *out;
    const struct report_head *head;
    const struct stats_device *device; /* the device being written */
    const struct segment_map *map;     /* the memory map of its pool, or NULL */
    struct report_derived derived;
    unsigned devices;     /* number of devices written so far */
    struct json_put json; /* JSON: writes to `out` */
    struct lines words;   /* text: the sentences below the table */
};

struct emitter_kind {
    void (*begin)(struct emitter *emitter);
    void (*device_begin)(struct emitter *emitter);
    /* `label` is NULL for a metric without a row in the text's table. `bytes`: the unit is bytes;
     * otherwise the metric is a count. */
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

/* Write the beginning, a device and the end of a report. All arguments stay valid until
 * walk_end(). */
void walk_begin(struct emitter *emitter, enum report_format format, struct print *out,
                const struct report_head *head);
void walk_device(struct emitter *emitter, const struct stats_device *device,
                 const struct segment_map *map);
void walk_end(struct emitter *emitter);

/**
 * Writes the explanation of an OOM. `device` and the memory map of its pool were read at the same
 * moment; `device` is NULL if the process has not used it. `stacks`: call stacks are recorded.
 */
void verdict_write(struct lines *lines, const struct report_oom *oom,
                   const struct stats_device *device, const struct segment_map *map, bool stacks);

/** Writes how much is live, and at most `most` sizes of live blocks, largest total first. */
void live_write(struct lines *lines, const struct stats_device *device, unsigned most);

#endif
