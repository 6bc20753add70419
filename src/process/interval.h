/* Reports at an interval (GPUCACHE_REPORT_INTERVAL), for programs that never end. */
#ifndef GPUCACHE_PROCESS_INTERVAL_H
#define GPUCACHE_PROCESS_INTERVAL_H

/** Starts the reports if the option is set. Called once, when the library starts. */
void interval_start(void);

/**
 * Stops these reports, because the process is about to end. Waits for a report under way, for a
 * limited time.
 */
void interval_hold(void);

/** Allows these reports again, after an exec that failed. */
void interval_release(void);

#endif
