/*
 * gpucache replay: repeats the allocations of a program with the pool, and with models of other
 * allocators.
 */
#include "options/value.h"
#include "replay/input.h"
#include "report/lines.h"
#include "tool/common/arguments.h"
#include "tool/common/tool.h"
#include "tool/replay/comparison.h"
#include "tool/trace/trace_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIST 32         /* values of one option, at most */
#define CANDIDATES 1024 /* settings of a comparison, at most */
#define PERIODS_MOST 1000000
#define DELAY_MOST_US 3600000000
#define TEXT(number) #number
#define TEXT_OF(macro) TEXT(macro)
#define CAPACITY ((uint64_t)1 << 45)

/* First the backends of the library, then the models in the order of enum model. */
#define BACKENDS 2
#define CANDIDATE_KINDS (BACKENDS + MODELS)
static const char *const backend_words[] = {"segments", "pages",      "pytorch", "expandable",
                                            "whole",    "cudamalloc", NULL};
_Static_assert(sizeof backend_words / sizeof *backend_words == CANDIDATE_KINDS + 1,
               "each backend and model has a word");
static const char *const format_words[] = {"text", "json", NULL};

struct settings {
    int backends[LIST], reuses[LIST];
    uint64_t budgets[LIST], limits[LIST], decay_us, capacity, periods, device;
    size_t backend_count, reuse_count, budget_count, limit_count;
    bool json, each;
    struct replay_request request; /* made of the others, except the delays */
};
_Static_assert(LIST <= COMPARISON_DELAYS, "a request has place for the delays of one option");
_Static_assert(LIST >= CANDIDATE_KINDS, "a list has place for all backends");

/** Reads value number `i` of a list. Returns false if the value makes no sense. */
typedef bool take_value(struct settings *settings, const char *text, size_t i);

static bool take_list(struct settings *settings, const char *value, take_value *take,
                      size_t *count) {
    char text[64];
    *count = 0;
    for (;;) {
        size_t length = strcspn(value, ",");
        if (length >= sizeof text || *count == LIST)
            return false;
        memcpy(text, value, length);
        text[length] = '\0';
        if (!take(settings, text, (*count)++))
            return false;
        if (value[length] == '\0')
            return true;
        value += length + 1;
    }
}

static bool take_backend(struct settings *settings, const char *text, size_t i) {
    return (settings->backends[i] = value_word(text, backend_words)) >= 0;
}

static bool take_reuse(struct settings *settings, const char *text, size_t i) {
    return (settings->reuses[i] = value_word(text, reuse_names)) >= 0;
}

static bool take_size_or(const char *text, const char *none, uint64_t *bytes) {
    *bytes = 0;
    return value_equal(text, none) || (value_take_size(&text, bytes) && *text == '\0');
}

/** Reads a budget. 0 becomes one byte, as in the library, because 0 means automatic to the pool. */
static bool take_budget(struct settings *settings, const char *text, size_t i) {
    bool none = strcmp(text, "0") == 0;
    settings->budgets[i] = NO_BUDGET;
    return none || take_size_or(text, "auto", &settings->budgets[i]);
}

static bool take_limit(struct settings *settings, const char *text, size_t i) {
    return take_size_or(text, "none", &settings->limits[i]);
}

/** Reads a delay in milliseconds. value_milliseconds() multiplies by 1000: it makes milliseconds of
 * seconds, and here microseconds of milliseconds. */
static bool take_delay(struct settings *settings, const char *text, size_t i) {
    uint64_t *us = &settings->request.delays_us[i];
    *us = 0;
    return strcmp(text, "0") == 0 || (value_milliseconds(text, us) && *us <= DELAY_MOST_US);
}

/** Reads a decay time in milliseconds, as take_delay() does. 0 becomes 1 us, the shortest time;
 * `never` becomes 0, which means never in struct rerun_setting. */
static bool take_decay(struct settings *settings, const char *value) {
    bool zero = strcmp(value, "0") == 0, never = value_equal(value, "never");
    settings->decay_us = zero;
    return zero || never || value_milliseconds(value, &settings->decay_us);
}

static bool take_capacity(struct settings *settings, const char *value) {
    return value_take_size(&value, &settings->capacity) && *value == '\0' &&
           settings->capacity <= CAPACITY;
}

static bool take_format(struct settings *settings, const char *value) {
    int word = value_word(value, format_words);
    settings->json = word == 1;
    return word >= 0;
}

