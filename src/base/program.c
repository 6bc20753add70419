/*
 * Identity of the program: name, arguments, host, rank, start.
 *
 * program_load() reads them once, at the first use of CUDA. At the last report the program may have
 * changed its environment or its arguments, or have lost /proc. The process number is not kept,
 * because it changes with fork. After program_load() the values are constant, so no lock is needed.
 *
 * Job launchers nest (torchrun under srun, mpirun in a batch job), and a process inherits the outer
 * one's variables. The variables are therefore read from the innermost kind of launcher to the
 * outermost.
 */
#include "base/program.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define COMMAND_LINE 4096 /* bytes of arguments that are kept */
#define STAT_START_FIELD 22

static struct program self = {.rank = -1};
static char command_line[COMMAND_LINE + 2];
static uint64_t start_ns; /* CLOCK_MONOTONIC; 0 before program_load() */
static atomic_flag loaded = ATOMIC_FLAG_INIT;

size_t program_read_file(const char *path, char *buffer, size_t size) {
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    size_t used = 0;
    while (used < size) {
        long part = syscall(SYS_read, fd, buffer + used, size - used);
        if (part < 0 && errno == EINTR)
            continue;
        if (part <= 0)
            break;
        used += (size_t)part;
    }
    syscall(SYS_close, fd);
    return used;
}

static void load_arguments(void) {
    /* One byte more shows whether the command line is longer. */
    size_t length = program_read_file("/proc/self/cmdline", command_line, COMMAND_LINE + 1);
    self.arguments_cut = length > COMMAND_LINE;
    length = self.arguments_cut ? COMMAND_LINE : length;
    command_line[length] = '\0';
    for (size_t at = 0; at < length; at += strlen(command_line + at) + 1) {
        if (self.argument_count == PROGRAM_ARGUMENTS) {
            self.arguments_cut = true;
            break;
        }
        self.arguments[self.argument_count++] = command_line + at;
    }
}

static void load_name(void) {
    const char *path = self.argument_count > 0 ? self.arguments[0] : "";
    const char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (*name == '\0')
        name = "unknown";
    strncpy(self.name, name, sizeof self.name - 1);
}

/** Returns the number of a text that consists of digits only, or -1. */
static int64_t parse_rank(const char *text) {
    int64_t rank = 0;
    if (*text == '\0')
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9' || rank > INT32_MAX)
            return -1;
        rank = rank * 10 + (*text - '0');
    }
    return rank;
}

static void load_rank(void) {
    static const struct {
        const char *name;
        const char *companion; /* must be set too, because many programs set the name alone */
    } variables[] = {
        {"RANK", "WORLD_SIZE"}, {"OMPI_COMM_WORLD_RANK", NULL}, {"PMIX_RANK", NULL},
        {"PMI_RANK", NULL},     {"MV2_COMM_WORLD_RANK", NULL},  {"SLURM_PROCID", NULL},
        {"RANK", NULL},
    };
    for (size_t i = 0; i < sizeof variables / sizeof *variables && self.rank < 0; i++) {
        const char *text = secure_getenv(variables[i].name);
        if (text && (!variables[i].companion || secure_getenv(variables[i].companion)))
            self.rank = parse_rank(text);
    }
}

/** Returns how long the process has run, in ns, from /proc; 0 if that is not known. */
static uint64_t age_ns(void) {
    char text[1024];
    size_t length = program_read_file("/proc/self/stat", text, sizeof text - 1);
    text[length] = '\0';
    /* The second field, the program's name in brackets, may contain brackets and spaces. */
    const char *at = strrchr(text, ')');
    for (int field = 2; at && field < STAT_START_FIELD; field++)
        at = strchr(at + 1, ' ');
    long ticks_per_second = sysconf(_SC_CLK_TCK);
    if (!at || ticks_per_second <= 0)
        return 0;
    uint64_t started = strtoull(at, NULL, 10) * (1000000000 / (uint64_t)ticks_per_second);
    uint64_t now = clock_ns(CLOCK_BOOTTIME);
    return started == 0 || started > now ? 0 : now - started;
}

void program_load(void) {
    if (atomic_flag_test_and_set(&loaded))
        return;
    int saved_errno = errno;
    start_ns = clock_ns(CLOCK_MONOTONIC);
    uint64_t age = age_ns();
    if (age < start_ns)
        start_ns -= age;
    load_arguments();
    load_name();
    if (gethostname(self.host, sizeof self.host - 1) != 0 || self.host[0] == '\0')
        strcpy(self.host, "localhost");
    load_rank();
    errno = saved_errno;
}

const struct program *program(void) {
    return &self;
}

uint32_t program_copy_command(char *to, size_t size) {
    size_t used = 0;
    for (size_t i = 0; i < self.argument_count; i++) {
        size_t length = strlen(self.arguments[i]) + 1;
        if (used + length > size)
            break;
        memcpy(to + used, self.arguments[i], length);
        used += length;
    }
    return (uint32_t)used;
}

uint64_t program_uptime_ns(void) {
    return start_ns == 0 ? 0 : clock_ns(CLOCK_MONOTONIC) - start_ns;
}

uint64_t program_time_ns(void) {
    return clock_ns(CLOCK_REALTIME);
}
