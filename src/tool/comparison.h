/*
 * One history under several settings: what each would have reserved. Each is run in a process of
 * its own, because the pool has no end, and as many at a time as there are processors.
 */
#ifndef GPUCACHE_TOOL_COMPARISON_H
#define GPUCACHE_TOOL_COMPARISON_H

#include "process/print.h"
#include "replay/models.h"
#include "replay/rerun.h"

#define COMPARISON_NAME 48
#define COMPARISON_DELAYS 32 /* at most */

/* An allocator and its setting, whatever the delay. */
struct candidate {
    char name[COMPARISON_NAME]; /* with what tells it from others: `pages, budget 8.00 GiB` */
    bool is_model;
    enum model model;
    struct rerun_setting setting;
};

struct row {
    const struct candidate *candidate;
    uint64_t delay_us; /* of a model: 0 */
    struct meter *meter;
};

struct comparison {
    char file[256]; /* and the device, where there are several */
    const struct history *history;
    struct row *rows; /* those of a candidate behind each other */
    size_t count;
    void *shared;
    size_t shared_bytes;
};

struct replay_request {
    struct candidate *candidates;
    size_t candidate_count;
    uint64_t delays_us[COMPARISON_DELAYS];
    size_t delay_count;
};

/** 0, or a negative errno. */
int comparison_run(struct comparison *comparison, const struct replay_request *request);
void comparison_free(struct comparison *comparison);

void comparison_print(const struct comparison *comparison, struct print *out);
void comparison_print_json(const struct comparison *comparison, struct print *out);

/** Several histories: ratios, and pages mapped, by delay. */
void comparisons_print(const struct comparison *list, size_t count,
                       const struct replay_request *request, struct print *out);

#endif
