/*
 * Permanent memory for texts (each stored once) and for the arrays of sites. Writers hold the lock
 * of the sites; readers need no lock. The memory is mapped from the host, bounded, and never freed.
 */
#ifndef GPUCACHE_STACKS_TEXT_H
#define GPUCACHE_STACKS_TEXT_H

#include <stddef.h>

#define TEXT_MAX 511 /* bytes of a text; of a longer text only the end is stored */

/** Returns `bytes` bytes (at most 64 KiB) aligned to 8, or NULL if the memory is used up. */
void *text_alloc(size_t bytes);

/** Returns the stored copy of a text, ended by NUL, or NULL if the memory is used up. */
const char *text_keep(const char *text, size_t length);

#endif
