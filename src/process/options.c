/*
 * The options: from environment text to struct options.
 *
 * Every row of options.def has one parser, which takes the whole text or refuses it without
 * touching anything that the caller keeps. The default is text too and goes through the same
 * parser, so what the documentation calls the default and what the code starts from cannot differ.
 * Parsing is strict: a limit that was mistyped and silently ignored would be found out at the worst
 * moment, by another user's job. Numbers are parsed here rather than by strtod and the like, which
 * depend on the locale and take signs, blanks, hexadecimal and "nan".
 */
#include "process/options.h"

#include "process/print.h"
#include "process/program.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#define PREFIX "GPUCACHE_"
#define VALUE_MAX 1024   /* a longer value makes no sense for any option */
#define VALUE_COLUMNS 40 /* how much of a value a warning shows */
#define NAME_MAX_LENGTH 64
#define DIGITS_MAX 18 /* decimals of a number that count */

static struct options in_force, candidate;
static char texts[OPTION_COUNT][VALUE_MAX]; /* empty: the default */
static atomic_flag loaded = ATOMIC_FLAG_INIT;

#define NONE ""
#define ALL "*"
#define ONLY(value) value
const struct option_info option_table[OPTION_COUNT] = {
#define OPTION(id, parser, initial, values, meaning, planned)                                      \
    {PREFIX #id, initial, values, meaning, planned},
#include "process/options.def"
#undef OPTION
};
#undef NONE
#undef ALL
#undef ONLY

/* ---- numbers ---- */

/** Takes digits; false if there is none or the value does not fit. */
static bool take_u64(const char **at, uint64_t *value) {
    const char *start = *at;
    *value = 0;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        if (__builtin_mul_overflow(*value, 10, value) ||
            __builtin_add_overflow(*value, (uint64_t)(**at - '0'), value))
            return false;
    }
    return *at != start;
}

/** A number with or without decimals, as whole + part / scale. */
struct decimal {
    uint64_t whole, part, scale;
};

static bool take_decimal(const char **at, struct decimal *number) {
    *number = (struct decimal){.scale = 1};
    if (!take_u64(at, &number->whole))
        return false;
    if (**at != '.')
        return true;
    ++*at;
    const char *start = *at;
    for (; **at >= '0' && **at <= '9'; ++*at) {
        if (*at - start >= DIGITS_MAX)
            return false;
        number->part = number->part * 10 + (uint64_t)(**at - '0');
        number->scale *= 10;
    }
    return *at != start;
}

/** A share in (0,1]. */
static bool take_fraction(const char **at, double *value) {
    struct decimal number;
    if (!take_decimal(at, &number))
        return false;
    *value = (double)number.whole + (double)number.part / (double)number.scale;
    return *value > 0 && (number.whole == 0 || (number.whole == 1 && number.part == 0));
}

/** Bytes with or without a unit; decimals only with one. Nothing is no size. */
static bool take_size(const char **at, uint64_t *value) {
    struct decimal number;
    if (!take_decimal(at, &number))
        return false;
    uint64_t unit = 1;
    switch (**at) {
    case 'K':
    case 'k':
        unit = 1ull << 10;
        break;
    case 'M':
    case 'm':
        unit = 1ull << 20;
        break;
    case 'G':
    case 'g':
        unit = 1ull << 30;
        break;
    case 'T':
    case 't':
        unit = 1ull << 40;
        break;
    default:
        break;
    }
    if (unit != 1) {
        ++*at;
        if (**at == 'i') {
            if ((*at)[1] != 'B')
                return false;
            ++*at;
        }
    }
    if (**at == 'B')
        ++*at;
    if (unit == 1 && number.scale != 1)
        return false;
    uint64_t part = (uint64_t)((unsigned __int128)number.part * unit / number.scale);
    return !__builtin_mul_overflow(number.whole, unit, value) &&
           !__builtin_add_overflow(*value, part, value) && *value > 0;
}

/** `value` for all devices, or `device:value,device:value`. take(at, i) takes one value into slot
 * i. */
static bool parse_per_device(const char *text, bool (*take)(const char **at, size_t device, void *),
                             size_t slots, void *context) {
    const char *at = text;
    if (!strchr(text, ':')) {
        for (size_t device = 0; device < slots; device++) {
            at = text;
            if (!take(&at, device, context) || *at != '\0')
                return false;
        }
        return true;
    }
    uint64_t seen = 0, device;
    _Static_assert(OPTIONS_MAX_DEVICES <= 64, "one bit per device");
    for (;;) {
        if (!take_u64(&at, &device) || device >= slots || *at++ != ':' || (seen >> device & 1))
            return false;
        seen |= 1ull << device;
        if (!take(&at, device, context))
            return false;
        if (*at == '\0')
            return true;
        if (*at++ != ',')
            return false;
    }
}

