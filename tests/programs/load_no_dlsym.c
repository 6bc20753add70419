/* In the place of dlsym.S, where the library is inside the program: nobody looks dlsym up there. */
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
