/*
 * Reports at a signal, and before a signal ends the process, while the program leaves the signal at
 * its default action. No lock (signals.c).
 */
#ifndef GPUCACHE_PROCESS_SIGNALS_H
#define GPUCACHE_PROCESS_SIGNALS_H

/** Installs the handler for all signals that are needed. Called once, when the library starts. */
void signals_start(void);

#endif