static bool equal(const char *a, const char *b) {
    return strcmp(a, b) == 0;
}

/** The place of text in a list that ends with NULL, or -1. */
static int word(const char *text, const char *const *words) {
    for (int i = 0; words[i]; i++)
        if (equal(text, words[i]))
            return i;
    return -1;
}

/** A whole text that is one number up to max. */
static bool parse_number(const char *text, uint64_t max, uint64_t *value) {
    return take_u64(&text, value) && *text == '\0' && *value <= max;
}

/* ---- one parser per option ---- */

static bool take_device_fraction(const char **at, size_t device, void *context) {
    struct options *to = context;
    return take_fraction(at, &to->memory_fraction[device]);
}

static bool parse_memory_fraction(const char *text, struct options *to) {
    return parse_per_device(text, take_device_fraction, OPTIONS_MAX_DEVICES, to);
}

static bool take_device_limit(const char **at, size_t device, void *context) {
    struct options *to = context;
    return take_size(at, &to->memory_limit[device]);
}

static bool parse_memory_limit(const char *text, struct options *to) {
    if (equal(text, "none")) {
        memset(to->memory_limit, 0, sizeof to->memory_limit);
        return true;
    }
    return parse_per_device(text, take_device_limit, OPTIONS_MAX_DEVICES, to);
}

/** A pattern with known letters only, made absolute: the program may change its directory before it
 * is used. */
static bool parse_pattern(const char *text, char *pattern) {
    if (*text == '\0')
        return false;
    for (const char *at = text; *at; at++)
        if (*at == '%' && (*++at == '\0' || !strchr(OPTIONS_PATTERN, *at)))
            return false;
    char directory[OPTIONS_PATH] = "";
    if (*text != '/' && (!getcwd(directory, sizeof directory) || *directory != '/'))
        directory[0] = '\0'; /* there is none: whatever it is when the file is written */
    struct print out;
    print_init(&out, -1, pattern, OPTIONS_PATH);
    for (const char *at = directory; *at; at++) {
        print_char(&out, *at);
        if (*at == '%')
            print_char(&out, '%');
    }
    if (*directory && !equal(directory, "/"))
        print_char(&out, '/');
    print_str(&out, text);
    print_end(&out);
    return out.error == 0 && out.used < OPTIONS_PATH - 1;
}

static bool parse_report(const char *text, struct options *to) {
    memset(to->report_pattern, 0, sizeof to->report_pattern);
    if (equal(text, "stderr"))
        to->report = REPORT_TO_STDERR;
    else if (equal(text, "off"))
        to->report = REPORT_TO_NOWHERE;
    else {
        to->report = REPORT_TO_FILE;
        return parse_pattern(text, to->report_pattern);
    }
    return true;
}

static bool parse_report_format(const char *text, struct options *to) {
    int format = word(text, (const char *const[]){"text", "json", NULL});
    to->report_format = (enum report_format)format;
    return format >= 0;
}

/** Signals that mean a broken program or cannot be caught are none to report at. */
static bool reportable(uint64_t number) {
    switch (number) {
    case 0:
    case SIGKILL:
    case SIGSTOP:
    case SIGSEGV:
    case SIGBUS:
    case SIGFPE:
    case SIGILL:
    case SIGTRAP:
    case SIGABRT:
    case SIGSYS:
        return false;
    default:
        return number < 32 || (number >= (uint64_t)SIGRTMIN && number <= (uint64_t)SIGRTMAX);
    }
}

static bool parse_report_signal(const char *text, struct options *to) {
    static const struct {
        const char *name;
        int number;
    } signals[] = {
        {"HUP", SIGHUP},   {"INT", SIGINT},       {"QUIT", SIGQUIT},     {"USR1", SIGUSR1},
        {"USR2", SIGUSR2}, {"PIPE", SIGPIPE},     {"ALRM", SIGALRM},     {"TERM", SIGTERM},
        {"CHLD", SIGCHLD}, {"CONT", SIGCONT},     {"TSTP", SIGTSTP},     {"TTIN", SIGTTIN},
        {"TTOU", SIGTTOU}, {"URG", SIGURG},       {"XCPU", SIGXCPU},     {"XFSZ", SIGXFSZ},
        {"PROF", SIGPROF}, {"VTALRM", SIGVTALRM}, {"POLL", SIGPOLL},     {"IO", SIGIO},
        {"PWR", SIGPWR},   {"WINCH", SIGWINCH},   {"STKFLT", SIGSTKFLT},
    };
    uint64_t number;
    if (equal(text, "off")) {
        to->report_signal = 0;
        return true;
    }
    if (parse_number(text, 64, &number)) {
        to->report_signal = (int)number;
        return reportable(number);
    }
    if (strncmp(text, "SIG", 3) == 0)
        text += 3;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        if (equal(text, signals[i].name)) {
            to->report_signal = signals[i].number;
            return true;
        }
    }
    return false;
}

