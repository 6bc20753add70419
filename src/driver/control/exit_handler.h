#ifndef GPUCACHE_DRIVER_CONTROL_EXIT_HANDLER_H
#define GPUCACHE_DRIVER_CONTROL_EXIT_HANDLER_H

/** Registers the exit handler. Called once, when the library starts. */
void exit_handler_start(void);

#endif
