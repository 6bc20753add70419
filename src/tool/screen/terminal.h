/*
 * Restores the terminal however the screen of gpucache top ends.
 */
#ifndef GPUCACHE_TOOL_SCREEN_TERMINAL_H
#define GPUCACHE_TOOL_SCREEN_TERMINAL_H

#include <stdbool.h>

/** Starts ncurses, and restores the terminal at exit and at every signal that ends the process,
 * except SIGKILL. Returns false if there is no such terminal. */
bool terminal_open(void);

/** Returns whether the terminal (TERM) can place its cursor. */
bool terminal_can(void);

/** Returns whether the terminal was closed. */
bool terminal_is_gone(void);

#endif
