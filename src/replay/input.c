/* Reads and unpacks files, and chooses the reader of their format by the first bytes (input.h). */
#include "replay/input.h"

#include "replay/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef GPUCACHE_LZMA
#include <lzma.h>
#endif
#ifdef GPUCACHE_ZSTD
#include <zstd.h>
#endif

#define INPUT_MOST ((size_t)8 << 30)   /* bytes, unpacked: a packed file may claim any size */
#define SMALL_MOST ((size_t)256 << 20) /* bytes, plus PACKED_MOST times the file's size */
#define PACKED_MOST 1024

static int complain(char why[HISTORY_WHY], int code, const char *text) {
    snprintf(why, HISTORY_WHY, "%s", text);
    return code;
}

/** Enlarges the buffer for `more` bytes and a NUL. Returns 0 or -EFBIG. */
static int enlarge(struct input *input, size_t *capacity, size_t more) {
    if (input->count + more >= INPUT_MOST || input->count + more >= input->most)
        return -EFBIG;
    if (input->count + more < *capacity)
        return 0;
    size_t larger = 2 * *capacity > input->count + more ? 2 * *capacity : input->count + more + 1;
    input->bytes = checked(realloc(input->bytes, larger));
    *capacity = larger;
    return 0;
}

static int read_all(int fd, struct input *input) {
    size_t capacity = 0;
    for (;;) {
        int r = enlarge(input, &capacity, 1 << 16);
        if (r != 0)
            return r;
        ssize_t got = read(fd, input->bytes + input->count, 1 << 16);
        if (got < 0 && errno != EINTR)
            return -errno;
        input->count += got > 0 ? (size_t)got : 0;
        if (got == 0) {
            input->bytes[input->count] = '\0';
            return 0;
        }
    }
}

#ifdef GPUCACHE_LZMA
static int unpack_xz(const struct input *packed, struct input *input, char why[HISTORY_WHY]) {
    lzma_stream stream = LZMA_STREAM_INIT;
    size_t capacity = 0;
    lzma_ret got = lzma_stream_decoder(&stream, UINT64_C(1) << 30, LZMA_CONCATENATED);
    int r = 0;
    stream.next_in = (const uint8_t *)packed->bytes;
    stream.avail_in = packed->count;
    while (got == LZMA_OK && r == 0) {
        r = enlarge(input, &capacity, 1 << 16);
        if (r == 0) {
            stream.next_out = (uint8_t *)input->bytes + input->count;
            stream.avail_out = 1 << 16;
            got = lzma_code(&stream, LZMA_FINISH);
            input->count += (1 << 16) - stream.avail_out;
        }
    }
    lzma_end(&stream);
    if (r == 0 && got != LZMA_STREAM_END)
        return complain(why, -EINVAL, "is packed by xz, and broken or not whole");
    return r;
}
#else
static int unpack_xz(const struct input *packed, struct input *input, char why[HISTORY_WHY]) {
    (void)packed, (void)input;
    return complain(why, -ENOTSUP,
                    "is packed by xz, and this gpucache was built without liblzma: xz -dc FILE | "
                    "gpucache replay -");
}
#endif

#ifdef GPUCACHE_ZSTD
static int unpack_zstd(const struct input *packed, struct input *input, char why[HISTORY_WHY]) {
    ZSTD_DStream *stream = checked(ZSTD_createDStream());
    ZSTD_inBuffer in = {packed->bytes, packed->count, 0};
    size_t capacity = 0, left = 1;
    int r = 0;
    while (r == 0 && (in.pos < in.size || left != 0) && !ZSTD_isError(left)) {
        r = enlarge(input, &capacity, 1 << 16);
        ZSTD_outBuffer out = {input->bytes + input->count, 1 << 16, 0};
        size_t was = in.pos;
        if (r == 0) {
            left = ZSTD_decompressStream(stream, &out, &in);
            input->count += out.pos;
        }
        if (r == 0 && in.pos == was && out.pos == 0)
            break; /* the file ends inside a frame */
    }
    ZSTD_freeDStream(stream);
    if (r == 0 && left != 0)
        return complain(why, -EINVAL, "is packed by zstd, and broken or not whole");
    return r;
}
#else
static int unpack_zstd(const struct input *packed, struct input *input, char why[HISTORY_WHY]) {
    (void)packed, (void)input;
    return complain(why, -ENOTSUP,
                    "is packed by zstd, and this gpucache was built without libzstd: zstd -dc FILE "
                    "| gpucache replay -");
}
#endif

static bool begins(const struct input *input, const char *with, size_t count) {
    return input->count >= count && memcmp(input->bytes, with, count) == 0;
}

/** Unpacks a file in place, recognised by its first bytes. Returns -ENOTSUP for gzip. */
static int unpack(struct input *input, char why[HISTORY_WHY]) {
    struct input packed = *input, empty = {.most = SMALL_MOST + PACKED_MOST * packed.count};
    int r = 0;
    if (begins(input, "\3757zXZ", 5)) { /* octal, because 7 is a digit of \xfd7 too */
        *input = empty;
        r = unpack_xz(&packed, input, why);
    } else if (begins(input, "\x28\xb5\x2f\xfd", 4)) {
        *input = empty;
        r = unpack_zstd(&packed, input, why);
    } else if (begins(input, "\x1f\x8b", 2)) {
        return complain(why, -ENOTSUP, "is packed by gzip: gzip -dc FILE | gpucache replay -");
    } else {
        return 0;
    }
    free(packed.bytes);
    if (r == 0 && input->bytes)
        input->bytes[input->count] = '\0';
    return r;
}

int input_read(const char *path, struct input *input, char why[HISTORY_WHY]) {
    bool standard = strcmp(path, "-") == 0;
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    *input = (struct input){.most = SIZE_MAX};
    *why = '\0';
    int r = fd < 0 ? -errno : read_all(fd, input);
    if (fd >= 0 && !standard)
        close(fd);
    r = r == 0 ? unpack(input, why) : r;
    if (r != 0 && !*why) {
        snprintf(why, HISTORY_WHY, "%s",
                 r != -EFBIG               ? strerror(-r)
                 : input->most == SIZE_MAX ? "has more than 8 GiB"
                                           : "becomes more than 256 MiB and 1024 times the "
                                             "file's size; unpack it first: "
                                             "xz or zstd -dc FILE | gpucache replay -");
    }
    return r;
}

void input_free(struct input *input) {
    free(input->bytes);
    *input = (struct input){0};
}

int input_histories(const struct input *input, struct histories *histories) {
    int r;
    *histories = (struct histories){0};
    if (input->count == 0) {
        r = complain(histories->why, -EINVAL, "is empty");
    } else if (input->bytes[0] == '\x80' || input->bytes[0] == '{') {
        r = snapshot_read(input, histories);
    } else if (begins(input, "PK", 2)) {
        r = complain(histories->why, -EINVAL,
                     "is no pickle: wanted is what torch.cuda.memory._dump_snapshot() writes");
    } else if (rows_are_known(input)) {
        r = rows_read(input, histories);
    } else {
        r = complain(
            histories->why, -EINVAL,
            "is of no known format: rows of time_us,thread,op,id,bytes, RMM's log, "
            "PyTorch's memory snapshot, or a trace of GPUCACHE_TRACE (a file, not packed, not -)");
    }
    for (size_t i = 0; r == 0 && i < histories->count; i++)
        if (histories->list[i].count > 0)
            return 0;
    return r == 0 ? complain(histories->why, -EINVAL, "has no allocation in it") : r;
}
