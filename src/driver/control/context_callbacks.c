/*
 * The callbacks that run when a context is about to end, or has ended. context/registry.c calls
 * them in the order of this table, under the lock REGISTRY. It gets the table at the start of the
 * process, so that the lower folder driver/context does not name functions of higher folders.
 */
#include "driver/control/context_callbacks.h"

#include "driver/context/active_contexts.h"
#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/hooks/captures.h"
#include "driver/hooks/stream.h"
#include "driver/ipc/ipc.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/unpooled.h"
#include "driver/observe/block_stacks.h"
#include "driver/reuse/deferred.h"
#include "driver/reuse/pinned.h"

static const struct context_callbacks table[] = {
    {.ended = active_contexts_remove},
    {.ended = ipc_forget},
    {.ended = unpooled_forget},
    {.ended = pinned_forget},       /* after unpooled_forget: the ledger has no kept blocks */
    {.ended = block_stacks_forget}, /* after unpooled_forget, before the pool drops its blocks */
    {.ended = driver_pools_invalidate},
    {.ended = stream_forget},
    {.ended = capture_forget, .of_views = true},
    {.ended = deferred_forget, .suspended = deferred_suspend, .of_views = true},
    {.ended = device_pool_forget,
     .suspended = device_pool_suspend}, /* after deferred_forget has dropped the pool's blocks */
};

void context_callbacks_start(void) {
    context_set_callbacks(table, sizeof table / sizeof *table);
}
