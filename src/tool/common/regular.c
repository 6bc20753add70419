/*
 * Opens files whose names come from another process: a report names modules, and /proc/PID/maps
 * names mapped files. The owner of such a name may replace the file by a FIFO or a device at any
 * moment.
 */
#include "tool/common/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

int tool_open_regular(const char *path) {
    struct stat file;
    /* Checks before opening, because opening a FIFO unblocks its writer. */
    if (stat(path, &file) != 0)
        return -errno;
    int fd = S_ISREG(file.st_mode) ? open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
    if (S_ISREG(file.st_mode) && fd < 0)
        return -errno;
    /* Checks again: the name may be another file now. */
    if (fd >= 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode))
        return fd;
    if (fd >= 0)
        close(fd);
    return S_ISDIR(file.st_mode) ? -EISDIR : -EINVAL;
}
