/* How far a pool may grow, as follows from the peak of what is live. Under the lock. */
#ifndef GPUCACHE_SOURCE_BUDGET_H
#define GPUCACHE_SOURCE_BUDGET_H

#include "source/state.h"

/** Budget and pressure, as they follow from the peak, the quotas and what was refused. */
void budget_recompute(struct source *source);

/** After every visit: what has changed (budget_has_changed()), and what of the books is known as a whole. */
void budget_update(struct source *source, bool changed);

/** The books of what is reserved and free. */
void budget_count_reserve(struct source *source);

/** How many streams the program has besides the default one. */
void budget_expect_streams(unsigned streams);
unsigned budget_streams(void);

/** No budget of a program of one thread is more than this while its peak is small. */
uint64_t budget_little(const struct source *source);

/** Whether more was live than what several streams may keep to stay side by side; always where there are not several. */
bool budget_is_beyond_floor(const struct source *source);

/** What the driver has left; *others: what other pools have idle. Lets go of the lock. */
uint64_t budget_room(struct source *source, uint64_t *others);

/** In a line: the budget as it will be with so much more in use. */
uint64_t budget_with(const struct source *source, uint64_t bytes);

/** By how much mapping may raise the goal, having taken as long as it has. */
uint64_t budget_remap_slack_most(const struct source *source);

/** Around a growth: others may wait for it to end. `return_count`: something came back meanwhile. */
void budget_begin_growth(struct source *source);
void budget_end_growth(struct source *source, bool return_count);

/** The reserve. */
static inline uint64_t budget_used(const struct source *source) {
    return source->large.reserved_bytes + source->small.reserved_bytes;
}

/** What of it may be handed out. */
static inline uint64_t budget_free(const struct source *source) {
    return source->large.free_bytes + source->small.free_bytes + source->remap.held_bytes +
           (source->runs.free_units << UNIT_SHIFT);
}

/** Large blocks of more bytes than this may not be taken without the peaks being summed. */
static inline uint64_t budget_unaggregated_most(const struct source *source) {
    return counter_get(&source->counters.allocated.peak) / UNAGGREGATED_SHARE;
}

/** The reserve, with what threads are asking the driver for. */
static inline uint64_t budget_expected(const struct source *source) {
    return budget_used(source) + source->growing.bytes;
}

/** Since the books were last brought up to date. */
static inline bool budget_has_changed(const struct source *source) {
    return budget_used(source) != counter_get(&source->counters.reserved.current) ||
           source->backend->refused != source->refused_seen;
}

/** Whether the reserve, with growths under way and this one, would be more than that. */
static inline bool budget_would_exceed(const struct source *source, uint64_t growth,
                                       uint64_t most) {
    return budget_expected(source) + growth > most;
}

/** Whether growing by so much stays within the budget as it was last worked out: the peak may have risen since. */
static inline bool budget_allows(const struct source *source, uint64_t bytes) {
    uint64_t budget = atomic_load_explicit(&source->budget, memory_order_relaxed);
    return !budget_would_exceed(source, bytes, budget);
}

#endif
