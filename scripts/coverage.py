#!/usr/bin/env python3
"""coverage.py [--check]: writes the parts of the documentation that are made from the code's tables.

    docs/coverage.md            from src/driver/entry_points.def
    docs/gpucache.7, options    from src/process/options.def
    README.md, options          from src/process/options.def
    docs/policy.md, constants   from the sources they stand in

With --check nothing is written: the exit status is 1 if a file is not what the tables say. A test
that entry_points.def names and that is not in the repository is marked as planned.
"""
import difflib
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ENTRIES = "src/driver/entry_points.def"
OPTIONS = "src/process/options.def"


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
<!-- Made by scripts/coverage.py from src/driver/entry_points.def. Do not edit. -->

# Coverage of the driver API

Every entry of the CUDA driver that the library replaces, and every one that it calls. The table is
made from `src/driver/entry_points.def`, from which the code's own prototypes, routing and exported
symbols come too. An entry that is not listed here reaches the driver untouched.

*Entry* is the exported symbol, version suffix and all. The library recognises an entry by the
pointer that the driver gives for a request, so every name, version and flag of
`cuGetProcAddress` that leads to the same symbol is covered by its one row. *Since* is the CUDA
version that brought the symbol.

*Tests* are named after their files under `tests/`. `laws` stands for `tests/programs/laws.c`.
"planned" marks a test that is not in the repository yet.
"""

COVERAGE_TAIL = """\
## Not replaced

