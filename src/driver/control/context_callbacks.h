#ifndef GPUCACHE_DRIVER_CONTROL_CONTEXT_CALLBACKS_H
#define GPUCACHE_DRIVER_CONTROL_CONTEXT_CALLBACKS_H

/** Gives context.c the table of what is told of the end of a context, when the process starts. */
void context_callbacks_start(void);

#endif
