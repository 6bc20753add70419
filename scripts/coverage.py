#!/usr/bin/env python3
"""coverage.py [--check]: writes the parts of the documentation that are made from the code's tables.

    docs/coverage.md            from src/driver/table/entry_points.def
    docs/gpucache.7, options    from src/options/options.def
    README.md, options          from src/options/options.def
    docs/policy.md, constants   from src/tuning/tuning.def
    docs/gpucache.1, commands   from src/tool/common/commands.def
    docs/gpucache.1, top        from src/tool/screen/top.def
    docs/report-schema.json     descriptions and statistics, from src/stats/fields.def
    docs/report-schema.md       from docs/report-schema.json
    docs/gpucache.7, kinds      from src/stats/fields.def
    docs/prometheus/alerts.yml  kinds that are no device memory, from src/stats/fields.def

With --check nothing is written: the exit status is 1 if a file is not what the tables say. The
script ends with an error if entry_points.def names a test that is not in the repository.
"""
import difflib
import glob
import os
import re
import sys

import commands as tool
import report_schema

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENTRIES = "src/driver/table/entry_points.def"
OPTIONS = "src/options/options.def"
TUNING = "src/tuning/tuning.def"
COMMANDS = "src/tool/common/commands.def"
FIELDS = "src/stats/fields.def"
TOP = "src/tool/screen/top.def"


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def rows(path, macros):
    """(macro, [arguments]) for every row of an X-macro table; strings come without their quotes."""
    # Comments of C, and preprocessor lines; neither occurs inside the strings of these tables.
    text = re.sub(r"/\*.*?\*/", "", read(path), flags=re.S)
    text = re.sub(r"^#.*$", "", text, flags=re.M)
    token = re.compile(r'"(?:[^"\\]|\\.)*"|[(),]|[^"(),]+')
    at = 0
    while True:
        start = re.compile(r"^(%s)\(" % "|".join(macros), re.M).search(text, at)
        if not start:
            return
        arguments, depth, at = [""], 1, start.end()
        while depth:
            piece = token.match(text, at)
            if not piece:
                sys.exit("%s: cannot read the row that begins with %r" % (
                    path, text[start.start():start.start() + 60]))
            at, piece = piece.end(), piece.group()
            if piece == "," and depth == 1:
                arguments.append("")
                continue
            depth += {"(": 1, ")": -1}.get(piece, 0)
            if depth:
                arguments[-1] += piece
        yield start.group(1), [plain(a) for a in arguments]


def plain(argument):
    """An argument as text: adjacent strings are joined as the compiler joins them."""
    argument = argument.strip()
    if argument.startswith('"'):
        parts = re.findall(r'"((?:[^"\\]|\\.)*)"', argument)
        return re.sub(r"\\(.)", r"\1", "".join(parts))
    return argument


# --- docs/coverage.md ---

COVERAGE_HEAD = """\
<!-- Made by scripts/coverage.py from src/driver/table/entry_points.def. Do not edit. -->

# Coverage of the driver API

Every entry of the CUDA driver that the library replaces, and every one that it calls. The table is
made from `src/driver/table/entry_points.def`, from which the code's own prototypes, routing and exported
symbols come too. An entry that is not listed here reaches the driver untouched.

*Entry* is the exported symbol, version suffix and all. The library recognises an entry by the
pointer that the driver gives for a request, so every name, version and flag of
`cuGetProcAddress` that leads to the same symbol is covered by its one row. *Since* is the CUDA
version that brought the symbol.

*Tests* are named after their files under `tests/`. `reuse_never_early` stands for `tests/programs/reuse_never_early.c`.
scripts/coverage.py refuses a row whose tests do not name the entry. `oom_retry` takes its entries from the table.
"""

COVERAGE_TAIL = """\
## Not replaced

These entries have to do with memory and reach the driver untouched. [known-gaps.md](design/known-gaps.md) states
the gaps.

| entries | what follows |
| --- | --- |
"""


