/* Memory that was freed, and waits for its epoch. Under the lock. */
#ifndef GPUCACHE_SOURCE_PENDING_H
#define GPUCACHE_SOURCE_PENDING_H

#include "source/state.h"

/** At once to what is ready if it is usable, else into its queue. */
void pending_add(struct source *source, struct block *block);

/** The same of blocks linked by `next`. */
void pending_add_list(struct source *source, struct block *first);

/** What may be handed out becomes ready. */
void pending_release_safe(struct source *source);

/** The same of what has that stamp or a lower one. */
void pending_release_up_to(struct source *source, uint64_t stamp);

/** The stamp up to which so many bytes are pending; the last one if there are fewer, or too many blocks to count (BLOCKS_COUNTED), or
 * for UINT64_MAX. 0: nothing is pending that a barrier could order. What something outside reaches does not count. */
uint64_t pending_stamp(const struct source *source, uint64_t bytes);

#endif