static bool parse_report_interval(const char *text, struct options *to) {
    if (equal(text, "off")) {
        to->report_interval_ms = 0;
        return true;
    }
    struct decimal number;
    if (!take_decimal(&text, &number) || *text != '\0' || number.whole > 1000000000)
        return false;
    to->report_interval_ms =
        number.whole * 1000 + (uint64_t)((unsigned __int128)number.part * 1000 / number.scale);
    return to->report_interval_ms > 0;
}

static bool parse_reuse(const char *text, struct options *to) {
    int reuse = word(text, (const char *const[]){"barrier", "wait", "sync", NULL});
    to->reuse = (enum reuse)reuse;
    return reuse >= 0;
}

static bool parse_backend(const char *text, struct options *to) {
    int backend = word(text, (const char *const[]){"auto", "segments", "pages", NULL});
    to->backend = (enum backend_choice)backend;
    return backend >= 0;
}

static bool parse_budget(const char *text, struct options *to) {
    if (equal(text, "auto")) {
        to->budget_bytes = OPTIONS_AUTOMATIC;
        return true;
    }
    if (equal(text, "0")) { /* elsewhere no size; as a budget: reuse always comes before growth */
        to->budget_bytes = 0;
        return true;
    }
    return take_size(&text, &to->budget_bytes) && *text == '\0' &&
           to->budget_bytes != OPTIONS_AUTOMATIC;
}

static bool parse_decay_ms(const char *text, struct options *to) {
    if (equal(text, "never")) {
        to->decay_ms = OPTIONS_NEVER;
        return true;
    }
    return parse_number(text, UINT64_MAX / 1000000, &to->decay_ms); /* fits in nanoseconds */
}

static bool parse_stacks(const char *text, struct options *to) {
    uint64_t frames;
    if (!parse_number(text, OPTIONS_MAX_STACK, &frames))
        return false;
    to->stacks = (unsigned)frames;
    return true;
}

static bool parse_trace(const char *text, struct options *to) {
    memset(to->trace_pattern, 0, sizeof to->trace_pattern);
    return equal(text, "off") || parse_pattern(text, to->trace_pattern);
}

static bool parse_switch(const char *text, bool *on) {
    int place = word(text, (const char *const[]){"off", "on", "0", "1", NULL});
    *on = place % 2 != 0;
    return place >= 0;
}

static bool parse_pinned(const char *text, struct options *to) {
    int place = word(text, (const char *const[]){"off", "on", NULL});
    to->pinned = place == 1;
    return place >= 0;
}

static bool parse_disable(const char *text, struct options *to) {
    return parse_switch(text, &to->disable);
}

static bool parse_log(const char *text, struct options *to) {
    int level = word(text, (const char *const[]){"error", "warn", "info", "debug", NULL});
    to->log = (enum log_level)level;
    return level >= 0;
}

static bool (*const parsers[OPTION_COUNT])(const char *text, struct options *to) = {
#define OPTION(id, parser, initial, values, meaning, planned) parse_##parser,
#include "process/options.def"
#undef OPTION
};

/* ---- the environment ---- */

static void load_option(enum option_id id) {
    const struct option_info *option = &option_table[id];
    parsers[id](option->initial, &in_force);
    const char *value = secure_getenv(option->name);
    if (!value)
        return;
    memcpy(&candidate, &in_force, sizeof in_force); /* with its padding: they are compared below */
    if (strlen(value) >= VALUE_MAX || !parsers[id](value, &candidate)) {
        char shown[VALUE_COLUMNS * 4 + 8];
        struct print out;
        print_init(&out, -1, shown, sizeof shown);
        print_escaped(&out, value, VALUE_COLUMNS);
        log_warn("%s=\"%s\" makes no sense: accepted are %s; using %s", option->name,
                 print_end(&out), option->values, option->initial);
        return;
    }
    bool differs = memcmp(&candidate, &in_force, sizeof in_force) != 0;
    memcpy(&in_force, &candidate, sizeof in_force);
    strcpy(texts[id], value);
    if (equal(option->planned, "*") && differs)
        log_warn("%s is accepted but has no effect in this version", option->name);
    else if (equal(option->planned, value))
        log_warn("%s=%s is accepted but has no effect in this version", option->name, value);
}

/** How many characters must be added, dropped or changed to make b of a. Looks at NAME_MAX_LENGTH
 * characters of b. */
