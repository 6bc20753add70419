/*
 * A report every so often (GPUCACHE_REPORT_INTERVAL), for programs that never end.
 */
#ifndef GPUCACHE_PROCESS_INTERVAL_H
#define GPUCACHE_PROCESS_INTERVAL_H

/** Once, when the library starts. Nothing unless the option is set. */
void interval_start(void);

/** None any more, and none half written: the process is about to end. Waits for a limited time. */
void interval_hold(void);

/** It goes on. */
void interval_release(void);

#endif
