/*
 * Reports at a signal, and before dying of one; each only while the program leaves the signal at its default action.
 */
#ifndef GPUCACHE_PROCESS_SIGNALS_H
#define GPUCACHE_PROCESS_SIGNALS_H

/** Once, when the library starts and there are to be reports. */
void signals_start(void);

#endif
