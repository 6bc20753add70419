#!/usr/bin/env python3
"""Checks that help, manual pages and shell completions name all commands and options."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))
sys.dont_write_bytecode = True
import commands as tool  # noqa: E402
import coverage  # noqa: E402

from harness import LIBRARY, Tally, environment

tally = Tally()
COMMAND = os.path.join(os.path.dirname(LIBRARY), "gpucache")
COMPLETION = os.path.join(os.path.dirname(LIBRARY), "src", "tool", "completion")
FOUND = tool.commands(coverage.rows(coverage.COMMANDS, tool.MACROS))
VARIABLES = ["--" + row[0].lower().replace("_", "-") + "=" for _, row in coverage.rows(coverage.OPTIONS, ["OPTION"])]


def gpucache(*arguments):
    return subprocess.run([COMMAND, *arguments], env=environment(False), capture_output=True, text=True, timeout=60,
                          stdin=subprocess.DEVNULL)


def help_and_parser():
    everything = gpucache("--help").stdout
    for command in FOUND:
        own = gpucache(command.name, "--help")
        tally.check(own.returncode == 0 and own.stdout.startswith("usage: gpucache %s" % command.name) and
                    "\n  %s " % command.name in everything, "documentation: %s --help" % command.name, own.stdout + own.stderr)
        shown, plain = own.stdout, " ".join(own.stdout.split())
        tally.check(gpucache("help", command.name).stdout == shown, "documentation: help " + command.name, shown)
        tally.check("\nExample:\n  gpucache %s %s\n" % (command.name, command.example) in shown,
                    "documentation: the example of " + command.name, shown)
        tally.check(max(map(len, shown.splitlines())) < 80, "documentation: the width of help " + command.name, shown)
        said = gpucache(command.name, "--nonsense").stderr
        for option in command.options:
            written = "--" + option.name + ("=" + option.value if option.value else "")
            default = " (default: %s)" % option.initial if option.initial else ""
            tally.check("%s %s%s" % (written, option.meaning, default) in plain, "documentation: help: " + written, shown)
            tally.check(command.takes_variables or written in said, "documentation: accepted is " + written, said)
            refused = gpucache(command.name, "--" + option.name) if option.value else gpucache(command.name, "--%s=1" % option.name)
            tally.check(refused.returncode == 125 and "--" + option.name in refused.stderr,
                        "documentation: %s --%s with the wrong value" % (command.name, option.name), refused.stderr)
        for variable in VARIABLES:
            tally.check((variable + "VALUE" in shown) == command.takes_variables, "documentation: %s of %s" % (variable, command.name), shown)


def what_is_no_command():
    """Checks that an error is one line, with a suggestion for a misspelt word."""
    for words, meant in ((["rnu"], "did you mean `run`?"), (["relpay", "x"], "did you mean `replay`?"),
                         (["./app"], "did you mean `gpucache run -- ./app`?"),
                         (["/no/such/app", "--x"], "did you mean `gpucache run -- /no/such/app ...`?"),
                         (["python3", "x.py"], "did you mean `gpucache run -- python3 ...`?"),
                         (["--memory-limit=8G", "./app"], "as in `gpucache run --memory-limit=8G ./app`"),
                         (["nonsense"], "`gpucache help` lists the commands"), (["help", "snapshto"], "did you mean `snapshot`?"),
                         (["help", "a", "b"], "takes the name of one command"), (["a\033[31m" * 99], "is no command"),
                         (["help", "--foo"], "gpucache: help: takes no option\n"),
                         (["run", "--memory-limt=8G", "true"], "did you mean --memory-limit?"),
                         (["run", "--nothing-like-it=8G", "true"], "no such option; `gpucache options` lists them")):
        said = gpucache(*words)
        tally.check(said.returncode == 125 and not said.stdout and said.stderr.count("\n") == 1 and meant in said.stderr and
                    "\033" not in said.stderr, "documentation: gpucache %s" % words, said.stdout + said.stderr)
    alone = gpucache()
    tally.check(alone.returncode == 125 and not alone.stdout and alone.stderr.startswith("usage: ") and
                alone.stderr.splitlines()[-1] == "gpucache: no command is named", "documentation: no command", alone.stderr)
    tally.check(gpucache("help").stdout == gpucache("--help").stdout == gpucache("-h").stdout != "", "documentation: help")


def full_disk():
    """Checks that a command says that its output could not be written, and is silent if its reader has ended."""
    for words in (["--help"], ["help", "run"], ["--version"], ["report", "-h"], ["options"], ["metrics"], ["top", "--once"]):
        with open("/dev/full", "w") as full:
            said = subprocess.run([COMMAND, *words], env=environment(False), stdout=full, stderr=subprocess.PIPE, text=True)
        tally.check(said.returncode == 125 and "the output could not be written: No space left" in said.stderr,
                    "documentation: a full disk: %s" % words, "%s %s" % (said.returncode, said.stderr))
    end, closed = os.pipe()
    os.close(end)
    said = subprocess.run([COMMAND, "options"], env=environment(False), stdout=closed, stderr=subprocess.PIPE, text=True,
                          preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN), restore_signals=False)
    os.close(closed)
    tally.check((said.returncode, said.stderr) == (125, ""), "documentation: a reader that has ended", said.stderr)


def numbers():
    """Checks that a refused number says which numbers are accepted."""
    events, seconds = "wanted is a number of events, 1 or more", "wanted are seconds above 0, such as "
    for words, why in ((["timeline", "--last=0", "1"], events), (["snapshot", "--last=0", "1"], events),
                       (["report", "--events=x", "1"], "wanted is a number from 0 to 1000000"),
                       (["top", "--interval=0"], seconds + "0.5"), (["ctl", "--timeout=0", "1", "report"], seconds + "10"),
                       (["ctl", "--device=64", "1", "report"], "wanted is a number from 0 to 63")):
        said = gpucache(*words)
        tally.check(said.returncode == 125 and said.stderr == "gpucache: %s: %s\n" % (words[1], why),
                    "documentation: gpucache %s" % words, said.stderr)


def short_help():
    for command in FOUND:
        shown = gpucache(command.name, "--help").stdout
        tally.check(gpucache(command.name, "-h").stdout == shown, "documentation: %s -h" % command.name)
    tally.check(gpucache("report", "/no/such", "-h").returncode == 0, "documentation: -h behind a file")
    for words in (["/bin/echo", "-h"], ["--", "/bin/echo", "-h"]):
        tally.check(gpucache("run", *words).stdout == "-h\n", "documentation: -h of a program", words)
    for other in ("--compare", "--folded=live", "--html=/no/such/page"):
        said = gpucache("report", other, "--format=json", "/no/such").stderr
        tally.check("--format=json: does not go with" in said, "documentation: --format=json " + other, said)
    for words in (["--html=/no/such/page", "--folded=live"], ["--html=/no/such/page", "--compare"], ["--html=/no/such/page", "--each"],
                  ["--folded=live", "--compare"], ["--folded=live", "--each"], ["--compare", "--each"]):
        said = gpucache("report", *words, "/no/such")
        tally.check(said.returncode == 125 and said.stderr.startswith("gpucache: %s: does not go with" % words[0].split("=")[0]),
                    "documentation: report %s" % words, said.stderr)


def what_it_was_built_with():
    said = gpucache("--version")
    rows = dict(re.findall(r"(?m)^  (\w+) +(yes|no) +\S", said.stdout))
    tally.check(said.returncode == 0 and said.stdout.startswith("gpucache ") and
                set(rows) == {"ncurses", "libdw", "liblzma", "libzstd"}, "documentation: --version", said.stdout)
    tally.check(rows["libdw"] == os.environ["GPUCACHE_TEST_NAMES"], "documentation: whether libdw is there", said.stdout)


def hidden():
    """Checks that GPUCACHE_PEAKS works and is in no list for users: only run --max-peak sets it."""
    listed = gpucache("help", "run").stdout + gpucache("options").stdout
    completions = [os.path.join(COMPLETION, name) for name in ("gpucache", "_gpucache", "gpucache.fish")]
    for name in ["docs/gpucache.1", "docs/gpucache.7", "README.md"] + completions:
        listed += open(os.path.join(ROOT, name), encoding="utf-8").read().replace("\\-", "-")
    tally.check(not re.search(r"--peaks\b|GPUCACHE_PEAKS| -l peaks\b", listed), "documentation: --peaks is in a list for users")
    shown = gpucache("run", "--peaks=/dev/null", "sh", "-c", "echo $GPUCACHE_PEAKS")
    tally.check(shown.stdout == "/dev/null\n", "documentation: --peaks", shown.stdout + shown.stderr)


def order():
    """Checks that options may stand before or behind arguments, and that options of a started program are left to it."""
    for words in (["/no/such", "--format", "json"], ["--format=json", "/no/such"], ["/no/such", "--each", "/no/one", "--format", "json"]):
        said = gpucache("report", *words)
        tally.check(said.returncode != 0 and "/no/such" in said.stderr and "format" not in said.stderr and "json" not in said.stderr,
                    "documentation: report %s" % words, said.stderr)
    said = gpucache("replay", "/no/such", "--backend=segments", "--delay", "1,x").stderr
    tally.check("--delay" in said and "/no/such" not in said, "documentation: a wrong value behind a file", said)
    said = gpucache("report", "/no/such", "--", "--each").stderr
    tally.check("/no/such" in said and "--each: No such file" in said, "documentation: behind -- all are files", said)
    for words in (["/bin/echo", "--one-pool", "--", "x"], ["--", "/bin/echo", "--one-pool", "--", "x"]):
        said = gpucache("run", *words)
        tally.check(said.stdout == "--one-pool -- x\n", "documentation: run %s" % words, said.stdout + said.stderr)


def values():
    """Checks that the value of an option may stand behind = or in the next word."""
    for words in (["--backend", "pages"], ["--backend=pages"], ["--report", "off", "--backend", "pages", "--"]):
        said = gpucache("run", *words, "sh", "-c", "echo $GPUCACHE_BACKEND")
        tally.check(said.stdout == "pages\n", "documentation: run %s" % words, said.stdout + said.stderr)


def manual():
    shown = open(os.path.join(ROOT, "docs", "gpucache.1"), encoding="utf-8").read()
    plain = re.sub(r"\\f.", "", shown).replace("\\-", "-")
    for command in FOUND:
        tally.check(".B gpucache %s" % command.name in plain, "documentation: the manual has " + command.name)
        for option in command.options:
            tally.check(re.search(r"^\.BI? --%s\b" % option.name, plain, re.M) and
                        re.search(r"^\.SY \"gpucache %s\"\n.*\[--%s\b" % (command.name, option.name), plain, re.M),
                        "documentation: the manual has %s --%s" % (command.name, option.name))
        tally.check("\ngpucache %s %s\n" % (command.name, command.example) in plain, "documentation: the manual's example of " + command.name)
    header = open(os.path.join(ROOT, "include", "gpucache.h"), encoding="utf-8").read()
    page = open(os.path.join(ROOT, "docs", "gpucache.h.3"), encoding="utf-8").read()
    functions = re.findall(r"^GPUCACHE_API .*?(gpucache_\w+)\(", header, re.M)
    names, synopsis = page.split(".SH SYNOPSIS")[0], page.split(".SH SYNOPSIS")[1].split(".SH DESCRIPTION")[0]
    tally.check(len(functions) > 7, "documentation: functions of gpucache.h", functions)
    for function in functions:
        tally.check(function in names and function + "(" in synopsis and re.search(r"^\.B %s$" % function, page, re.M),
                    "documentation: gpucache.h(3) has " + function)
    fields = re.search(r"struct gpucache_stats \{(.*?)\n\};", header, re.S).group(1)
    for field in re.findall(r"\b(\w+)\s*[,;]", re.sub(r"/\*.*?\*/", "", fields, flags=re.S)):
        tally.check(field == "size" or re.search(r"^\.BR? .*\b%s\b" % field, page, re.M), "documentation: gpucache.h(3) has " + field)
    for name in re.findall(r"\bGPUCACHE_REPORT_\w+|-E[A-Z]+", header):
        tally.check(name in page.replace("\\-", "-"), "documentation: gpucache.h(3) has " + name)
    for words in ("too many threads write reports", "returns the error of the write"):
        for text in (header.replace("*", " "), re.sub(r"(?m)^\.[A-Z]+ ", "", page)):
            tally.check(words in " ".join(text.split()), "documentation: header and gpucache.h(3) have: " + words)
    if shutil.which("mandoc"):
        for name in ("gpucache.1", "gpucache.7", "gpucache.h.3"):
            done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", os.path.join(ROOT, "docs", name)],
                                  capture_output=True, text=True)
            wrong = [line for line in done.stdout.splitlines() if "missing date" not in line]
            tally.check(not wrong, "documentation: mandoc on " + name, "\n".join(wrong))
        text = subprocess.run(["mandoc", "-T", "ascii", "-O", "width=80", os.path.join(ROOT, "docs", "gpucache.1")],
                              capture_output=True, text=True).stdout
        synopsis = re.sub(".\b", "", text).split("SYNOPSIS")[1].split("DESCRIPTION")[0]
        wide = [line for line in synopsis.splitlines() if len(line) > 80]
        tally.check(not wide, "documentation: the synopsis fits on a screen", "\n".join(wide))
    else:
        print("SKIPPED: the form of manual pages: there is no mandoc here")


def in_bash(line):
    """Returns the completions of bash at the end of a line; bash splits words at =."""
    script = ("source %s\nCOMP_LINE=$1 COMP_POINT=${#1} COMP_WORDS=() COMP_TYPE=9\ncompopt() { :; }\n"
              "IFS=$'\\n' read -r -d '' -a COMP_WORDS < <(sed 's/=/\\n=\\n/g; s/ /\\n/g' <<<\"$1\")\n"
              "[[ $1 == *[\\ =] ]] && COMP_WORDS+=('')\nCOMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_gpucache\n"
              "printf '%%s\\n' \"${COMPREPLY[@]}\"" % os.path.join(COMPLETION, "gpucache"))
    path = os.path.dirname(COMMAND) + ":" + os.environ["PATH"]
    done = subprocess.run(["bash", "--norc", "-c", script, "bash", line], capture_output=True, text=True, timeout=60,
                          env={**environment(False), "PATH": path})
    tally.check(not done.stderr, "documentation: bash on %r" % line, done.stderr)
    return done.stdout.split()


def completion():
    names = [command.name for command in FOUND]
    tally.check(in_bash("gpucache ") == names + ["--help", "--version"], "documentation: bash: commands", in_bash("gpucache "))
    for command in FOUND:
        options = ["--" + o.name + ("=" if o.value else "") for o in command.options]
        expected = options + (VARIABLES if command.takes_variables else []) + ["--help"]
        offered = in_bash("gpucache %s --" % command.name)
        tally.check(sorted(offered) == sorted(expected), "documentation: bash: options of " + command.name, offered)
        for option in command.options:
            if option.words:
                offered = in_bash("gpucache %s --%s=" % (command.name, option.name))
                tally.check(offered == option.words, "documentation: bash: values of --" + option.name, offered)
        if re.search("FILE|TRACE", command.operands):
            text = open(os.path.join(COMPLETION, "gpucache"), encoding="utf-8").read()
            words = re.findall(r"(?m)^ +%s:\*\).*" % command.name, text)
            tally.check(len(words) == 1 and "compopt -o default" in words[0], "documentation: bash: files of " + command.name, words)
            text = open(os.path.join(COMPLETION, "_gpucache"), encoding="utf-8").read()
            words = re.search(r"(?s)\n%s\)\n(.*?)\n +;;" % command.name, text)
            tally.check(words and "_files" in words[1].splitlines()[-1], "documentation: zsh: files of " + command.name, words)
    for line, expected in (("gpucache to", ["top"]), ("gpucache run --backend=p", ["pages"]), ("gpucache report --ht", ["--html="]),
                           ("gpucache ctl 1 em", ["empty-cache"]), ("gpucache options --reuse=w", ["wait"]),
                           ("gpucache run --backend ", ["auto", "segments", "pages"]), ("gpucache run --backend p", ["pages"]),
                           ("gpucache run --report=x --backend p", ["pages"]), ("gpucache report --format ", ["text", "json"]),
                           ("gpucache replay --backend ", ["segments", "pages", "pytorch", "expandable", "whole", "cudamalloc"]),
                           ("gpucache replay --backend=segments,p", ["segments,pages", "segments,pytorch"]),
                           ("gpucache replay --reuse wait,b", ["wait,barrier"]), ("gpucache help sn", ["snapshot"]),
                           ("gpucache report --each --fol", ["--folded="])):
        tally.check(in_bash(line) == expected, "documentation: bash: " + line, in_bash(line))
    for options in ("--memory-limit=8G --", "--memory-limit 8G --", "--backend pages", "--one-pool"):
        offered = in_bash("gpucache run %s mkfif" % options)
        tally.check(offered and "mkfifo" in offered, "documentation: bash: a program behind " + options, offered)
    for shell, name, written in (("zsh", "_gpucache", "--%s"), ("fish", "gpucache.fish", "-l %s")):
        path = os.path.join(COMPLETION, name)
        text = open(path, encoding="utf-8").read()
        for command in FOUND:
            for option in command.options:
                tally.check(re.search(re.escape(written % option.name) + r"\b", text), "documentation: %s has %s --%s" % (
                    shell, command.name, option.name))
        if shutil.which(shell):
            done = subprocess.run([shell, "-n", path], capture_output=True, text=True, timeout=60)
            tally.check(done.returncode == 0 and not done.stderr, "documentation: %s reads it" % shell, done.stderr)
        else:
            print("SKIPPED: whether %s reads its completion: it is not here" % shell)
    if shutil.which("fish"):
        with tempfile.TemporaryDirectory() as home:
            done = subprocess.run(["fish", "-c", "source %s; complete -C 'gpucache report --'" % os.path.join(COMPLETION, "gpucache.fish")],
                                  capture_output=True, text=True, timeout=60, env={**environment(False), "HOME": home})
            for option in next(c for c in FOUND if c.name == "report").options:
                tally.check("--" + option.name in done.stdout, "documentation: fish offers --" + option.name, done.stdout + done.stderr)


def main():
    help_and_parser()
    what_is_no_command()
    full_disk()
    numbers()
    short_help()
    what_it_was_built_with()
    hidden()
    order()
    values()
    manual()
    completion()


tally.run(main)