def version(number):
    number = int(number)
    return "%d.%d" % (number // 1000, number % 1000 // 10)


def sources_of(test):
    """Returns the text of a test of the last column, with the headers of tests/programs that it includes, or ""."""
    paths = glob.glob(os.path.join(ROOT, "tests", (test if "/" in test else "programs/" + test) + ".*"))
    text = "".join(read(path) for path in paths)
    included = [os.path.join(ROOT, "tests", "programs", name) for name in re.findall(r'#include "(\w+\.h)"', text)]
    return text + "".join(read(path) for path in included if os.path.exists(path))


def tests(symbol, names):
    """Returns the last column. Exits if a test does not exist, or if none of the tests calls the entry."""
    names = [name.strip() for name in names.split(",")]
    sources = {name: sources_of(name) for name in names}
    missing = [name for name in names if not sources[name]]
    if missing:
        sys.exit("%s: %s: no such test: %s" % (ENTRIES, symbol, ", ".join(missing)))
    entry = re.sub(r"(_v\d)?(_ptsz|_ptds)?$", "", symbol)
    called = r"\b(%s(_v\d)?(_ptsz|_ptds)?|cuda%s)\b" % (entry, entry[2:])
    # oom_retry.py reads its entries from the table
    if "programs/oom_retry" not in names and not any(re.search(called, text) for text in sources.values()):
        sys.exit("%s: %s: not called by %s" % (ENTRIES, symbol, ", ".join(names)))
    return ", ".join("`%s`" % name for name in names)


def common(macro):
    """Effect and test of a NOTICED, BOUNDED, ORDERED or RETRIED row, as the table's own macro says."""
    found = re.search(r"#define %s\(.*?ENTRY\(symbol, since, parameters, arguments, (\".*?\"), (\".*?\")\)"
                      % macro, read(ENTRIES), re.S)
    return [plain(found.group(1)), plain(found.group(2))]


def coverage():
    lines = [COVERAGE_HEAD, "## Replaced", "", "| entry | since | what the library does | tests |",
             "| --- | --- | --- | --- |"]
    replaced, called, alone = set(), [], []
    for macro, row in rows(ENTRIES, ["ENTRY", "FAST", "NOTICED", "BOUNDED", "ORDERED", "RETRIED", "CALLED", "LEFT_ALONE"]):
        if macro == "LEFT_ALONE":
            alone.append((row[0].split(", "), row[1]))
            continue
        if macro in ("NOTICED", "BOUNDED", "ORDERED", "RETRIED"):
            row = row[:4] + common(macro)
        if macro == "CALLED":
            called.append("| `%s` | %s |" % (row[0], version(row[1])))
            continue
        symbol, since, _, _, effect, test = row
        lines.append("| `%s` | %s | %s | %s |" % (symbol, version(since), effect, tests(symbol, test)))
        replaced.add(symbol)
    for symbols, _ in alone:
        if replaced & set(symbols):
            sys.exit("%s: both replaced and left alone: %s" % (ENTRIES, ", ".join(replaced & set(symbols))))
    lines += ["", "%d entries." % len(replaced), "", "## Only called", "", "| entry | since |",
              "| --- | --- |", *called, "", "%d entries." % len(called), "", COVERAGE_TAIL.rstrip()]
    lines += ["| %s | %s |" % (", ".join("`%s`" % s for s in symbols), consequence) for symbols, consequence in alone]
    lines.append("")
    return "\n".join(lines)


# --- the options, as a part of a file between two marks ---


class Option:
    def __init__(self, row):
        identifier, _, self.initial, self.values, self.meaning = row
        self.name = "GPUCACHE_" + identifier


def options():
    return [Option(row) for _, row in rows(OPTIONS, ["OPTION"])]


def roff(text):
    """Text as it has to stand in a roff line."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"^([.'])", r"\\&\1", text)


def sentence(text):
    return text[:1].upper() + text[1:] + "."


def man_options():
    lines = []
    for option in options():
        lines += [".TP", ".B " + roff(option.name), roff(sentence(option.meaning)), ".br",
                  "Accepted: " + roff(option.values) + ".", ".br",
                  "Default: " + roff(option.initial) + "."]
    return "\n".join(lines)


def readme_options():
    lines = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for option in options():
        lines.append("| `%s` | `%s` | %s |" % (option.name, option.initial, option.meaning))
    return "\n".join(lines)


# --- the kinds of unpooled memory ---


def man_kinds():
    lines = []
    for kind, name, meaning in report_schema.fields(read(FIELDS)):
        if kind in ("UNPOOLED", "ELSEWHERE"):
            lines += [".br", ".IR " + roff(name) + " :", roff(meaning)]
    return "\n".join(lines)


def alerts():
    """The alerts, with the kinds that they leave out."""
    elsewhere = [name for kind, name, _ in report_schema.fields(read(FIELDS)) if kind == "ELSEWHERE"]
    return re.sub(r'(gpucache_outside_bytes\{kind!~)"[^"]*"', r'\1"%s"' % "|".join(elsewhere), read("docs/prometheus/alerts.yml"))


# --- the constants of docs/policy.md ---

SIZES = ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B"))
TIMES = ((1000000, "s"), (1000, "ms"), (1, "us"))


def quantity(kind, value):
    if kind == "BYTES":
        return next("%d %s" % (value >> power, name) for power, name in SIZES
                    if value % (1 << power) == 0)
    if kind == "TIME":
        return next("%g %s" % (value / unit, name) for unit, name in TIMES if value >= unit)
    return "%d" % value


ALLOCATOR_FOLDERS = ("heap", "source", "policy", "sync", "vmm", "segment", "tcache", "pool")


def constants():
    used = "".join(read(path) for folder in ALLOCATOR_FOLDERS
                   for path in glob.glob(os.path.join(ROOT, "src", folder, "*.[ch]")))
    lines = ["| constant | value | meaning | to measure again |", "| --- | --- | --- | --- |"]
    values = {}
    for kind, (name, value, meaning, evidence) in rows(TUNING, ["COUNT", "BYTES", "TIME"]):
        if not re.search(r"\b%s\b" % name, used):
            sys.exit("%s: nothing uses %s" % (TUNING, name))
        values[name] = eval(value.replace("(uint64_t)", "").replace("/", "//"), {}, values)
        evidence = re.sub(r"((?:tests|scripts|docs)/[\w./-]*\w)", r"`\1`", evidence)
        lines.append("| `%s` | %s | %s | %s |" % (
            name, quantity(kind, values[name]), meaning, "" if evidence == "-" else evidence))
    return "\n".join(lines)


def between(path, begin, end, part):
    """The file with what stands between two lines replaced."""
    return between_in(read(path), path, begin, end, part)


def between_in(text, path, begin, end, part):
    found = re.search("(^%s\n).*?(^%s$)" % (re.escape(begin), re.escape(end)), text, re.M | re.S)
    if not found:
        sys.exit("%s: no lines %r and %r" % (path, begin, end))
    return text[:found.end(1)] + part + "\n" + text[found.start(2):]


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__.strip())
    found = tool.commands(rows(COMMANDS, tool.MACROS))
    mark = '.\\" Begin: made by scripts/coverage.py from src/tool/common/commands.def, '
    manual = between("docs/gpucache.1", mark + "synopsis", '.\\" End: synopsis', tool.man_synopsis(found))
    manual = between_in(manual, "docs/gpucache.1", mark.replace(COMMANDS, TOP) + "keys and columns", '.\\" End: keys and columns',
                        tool.man_top(list(rows(TOP, ["KEY", "PART", "COLUMN"]))))
    manual = between_in(manual, "docs/gpucache.1", mark + "options", '.\\" End: options', tool.man_options(found))
    schema = report_schema.schema(read("docs/report-schema.json"), read(FIELDS))
    manual_7 = between(
        "docs/gpucache.7",
        '.\\" Begin: made by scripts/coverage.py from src/options/options.def',
        '.\\" End: made by scripts/coverage.py', man_options())
    made = {
        "docs/gpucache.1": between_in(manual, "docs/gpucache.1", mark + "examples", '.\\" End: examples', tool.man_examples(found)),
        "docs/coverage.md": coverage(),
        "docs/gpucache.7": between_in(
            manual_7, "docs/gpucache.7",
            '.\\" Begin: made by scripts/coverage.py from src/stats/fields.def', '.\\" End: kinds', man_kinds()),
        "docs/report-schema.json": schema,
        "docs/report-schema.md": report_schema.page(schema),
        "docs/prometheus/alerts.yml": alerts(),
        "README.md": between(
            "README.md",
            "<!-- begin: made by scripts/coverage.py from src/options/options.def -->",
            "<!-- end: made by scripts/coverage.py -->", readme_options()),
        "docs/policy.md": between(
            "docs/policy.md", "<!-- begin: made by scripts/coverage.py from src/tuning/tuning.def -->",
            "<!-- end: made by scripts/coverage.py -->", constants()),
    }
    stale = 0
    for path, text in made.items():
        full = os.path.join(ROOT, path)
        old = read(path) if os.path.exists(full) else ""
        if old == text:
            continue
        stale += 1
        if check:
            print("%s is not what the tables say; run scripts/coverage.py" % path)
            for line in difflib.unified_diff(old.splitlines(), text.splitlines(), "is", "should be",
                                             n=0, lineterm=""):
                print("  " + line)
        else:
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
            print("wrote " + path)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
