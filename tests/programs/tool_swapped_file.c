/*
 * Preloaded into the gpucache command: turns the file that GPUCACHE_TEST_SWAPPED names into a FIFO
 * after the first stat() of its name.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int stat(const char *path, struct stat *file) {
    const char *meant = getenv("GPUCACHE_TEST_SWAPPED");
    int result = fstatat(AT_FDCWD, path, file, 0);
    if (meant && strcmp(path, meant) == 0 && unlink(path) == 0)
        return mkfifo(path, 0600);
    return result;
}
