/*
 * Runs a fuzz target on inputs made from a small corpus, the same ones in every run:
 *
 *      fuzz_TARGET FOLDER      each file of the folder, and then files of it changed at random
 *      fuzz_TARGET FILE        this file only, as a finding is repeated
 *
 *      FUZZ_ITERATIONS=N       changed inputs (4000)
 *      FUZZ_SECONDS=N          goes on for that long instead
 *      FUZZ_SEED=N             others (1)
 *      FUZZ_FIRST=N            begins with this iteration
 *      FUZZ_FINDINGS=FOLDER    where an input that ends the process is kept
 *
 * An input follows from the seed and the number of its iteration alone. When the process ends in
 * the target, the driver writes both, and the input. An input that is not done after HANG_S seconds
 * is a finding too.
 */
#include "fuzz.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define INPUT_MOST ((size_t)1 << 16) /* bytes */
#define FILES_MOST 256
#define HANG_S 120
#define TURN_S 10 /* between two looks whether an input is done */

static struct {
    uint8_t *bytes;
    size_t size;
    char path[512];
} corpus[FILES_MOST];
static size_t corpus_count;

static uint64_t seed, state;
static _Atomic uint64_t iteration; /* under way, */
static const char *from;           /* made from this file, */
static uint8_t input[INPUT_MOST];  /* and its bytes */
static size_t input_size;
static const char *own_name;

/* ---- random numbers ---- */

static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t draw(void) {
    return mixed(state += UINT64_C(0x9e3779b97f4a7c15));
}

static size_t below(size_t bound) {
    return bound == 0 ? 0 : (size_t)(draw() % bound);
}

/* ---- changes of an input ---- */

static const char *const texts[] = {"0",
                                    "-1",
                                    "1",
                                    "4294967295",
                                    "4294967296",
                                    "9223372036854775807",
                                    "9223372036854775808",
                                    "-9223372036854775808",
                                    "18446744073709551615",
                                    "18446744073709551616",
                                    "1e308",
                                    "1e999",
                                    "-0.0",
                                    "0.000000001",
                                    "nan",
                                    "null",
                                    "true",
                                    "false",
                                    "{}",
                                    "[]",
                                    "{",
                                    "[",
                                    "}",
                                    "]",
                                    "\"\"",
                                    "\"",
                                    ",",
                                    ":",
                                    ".",
                                    "..",
                                    "/",
                                    "\\",
                                    "\\u0000",
                                    "\\ud800",
                                    "\\u009b",
                                    "\n",
                                    "\r",
                                    " ",
                                    "%",
                                    "%%",
                                    "%n",
                                    "\x1b[2J",
                                    "\xc2\x9b",
                                    "\xe2\x80\xae",
                                    "\xff"};

static const uint64_t numbers[] = {0,
                                   1,
                                   2,
                                   3,
                                   63,
                                   64,
                                   65,
                                   127,
                                   128,
                                   255,
                                   256,
                                   511,
                                   4095,
                                   4096,
                                   INT16_MAX,
                                   UINT16_MAX,
                                   (uint64_t)2 << 20,
                                   INT32_MAX,
                                   UINT32_MAX,
                                   (uint64_t)1 << 40,
                                   (uint64_t)1 << 47,
                                   INT64_MAX,
                                   (uint64_t)1 << 63,
                                   UINT64_MAX - 1,
                                   UINT64_MAX};

/** Opens a gap of up to `bytes` bytes at `at`, as the input's bound permits. Returns its size. */
static size_t open_gap(size_t at, size_t bytes) {
    size_t space = INPUT_MOST - input_size;
    bytes = bytes < space ? bytes : space;
    memmove(input + at + bytes, input + at, input_size - at);
    input_size += bytes;
    return bytes;
}

static void insert(size_t at, const void *bytes, size_t count) {
    count = open_gap(at, count);
    memcpy(input + at, bytes, count);
}

static void cut(size_t at, size_t bytes) {
    memmove(input + at, input + at + bytes, input_size - at - bytes);
    input_size -= bytes;
}

/** Returns a length that is mostly short. */
static size_t length_within(size_t most) {
    size_t length = 1 + below((size_t)1 << (1 + below(10)));
    return length < most ? length : most;
}

static void put_number(void) {
    size_t bytes = (size_t)1 << below(4), at = below(input_size);
    uint64_t value = numbers[below(sizeof numbers / sizeof *numbers)], there = 0;
    if (at + bytes > input_size)
        return;
    memcpy(&there, input + at, bytes);
    if (below(2) == 0)
        value = there + (uint64_t)below(33) - 16;
    memcpy(input + at, &value, bytes);
}

