/* The parser of command lines (arguments.h). It reorders the words in place. */
#include "tool/common/arguments.h"

#include "tool/common/tool.h"

#include <stdlib.h>
#include <string.h>

const struct option_row option_rows[ARGUMENTS] = {
#define FLAG(command, id, option, meaning) {#command, option, NULL, NULL, "", meaning},
#define VALUE(command, id, option, value, initial, meaning)                                        \
    {#command, option, value, NULL, initial, meaning},
#define LIST(command, id, option, words, initial, meaning)                                         \
    {#command, option, "LIST", words, initial, meaning},
#include "tool/common/commands.def"
};

void arguments_refuse(const struct arguments *arguments) {
    char wanted[512] = "wanted is";
    size_t used = strlen(wanted);
    unsigned left = 0;
    for (size_t i = 0; i < ARGUMENTS; i++)
        left += strcmp(option_rows[i].command, arguments->command) == 0;
    if (left == 0)
        fail(STATUS_OWN_FAILURE, arguments->command, "takes no option");
    for (size_t i = 0, named = 0; i < ARGUMENTS; i++) {
        if (strcmp(option_rows[i].command, arguments->command) != 0)
            continue;
        const char *between = named++ == 0 ? " " : left == 1 ? " or " : ", ";
        int written = snprintf(wanted + used, sizeof wanted - used, "%s--%s%s%s", between,
                               option_rows[i].name, option_rows[i].value ? "=" : "",
                               option_rows[i].value ? option_rows[i].value : "");
        used += written > 0 ? (size_t)written : 0;
        used = used < sizeof wanted ? used : sizeof wanted - 1;
        left--;
    }
    fail(STATUS_OWN_FAILURE, arguments->option, wanted);
}

/** Returns whether the text is that option. Sets *value to the text after its =, or NULL. */
static bool is_option(const struct option_row *option, const char *text, const char **value) {
    size_t length = strlen(option->name);
    bool same = strncmp(text + 2, option->name, length) == 0;
    char end = same ? text[2 + length] : ' ';
    *value = end == '=' ? text + 3 + length : NULL;
    return end == '\0' || (end == '=' && option->value);
}

static bool is_help(const char *text) {
    return strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0;
}

/** Returns the number of operands before the next option or `--`, or 0 if no option follows.
 * Returns 0 for run: the words after its first operand are another program's. */
static size_t operands_before(const struct arguments *arguments) {
    char *const *at = arguments->at;
    size_t count = 0;
    while (at[count] && strncmp(at[count], "--", 2) != 0 && !is_help(at[count]))
        count++;
    return strcmp(arguments->command, "run") != 0 && at[count] ? count : 0;
}

/** Moves words from behind the operands to the front, and skips them. */
static void move_to_front(struct arguments *arguments, size_t operands, size_t words) {
    for (; words > 0; words--) {
        char *word = arguments->at[operands];
        memmove(arguments->at + 1, arguments->at, operands * sizeof word);
        *arguments->at++ = word;
    }
}

enum option_of_command arguments_next(struct arguments *arguments) {
    size_t operands = operands_before(arguments);
    const char *text = arguments->option = arguments->at[operands];
    arguments->value = NULL;
    if (!text || (strncmp(text, "--", 2) != 0 && !is_help(text)))
        return ARGUMENTS_END;
    move_to_front(arguments, operands, 1);
    if (strcmp(text, "--") == 0)
        return ARGUMENTS_END;
    if (is_help(text)) {
        help_command(stdout, arguments->command);
        exit(tool_flush_stdout());
    }
    for (unsigned i = 0; i < ARGUMENTS; i++) {
        if (strcmp(option_rows[i].command, arguments->command) != 0 ||
            !is_option(&option_rows[i], text, &arguments->value))
            continue;
        if (option_rows[i].value && !arguments->value && arguments->at[operands]) {
            arguments->value = arguments->at[operands];
            move_to_front(arguments, operands, 1);
        }
        if (option_rows[i].value && !arguments->value)
            arguments_refuse(arguments);
        return (enum option_of_command)i;
    }
    if (arguments->variables) {
        const char *equals = strchr(text, '='); /* else the next word is the value */
        arguments->value = equals ? equals + 1 : arguments->at[operands];
        if (!equals && arguments->value)
            move_to_front(arguments, operands, 1);
        return ARGUMENT_VARIABLE;
    }
    arguments_refuse(arguments);
}
