#include "base/user.h"

#include "base/program.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OVERFLOW_UID 65534 /* the default; the system may have another number */
#define INITIAL_NAMESPACE                                                                          \
    ((ino_t)0xEFFFFFFD) /* inode of the initial user namespace, on every Linux */

/** Returns the uid that the kernel shows for users without a number in this namespace. */
static uid_t overflow_uid(void) {
    static _Atomic uint64_t known; /* the number plus 1; 0: not read yet */
    uint64_t number = atomic_load(&known);
    if (number == 0) {
        char text[24];
        size_t length = program_read_file("/proc/sys/kernel/overflowuid", text, sizeof text - 1);
        text[length] = '\0';
        number = 1 + (length > 0 ? strtoull(text, NULL, 10) : OVERFLOW_UID);
        atomic_store(&known, number);
    }
    return (uid_t)(number - 1);
}

/** Returns whether every user has a number of its own in this namespace. */
static bool knows_all_users(void) {
    struct stat namespace;
    return stat("/proc/self/ns/user", &namespace) == 0 && namespace.st_ino == INITIAL_NAMESPACE;
}

bool user_is_own(uid_t uid) {
    return uid == (uid_t)syscall(SYS_geteuid) && (uid != overflow_uid() || knows_all_users());
}