/** Puts another number in the place of decimal digits. */
static void put_digits(void) {
    size_t at = below(input_size), length = 0;
    while (at < input_size && (input[at] < '0' || input[at] > '9'))
        at++;
    while (at + length < input_size && input[at + length] >= '0' && input[at + length] <= '9')
        length++;
    if (length == 0)
        return;
    const char *text = texts[below(15)];
    cut(at, length);
    insert(at, text, strlen(text));
}

static void put_part_of_another(bool over) {
    size_t other = below(corpus_count), size = corpus[other].size;
    size_t begin = below(size), at = below(input_size + 1);
    size_t length = length_within(size - begin);
    if (size == 0)
        return;
    if (!over)
        insert(at, corpus[other].bytes + begin, length);
    else if (at + length <= input_size)
        memcpy(input + at, corpus[other].bytes + begin, length);
}

static void put_own_part(void) {
    uint8_t part[1024];
    size_t begin = below(input_size), length = length_within(input_size - begin);
    memcpy(part, input + begin, length);
    insert(below(input_size + 1), part, length);
}

static void change(void) {
    const char *text = texts[below(sizeof texts / sizeof *texts)];
    uint8_t byte = (uint8_t)draw();
    size_t at = below(input_size);
    switch (input_size == 0 ? 9 : below(11)) {
    case 0:
        input[at] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        input[at] = byte;
        break;
    case 2:
    case 3:
        put_number();
        break;
    case 4:
        put_digits();
        break;
    case 5:
        cut(at, length_within(input_size - at));
        break;
    case 6:
        put_part_of_another(below(2) == 0);
        break;
    case 7:
        put_own_part();
        break;
    case 8:
        if (below(4) == 0)
            input_size = at;
        break;
    case 9:
        insert(below(input_size + 1), text, strlen(text));
        break;
    default:
        insert(at, &byte, 1);
        break;
    }
}

static void make_input(uint64_t number) {
    state = mixed(seed ^ mixed(number + 1));
    size_t file = below(corpus_count);
    from = corpus[file].path;
    input_size = corpus[file].size;
    memcpy(input, corpus[file].bytes, input_size);
    for (size_t i = 1 + below((size_t)1 << below(6)); i > 0; i--)
        change();
}

/* ---- what ends the process ---- */

static size_t put(char *to, const char *text) {
    size_t length = strlen(text);
    memcpy(to, text, length);
    return length;
}

static size_t put_count(char *to, uint64_t number) {
    char digits[20];
    size_t count = 0, i;
    do {
        digits[count++] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    for (i = 0; i < count; i++)
        to[i] = digits[count - 1 - i];
    return count;
}

/** Keeps the input. Returns the length of what it writes to `text` about that. */
static size_t keep_input(char *text) {
    static char path[1024];
    const char *folder = getenv("FUZZ_FINDINGS");
    size_t used = 0;
    if (!folder || strlen(folder) > 512)
        return 0;
    used += put(path, folder);
    used += put(path + used, "/");
    used += put(path + used, own_name);
    used += put(path + used, "-");
    used += put_count(path + used, seed);
    used += put(path + used, "-");
    used += put_count(path + used, atomic_load(&iteration));
    path[used] = '\0';
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool written = fd >= 0 && write(fd, input, input_size) == (ssize_t)input_size;
    if (fd >= 0)
        close(fd);
    size_t said = put(text, written ? "kept as " : "could not be kept as ");
    said += put(text + said, path);
    said += put(text + said, "\n");
    return said;
}

/** Says which input it was. Async-signal-safe. */
static void say_input(void) {
    static char text[4096];
    size_t used = put(text, own_name);
    used += put(text + used, ": FUZZ_SEED=");
    used += put_count(text + used, seed);
    used += put(text + used, " FUZZ_FIRST=");
    used += put_count(text + used, atomic_load(&iteration));
    used += put(text + used, " FUZZ_ITERATIONS=1; ");
    used += put_count(text + used, input_size);
    used += put(text + used, " bytes made from ");
    used += put(text + used, from ? from : "nothing");
    used += put(text + used, "\n");
    used += keep_input(text + used);
    if (write(STDERR_FILENO, text, used) < 0)
        _exit(1);
}

static void on_end(int number) {
    say_input();
    signal(number, SIG_DFL);
    raise(number);
}

static void on_turn(int number) {
    static uint64_t last = UINT64_MAX, turns;
    uint64_t now = atomic_load(&iteration);
    turns = now == last ? turns + 1 : 0;
    last = now;
    if (turns < HANG_S / TURN_S)
        return;
    (void)number;
    say_input();
    static const char hang[] = "that input is not done\n";
    if (write(STDERR_FILENO, hang, sizeof hang - 1) < 0)
        _exit(1);
    _exit(1);
}

static void on_exit_within(void) {
    if (from)
        say_input();
}

/* The sanitizers end the process by themselves; absent without them. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

/* Without this a finding of the undefined behaviour sanitizer ends the process behind our back, or
 * not at all. */
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void) {
    return "halt_on_error=1:abort_on_error=1:print_stacktrace=1";
}

