/* Tells whether a file, a folder or the other end of a socket belongs to this user. */
#ifndef GPUCACHE_BASE_USER_H
#define GPUCACHE_BASE_USER_H

#include <stdbool.h>
#include <sys/types.h>

/**
 * Returns whether `uid`, as the kernel gives it, means the effective user of this process. Safe in
 * a signal handler; changes errno.
 *
 * In a user namespace the kernel shows every user without a number there as the overflow uid,
 * usually 65534. This number belongs to no single user there.
 */
bool user_is_own(uid_t uid);

#endif
