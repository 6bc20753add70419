/* Records whether the program records context events, or makes contexts wait for events. */
#include "driver/context/application_events.h"

#include "pool/pool.h"

#include <stdatomic.h>

static atomic_bool has_waited, has_recorded;

void application_events_note(bool records) {
    atomic_store(records ? &has_recorded : &has_waited, true);
}

void application_events_tell(struct pool *pool) {
    if (atomic_load(&has_waited) || atomic_load(&has_recorded)) {
        pool_lock(pool);
        pool_application_syncs(pool, atomic_load(&has_recorded));
        pool_unlock(pool);
    }
}
