/*
 * Functions that the fuzz targets share (fuzz.h).
 */
#include "fuzz.h"

#include "base/print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void fuzz_refuse(const char *condition, const char *file, int line) {
    fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, condition);
    abort();
}

void fuzz_take(struct fuzz_input *input, void *to, size_t bytes) {
    size_t there = bytes < input->left ? bytes : input->left;
    memset(to, 0, bytes);
    if (there > 0)
        memcpy(to, input->at, there);
    input->at += there;
    input->left -= there;
}

uint8_t fuzz_take_byte(struct fuzz_input *input) {
    uint8_t byte;
    fuzz_take(input, &byte, 1);
    return byte;
}

const char *fuzz_file(const void *bytes, size_t size) {
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("input", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, bytes, size, 0) != (ssize_t)size) {
        perror("memfd");
        exit(1);
    }
    return path;
}

void fuzz_check_plain(const char *text) {
    while (*text) {
        size_t length = *text == '\n' ? 1 : print_visible_length(text);
        FUZZ_CHECK(length > 0);
        text += length;
    }
}
