#!/usr/bin/env python3
"""commands.py bash|zsh|fish: prints the completion of a shell, from src/tool/common/commands.def and src/options/options.def.

The build installs these completions. scripts/coverage.py makes parts of the manual page with this file.
"""
import os
import re
import sys

MACROS = ["COMMAND", "FLAG", "VALUE", "LIST"]
MADE = "Made by scripts/commands.py from src/tool/common/commands.def and src/options/options.def."


class Command:
    def __init__(self, name, operands, meaning, example):
        self.name, self.operands, self.meaning, self.example = name, operands, meaning, example
        self.options = []

    @property
    def takes_variables(self):
        return self.name in ("run", "options")

    @property
    def takes_files(self):
        return "FILE" in self.operands or "TRACE" in self.operands

    @property
    def takes_processes(self):
        return "PID" in self.operands

    @property
    def takes_commands(self):
        return "COMMAND" in self.operands


class Option:
    def __init__(self, macro, row):
        self.name, self.is_list = row[2], macro == "LIST"
        self.value = None if macro == "FLAG" else "LIST" if self.is_list else row[3]
        self.initial = "" if macro == "FLAG" else row[4]
        # The accepted words of the value, if it has such.
        self.words = [] if macro == "FLAG" or not row[3].islower() else row[3].split("|")
        self.meaning = row[-1] + (": " + ", ".join(self.words) if self.is_list else "")


class Variable:
    """A row of options/options.def, as an option of run."""

    value, is_list = "value", False

    def __init__(self, name, values, meaning):
        self.name, self.meaning = name.lower().replace("_", "-"), meaning
        listed = re.split(r", ", re.sub(r"^(.*?), or .*", r"\1", values))
        self.words = [w for w in listed if re.fullmatch(r"[a-z]+", w) and w != "milliseconds"]


def commands(rows):
    """Returns the rows of commands.def, grouped: a COMMAND, then its options."""
    found = []
    for macro, row in rows:
        if macro == "COMMAND":
            found.append(Command(*row))
        else:
            of = next(c for c in found if c.name == row[0])
            of.options.append(Option(macro, row))
    return found


