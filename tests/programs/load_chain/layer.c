/*
 * Another preloaded library, which wraps functions of libc and of the driver by RTLD_NEXT. With
 * OVERRIDE it has its own dlsym, as tracers do, with OVERRIDE_VERSION its own dlvsym. Compiled with
 * optimisation that dlsym jumps to the next one. Without it dlsym calls the next one, and RTLD_NEXT
 * then means the libraries behind this one, for any caller. OVERRIDE names the place of the next
 * dlsym: NEXT, DEFAULT or LIBC. Real libraries have all these forms.
 */
#include "../first_glibc.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define JOIN(a, b) a##b
#define NAME(a, b) JOIN(a, b)

typedef void *dlsym_function(void *, const char *);

/* Count look-ups of a name that begins with "ato" (no name of the library), and allocations. */
int NAME(asked_layer_, LAYER);
int NAME(allocated_layer_, LAYER);

#ifdef OVERRIDE
#define NEXT RTLD_NEXT
#define DEFAULT RTLD_DEFAULT
#define LIBC dlopen("libc.so.6", RTLD_LAZY)

void *dlsym(void *restrict handle, const char *restrict name) {
    static dlsym_function *next;
    if (!next) {
        next = (dlsym_function *)dlvsym(OVERRIDE, "dlsym", "GLIBC_2.34");
        if (!next)
            next = (dlsym_function *)dlvsym(OVERRIDE, "dlsym", FIRST_GLIBC);
        if (!next)
            abort();
    }
    if (strncmp(name, "ato", 3) == 0)
        NAME(asked_layer_, LAYER)++;
    return next(handle, name);
}
#endif

#ifdef OVERRIDE_VERSION
typedef void *dlvsym_function(void *, const char *, const char *);

void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version) {
    static dlvsym_function *next;
    if (!next)
        next = (dlvsym_function *)dlsym(RTLD_NEXT, "dlvsym");
    if (strncmp(name, "ato", 3) == 0)
        NAME(asked_layer_, LAYER)++;
    return next(handle, name, version);
}
#endif

/* Adds 1 to the answer of the next layer, so the result is the number of layers. */
int atoi(const char *text) {
    int (*next)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "atoi");
    return next ? next(text) + 1 : -1000;
}

long atol(const char *text) {
    long (*next)(const char *) = (long (*)(const char *))dlvsym(RTLD_NEXT, "atol", FIRST_GLIBC);
    return next ? next(text) + 1 : -1000;
}

int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    int (*next)(unsigned long long *, size_t) =
        (int (*)(unsigned long long *, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    NAME(allocated_layer_, LAYER)++;
    return next ? next(address, bytes) : 999;
}