static size_t edit_distance(const char *a, size_t a_length, const char *b) {
    size_t b_length = strnlen(b, NAME_MAX_LENGTH);
    size_t row[NAME_MAX_LENGTH + 1];
    for (size_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[b_length];
}

/** Names that are not options of the library but belong to its tests and its command. */
static bool is_foreign(const char *name, size_t length) {
    static const char *const prefixes[] = {PREFIX "SIM_", PREFIX "TEST_", NULL};
    for (size_t i = 0; prefixes[i]; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return length == strlen(PREFIX "SO") && strncmp(name, PREFIX "SO", length) == 0;
}

static void warn_if_unknown(const char *entry) {
    if (strncmp(entry, PREFIX, strlen(PREFIX)) != 0)
        return;
    size_t length = strcspn(entry, "=");
    if (is_foreign(entry, length))
        return;
    if (length > NAME_MAX_LENGTH)
        length = NAME_MAX_LENGTH;
    const char *nearest = NULL;
    size_t least = SIZE_MAX;
    for (size_t id = 0; id < OPTION_COUNT; id++) {
        size_t distance = edit_distance(entry, length, option_table[id].name);
        if (distance < least) {
            least = distance;
            nearest = option_table[id].name;
        }
    }
    if (least == 0 && entry[length] == '=')
        return;
    char name[NAME_MAX_LENGTH + 1] = "";
    memcpy(name, entry, length);
    log_warn("there is no option %s%s; the nearest is %s", name, entry[length] == '=' ? "" : "...",
             nearest);
}

void options_load(void) {
    if (atomic_flag_test_and_set(&loaded))
        return;
    int saved_errno = errno;
    log_open();
    program_load();
    load_option(OPTION_LOG); /* first: it decides which of the warnings below appear */
    log_set_level(in_force.log);
    for (int id = 0; id < OPTION_COUNT; id++)
        if (id != OPTION_LOG)
            load_option((enum option_id)id);
    /* a set-user-ID program's environment is nobody's business, as for secure_getenv */
    for (char **entry = environ; !getauxval(AT_SECURE) && entry && *entry; entry++)
        warn_if_unknown(*entry);
    if (in_force.report == REPORT_TO_STDERR)
        log_keep();
    errno = saved_errno;
}

/* ---- answers ---- */

const struct options *options(void) {
    return &in_force;
}

bool options_from_environment(enum option_id id) {
    return texts[id][0] != '\0';
}

const char *options_text(enum option_id id) {
    return options_from_environment(id) ? texts[id] : option_table[id].initial;
}

/** The bytes a share stands for; 0 if it is all of it. */
static uint64_t fraction_bytes(int device, uint64_t total_bytes) {
    double fraction = in_force.memory_fraction[device];
    if (fraction <= 0 || fraction >= 1 || total_bytes == 0)
        return 0;
    uint64_t bytes = (uint64_t)(fraction * (double)total_bytes);
    return bytes > 0 ? bytes : 1;
}

enum option_id options_limit_source(int device, uint64_t total_bytes) {
    if (device < 0 || device >= OPTIONS_MAX_DEVICES)
        return OPTION_COUNT;
    uint64_t share = fraction_bytes(device, total_bytes);
    uint64_t limit = in_force.memory_limit[device];
    if (limit != 0 && (share == 0 || limit <= share))
        return OPTION_MEMORY_LIMIT;
    return share != 0 ? OPTION_MEMORY_FRACTION : OPTION_COUNT;
}

uint64_t options_limit(int device, uint64_t total_bytes) {
    switch (options_limit_source(device, total_bytes)) {
    case OPTION_MEMORY_LIMIT:
        return in_force.memory_limit[device];
    case OPTION_MEMORY_FRACTION:
        return fraction_bytes(device, total_bytes);
    default:
        return 0;
    }
}

static void print_assignment(struct print *out, enum option_id id) {
    print_str(out, option_table[id].name);
    print_char(out, '=');
    print_escaped(out, options_text(id), VALUE_MAX);
    print_str(out, options_from_environment(id) ? " (environment)" : " (default)");
}

void options_print(struct print *out) {
    for (int id = 0; id < OPTION_COUNT; id++) {
        const struct option_info *option = &option_table[id];
        print_assignment(out, (enum option_id)id);
        print_format(out, "\n    %s\n    accepted: %s\n    default: %s\n", option->meaning,
                     option->values, option->initial);
        if (equal(option->planned, "*"))
            print_str(out, "    no effect in this version\n");
        else if (*option->planned)
            print_format(out, "    %s has no effect in this version\n", option->planned);
    }
}

void options_log(void) {
    if (!log_enabled(LOG_LEVEL_INFO))
        return;
    char buffer[LOG_LINE];
    struct print out;
    for (int id = 0; id < OPTION_COUNT; id++) {
        print_init(&out, -1, buffer, sizeof buffer);
        print_assignment(&out, (enum option_id)id);
        log_info("%s", print_end(&out));
    }
}
