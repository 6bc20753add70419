#include "base/cgroup.h"

#include <stdbool.h>
#include <string.h>

const char *cgroup_find(const char *lines, const char *controller, size_t *length) {
    const char *at = lines + strcspn(lines, ":");
    while (*at) {
        bool found = false;
        do {
            size_t letters = strcspn(++at, ",:\n");
            found |= letters == strlen(controller) && !strncmp(at, controller, letters);
            at += letters;
        } while (*at == ',');
        at += *at == ':';
        *length = strcspn(at, "\n");
        if (found)
            return at;
        at += *length;
        at += strcspn(at, ":");
    }
    *length = 0;
    return at;
}
