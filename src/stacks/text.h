/*
 * Memory that stays: texts, each once, and what stands beside them. With the lock of sites; what it gave may be read by
 * anybody. Host memory from mmap, bounded, never given back.
 */
#ifndef GPUCACHE_STACKS_TEXT_H
#define GPUCACHE_STACKS_TEXT_H

#include <stddef.h>

#define TEXT_MAX 511 /* bytes of a text; of a longer one the end is kept */

/** Room for so many bytes, at most 64 KiB, aligned to 8; NULL: there is no more. */
void *text_room(size_t bytes);

/** The text, ended by NUL; NULL: there is no room for it. */
const char *text_keep(const char *text, size_t length);

#endif
