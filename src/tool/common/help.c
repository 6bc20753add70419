/* Prints the help texts, and refuses unknown commands (arguments.h). */
#include "tool/common/arguments.h"

#include "base/print.h"
#include "options/options.h"
#include "options/value.h"
#include "tool/common/tool.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define COLUMNS 79
#define NAME_COLUMNS 10 /* width of a command's name in the overview */

static const struct {
    const char *name, *operands, *meaning, *example;
} commands[] = {
#define COMMAND(name, operands, meaning, example) {#name, operands, meaning, example},
#include "tool/common/commands.def"
};
#define COMMANDS (sizeof commands / sizeof *commands)

/* Optional libraries, as meson.build found them. */
static const struct {
    const char *name;
    bool there;
    const char *purpose;
} features[] = {
    {"ncurses", TOOL_HAS_NCURSES, "the screen of gpucache top"},
    {"libdw", TOOL_HAS_LIBDW, "names of functions in call stacks"},
    {"liblzma", TOOL_HAS_LZMA, "replay of files packed by xz"},
    {"libzstd", TOOL_HAS_ZSTD, "replay of files packed by zstd"},
};

/** Prints words from `column` on, and continues each full line at `indent`. */
static void print_wrapped(FILE *out, size_t column, size_t indent, const char *text) {
    while (*text) {
        size_t length = strcspn(text, " ");
        if (column + length > COLUMNS && column > indent) {
            fprintf(out, "\n%*s", (int)indent, "");
            column = indent;
        }
        fprintf(out, "%.*s", (int)length, text);
        column += length;
        text += length;
        size_t blanks = strspn(text, " ");
        if (blanks > 0 && column + 1 + strcspn(text + blanks, " ") <= COLUMNS) {
            fputc(' ', out);
            column++;
        } else if (blanks > 0) {
            column = COLUMNS;
        }
        text += blanks;
    }
    fputc('\n', out);
}

void help_overview(FILE *out) {
    fputs("usage: gpucache COMMAND [OPTION...] [OPERAND...]\n\n", out);
    for (size_t i = 0; i < COMMANDS; i++) {
        fprintf(out, "  %-*s", NAME_COLUMNS, commands[i].name);
        print_wrapped(out, NAME_COLUMNS + 2, NAME_COLUMNS + 2, commands[i].meaning);
    }
    fputs(
        "\n`gpucache help COMMAND` shows the options of a command, their defaults and an example.\n"
        "`gpucache --version` shows the version, and what it was built with.\n"
        "See gpucache(1) and gpucache(7).\n",
        out);
}

/** Prints one option: its name on a line, its meaning and default below. */
static void print_option(FILE *out, const struct option_row *row) {
    char text[1024];
    struct print list = PRINT_TEXT(256);
    for (const char *words = row->words; words && *words; words++)
        if (*words == '|')
            print_str(&list, ", ");
        else
            print_char(&list, *words);
    fprintf(out, "  --%s%s%s\n      ", row->name, row->value ? "=" : "",
            row->value ? row->value : "");
    snprintf(text, sizeof text, "%s%s%s%s%s%s", row->meaning, list.used > 0 ? ": " : "",
             print_end(&list), *row->initial ? " (default: " : "", row->initial,
             *row->initial ? ")" : "");
    print_wrapped(out, 6, 6, text);
}

/** Prints the library's options, which `run` and `options` take as well. */
static void print_variables(FILE *out) {
    fputs("\nOptions of the library. --memory-limit=8G sets GPUCACHE_MEMORY_LIMIT=8G.\n\n", out);
    for (int id = 0; id < OPTION_COUNT; id++) {
        const struct option_info *option = &option_table[id];
        char name[TOOL_OPTION_NAME], text[512];
        if (option->internal)
            continue;
        tool_option_name(option, name);
        snprintf(text, sizeof text, "%s. Accepted: %s", option->meaning, option->values);
        print_option(
            out, &(struct option_row){
                     .name = name, .value = "VALUE", .initial = option->initial, .meaning = text});
    }
}

static bool takes_variables(const char *command) {
    return strcmp(command, "run") == 0 || strcmp(command, "options") == 0;
}

bool help_command(FILE *out, const char *command) {
    size_t found = 0, count = 0;
    while (found < COMMANDS && strcmp(commands[found].name, command) != 0)
        found++;
    if (found == COMMANDS)
        return false;
    for (size_t i = 0; i < ARGUMENTS; i++)
        count += strcmp(option_rows[i].command, command) == 0;
    const char *operands = commands[found].operands;
    fprintf(out, "usage: gpucache %s%s%s%s\n\n", command,
            count > 0 || takes_variables(command) ? " [OPTION...]" : "", *operands ? " " : "",
            operands);
    fputc(toupper((unsigned char)*commands[found].meaning), out);
    print_wrapped(out, 1, 0, commands[found].meaning + 1);
    fputs("\nExample:\n", out);
    fprintf(out, "  gpucache %s %s\n", command, commands[found].example);
    if (count > 0)
        fputs("\nOptions:\n\n", out);
    for (size_t i = 0; i < ARGUMENTS; i++)
        if (strcmp(option_rows[i].command, command) == 0)
            print_option(out, &option_rows[i]);
    if (takes_variables(command))
        print_variables(out);
    return true;
}

void help_version(FILE *out) {
    fputs("gpucache " GPUCACHE_VERSION "\n", out);
    for (size_t i = 0; i < sizeof features / sizeof *features; i++)
        fprintf(out, "  %-7s  %-3s  %s\n", features[i].name, features[i].there ? "yes" : "no",
                features[i].purpose);
}

/* ---- unknown commands ---- */

/** Returns the command whose name differs in two characters at most, or NULL. */
static const char *nearest_command(const char *word) {
    const char *nearest = NULL;
    size_t length = strlen(word), least = 3;
    for (size_t i = 0; i < COMMANDS && length <= VALUE_WORD; i++) {
        size_t distance = value_distance(word, length, commands[i].name);
        if (distance < least && distance < length) {
            least = distance;
            nearest = commands[i].name;
        }
    }
    return nearest;
}

void help_refuse(char *const *arguments) {
    static char why[512], path[PATH_MAX];
    const char *nearest = nearest_command(*arguments);
    const char *more = arguments[1] ? " ..." : "";
    struct print out = PRINT_TEXT(128);
    print_plain(&out, *arguments, 80);
    const char *shown = print_end(&out);
    if (*shown == '-')
        snprintf(why, sizeof why,
                 "options stand behind a command, as in `gpucache run %.80s ./app`; "
                 "`gpucache help` lists the commands",
                 shown);
    else if (nearest && !strchr(shown, '/'))
        snprintf(why, sizeof why,
                 "is no command; did you mean `%s`? `gpucache help` lists the commands", nearest);
    else if (strchr(shown, '/') || program_find(*arguments, path))
        snprintf(why, sizeof why, "is no command; did you mean `gpucache run -- %.80s%s`?", shown,
                 more);
    else
        snprintf(why, sizeof why, "is no command; `gpucache help` lists the commands");
    fail(STATUS_OWN_FAILURE, shown, why);
}
