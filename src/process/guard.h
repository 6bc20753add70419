/*
 * Guards mapped files that another process may truncate.
 *
 * An access to a mapped page behind the end of its file raises SIGBUS, which ends the process by
 * default. The library's files may be truncated at any time (logrotate's copytruncate does so), and
 * that must not end the program. Therefore the handler of SIGBUS (signals.c) first calls
 * guard_repair(). If the address lies in a guarded mapping, a page of zeros replaces the missing
 * page, and the access is repeated. No lock: the handler reads only complete entries.
 *
 * If the program has its own handler for SIGBUS, or blocks SIGBUS, its process is not protected.
 */
#ifndef GPUCACHE_PROCESS_GUARD_H
#define GPUCACHE_PROCESS_GUARD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/**
 * Returns whether the library maps a file because of an option. SIGBUS must then be handled, and
 * the library's own threads may not block it.
 */
bool guard_is_needed(void);

/**
 * Guards a range of mapped pages for the rest of the process. `lost` is called in a signal handler
 * each time a page has been replaced; NULL: no call. Ranges beyond the first few are not guarded.
 */
void guard_mapping(void *start, size_t bytes, void (*lost)(void));

/**
 * Replaces the page that a SIGBUS was sent for. Returns false if the address is not guarded. Keeps
 * errno.
 */
bool guard_repair(const siginfo_t *info);

#endif
