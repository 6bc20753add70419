/*
 * The options: turns environment variables into struct options.
 *
 * Every row of options.def has one parser. It takes the whole text, or refuses it without changing
 * the values in force. The default is also text and goes through the same parser, so the documented
 * default cannot differ from the real one. Parsing is strict: a mistyped limit that is ignored
 * would be noticed only when another user's job fails. value.h describes how values are written.
 *
 * options_load() runs once. After it the values are constant, and no lock is needed.
 */
#include "options/options.h"

#include "base/print.h"
#include "base/program.h"
#include "base/sanitizer.h"
#include "options/hami.h"
#include "options/value.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h> /* environ */

#define PREFIX "GPUCACHE_"
#define VALUE_MAX 1024   /* a longer value is invalid for every option */
#define VALUE_COLUMNS 40 /* part of a value that a warning shows */
#define NAME_MAX_LENGTH VALUE_WORD

static struct options in_force, candidate;
static char texts[OPTION_COUNT][VALUE_MAX];         /* empty: the default */
static struct hami_limit hami[OPTIONS_MAX_DEVICES]; /* empty where an option sets a limit */
static atomic_flag loaded = ATOMIC_FLAG_INIT;

const struct option_info option_table[OPTION_COUNT] = {
#define OPTION(id, parser, initial, values, meaning) {PREFIX #id, initial, values, meaning, false},
#define INTERNAL(id, parser, initial, values, meaning) {PREFIX #id, initial, values, meaning, true},
#include "options/options.def"
#undef OPTION
};

/* --- one parser per option --- */

static bool take_device_fraction(const char **at, size_t device, void *context) {
    struct options *to = context;
    return value_take_share(at, &to->memory_fraction[device]);
}

static bool parse_memory_fraction(const char *text, struct options *to) {
    return value_per_device(text, take_device_fraction, to, &to->fraction_devices);
}

static bool take_device_limit(const char **at, size_t device, void *context) {
    struct options *to = context;
    return value_take_size(at, &to->memory_limit[device]);
}

static bool parse_memory_limit(const char *text, struct options *to) {
    if (value_equal(text, "none")) {
        memset(to->memory_limit, 0, sizeof to->memory_limit);
        return true;
    }
    return value_per_device(text, take_device_limit, to, &to->limit_devices);
}

static bool parse_report(const char *text, struct options *to) {
    memset(to->report_pattern, 0, sizeof to->report_pattern);
    to->report = value_equal(text, "stderr") ? REPORT_TO_STDERR
                 : value_is_off(text)        ? REPORT_TO_NOWHERE
                                             : REPORT_TO_FILE;
    return to->report != REPORT_TO_FILE || value_pattern(text, to->report_pattern);
}

static bool parse_report_format(const char *text, struct options *to) {
    int format = value_word(text, (const char *const[]){"text", "json", NULL});
    to->report_format = (enum report_format)format;
    return format >= 0;
}

static bool parse_report_signal(const char *text, struct options *to) {
    to->report_signal = 0;
    return value_is_off(text) || value_signal(text, &to->report_signal);
}

static bool parse_report_interval(const char *text, struct options *to) {
    to->report_interval_ms = 0;
    return value_is_off(text) || value_milliseconds(text, &to->report_interval_ms);
}

static bool parse_reuse(const char *text, struct options *to) {
    int reuse = value_word(text, reuse_names);
    to->reuse = (enum reuse)reuse;
    return reuse >= 0;
}

static bool parse_backend(const char *text, struct options *to) {
    int backend = value_word(text, (const char *const[]){"auto", "segments", "pages", NULL});
    to->backend = (enum backend_choice)backend;
    return backend >= 0;
}

static bool parse_budget(const char *text, struct options *to) {
    if (value_equal(text, "auto")) {
        to->budget_bytes = OPTIONS_AUTOMATIC;
        return true;
    }
    if (strcmp(text, "0") == 0) { /* invalid as a size; as a budget: reuse before growth */
        to->budget_bytes = 0;
        return true;
    }
    return value_take_size(&text, &to->budget_bytes) && *text == '\0' &&
           to->budget_bytes != OPTIONS_AUTOMATIC;
}