static void watch(void) {
    static const int numbers_of[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    struct itimerval turn = {{TURN_S, 0}, {TURN_S, 0}};
    struct sigaction turns = {.sa_handler = on_turn, .sa_flags = SA_RESTART};
    if (__sanitizer_set_death_callback)
        __sanitizer_set_death_callback(say_input);
    for (size_t i = 0; i < sizeof numbers_of / sizeof *numbers_of; i++)
        if (!__sanitizer_set_death_callback || numbers_of[i] == SIGABRT)
            signal(numbers_of[i], on_end);
    atexit(on_exit_within); /* a reader that ends the process */
    sigaction(SIGALRM, &turns, NULL);
    setitimer(ITIMER_REAL, &turn, NULL);
}

/* ---- the corpus ---- */

static _Noreturn void cannot(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", own_name, what, strerror(errno));
    exit(1);
}

static void add_file(const char *path) {
    FILE *file = fopen(path, "re");
    if (!file)
        cannot(path);
    uint8_t *bytes = malloc(INPUT_MOST);
    if (!bytes || corpus_count == FILES_MOST)
        cannot("too many files");
    corpus[corpus_count].size = fread(bytes, 1, INPUT_MOST, file);
    corpus[corpus_count].bytes = bytes;
    snprintf(corpus[corpus_count++].path, sizeof corpus->path, "%s", path);
    fclose(file);
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/** Compares names. The order of readdir() differs between file systems. */
static void add_folder(const char *path) {
    char *names[FILES_MOST], whole[512];
    size_t count = 0;
    DIR *folder = opendir(path);
    if (!folder)
        cannot(path);
    for (struct dirent *entry; (entry = readdir(folder)) && count < FILES_MOST;)
        if (entry->d_name[0] != '.')
            names[count++] = strdup(entry->d_name);
    closedir(folder);
    qsort(names, count, sizeof *names, by_name);
    for (size_t i = 0; i < count; i++) {
        snprintf(whole, sizeof whole, "%s/%s", path, names[i]);
        add_file(whole);
        free(names[i]);
    }
}

/* ---- the run ---- */

static uint64_t number_of(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/** Runs the target on a copy, so that the sanitizers see what it reads behind its end. */
static void run_input(void) {
    uint8_t *copy = malloc(input_size > 0 ? input_size : 1);
    if (!copy)
        cannot("memory");
    memcpy(copy, input, input_size);
    fuzz_one(copy, input_size);
    free(copy);
}

static void run_file(size_t file) {
    from = corpus[file].path;
    input_size = corpus[file].size;
    memcpy(input, corpus[file].bytes, input_size);
    run_input();
}

int main(int argc, char **argv) {
    struct stat file;
    own_name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    if (argc != 2 || stat(argv[1], &file) != 0) {
        fprintf(stderr, "%s: wanted is a folder of inputs, or one input\n", own_name);
        return 2;
    }
    bool one = !S_ISDIR(file.st_mode);
    (one ? add_file : add_folder)(argv[1]);
    if (corpus_count == 0)
        cannot("no file");
    seed = number_of("FUZZ_SEED", 1);
    uint64_t first = number_of("FUZZ_FIRST", 0), count = number_of("FUZZ_ITERATIONS", 4000);
    double seconds = (double)number_of("FUZZ_SECONDS", 0), begin = now();
    watch();
    for (size_t i = 0; i < corpus_count && first == 0; i++)
        run_file(i);
    uint64_t done = 0;
    for (; !one && (seconds > 0 ? now() - begin < seconds : done < count); done++) {
        atomic_store(&iteration, first + done);
        make_input(first + done);
        run_input();
    }
    from = NULL;
    fprintf(stderr, "%s: %llu inputs in %.1f s, seed %llu\n", own_name,
            (unsigned long long)(done + (first == 0 ? corpus_count : 0)), now() - begin,
            (unsigned long long)seed);
    return 0;
}
