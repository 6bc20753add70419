/*
 * Whose a file, a folder or the other end of a socket is.
 */
#ifndef GPUCACHE_PROCESS_USER_H
#define GPUCACHE_PROCESS_USER_H

#include <stdbool.h>
#include <sys/types.h>

/**
 * Returns whether `uid`, as the kernel gives it, means the effective user of this process. Safe in
 * a signal handler; changes errno.
 *
 * In a user namespace the kernel shows every user that has no number there as one and the same
 * number (the overflow uid, usually 65534). So there that number is nobody's own.
 */
bool user_is_own(uid_t uid);

#endif
