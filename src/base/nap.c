#include "base/nap.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void nap(uint64_t ns) {
    syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = (long)ns}, NULL);
}