These have to do with memory, and the library does not replace them. The gaps are stated in
[design.md](design.md#known-gaps).

| entries | what follows |
| --- | --- |
| the entries before `_v2` for memory (`cuMemAlloc`, `cuMemFree`, `cuMemAllocPitch`, \
`cuMemGetInfo`, `cuMemGetAddressRange`, `cuMemAllocHost`, `cuArrayCreate`, `cuArray3DCreate`, \
`cuDeviceTotalMem`, `cuMemHostRegister`) | not pooled, not counted; programs built with CUDA 3.2 or \
later do not use them |
| `cuGraphLaunch`, `cuGraphUpload` | what a graph's allocation nodes take is not refused by the \
limit, and is counted at the next wait |
| `cuMemPoolSetAttribute` | nothing: what the driver keeps is looked at, not predicted |
| `cuImportExternalMemory` | such memory is not counted |
| `cuEventRecord`; copies of arrays, between devices and in \
batches; `cuMemsetD16*`, `cuMemsetD2D*` | a fault that they report is not noticed there |
| the NVML library | its figures do not agree with a limit |
"""


def version(number):
    number = int(number)
    return "%d.%d" % (number // 1000, number % 1000 // 10)


def exists(name):
    """Whether a name of the last column leads to a file under tests/."""
    path = name if "/" in name else "programs/" + name
    return any(glob.glob(os.path.join(ROOT, "tests", path + suffix))
               for suffix in (".c", ".cu", ".py"))


def tests(names):
    return ", ".join(
        "`%s`%s" % (name, "" if exists(name) else " (planned)")
        for name in (n.strip() for n in names.split(",")))


def common(macro):
    """Effect and test of a NOTICED or RETRIED row, as the table's own macro says."""
    found = re.search(r"#define %s\(.*?ENTRY\(symbol, since, parameters, arguments, (\".*?\"), (\".*?\")\)"
                      % macro, read(ENTRIES), re.S)
    return [plain(found.group(1)), plain(found.group(2))]


def coverage():
    lines = [COVERAGE_HEAD, "## Replaced", "", "| entry | since | what the library does | tests |",
             "| --- | --- | --- | --- |"]
    replaced, called = 0, []
    for macro, row in rows(ENTRIES, ["ENTRY", "FAST", "NOTICED", "RETRIED", "CALLED"]):
        if macro in ("NOTICED", "RETRIED"):
            row = row + common(macro)
        if macro == "CALLED":
            called.append("| `%s` | %s |" % (row[0], version(row[1])))
            continue
        symbol, since, _, _, effect, test = row
        lines.append("| `%s` | %s | %s | %s |" % (symbol, version(since), effect, tests(test)))
        replaced += 1
    lines += ["", "%d entries." % replaced, "", "## Only called", "", "| entry | since |",
              "| --- | --- |", *called, "", "%d entries." % len(called), "", COVERAGE_TAIL.rstrip(), ""]
    return "\n".join(lines)


# --- the options, as a part of a file between two marks ---


class Option:
    def __init__(self, row):
        identifier, _, self.initial, self.values, self.meaning, planned = row
        self.name = "GPUCACHE_" + identifier
        self.planned = planned == "ALL"
        only = re.match(r'ONLY\("(.*)"\)$', planned)
        self.planned_value = only.group(1) if only else None


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
        if option.planned:
            lines += [".br", "Planned: accepted, but without effect in this version."]
        if option.planned_value:
            lines += [".br", "Planned: " + roff(option.planned_value) +
                      " is accepted, but without effect in this version."]
    return "\n".join(lines)


def readme_options():
    lines = ["| variable | default | meaning |", "| --- | --- | --- |"]
    planned = []
    for option in options():
        if option.planned:
            planned.append("`%s`" % option.name)
        else:
            lines.append("| `%s` | `%s` | %s |" % (option.name, option.initial, option.meaning))
    if planned:
        lines += ["", "Accepted, but without effect in this version: " + ", ".join(planned) + "."]
    partly = ["`%s=%s`" % (o.name, o.planned_value) for o in options() if o.planned_value]
    if partly and planned:
        lines[-1] = lines[-1][:-1] + ", and the value " + ", ".join(partly) + "."
    return "\n".join(lines)


# --- the constants of docs/policy.md ---

# name, file, unit, meaning; a value is made from the #define
CONSTANTS = [
    ("BUDGET_FLOOR", "pool/internal.h", "B", "at least so much is added to the peak;"),
    ("BUDGET_SLACK", "pool/internal.h", "", "or one part in this of it"),
    ("FREES_PER_CLOSE", "pool/free.c", "",
     "frees of a thread that share an on-time event in the tight gear,"),
    ("CLOSE_LEAST_SHARE", "pool/free.c", "", "more if they are less than one part in this of the budget,"),
    ("CLOSE_SHARE", "pool/internal.h", "", "fewer if they are more than one part in this of it"),
    ("CLOSE_BYTES", "pool/internal.h", "B", "or than this"),
    ("SPINS_BEFORE_LOCK", "pool/allocate.c", "",
     "turns a thread waits for another thread's query before it takes the lock"),
    ("AHEAD_BLOCKS", "pool/allocate.c", "", "small blocks a thread that keeps asking gets at most,"),
    ("AHEAD_BYTES", "pool/allocate.c", "B", "and how many bytes of them"),
    ("FEW_CACHES", "pool/budget.c", "", "with more caches in use than this,"),
    ("LOOKS_PER_SUM", "pool/budget.c", "", "visits sum the peaks only once in so many times;"),
    ("LOOKS_PER_SUM_OF_FEW", "pool/budget.c", "", "with as many or fewer, once in so many"),
    ("CACHES_PER_LOOK", "pool/budget.c", "",
     "and no oftener than once in as many visits as there are caches, divided by this"),
    ("TIGHT_SHARE", "pool/budget.c", "",
     "the gear is tight in the last part of the budget, which is one in so many of its goal"),
    ("BUDGET_LITTLE", "pool/internal.h", "B", "most that the budget is, with one thread,"),
    ("BUDGET_LITTLE_PEAK", "pool/internal.h", "B", "up to this peak,"),
    ("BUDGET_TIMES", "pool/internal.h", "", "and as a multiple of the peak above that"),
    ("IDLE_NS", "pool/idle.c", "ns", "a thread that has done nothing for so long is idle"),
    ("LOOK_NS", "pool/idle.c", "ns", "pause between two looks for idle threads when there were none"),
    ("WORKING_BLOCKS", "pool/idle.c", "", "a thread that has taken so many blocks is at work"),
    ("IDLE_LOOKS", "pool/idle.c", "", "caches that are looked at before one growth past the goal"),
    ("TRIM_WAIT_NS", "pool/pool.c", "ns",
     "longest wait when idle memory is given back on request"),
    ("UNRECORDED_MAX", "pool/order.c", "B",
     "pending without context events before a free waits"),
    ("EVENTS_BEHIND", "pool/order.c", "",
     "on-time events under way behind the needed one, from which on the CPU waits for that in a program of several streams,"),
    ("BEHIND_SHARE", "pool/order.c", "",
     "if what may be freed between as many is one part in this of the budget"),
    ("EXCESS_SHARE", "pool/supply.c", "",
     "giving idle segments back ahead of growing takes at most one part in this of the time,"),
    ("EXCESS_MOST_NS", "pool/supply.c", "ns", "and this much of what it did not take is kept for later"),
    ("RESERVE_TENTHS", "pool/supply.c", "",
     "where segments lie idle the pool grows to at most so many tenths of the peak,"),
    ("RESERVE_BYTES", "pool/supply.c", "B", "and this much more, but for its last step"),
    ("RETURN_SOON_NS", "pool/supply.c", "ns",
     "longest wait for idle segments on their way back before the pool grows, where memory is not short"),
    ("PARKED_SHARE", "pool/supply.c", "",
     "a thread's small blocks are given up ahead of growing if they are one part in this of the budget"),
    ("SEGMENT_STEP_MAX", "pool/supply.c", "B",
     "large blocks of odd sizes share segments of a sixteenth of what they have; up to this,"),
    ("SEGMENT_STEP_SHARE", "pool/supply.c", "", "and up to one part in this of the device"),
    ("STARTS_LEAST", "pool/supply.c", "B", "small blocks larger than this may begin where a page does"),
    ("STARTS_BYTES", "pool/supply.c", "B", "beyond so much of pages"),
    ("LATE_WAIT_NS", "pool/supply.c", "ns",
     "longest wait for a late event before out of memory"),
    ("ARENA_UNIT", "pool/arena.h", "B", "large blocks are multiples of this"),
    ("ARENA_SPARED_BYTES", "pool/arena.h", "B", "a free range this large is spared"),
    ("ARENA_SPARED_FACTOR", "pool/arena.h", "",
     "for requests of less than one part in this of it"),
    ("SMALL_MAX_BYTES", "pool/page.h", "B", "requests up to this live in pages of 2 MiB"),
    ("SMALL_CLASSES", "pool/size_class.h", "",
     "every 512 B up to 16 KiB, then sixteen per doubling"),
    ("CACHE_BYTES_SHARE", "pool/cache.h", "",
     "one part in this of the device may be parked in one thread's cache as small blocks, half of it in one class;"),
    ("CACHE_BYTES_LEAST", "pool/cache.h", "B", "at least this,"),
    ("CACHE_BYTES_MOST", "pool/cache.h", "B", "at most this,"),
    ("CACHE_BIN_BLOCKS", "pool/cache.h", "", "and at most so many blocks of a class"),
    ("CACHE_LARGE_FACTOR", "pool/cache.h", "", "times as much as large blocks,"),
    ("CACHE_LARGE_SHARE", "pool/cache.h", "",
     "each of them at most one part in this of it,"),
    ("CACHE_DRAWERS_FURTHER", "pool/cache.h", "",
     "for requests down to so many sixteenths of a doubling below its own,"),
    ("CACHE_DRAWERS_WHEN_MUCH", "pool/cache.h", "",
     "or so many where more than half of what may be is parked"),
    ("SHELF_CRATES", "pool/shelf.h", "",
     "crates of small blocks that wait for the thread that asked for them,"),
    ("CACHES_FULL", "pool/cache.h", "",
     "with more caches that hold much than this, they share what so many may hold;"),
    ("CACHE_FULL_SHARE", "pool/cache.h", "",
     "much begins at one part in this of what one may, and none gets less"),
    ("CACHE_GIFTS", "pool/cache.h", "",
     "so often a thread that only frees gives away a full cache, then in parts:"),
    ("CRATE_SHARE", "pool/shelf.h", "",
     "each with one part in this of what a thread's cache may park"),
    ("TINY_CLASSES", "pool/shelf.c", "",
     "size classes that a thread without room for a crate takes together"),
    ("SHELF_RANGE_BATCHES", "pool/shelf.h", "",
     "batches of large blocks that wait for the thread that asked for them,"),
    ("RANGE_BATCH_SHARE", "pool/shelf.h", "",
     "each of them at most one part in this of what a thread's cache may park"),
    ("BACKEND_SLOTS", "pool/backend.h", "", "events under way per context"),
    ("BACKEND_REFUSALS", "pool/backend.h", "",
     "records that a driver refuses on end until it counts as one without context events"),
]


def quantity(value, unit):
    if unit == "ns":
        return "%g s" % (value / 1e9) if value >= 1e9 else "%g ms" % (value / 1e6)
    if unit == "B":
        for power, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value and value % (1 << power) == 0:
                return "%d %s" % (value >> power, name)
        return "%d B" % value
    return "%d" % value


def constants():
    lines = ["| constant | value | in | meaning |", "| --- | --- | --- | --- |"]
    for name, path, unit, meaning in CONSTANTS:
        text = read("src/" + path).replace("\\\n", " ")
        found = re.search(r"^#define %s\s+(.*?)\s*(?:/\*.*)?$" % name, text, re.M)
        value = re.sub(r"\(uint64_t\)", "", found.group(1)) if found else ""
        if not re.fullmatch(r"[0-9 ()<*]+", value):
            sys.exit("docs/policy.md: src/%s has no number %s" % (path, name))
        lines.append("| `%s` | %s | `src/%s` | %s |" % (
            name, quantity(eval(value), unit), path, meaning))
    return "\n".join(lines)


def between(path, begin, end, part):
    """The file with what stands between two lines replaced."""
    text = read(path)
    found = re.search("(^%s\n).*?(^%s$)" % (re.escape(begin), re.escape(end)), text, re.M | re.S)
    if not found:
        sys.exit("%s: no lines %r and %r" % (path, begin, end))
    return text[:found.end(1)] + part + "\n" + text[found.start(2):]


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        sys.exit(__doc__.strip())
    made = {
        "docs/coverage.md": coverage(),
        "docs/gpucache.7": between(
            "docs/gpucache.7",
            '.\\" Begin: made by scripts/coverage.py from src/process/options.def',
            '.\\" End: made by scripts/coverage.py', man_options()),
        "README.md": between(
            "README.md",
            "<!-- begin: made by scripts/coverage.py from src/process/options.def -->",
            "<!-- end: made by scripts/coverage.py -->", readme_options()),
        "docs/policy.md": between(
            "docs/policy.md", "<!-- begin: made by scripts/coverage.py from the sources -->",
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


sys.exit(main())
