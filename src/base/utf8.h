/* Characters as UTF-8. */
#ifndef GPUCACHE_BASE_UTF8_H
#define GPUCACHE_BASE_UTF8_H

#include <stdint.h>

/** Writes a character, in at most four bytes. Returns the end of its bytes. */
static inline char *utf8_put(char *to, uint32_t point) {
    static const unsigned char first[] = {0, 0xc0, 0xe0, 0xf0};
    unsigned more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    *to++ = (char)(first[more] | point >> 6 * more);
    while (more-- > 0)
        *to++ = (char)(0x80 | (point >> 6 * more & 63));
    return to;
}

#endif
