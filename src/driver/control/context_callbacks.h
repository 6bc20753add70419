#ifndef GPUCACHE_DRIVER_CONTROL_CONTEXT_CALLBACKS_H
#define GPUCACHE_DRIVER_CONTROL_CONTEXT_CALLBACKS_H

/** Passes the table of callbacks to context/registry.c. Called once, when the process starts. */
void context_callbacks_start(void);

#endif
