/* Memory that was freed, and waits for its epoch. Under the lock. */
#ifndef GPUCACHE_SOURCE_PENDING_H
#define GPUCACHE_SOURCE_PENDING_H

#include "source/state.h"

/** At once to what is ready if it is usable, else into its queue. */
void pending_add(struct source *source, struct block *block);

/** The same of blocks linked by `next`. */
void pending_add_list(struct source *source, struct block *first);

/** What may be handed out becomes ready; of that, what was freed until then. */
void pending_take_usable(struct source *source);
void pending_take_old(struct source *source, uint64_t stamp);

/** The epoch that frees so many bytes, or all there are; 0: nothing is pending. */
uint64_t pending_stamp(const struct source *source, uint64_t bytes);

#endif