def roff(text):
    return re.sub(r"^([.'])", r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq"))


def bold_words(text):
    """Operands: words to be written as they are in bold, the others in italics."""
    return re.sub(r"[A-Za-z-]+", lambda m: ("\\fI%s\\fR" if m[0].isupper() else "\\fB%s\\fR") % roff(m[0]), text)


def man_synopsis(found):
    lines = []
    for command in found:
        parts = []
        for option in command.options:
            value = "=" + (bold_words(option.value) if option.words and not option.is_list else "\\fI%s\\fR" % roff(option.value)) if option.value else ""
            parts.append("[\\fB\\-\\-%s\\fR%s]" % (roff(option.name), value))
        if command.takes_variables:
            parts.append("[\\fB\\-\\-\\fINAME\\fB=\\fIVALUE\\fR...]")
        operands = bold_words(command.operands.replace("[--]", "[\0]")).replace("\0", "\\fB\\-\\-\\fR")
        # each begins a line of its own and goes on below its options, however narrow the terminal is
        lines += ['.SY "gpucache %s"' % command.name, " ".join(parts + [operands]), ".YS"]
    return "\n".join(line.rstrip() for line in lines)


def man_options(found):
    lines = []
    for command in found:
        if command.options:
            lines.append(".SS gpucache " + command.name)
        for option in command.options:
            lines += [".TP", ".BI \\-\\-%s= %s" % (roff(option.name), roff(option.value)) if option.value else
                      ".B \\-\\-" + roff(option.name), roff(option.meaning[0].upper() + option.meaning[1:]) + "."]
            lines += ["Default: %s." % roff(option.initial)] if option.initial else []
    return "\n".join(lines)


def man_examples(found):
    return "\n".join("gpucache %s %s" % (command.name, roff(command.example)) for command in found)


def man_top(rows):
    """The keys, parts and columns of gpucache top, of the rows of top.def."""
    lines = []
    for head, macro in (("Keys of", "KEY"), ("One process in", "PART"), ("Columns of", "COLUMN")):
        lines += [".PP", head, ".BR \"gpucache top\" :"]
        for found, row in rows:
            if found == macro:
                lines += [".TP 18", ".B " + roff(row[1] if macro == "COLUMN" else row[0]), roff(row[-1][0].upper() + row[-1][1:]) + "."]
    return "\n".join(lines)


def option_words(command, variables):
    words = ["--%s%s" % (o.name, "=" if o.value else "") for o in command.options]
    words += ["--%s=" % v.name for v in variables] if command.takes_variables else []
    return words + ["--help"]


def all_options(command, variables):
    return command.options + (variables if command.takes_variables else [])


def orders(command):
    """Words that are operands."""
    return re.findall(r"\b[a-z][a-z-]*\b", command.operands)


def with_value(found, variables):
    """Patterns of bash, COMMAND:--OPTION, for all options that take a value."""
    return " | ".join("%s:--%s" % (c.name, o.name) for c in found for o in all_options(c, variables) if o.value)


def bash(found, variables):
    run = next(command for command in found if command.name == "run")
    lines = ["# bash completion of gpucache. " + MADE, "_gpucache() {",
             "    local line=${COMP_LINE:0:COMP_POINT} command=${COMP_WORDS[1]} word words= valued= list= front= i",
             "    word=${line##*[[:space:]]}", "    COMPREPLY=()",
             "    # a value may be the word behind its option",
             "    case $command:${COMP_WORDS[COMP_CWORD - 1]} in",
             "    %s) [[ $word == *=* ]] || valued=${COMP_WORDS[COMP_CWORD - 1]}= ;;" % with_value(found, variables),
             "    esac", "    word=$valued$word",
             "    if ((COMP_CWORD == 1)); then",
             "        words='%s --help --version'" % " ".join(c.name for c in found),
             "    elif [[ $command == run ]] && _gpucache_program; then", "        return", "    else",
             "        case $command:$word in"]
    for command in found:
        for option in all_options(command, variables):
            if option.words:
                lines.append("        %s:--%s=*) words='%s' word=${word#*=}%s ;;" % (
                    command.name, option.name, " ".join(option.words), " list=1" if option.is_list else ""))
        lines.append("        %s:--*=*) compopt -o default; return ;;" % command.name)
        lines.append("        %s:-*) words='%s' ;;" % (command.name, " ".join(option_words(command, variables))))
        if command.takes_processes:
            processes = "$(gpucache top --once 2>/dev/null | awk 'NR > 1 && $2 + 0 == $2 { print $1 }')"
            lines.append("        %s:*) words=\"%s\"%s ;;" % (
                command.name, " ".join([processes] + orders(command)), " && compopt -o default" if command.takes_files else ""))
        elif command.takes_files:
            lines.append("        %s:*) compopt -o default; return ;;" % command.name)
        elif command.takes_commands:
            lines.append("        %s:*) words='%s' ;;" % (command.name, " ".join(c.name for c in found)))
    lines += ["        esac", "    fi",
              "    [[ -n $list && $word == *,* ]] && front=${word%,*}, word=${word##*,}",
              "    while read -r i; do", "        [[ -n $i ]] && COMPREPLY+=(\"$front$i\")",
              "        [[ $i == *= ]] && compopt -o nospace 2>/dev/null",
              "    done < <(compgen -W \"$words\" -- \"$word\")",
              "    # bash has parted the word at its =, if that is one of the characters that part words",
              "    if [[ $COMP_WORDBREAKS != *=* && $line == *=* && ${#COMPREPLY[@]} -gt 0 && $word != -* ]]; then",
              "        i=${line##*[[:space:]]}", "        [[ $i == *=* ]] && COMPREPLY=(\"${COMPREPLY[@]/#/${i%%=*}=}\")",
              "    fi", "}", "",
              "# Behind the options of run: a program and what that takes.", "_gpucache_program() {",
              "    local i",
              "    for ((i = 2; i < COMP_CWORD; i++)); do",
              "        case ${COMP_WORDS[i]} in",
              "        --) ((i++)); break ;;",
              "        -* | =) ;;",
              "        *)",
              "            case ${COMP_WORDS[i - 1]} in",
              "            = | %s) ;;" % " | ".join("--" + o.name for o in all_options(run, variables) if o.value),
              "            *) break ;;", "            esac", "            ;;",
              "        esac", "    done",
              "    [[ $i -lt $COMP_CWORD || -z $valued && ${COMP_WORDS[COMP_CWORD]} != -* && ${COMP_WORDS[COMP_CWORD]} != = &&",
              "        ${COMP_WORDS[COMP_CWORD - 1]} != = ]] || return 1",
              "    if declare -F _command_offset >/dev/null; then", "        _command_offset \"$i\"", "    else",
              "        compopt -o default",
              "        ((i == COMP_CWORD)) && mapfile -t COMPREPLY < <(compgen -c -- \"${COMP_WORDS[COMP_CWORD]}\")",
              "    fi", "    return 0", "}", "complete -F _gpucache gpucache"]
    return "\n".join(lines) + "\n"


def quoted(text):
    return text.replace("'", "'\\''")


def zsh(found, variables):
    lines = ["#compdef gpucache", "# " + MADE, "local -a processes commands",
             "processes=(${(f)\"$(gpucache top --once 2>/dev/null | awk 'NR > 1 && $2 + 0 == $2 { print $1 }')\"})",
             "commands=("]
    lines += ["    '%s:%s'" % (c.name, quoted(c.meaning.replace(":", "\\:"))) for c in found]
    lines += [")", "if ((CURRENT == 2)); then", "    _describe command commands",
              "    _arguments '--help[says what there is]' '--version[says which version it is]'", "    return", "fi",
              "local command=$words[2]", "shift words", "((CURRENT--))", "case $command in"]
    for command in found:
        lines.append("%s)" % command.name)
        lines.append("    _arguments '--help[says what there is to it]' \\")
        for option in all_options(command, variables):
            name, value, words = option.name, option.value, option.words
            what = quoted(option.meaning.replace("[", "(").replace("]", ")").replace(":", "\\:"))
            if not value:
                lines.append("        '--%s[%s]' \\" % (name, what))
            else:
                kind = "_sequence compadd - %s" % " ".join(words) if option.is_list else "(%s)" % " ".join(words) if words else "_files" if value == "FILE" or name in ("report", "trace") else ""
                lines.append("        '--%s=[%s]:%s:%s' \\" % (name, what, value.lower().split("|")[0] if words else value.lower(), kind))
        if command.name == "run":
            lines.append("        '(-)*:: :_normal'")
        elif command.takes_files:
            lines.append("        '*:file:%s'" % ("{_files; compadd -a processes}" if command.takes_processes else "_files"))
        elif command.takes_commands:
            lines.append("        '1:command:(%s)'" % " ".join(c.name for c in found))
        elif orders(command):
            lines.append("        '1:process:compadd -a processes' '2:order:(%s)' '3:size:'" % " ".join(orders(command)))
        elif command.takes_processes:
            lines.append("        '*:process:compadd -a processes'")
        else:
            lines.append("        && return")
        lines.append("    ;;")
    return "\n".join(lines + ["esac"]) + "\n"


def fish(found, variables):
    at = "__fish_seen_subcommand_from "
    lines = ["# fish completion of gpucache. " + MADE, "complete -c gpucache -n __fish_use_subcommand -f",
             "complete -c gpucache -l help -d 'says what there is'",
             "complete -c gpucache -n __fish_use_subcommand -l version -d 'says which version it is'"]
    for command in found:
        lines.append("complete -c gpucache -n __fish_use_subcommand -a %s -d '%s'" % (
            command.name, command.meaning.replace("'", "\\'")))
        for option in all_options(command, variables):
            words = " ".join(option.words)
            takes = (" -x -a '(__fish_append , %s)'" % words if option.is_list else " -x -a '%s'" % words if words else
                     " -r" if option.value else "")
            lines.append("complete -c gpucache -n '%s%s' -l %s%s -d '%s'" % (
                at, command.name, option.name, takes, option.meaning.replace("'", "\\'")))
        if command.takes_processes:
            lines.append("complete -c gpucache -n '%s%s' -a '(gpucache top --once 2>/dev/null | awk \"NR > 1 && \\\\$2 + 0 == \\\\$2 { print \\\\$1 }\")'"
                         % (at, command.name))
        for word in [c.name for c in found] if command.takes_commands else orders(command):
            lines.append("complete -c gpucache -n '%s%s' -a %s" % (at, command.name, word))
        if command.name == "run":
            lines.append("complete -c gpucache -n '%srun' -a '(__fish_complete_subcommand)'" % at)
    return "\n".join(lines) + "\n"


def completion(shell):
    """Returns the text of a completion."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # missing with PYTHONSAFEPATH
    import coverage  # which imports this file
    found = commands(coverage.rows(coverage.COMMANDS, MACROS))
    variables = [Variable(row[0], row[3], row[4]) for _, row in coverage.rows(coverage.OPTIONS, ["OPTION"])]
    return {"bash": bash, "zsh": zsh, "fish": fish}[shell](found, variables)


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    sys.stdout.write(completion(sys.argv[1]))
