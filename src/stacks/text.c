/* Permanent memory (text.h): chunks of 1 MiB, and a hash table (FNV-1a) of the stored texts. */
#include "stacks/text.h"

#include "heap/host.h"

#include <stdint.h>
#include <string.h>

#define CHUNK ((size_t)1 << 20)
#define CHUNKS 64
#define TEXTS 16384 /* different texts; a power of two */

static char *at, *end;
static unsigned chunks;
static const char **texts;
static unsigned text_count;

void *text_alloc(size_t bytes) {
    bytes = (bytes + 7) & ~(size_t)7;
    if ((size_t)(end - at) < bytes) {
        char *chunk = chunks < CHUNKS ? host_map(CHUNK, 4096) : NULL;
        if (!chunk)
            return NULL;
        chunks++;
        at = chunk;
        end = chunk + CHUNK;
    }
    void *memory = at;
    at += bytes;
    return memory;
}

const char *text_keep(const char *text, size_t length) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    if (length > TEXT_MAX) {
        text += length - TEXT_MAX;
        length = TEXT_MAX;
    }
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(0x100000001b3);
    if (!texts && !(texts = host_map(TEXTS * sizeof *texts, 4096)))
        return NULL;
    size_t slot = hash >> 32 & (TEXTS - 1);
    for (; texts[slot]; slot = (slot + 1) & (TEXTS - 1))
        if (strncmp(texts[slot], text, length) == 0 && texts[slot][length] == '\0')
            return texts[slot];
    char *kept = text_count < TEXTS / 2 ? text_alloc(length + 1) : NULL;
    if (kept) {
        memcpy(kept, text, length);
        kept[length] = '\0';
        texts[slot] = kept;
        text_count++;
    }
    return kept;
}
