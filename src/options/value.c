#include "options/value.h"

#include "base/print.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define DIGITS_MAX 18 /* decimals of a number, at most */
#define SECONDS_MAX 1000000000

/* --- words --- */

static char lower(char letter) {
    return letter >= 'A' && letter <= 'Z' ? (char)(letter - 'A' + 'a') : letter;
}

bool value_equal(const char *a, const char *b) {
    while (*a && lower(*a) == lower(*b)) {
        a++;
        b++;
    }
    return *a == *b;
}

int value_word(const char *text, const char *const *words) {
    for (int i = 0; words[i]; i++)
        if (value_equal(text, words[i]))
            return i;
    return -1;
}

size_t value_distance(const char *a, size_t length, const char *b) {
    size_t width = strnlen(b, VALUE_WORD);
    size_t row[VALUE_WORD + 1];
    for (size_t j = 0; j <= width; j++)
        row[j] = j;
    for (size_t i = 1; i <= length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= width; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[width];
}

bool value_switch(const char *text, bool *on) {
    int place = value_word(
        text, (const char *const[]){"off", "on", "false", "true", "no", "yes", "0", "1", NULL});
    *on = place % 2 != 0;
    return place >= 0;
}

bool value_is_off(const char *text) {
    bool on;
    return value_equal(text, "none") || (value_switch(text, &on) && !on);
}

/* --- numbers --- */

/** Takes digits. Returns false if there is none, or if the value does not fit. */
static bool take_u64(const char **at, uint64_t *value) {
    const char *start = *at;
    *value = 0;
    for (; **at >= '0' && **at <= '9'; ++*at)
        if (__builtin_mul_overflow(*value, 10, value) ||
            __builtin_add_overflow(*value, (uint64_t)(**at - '0'), value))
            return false;
    return *at != start;
}

bool value_number(const char *text, uint64_t max, uint64_t *value) {
    return take_u64(&text, value) && *text == '\0' && *value <= max;
}

/** A number with or without decimals: whole + part / scale. */
struct decimal {
    uint64_t whole, part, scale;
};

static bool take_decimal(const char **at, struct decimal *number) {
    *number = (struct decimal){.scale = 1};
    if (**at != '.' && !take_u64(at, &number->whole))
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

bool value_milliseconds(const char *text, uint64_t *milliseconds) {
    struct decimal number;
    if (!take_decimal(&text, &number) || *text != '\0' || number.whole > SECONDS_MAX)
        return false;
    *milliseconds =
        number.whole * 1000 + (uint64_t)((unsigned __int128)number.part * 1000 / number.scale);
    return *milliseconds > 0;
}

bool value_take_share(const char **at, double *share) {
    struct decimal number;
    if (!take_decimal(at, &number))
        return false;
    uint64_t one = 1;
    if (**at == '%') {
        one = 100;
        ++*at;
    }
    *share = ((double)number.whole + (double)number.part / (double)number.scale) / (double)one;
    return *share > 0 && (number.whole < one || (number.whole == one && number.part == 0));
}

bool value_take_size(const char **at, uint64_t *bytes) {
    static const char units[] = "kmgt";
    struct decimal number;
    if (!take_decimal(at, &number))
        return false;
    uint64_t unit = 1;
    const char *found = **at ? strchr(units, lower(**at)) : NULL;
    if (found) {
        unit = UINT64_C(1) << 10 * (found - units + 1);
        ++*at;
        if (lower(**at) == 'i')
            ++*at;
    }
    if (lower(**at) == 'b')
        ++*at;
    if (unit == 1 && number.scale != 1)
        return false;
    uint64_t part = (uint64_t)((unsigned __int128)number.part * unit / number.scale);
    return !__builtin_mul_overflow(number.whole, unit, bytes) &&
           !__builtin_add_overflow(*bytes, part, bytes) && *bytes > 0;
}

/* --- devices --- */

bool value_per_device(const char *text, value_taker *take, void *context, uint64_t *named) {
    _Static_assert(VALUE_DEVICES <= 64, "one bit per device");
    const char *at = text;
    uint64_t device;
    *named = 0;
    if (!strchr(text, ':')) {
        for (device = 0; device < VALUE_DEVICES; device++) {
            at = text;
            if (!take(&at, device, context) || *at != '\0')
                return false;
        }
        return true;
    }
    for (;;) {
        if (!take_u64(&at, &device) || device >= VALUE_DEVICES || *at++ != ':' ||
            (*named >> device & 1))
            return false;
        *named |= UINT64_C(1) << device;
        if (!take(&at, device, context))
            return false;
        if (*at == '\0')
            return true;
        if (*at++ != ',')
            return false;
    }
}

/* --- signals --- */

/**
 * Returns whether a report at this signal is possible: it can be caught, and does not mean a broken
 * program.
 */
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

bool value_signal(const char *text, int *number) {
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
    uint64_t value;
    if (value_number(text, 64, &value)) {
        *number = (int)value;
        return reportable(value);
    }
    if (lower(text[0]) == 's' && lower(text[1]) == 'i' && lower(text[2]) == 'g')
        text += 3;
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        if (value_equal(text, signals[i].name)) {
            *number = signals[i].number;
            return true;
        }
    }
    return false;
}

/* --- file patterns --- */

static bool is_no_file(const char *text) {
    bool on;
    return *text == '\0' || value_switch(text, &on) ||
           value_word(text, (const char *const[]){"-", "stdout", "stderr", "2", NULL}) >= 0;
}

bool value_pattern(const char *text, char pattern[VALUE_PATTERN]) {
    if (is_no_file(text))
        return false;
    for (const char *at = text; *at; at++)
        if (*at == '%' && (*++at == '\0' || !strchr(VALUE_LETTERS, *at)))
            return false;
    char directory[VALUE_PATTERN] = "";
    if (*text != '/' && (!getcwd(directory, sizeof directory) || *directory != '/'))
        directory[0] = '\0'; /* none: resolved when the file is written */
    struct print out;
    print_init(&out, -1, pattern, VALUE_PATTERN);
    for (const char *at = directory; *at; at++) {
        print_char(&out, *at);
        if (*at == '%')
            print_char(&out, '%');
    }
    if (*directory && strcmp(directory, "/") != 0)
        print_char(&out, '/');
    print_str(&out, text);
    print_end(&out);
    return out.error == 0 && out.used < VALUE_PATTERN - 1;
}
