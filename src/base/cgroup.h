/*
 * Finds the control group (cgroup) of the process. A line of /proc/self/cgroup has the number, the
 * controllers and the cgroup of one hierarchy: "4:cpu,memory:/a/b". The line of version 2 names no
 * controller: "0::/a/b". Needs no lock.
 */
#ifndef GPUCACHE_BASE_CGROUP_H
#define GPUCACHE_BASE_CGROUP_H

#include <stddef.h>

/**
 * Returns the cgroup of the hierarchy that has `controller`, and sets *length. `lines` is the text
 * of /proc/self/cgroup; the controller "" means version 2. Without such a line returns the end of
 * the text and length 0.
 */
const char *cgroup_find(const char *lines, const char *controller, size_t *length);

#endif
