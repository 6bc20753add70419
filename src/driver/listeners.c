/*
 * Who is told of the end of a context: a table, so that the registry names nobody.
 */
#include "driver/listeners.h"

#include "driver/awake.h"
#include "driver/captures.h"
#include "driver/context.h"
#include "driver/deferred.h"
#include "driver/device_pool.h"
#include "driver/ipc.h"
#include "driver/mempool.h"
#include "driver/outside.h"
#include "driver/pinned.h"
#include "driver/remember.h"

static const struct context_listener table[] = {
    {.ended = awake_leave},
    {.ended = ipc_forget},
    {.ended = outside_forget},
    {.ended = pinned_forget},   /* which keeps blocks that outside.c no longer has */
    {.ended = remember_forget}, /* asks who has a block still: the pool, outside.c no longer */
    {.ended = mempool_doubt},
    {.ended = capture_forget, .of_views = true},
    {.ended = deferred_forget, .suspended = deferred_quiet, .of_views = true},
    {.ended = device_pool_forget,
     .suspended = device_pool_quiet}, /* after its blocks were taken out of deferred.c */
};

void listeners_start(void) {
    context_set_listeners(table, sizeof table / sizeof *table);
}
