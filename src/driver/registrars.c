/*
 * The C library keeps the list of what is loaded under a lock of its own, which nobody holds while constructors run:
 * another thread inside dlopen() holds nobody up here.
 */
#include "driver/registrars.h"

#include "process/libraries.h"

#include <stddef.h>
#include <string.h>

/* PyTorch is linked with libcufile and libnvshmem whether it uses them or not: those are no reason. */
static const struct registrar {
    const char *prefix, *reason;
} known[] = {
    {"libibverbs.so", "libibverbs is loaded"},
    {"libgdrapi.so", "libgdrapi is loaded"},
    {"libfabric.so", "libfabric is loaded"},
};

static int look_at(struct dl_phdr_info *info, size_t bytes, void *with) {
    const char **reason = with;
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    (void)bytes;
    for (size_t i = 0; i < sizeof known / sizeof *known && !*reason; i++) {
        if (strncmp(name, known[i].prefix, strlen(known[i].prefix)) == 0) {
            *reason = known[i].reason;
        }
    }
    return *reason != NULL;
}

const char *registrars_loaded(void) {
    const char *reason = NULL;
    libraries_visit(look_at, &reason);
    return reason;
}
