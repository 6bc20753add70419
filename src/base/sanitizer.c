#include "base/sanitizer.h"

#include "base/libraries.h"

#include <stdlib.h>
#include <string.h>

/*
 * Signs of compute-sanitizer in the process that it starts. Since 2025 it sets the first variable.
 * Before, it set the second one to the path of its library. If it sets neither, its library is
 * preloaded.
 */
static const char port[] = "NV_SANITIZER_INJECTION_PORT_BASE";
static const char injection[] = "CUDA_INJECTION64_PATH";
static const char *const libraries[] = {"libsanitizer-collection.so", "libsanitizer-public.so"};

/**
 * Returns whether the path ends in a library of compute-sanitizer. Only the file counts: a folder
 * or a program may have the same name.
 */
static bool is_sanitizer_path(const char *path) {
    const char *slash = strrchr(path, '/');
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++)
        if (strcmp(slash ? slash + 1 : path, libraries[i]) == 0)
            return true;
    return false;
}

static int is_sanitizer_object(struct dl_phdr_info *object, size_t size, void *unused) {
    (void)size, (void)unused;
    return object->dlpi_name && is_sanitizer_path(object->dlpi_name);
}

bool sanitizer_is_there(void) {
    const char *path = secure_getenv(injection);
    return secure_getenv(port) || (path && is_sanitizer_path(path)) ||
           libraries_visit(is_sanitizer_object, NULL) != 0;
}
