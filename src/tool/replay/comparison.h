/*
 * Replays one history with several settings, and compares the memory that each would have reserved.
 *
 * Each setting runs in its own process, because a pool cannot be destroyed. As many processes run
 * at a time as there are processors.
 */
#ifndef GPUCACHE_TOOL_REPLAY_COMPARISON_H
#define GPUCACHE_TOOL_REPLAY_COMPARISON_H

#include "base/print.h"
#include "replay/models.h"
#include "replay/rerun.h"

#define COMPARISON_NAME 48
#define COMPARISON_DELAYS 32 /* at most */
#define NO_BUDGET 1          /* byte, in rerun_setting.budget: the budget 0 of the user */

/* An allocator and its setting; the delay is not part of it. */
struct candidate {
    char name[COMPARISON_NAME]; /* with the settings that differ: `pages, budget 8.00 GiB` */
    bool is_model;
    enum model model;
    struct rerun_setting setting;
};

struct row {
    const struct candidate *candidate;
    uint64_t delay_us;       /* 0 for a model */
    struct account *account; /* in memory shared with child processes */
};

struct comparison {
    char file[256]; /* name of the file, and the device if the file has several */
    const struct history *history;
    struct row *rows; /* rows of one candidate are adjacent */
    size_t count;
};

struct replay_request {
    struct candidate *candidates;
    size_t candidate_count;
    uint64_t delays_us[COMPARISON_DELAYS];
    size_t delay_count;
};

/** Reads a trace of the library. Returns 0, or a negative errno with a text in histories->why. */
int replay_trace_read(const char *path, struct histories *histories);

/** Runs all candidates with all delays. Returns 0 or a negative errno. */
int comparison_run(struct comparison *comparison, const struct replay_request *request);

void comparison_print(const struct comparison *comparison, struct print *out);
void comparison_print_json(const struct comparison *comparison, struct print *out);

/** Prints the table of several histories: ratios, and pages mapped, by delay. */
void comparisons_print(const struct comparison *list, size_t count,
                       const struct replay_request *request, struct print *out);

#endif