static bool take_option(struct settings *to, enum option_of_command option, const char *value) {
    switch ((int)option) {
    case ARGUMENT_replay_backend:
        return take_list(to, value, take_backend, &to->backend_count);
    case ARGUMENT_replay_reuse:
        return take_list(to, value, take_reuse, &to->reuse_count);
    case ARGUMENT_replay_budget:
        return take_list(to, value, take_budget, &to->budget_count);
    case ARGUMENT_replay_limit:
        return take_list(to, value, take_limit, &to->limit_count);
    case ARGUMENT_replay_delay:
        return take_list(to, value, take_delay, &to->request.delay_count);
    case ARGUMENT_replay_decay:
        return take_decay(to, value);
    case ARGUMENT_replay_memory:
        return take_capacity(to, value);
    case ARGUMENT_replay_format:
        return take_format(to, value);
    case ARGUMENT_replay_device:
        return value_number(value, STATS_MAX_DEVICES - 1, &to->device);
    case ARGUMENT_replay_periods:
        return value_number(value, PERIODS_MOST, &to->periods);
    default:
        return to->each = true;
    }
}

static const char periods[] = "a number up to " TEXT_OF(PERIODS_MOST);
static const char delays[] = "a list of up to " TEXT_OF(LIST) " milliseconds such as 0,0.5,20";

/* The values that each option accepts, for messages. */
static const char *const accepted[ARGUMENTS] = {
    [ARGUMENT_replay_backend] = "a list of segments, pages, pytorch, expandable, whole, cudamalloc",
    [ARGUMENT_replay_delay] = delays,
    [ARGUMENT_replay_budget] = "a list of sizes such as 8G, 0, or auto",
    [ARGUMENT_replay_limit] = "a list of sizes such as 8G, or none",
    [ARGUMENT_replay_reuse] = "a list of barrier, wait, sync",
    [ARGUMENT_replay_decay] = "milliseconds such as 500, or never",
    [ARGUMENT_replay_memory] = "a size such as 80G, up to 32T",
    [ARGUMENT_replay_periods] = periods,
    [ARGUMENT_replay_device] = "a number from 0 to 63",
    [ARGUMENT_replay_format] = "text or json",
};

/** Sets all options to the defaults of commands.def. --backend is set to all of its words. */
static void set_defaults(struct settings *to) {
    static const enum option_of_command with_value[] = {
        ARGUMENT_replay_delay, ARGUMENT_replay_budget, ARGUMENT_replay_limit, ARGUMENT_replay_reuse,
        ARGUMENT_replay_decay, ARGUMENT_replay_memory, ARGUMENT_replay_format};
    for (size_t i = 0; i < sizeof with_value / sizeof *with_value; i++)
        take_option(to, with_value[i], option_rows[with_value[i]].initial);
    for (to->backend_count = 0; to->backend_count < CANDIDATE_KINDS; to->backend_count++)
        to->backends[to->backend_count] = (int)to->backend_count;
    to->device = UINT64_MAX;
}

static char **parse(struct settings *to, char **at) {
    struct arguments left = {.command = "replay", .at = at};
    for (enum option_of_command option; (option = arguments_next(&left)) != ARGUMENTS_END;) {
        if (!take_option(to, option, left.value)) {
            char what[128], why[128];
            snprintf(what, sizeof what, "%.64s", left.option);
            if (!strchr(what, '='))
                snprintf(what, sizeof what, "%.60s=%.60s", left.option, left.value);
            snprintf(why, sizeof why, "wanted is %s", accepted[option]);
            fail(STATUS_OWN_FAILURE, what, why);
        }
    }
    return left.at;
}

/* ---- candidates ---- */

/** Writes the name of a candidate: its backend or model, its reuse and limit if there are several,
 * and its budget unless it is automatic. */
static void name_candidate(const struct settings *settings, struct candidate *candidate) {
    const struct rerun_setting *setting = &candidate->setting;
    struct print out;
    print_init(&out, -1, candidate->name, sizeof candidate->name);
    print_str(&out, candidate->is_model ? model_names[candidate->model]
                    : setting->pages    ? "pages"
                                        : "segments");
    if (settings->reuse_count > 1 && !candidate->is_model)
        print_format(&out, ", %s", reuse_names[setting->reuse]);
    if (setting->budget)
        print_format(&out, ", budget %s", SIZE(setting->budget == NO_BUDGET ? 0 : setting->budget));
    if (settings->limit_count > 1)
        print_format(&out, ", limit %s", setting->limit ? SIZE(setting->limit) : "none");
    print_end(&out);
}