static bool parse_decay_ms(const char *text, struct options *to) {
    if (value_equal(text, "never")) {
        to->decay_ms = OPTIONS_NEVER;
        return true;
    }
    return value_number(text, UINT64_MAX / 1000000, &to->decay_ms); /* must fit in nanoseconds */
}

static bool parse_stacks(const char *text, struct options *to) {
    uint64_t frames;
    if (!value_number(text, OPTIONS_MAX_STACK, &frames))
        return false;
    to->stacks = (unsigned)frames;
    return true;
}

static bool parse_trace(const char *text, struct options *to) {
    memset(to->trace_pattern, 0, sizeof to->trace_pattern);
    return value_is_off(text) || value_pattern(text, to->trace_pattern);
}

static bool parse_oom_snapshot(const char *text, struct options *to) {
    memset(to->oom_snapshot_pattern, 0, sizeof to->oom_snapshot_pattern);
    return value_is_off(text) || value_pattern(text, to->oom_snapshot_pattern);
}

static bool parse_trace_events(const char *text, struct options *to) {
    if (value_equal(text, "all")) {
        to->trace_events = OPTIONS_ALL;
        return true;
    }
    return value_number(text, OPTIONS_MOST_EVENTS, &to->trace_events) &&
           to->trace_events >= OPTIONS_FEWEST_EVENTS;
}

/* Reads an octal mode. The owner must be able to read and write; nobody may execute the file. */
static bool parse_file_mode(const char *text, struct options *to) {
    unsigned mode = 0;
    size_t digits = strspn(text, "01234567");
    for (size_t i = 0; i < digits; i++)
        mode = mode * 8 + (unsigned)(text[i] - '0');
    to->file_mode = mode;
    return digits >= 3 && digits <= 4 && text[digits] == '\0' && (mode & ~0666u) == 0 &&
           (mode & 0600) == 0600;
}

static bool parse_live(const char *text, struct options *to) {
    return value_switch(text, &to->live);
}

static bool parse_peaks(const char *text, struct options *to) {
    memset(to->peaks_path, 0, sizeof to->peaks_path);
    if (value_is_off(text))
        return true;
    if (*text != '/' || strlen(text) >= sizeof to->peaks_path)
        return false;
    strcpy(to->peaks_path, text);
    return true;
}

static bool parse_pinned(const char *text, struct options *to) {
    return value_switch(text, &to->pinned);
}

static bool parse_disable(const char *text, struct options *to) {
    return value_switch(text, &to->disable);
}

/** Disables pooling under compute-sanitizer, unless the user sets GPUCACHE_DISABLE=off. */
static void disable_under_sanitizer(void) {
    in_force.disable_reason = option_table[OPTION_DISABLE].name;
    if (!in_force.disable && texts[OPTION_DISABLE][0] == '\0' && sanitizer_is_there()) {
        in_force.disable = true;
        in_force.disable_reason = "under compute-sanitizer";
    }
}

static bool parse_log(const char *text, struct options *to) {
    int level = value_word(text, (const char *const[]){"error", "warn", "info", "debug", NULL});
    to->log = (enum log_level)level;
    return level >= 0;
}

static bool (*const parsers[OPTION_COUNT])(const char *text, struct options *to) = {
#define OPTION(id, parser, initial, values, meaning) parse_##parser,
#include "options/options.def"
#undef OPTION
};

/* --- the environment --- */

bool options_accept(enum option_id id, const char *value) {
    candidate = in_force;
    return *value == '\0' || (strlen(value) < VALUE_MAX && parsers[id](value, &candidate));
}

/**
 * Sets an option from the environment. Returns false if the value is invalid; then the default is
 * in force. An empty value counts as unset.
 */
static bool load_option(enum option_id id) {
    const struct option_info *option = &option_table[id];
    parsers[id](option->initial, &in_force);
    const char *value = secure_getenv(option->name);
    if (!value || *value == '\0')
        return true;
    if (!options_accept(id, value))
        return false;
    in_force = candidate;
    strcpy(texts[id], value);
    return true;
}

