/*
 * The options: GPUCACHE_* environment variables, read once and checked strictly. Constant after
 * options_load(), so no lock is needed.
 */
#ifndef GPUCACHE_OPTIONS_OPTIONS_H
#define GPUCACHE_OPTIONS_OPTIONS_H

#include "base/log.h"
#include "options/reuse.h"
#include "options/value.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct print;

#define OPTIONS_MAX_DEVICES VALUE_DEVICES
#define OPTIONS_MAX_STACK 64
#define OPTIONS_PATH VALUE_PATTERN
#define OPTIONS_AUTOMATIC UINT64_MAX /* budget_bytes: the library decides */
#define OPTIONS_NEVER UINT64_MAX     /* decay_ms */
#define OPTIONS_ALL UINT64_MAX       /* trace_events */
#define OPTIONS_FEWEST_EVENTS 1
#define OPTIONS_MOST_EVENTS 500000000

/** The rows of options.def, in their order: OPTION_MEMORY_FRACTION, ... */
enum option_id {
#define OPTION(id, parser, initial, values, meaning) OPTION_##id,
#include "options/options.def"
#undef OPTION
    OPTION_COUNT
};

enum report_destination { REPORT_TO_STDERR, REPORT_TO_NOWHERE, REPORT_TO_FILE };
enum report_format { REPORT_TEXT, REPORT_JSON };
enum backend_choice { BACKEND_AUTO, BACKEND_SEGMENTS, BACKEND_PAGES };

struct options {
    double memory_fraction[OPTIONS_MAX_DEVICES];
    uint64_t memory_limit[OPTIONS_MAX_DEVICES]; /* bytes; 0: none */
    uint64_t fraction_devices, limit_devices;   /* devices that the value names, a bit for each */
    enum report_destination report;
    char report_pattern[OPTIONS_PATH]; /* for REPORT_TO_FILE; made absolute by options_load() */
    enum report_format report_format;
    int report_signal;           /* 0: off */
    uint64_t report_interval_ms; /* 0: off */
    enum reuse reuse;
    enum backend_choice backend;
    uint64_t budget_bytes;                   /* or OPTIONS_AUTOMATIC; 0 is a budget of nothing */
    uint64_t decay_ms;                       /* or OPTIONS_NEVER */
    unsigned stacks;                         /* frames; 0: off */
    char trace_pattern[OPTIONS_PATH];        /* absolute; empty: off */
    uint64_t trace_events;                   /* or OPTIONS_ALL */
    char oom_snapshot_pattern[OPTIONS_PATH]; /* absolute; empty: off */
    unsigned file_mode;                      /* of reports and traces, as open() takes it */
    bool live;
    char peaks_path[OPTIONS_PATH]; /* empty: none */
    bool pinned;
    bool disable;
    const char *disable_reason; /* why `disable` is set, for reports */
    enum log_level log;
};

/** One row of options.def. */
struct option_info {
    const char *name; /* GPUCACHE_... */
    const char *initial, *values, *meaning;
    bool internal; /* in no list for users */
};

extern const struct option_info option_table[OPTION_COUNT];

/**
 * Reads the environment and the identity of the program, opens the log, and warns of invalid
 * values. Keeps stderr if reports go there. Later calls do nothing. The caller must make sure that
 * the first call has returned before another thread calls options().
 */
void options_load(void);

/** Returns whether a value is valid for an option. Changes no option. Call from one thread at a
 * time: the parser writes to a static buffer. */
bool options_accept(enum option_id id, const char *value);

/** Warns of limits for devices that do not exist. `count`: devices that the process sees. */
void options_check_devices(int count);

/** Returns the values in force: constant after options_load(), all zero before. */
const struct options *options(void);

/** Returns the value in force as text, from the user or the default. */
const char *options_text(enum option_id id);

/** Returns whether the value in force comes from the environment. */
bool options_from_environment(enum option_id id);

/**
 * Returns the limit in bytes for a device of `total_bytes`: the smaller of fraction and limit.
 * Without both options, the limit of HAMi-core's variables (hami.h). 0: there is no limit. Sets
 * *source to the name of the variable that sets the limit, a constant, or to NULL.
 */
uint64_t options_limit(int device, uint64_t total_bytes, const char **source);

/** Prints all options: value in force, its origin, accepted values and meaning. */
void options_print(struct print *out);

/** Logs all options in force, one line each, at level info. */
void options_log(void);

#endif
