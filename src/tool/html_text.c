#include "tool/html.h"

#include <string.h>

/** Whether it is as good as a whole number, for a label of one decimal. */
static bool is_whole(double value) {
    double rest = value - (double)(long long)value;
    return value >= 100 || rest < 0.05 || rest > 0.95;
}

void html_text(FILE *out, const char *text) {
    while (text && *text) {
        size_t length = print_visible_length(text);
        if (strchr("&<>\"'`", *text))
            fprintf(out, "&#%d;", *text);
        else if (length > 0)
            fwrite(text, 1, length, out);
        else
            fputs(*text == '\n' || *text == '\t' ? " " : "\xef\xbf\xbd", out);
        text += length > 0 ? length : 1;
    }
}

const char *html_size(char label[HTML_LABEL], uint64_t bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    unsigned unit = 0;
    for (; value >= 1024 && unit < 5; unit++)
        value /= 1024;
    snprintf(label, HTML_LABEL, is_whole(value) ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return label;
}

const char *html_time_like(char label[HTML_LABEL], double seconds, double longest) {
    static const struct {
        double least, unit;
        const char *name;
    } units[] = {{172800, 86400, "d"},
                 {7200, 3600, "h"},
                 {120, 60, "min"},
                 {1, 1, "s"},
                 {0.001, 0.001, "ms"}};
    unsigned i = 0;
    while (i < 4 && longest < units[i].least)
        i++;
    double value = seconds / units[i].unit;
    snprintf(label, HTML_LABEL, is_whole(value) ? "%.0f %s" : "%.1f %s", value, units[i].name);
    return label;
}

const char *html_time(char label[HTML_LABEL], double seconds) {
    return html_time_like(label, seconds, seconds);
}

uint64_t html_step(uint64_t most) {
    uint64_t step = 1;
    while (step < most / 5 && step < (uint64_t)1 << 60)
        step *= 2;
    return step;
}