/* --- messages about options --- */

/** Returns the first VALUE_COLUMNS columns of a value, in `buffer`. */
static const char *shown(char *buffer, size_t size, const char *value) {
    struct print out;
    print_init(&out, -1, buffer, size);
    print_escaped(&out, value, VALUE_COLUMNS);
    return print_end(&out);
}

/** Returns the first device that a variable of HAMi-core limits, or -1 if there is none. */
static int first_hami(void) {
    for (int device = 0; device < OPTIONS_MAX_DEVICES; device++)
        if (hami[device].bytes != 0)
            return device;
    return -1;
}

/**
 * Reports an invalid value. A missing limit is an error instead of a warning, because another
 * user's job would be the first to notice.
 */
static void say_refused(enum option_id id) {
    const struct option_info *option = &option_table[id];
    char buffer[VALUE_COLUMNS * 4 + 8];
    const char *value = shown(buffer, sizeof buffer, secure_getenv(option->name));
    enum option_id other = id == OPTION_MEMORY_LIMIT      ? OPTION_MEMORY_FRACTION
                           : id == OPTION_MEMORY_FRACTION ? OPTION_MEMORY_LIMIT
                                                          : OPTION_COUNT;
    if (other == OPTION_COUNT)
        log_warn("%s=\"%s\" makes no sense: accepted are %s; using %s", option->name, value,
                 option->values, option->initial);
    else if (options_from_environment(other) || first_hami() >= 0)
        log_error("%s=\"%s\" makes no sense: accepted are %s; only %s limits the memory now",
                  option->name, value, option->values,
                  options_from_environment(other) ? option_table[other].name
                                                  : hami[first_hami()].name);
    else
        log_error("%s=\"%s\" makes no sense: accepted are %s; there is no limit now", option->name,
                  value, option->values);
}

/** Warns of a limit that is too small for any program: most often the user forgot the unit. */
static void warn_of_small_limit(void) {
    for (int device = 0; device < OPTIONS_MAX_DEVICES; device++) {
        uint64_t limit = in_force.memory_limit[device];
        if (limit > 0 && limit < VALUE_SMALL_LIMIT) {
            log_warn("%s=%s is a limit of %llu bytes, too little for anything; sizes take K, M, G "
                     "or T",
                     option_table[OPTION_MEMORY_LIMIT].name, texts[OPTION_MEMORY_LIMIT],
                     (unsigned long long)limit);
            return;
        }
    }
}

/** Warns of the first device in the bits `named` that does not exist. */
static void warn_of_missing(enum option_id id, uint64_t named, int count) {
    for (int device = count; device < OPTIONS_MAX_DEVICES; device++) {
        if (named >> device & 1) {
            log_warn("%s=%s: there is no device %d; this process sees %d, numbered from 0",
                     option_table[id].name, texts[id], device, count);
            return;
        }
    }
}

void options_check_devices(int count) {
    warn_of_missing(OPTION_MEMORY_FRACTION, in_force.fraction_devices, count);
    warn_of_missing(OPTION_MEMORY_LIMIT, in_force.limit_devices, count);
}

