/*
 * Writes the file of a page: checks whether the file may be overwritten, and inserts the data.
 */
#include "tool/page/html.h"

#include "html_page.h"
#include "tool/common/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool is_page(int fd) {
    char found[sizeof html_beginning - 1];
    return pread(fd, found, sizeof found, 0) == sizeof found &&
           memcmp(found, html_beginning, sizeof found) == 0;
}

int html_check(const char *path) {
    struct stat file;
    if (strcmp(path, "-") == 0 || stat(path, &file) != 0 || !S_ISREG(file.st_mode))
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int result = fd < 0 || is_page(fd) ? 0 : -EEXIST;
    if (fd >= 0)
        close(fd);
    return result;
}

/**
 * Opens a file for a page. Checks the descriptor, not the path, before it truncates a regular file:
 * the path may name another file by now. Returns a descriptor or a negative errno.
 */
static int open_for_page(const char *path, bool *created) {
    struct stat file;
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    *created = fd >= 0;
    if (*created || errno != EEXIST)
        return *created ? fd : -errno;
    bool regular = stat(path, &file) == 0 && S_ISREG(file.st_mode);
    fd = open(path, (regular ? O_RDWR : O_WRONLY) | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    bool good = fstat(fd, &file) == 0 && (!S_ISREG(file.st_mode) || is_page(fd));
    if (good && (!S_ISREG(file.st_mode) || ftruncate(fd, 0) == 0))
        return fd;
    int error = good ? -errno : -EEXIST;
    close(fd);
    return error;
}

/**
 * Writes the data into a script element, with `<` as an escape. `<` occurs only in strings, where
 * the escape means the same. Therefore no text of a report can end the element or begin a comment.
 * The data goes through a file in memory, because struct print can only write to a descriptor.
 */
static int write_data(FILE *out, const struct html *page) {
    static char buffer[65536];
    struct print text;
    int fd = (int)syscall(SYS_memfd_create, "gpucache page", MFD_CLOEXEC);
    FILE *data = fd < 0 ? NULL : fdopen(fd, "r+");
    if (!data)
        return -errno;
    print_init(&text, fd, buffer, sizeof buffer);
    html_print_data(page, &text);
    int error = print_flush(&text), byte;
    rewind(data);
    while ((byte = getc_unlocked(data)) != EOF)
        if (byte == '<')
            fputs("\\u003c", out);
        else
            putc_unlocked(byte, out);
    if (error == 0 && ferror(data))
        error = -EIO;
    fclose(data);
    return error;
}

static int write_to(FILE *out, const struct html *page) {
    fputs(html_beginning, out);
    fputs(html_head, out);
    int error = write_data(out, page);
    fputs(html_tail, out);
    if (fflush(out) != 0 || ferror(out))
        return errno ? -errno : -EIO;
    return error;
}

int html_write(const struct html *page, const char *path) {
    bool created;
    if (strcmp(path, "-") == 0)
        return write_to(stdout, page);
    int fd = open_for_page(path, &created);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    if (!out)
        return fd < 0 ? fd : -errno;
    int error = write_to(out, page);
    if (fclose(out) != 0 && error == 0)
        error = -errno;
    if (error != 0 && created)
        unlink(path);
    return error;
}