static void add_candidate(struct settings *settings, const struct candidate *candidate) {
    struct replay_request *request = &settings->request;
    if (request->candidate_count == CANDIDATES)
        fail(STATUS_OWN_FAILURE, "replay", "these are more than " TEXT_OF(CANDIDATES) " settings");
    struct candidate *to = APPEND(request->candidates, request->candidate_count);
    *to = *candidate;
    name_candidate(settings, to);
}

static void add_backend(struct settings *settings, int backend, uint64_t limit) {
    struct candidate candidate = {.setting = {.limit = limit,
                                              .capacity = settings->capacity,
                                              .decay_us = settings->decay_us}};
    if (backend >= BACKENDS) {
        candidate.is_model = true;
        candidate.model = (enum model)(backend - BACKENDS);
        add_candidate(settings, &candidate);
        return;
    }
    candidate.setting.pages = backend == 1;
    for (size_t i = 0; i < settings->reuse_count; i++) {
        for (size_t k = 0; k < settings->budget_count; k++) {
            candidate.setting.reuse = (enum reuse)settings->reuses[i];
            candidate.setting.budget = settings->budgets[k];
            add_candidate(settings, &candidate);
        }
    }
}

/* ---- files ---- */

struct results {
    struct comparison *list;
    size_t count;
    struct histories **files;
    size_t file_count;
};

static void compare(const struct settings *settings, const char *file,
                    const struct histories *histories, struct results *results) {
    for (size_t i = 0; i < histories->count; i++) {
        struct history *history = &histories->list[i];
        bool meant = settings->device == UINT64_MAX || history->device == (int)settings->device;
        if (history->count == 0 || !meant)
            continue;
        if (settings->periods > 0)
            history_cut_into(history, (size_t)settings->periods);
        struct comparison *result = APPEND(results->list, results->count);
        snprintf(result->file, sizeof result->file,
                 histories->count > 1 ? "%.230s, device %d" : "%s", file, history->device);
        result->history = history;
        int r = comparison_run(result, &settings->request);
        if (r != 0)
            fail(STATUS_OWN_FAILURE, "replay", strerror(-r));
    }
}

static bool read_file(const char *file, struct histories *histories) {
    struct input input;
    int r;
    if (strcmp(file, "-") != 0 && trace_file_is(file)) {
        r = replay_trace_read(file, histories);
    } else {
        r = input_read(file, &input, histories->why);
        r = r == 0 ? input_histories(&input, histories) : r;
        input_free(&input);
    }
    if (r != 0)
        tool_say("%s: %s", file, histories->why);
    return r == 0;
}

static bool has_failed(const struct results *results) {
    for (size_t i = 0; i < results->count; i++) {
        for (size_t k = 0; k < results->list[i].count; k++)
            if (results->list[i].rows[k].account->error != 0)
                return true;
    }
    return false;
}

static bool print_results(const struct settings *settings, const struct results *results) {
    struct print out = tool_stdout();
    if (results->count > 1 && !settings->each && !settings->json) {
        comparisons_print(results->list, results->count, &settings->request, &out);
    } else {
        for (size_t i = 0; i < results->count; i++) {
            if (settings->json) {
                comparison_print_json(&results->list[i], &out);
            } else {
                print_str(&out, i > 0 ? "\n" : "");
                comparison_print(&results->list[i], &out);
            }
        }
    }
    return tool_flush(&out);
}

int tool_replay(char **at) {
    /* static: nothing is freed, because the process ends */
    static struct settings settings;
    static struct results results;
    int status = 0;
    set_defaults(&settings);
    at = parse(&settings, at);
    if (!*at)
        fail(STATUS_OWN_FAILURE, "replay", "wanted is a file; - is the standard input");
    for (size_t i = 0; i < settings.backend_count; i++)
        for (size_t k = 0; k < settings.limit_count; k++)
            add_backend(&settings, settings.backends[i], settings.limits[k]);
    for (; *at; at++) {
        struct histories *file = checked(calloc(1, sizeof *file));
        *APPEND(results.files, results.file_count) = file;
        size_t before = results.count;
        bool good = read_file(*at, file);
        if (good)
            compare(&settings, *at, file, &results);
        if (results.count > before)
            continue;
        status = EXIT_FAILURE;
        if (good && settings.device == UINT64_MAX)
            tool_say("%s: has no allocation in it", *at);
        else if (good)
            tool_say("%s: has nothing of device %llu", *at, (unsigned long long)settings.device);
    }
    if (!print_results(&settings, &results))
        return STATUS_OWN_FAILURE;
    return has_failed(&results) ? EXIT_FAILURE : status;
}