/** Returns whether the name belongs to the tests or the command, and not to the library. */
static bool is_other_name(const char *name, size_t length) {
    static const char *const prefixes[] = {PREFIX "SIM_", PREFIX "TEST_", NULL};
    for (size_t i = 0; prefixes[i]; i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return length == strlen(PREFIX "SO") && strncmp(name, PREFIX "SO", length) == 0;
}

/** Warns of a variable GPUCACHE_... that is no option, and names the nearest option. */
static void warn_if_unknown(const char *entry) {
    if (strncmp(entry, PREFIX, strlen(PREFIX)) != 0)
        return;
    size_t length = strcspn(entry, "=");
    if (is_other_name(entry, length))
        return;
    if (length > NAME_MAX_LENGTH)
        length = NAME_MAX_LENGTH;
    const char *nearest = NULL;
    size_t least = SIZE_MAX;
    for (size_t id = 0; id < OPTION_COUNT; id++) {
        size_t distance = value_distance(entry, length, option_table[id].name);
        bool may_be_named = !option_table[id].internal || distance == 0;
        if (may_be_named && distance < least) {
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
    bool refused[OPTION_COUNT];
    refused[OPTION_LOG] = !load_option(OPTION_LOG); /* first, because it selects the warnings */
    log_set_level(in_force.log);
    for (int id = 0; id < OPTION_COUNT; id++)
        if (id != OPTION_LOG)
            refused[id] = !load_option((enum option_id)id);
    /* The environment of a set-user-ID program is ignored, as by secure_getenv(). */
    char **environment = getauxval(AT_SECURE) ? NULL : environ;
    if (!options_from_environment(OPTION_MEMORY_LIMIT) &&
        !options_from_environment(OPTION_MEMORY_FRACTION))
        hami_load(environment, hami);
    for (int id = 0; id < OPTION_COUNT; id++)
        if (refused[id])
            say_refused((enum option_id)id);
    warn_of_small_limit();
    disable_under_sanitizer();
    for (char **entry = environment; entry && *entry; entry++)
        warn_if_unknown(*entry);
    if (in_force.report == REPORT_TO_STDERR)
        log_keep();
    errno = saved_errno;
}

/* --- reading options --- */

const struct options *options(void) {
    return &in_force;
}

bool options_from_environment(enum option_id id) {
    return texts[id][0] != '\0';
}

const char *options_text(enum option_id id) {
    return options_from_environment(id) ? texts[id] : option_table[id].initial;
}

/** Returns the bytes of a share, or 0 if the share is the whole memory. */
static uint64_t fraction_bytes(int device, uint64_t total_bytes) {
    double fraction = in_force.memory_fraction[device];
    if (fraction <= 0 || fraction >= 1 || total_bytes == 0)
        return 0;
    uint64_t bytes = (uint64_t)(fraction * (double)total_bytes);
    return bytes > 0 ? bytes : 1;
}

uint64_t options_limit(int device, uint64_t total_bytes, const char **source) {
    *source = NULL;
    if (device < 0 || device >= OPTIONS_MAX_DEVICES)
        return 0;
    uint64_t share = fraction_bytes(device, total_bytes);
    uint64_t limit = in_force.memory_limit[device];
    if (limit != 0 && (share == 0 || limit <= share)) {
        *source = option_table[OPTION_MEMORY_LIMIT].name;
        return limit;
    }
    *source = share != 0 ? option_table[OPTION_MEMORY_FRACTION].name : hami[device].name;
    return share != 0 ? share : hami[device].bytes;
}

static void print_assignment(struct print *out, enum option_id id) {
    print_str(out, option_table[id].name);
    print_char(out, '=');
    print_escaped(out, options_text(id), VALUE_MAX);
    print_str(out, options_from_environment(id) ? " (environment)" : " (default)");
}

/**
 * Prints the variable of HAMi-core that limits a device, with its bytes. Returns false, and prints
 * nothing, if there is none or if it limits a device of a lower number too.
 */
static bool print_hami(struct print *out, int device) {
    for (int before = 0; before < device; before++)
        if (hami[before].name == hami[device].name)
            return false;
    if (!hami[device].name)
        return false;
    print_format(out, "%s=%llu (environment)", hami[device].name,
                 (unsigned long long)hami[device].bytes);
    return true;
}

void options_print(struct print *out) {
    for (int id = 0; id < OPTION_COUNT; id++) {
        const struct option_info *option = &option_table[id];
        if (option->internal)
            continue;
        print_assignment(out, (enum option_id)id);
        print_format(out, "\n    %s\n    accepted: %s\n    default: %s\n", option->meaning,
                     option->values, option->initial);
    }
    for (int device = 0; device < OPTIONS_MAX_DEVICES; device++)
        if (print_hami(out, device))
            print_str(out, "\n    taken as the limit, because no option sets one\n");
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
    for (int device = 0; device < OPTIONS_MAX_DEVICES; device++) {
        print_init(&out, -1, buffer, sizeof buffer);
        if (print_hami(&out, device))
            log_info("%s", print_end(&out));
    }
}
