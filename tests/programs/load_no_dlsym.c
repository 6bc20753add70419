/* Replaces dlsym.S in programs that are linked with the library: they do not look dlsym up. */
#include "loader/loader.h"

#include <stddef.h>

void *loader_dlsym_entry(void *handle, const char *name) {
    (void)handle, (void)name;
    return NULL;
}

void *loader_dlsym_by_version(void *handle, const char *name) {
    return loader_dlsym_entry(handle, name);
}

void *loader_dlvsym_entry(void *handle, const char *name, const char *version) {
    (void)version;
    return loader_dlsym_entry(handle, name);
}

void *loader_dlvsym_by_version(void *handle, const char *name, const char *version) {
    return loader_dlvsym_entry(handle, name, version);
}
