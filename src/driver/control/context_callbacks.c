/*
 * Who is told of the end of a context: a table, so that the registry names nobody.
 */
#include "driver/control/context_callbacks.h"

#include "driver/context/active_contexts.h"
#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/hooks/captures.h"
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
    {.ended = pinned_forget},       /* which keeps blocks that outside.c no longer has */
    {.ended = block_stacks_forget}, /* asks who has a block still: the pool, outside.c no longer */
    {.ended = driver_pools_invalidate},
    {.ended = capture_forget, .of_views = true},
    {.ended = deferred_forget, .suspended = deferred_suspend, .of_views = true},
    {.ended = device_pool_forget,
     .suspended = device_pool_suspend}, /* after its blocks were taken out of deferred.c */
};

void context_callbacks_start(void) {
    context_set_callbacks(table, sizeof table / sizeof *table);
}
