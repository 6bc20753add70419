/*
 * Mapped files that somebody else may cut short.
 *
 * An access to a mapped page behind the end of its file is a SIGBUS, which by default ends the
 * process. The library's files may be cut at any time (logrotate's copytruncate does it), and must
 * not end the program. So the handler of SIGBUS (signals.c) asks here first: for an address in such
 * a mapping it puts a page of zeros in place of the one that is missing, and the access is done
 * again.
 *
 * There is no help where the program has a handler of its own for SIGBUS, or holds SIGBUS back.
 */
#ifndef GPUCACHE_PROCESS_GUARD_H
#define GPUCACHE_PROCESS_GUARD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

/** Returns whether an option has a file mapped, so that SIGBUS has to be handled, and may not be held
 * back in the library's own threads. */
bool guard_is_needed(void);

/** Guards a range of mapped pages for the rest of the process. `lost` is called, in a signal
 * handler, whenever a page has been replaced; NULL: nobody is. Ranges beyond the first few are not
 * guarded. */
void guard_mapping(void *start, size_t bytes, void (*lost)(void));

/** Repairs what a SIGBUS was sent for. False: it was not for a guarded page. Keeps errno. */
bool guard_repair(const siginfo_t *info);

#endif
