#!/usr/bin/env python3
"""Checks the call stacks of GPUCACHE_STACKS, in native code and in Python."""
import ctypes
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile

from harness import EMULATED, HERE, PROGRAMS, SIM, Tally, environment, program, run, run_with_report, run_with_reports

MIB = 1 << 20
KIB = 1 << 10
ON = {"GPUCACHE_STACKS": "24"}
COMMAND = os.path.join(PROGRAMS, "..", "..", "gpucache")
NAMES = os.environ.get("GPUCACHE_TEST_NAMES") == "yes"  # the tool was built with libdw
PLUGIN = os.path.join(PROGRAMS, "libstacks_plugin.so")

tally = Tally()


def tool(*arguments):
    done = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, env=environment(False))
    return done


def tool_of(reports, *arguments):
    """Runs the tool on files, one for each report."""
    with tempfile.TemporaryDirectory() as folder:
        names = []
        for number, report in enumerate(reports):
            names.append("%s/%d.json" % (folder, number))
            with open(names[-1], "w") as file:
                file.write(json.dumps(report, separators=(",", ":")) + "\n")
        return tool("report", *arguments, *names)


def named(report):
    """Returns the report with function names, as the tool prints it as JSON."""
    return json.loads(tool_of([report], "--format=json").stdout)


def add_up(report, what, apart=0):
    """Checks that the sums over all stacks are the counters of the device. If several threads allocate at a time, the two
    peaks may come at different times and differ by so many bytes."""
    if not report:
        return
    for device in report["devices"]:
        held, holders = device["held"], device["holders"]
        for key in ("live_bytes", "live_count", "peak_bytes", "peak_count"):
            total = sum(h[key] for h in holders)
            tally.check(total == held[key], "%s: %s: %d, but %d of all" % (what, key, total, held[key]))
        live = device["requested_bytes"]["current"]
        tally.check(held["live_bytes"] == live, "%s: %d held of %d" % (what, held["live_bytes"], live))
        tally.check(held["live_count"] == device["allocations"]["current"], what + ": how many", held)
        named = sum(row["bytes"] * row["count"] for row in device["live"])
        if len(device["live"]) < 16:
            tally.check(named == live, "%s: the list has %d of %d" % (what, named, live))
        if device["peaks_exact"]:
            peak = device["requested_bytes"]["peak"]
            tally.check(abs(held["peak_bytes"] - peak) <= apart, "%s: peak %d, not %d" % (what, held["peak_bytes"], peak))
        total = sum(h["total_bytes"] for h in holders)
        tally.check(total == device["requested_bytes"]["total"], what + ": total", total)
    frames = [frame for device in report["devices"] for holder in device["holders"] for frame in holder["stack"]]
    # The file's name, with its suffix: the folder that the tests lie in may be called libgpucache too.
    tally.check(not [f for f in frames if re.search(r"libgpucache\w*\.so", f)], what + ": frames of the library's own", frames)
    tally.check(report["stacks"]["lost_stacks"] == report["stacks"]["lost_blocks"] == 0, what + ": lost")


def part(name, *arguments, options=ON, what=None):
    """Runs a program natively and with stacks, and checks that its output is the same. Returns the report with names."""
    command = [program("report_stacks"), name, *arguments]
    native = run(command, under=False)
    ran, report = run_with_report(command, options=options)
    what = what or "stacks: " + name
    tally.check((ran.status, ran.out) == (native.status, native.out) and report,
                "%s: %s, natively %s" % (what, ran.status, native.status), native.out + ran.out + ran.err)
    return report, ran


def of(report, *functions):
    """Returns the sums over all holders whose stacks have these functions in this order, from the innermost one on."""
    sums = {}
    for holder in report["devices"][0]["holders"]:
        frames = [re.sub(r" \(.*", "", frame) for frame in holder["stack"]]
        if all(f in frames for f in functions) and \
                [frames.index(f) for f in functions] == sorted(frames.index(f) for f in functions):
            for key, value in holder.items():
                if key not in ("stack", "frames"):
                    sums[key] = sums.get(key, 0) + value
    return sums


# ---- C ----

def has_libunwind():
    """Returns whether there is a libunwind, looked up as the library does."""
    try:
        ctypes.CDLL("libunwind.so.8")
    except OSError:
        return False
    return True


def leaks():
    report, _ = part("leak")
    add_up(report, "stacks: leak")
    tally.check(report["stacks"]["unwinder"] == ("libunwind" if has_libunwind() else "backtrace"), "stacks: the unwinder",
                report["stacks"])
    path = os.path.realpath(program("report_stacks"))
    tally.check(any(re.fullmatch(re.escape(path) + r"\+0x[0-9a-f]+", frame)
                    for frame in report["devices"][0]["holders"][0]["stack"]), "stacks: file and offset",
                report["devices"][0]["holders"][0])
    tally.check(any(m["path"] == path and re.fullmatch("[0-9a-f]{40}", m["build_id"] or "")
                    for m in report["modules"]), "stacks: build ids", report["modules"])
    if not NAMES:
        tally.note("the tool was built without libdw: no names")
        return
    names = named(report)
    add_up(names, "stacks: leak, with names")
    lists = [tuple(h["stack"]) for h in names["devices"][0]["holders"]]
    tally.check(len(set(lists)) == len(lists) < len(report["devices"][0]["holders"]), "stacks: one line twice", lists)
    weights, activations = of(names, "get", "keep", "weights", "main"), of(names, "get", "activations", "main")
    things = of(names, "get", "keep", "little_things")
    tally.check(weights.get("live_bytes") == 24 * MIB and weights["live_count"] == 8, "stacks: weights", weights)
    tally.check(activations.get("live_bytes") == 0 and activations["total_count"] == 64, "stacks: activations",
                activations)
    tally.check(activations.get("peak_bytes") == 8 * 100 * KIB + 28, "stacks: activations at the peak", activations)
    tally.check(things.get("live_bytes") == 8000 and things["peak_bytes"] == 0, "stacks: little things", things)


def turned_off():
    ran, report = run_with_report([program("report_stacks"), "leak"])
    tally.check("stacks" not in report and "holders" not in report["devices"][0], "stacks: off")
    live = report["devices"][0]["live"]
    tally.check(live and all(row["stack"] == [] for row in live), "stacks: off, live", live)


def one_frame():
    report, _ = part("leak", options={"GPUCACHE_STACKS": "1"}, what="stacks: one frame")
    add_up(report, "stacks: one frame")
    holders = report["devices"][0]["holders"]
    tally.check(holders and all(len(h["stack"]) == 1 for h in holders), "stacks: one frame", holders)


def without_libunwind():
    """Checks that libc's backtrace() finds the same frames, and that one line names its cost."""
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/libunwind.so.8", "w") as file:
            file.write("no library")
        options = {**ON, "LD_LIBRARY_PATH": folder + ":" + SIM}
        report, ran = part("leak", options=options, what="stacks: backtrace")
    tally.check(report["stacks"]["unwinder"] == "backtrace", "stacks: backtrace", report["stacks"])
    tally.check(ran.err.count("libunwind.so.8 is not there") == 1, "stacks: its cost is said", ran.err)
    add_up(report, "stacks: backtrace")
    if NAMES:
        tally.check(of(named(report), "get", "keep", "weights", "main").get("live_count") == 8,
                    "stacks: backtrace, weights", report)


def rents():
    report, ran = part("rent")
    least, most = map(float, re.search(r"^rent ([\d.]+) ([\d.]+)$", ran.err, re.M).groups())
    found = sum(h["byte_seconds"] for h in report["devices"][0]["holders"])
    tally.check(least * 0.999999 <= found <= most * 1.000001, "stacks: %f byte-seconds, not %f to %f" % (
        found, least, most))
    done = tool_of([report], "--folded=byte-seconds")
    lines = [line.rsplit(" ", 1) for line in done.stdout.splitlines()]
    total = sum(int(weight) for _, weight in lines)
    tally.check(abs(total - found) <= len(lines), "stacks: folded %d of %f" % (total, found), done.stdout)
    if NAMES:
        tally.check(re.search(r"main \(report_stacks.*;.*tenant \(report_stacks.* \d+$", done.stdout, re.M),
                    "stacks: folded, outermost first", done.stdout)
    tally.check(tool_of([report], "--folded=live").stdout == "", "stacks: nothing is live")
    peak = tool_of([report], "--folded=peak").stdout
    tally.check(sum(int(line.rsplit(" ", 1)[1]) for line in peak.splitlines()) == 64 * MIB, "stacks: folded peak", peak)
    bad = tool_of([report], "--folded=time")
    tally.check(bad.returncode == 125 and "--folded=time: wanted is" in bad.stderr, "stacks: bad weight", bad)


def folded_of_several():
    """Checks a report of several processes: each has its own frame, the last report of each counts, and missing stacks are noted."""
    first, _ = part("leak")
    rank, _ = part("leak", options={**ON, "RANK": "5", "WORLD_SIZE": "8"})
    both = tool_of([first, rank, first], "--folded=live").stdout.splitlines()
    tally.check({line.split(";")[0] for line in both} == {"pid %d" % first["pid"], "rank 5"}, "stacks: roots", both)
    tally.check(len(both) == 2 * len(tool_of([first], "--folded=live").stdout.splitlines()), "stacks: once each", both)
    two, _ = part("leak", options={**ON, "GPUCACHE_SIM_DEVICES": "2"})
    two["devices"].append({**two["devices"][0], "device": 1})
    lines = tool_of([two], "--folded=live").stdout.splitlines()
    tally.check({line.split(";")[0] for line in lines} == {"device 0", "device 1"}, "stacks: devices", lines)
    _, plain = run_with_report([program("report_stacks"), "leak"])
    done = tool_of([plain], "--folded=live")
    tally.check(done.returncode == 1 and "GPUCACHE_STACKS=16" in done.stderr and not done.stdout, "stacks: none", done)


def compared():
    """Checks the comparison of two reports: holders with more memory, and holders of one report alone."""
    report, _ = part("leak")
    other = json.loads(json.dumps(report))
    same = tool_of([report, report], "--compare").stdout
    tally.check(same.endswith("Held at the peak, by who asked: the same\n"), "stacks: compared with itself", same)
    holders = other["devices"][0]["holders"]
    most = max(holders, key=lambda holder: holder["peak_bytes"])
    most["peak_bytes"] += 5 * MIB
    frames = [{"function": name, "file": "strange.c", "line": line} for name, line in (("strange", 1), ("main", 2))]
    holders.append({**most, "frames": frames, "peak_bytes": 9 * MIB})
    for reports, signs in (([report, other], "++"), ([other, report], "--")):
        text = tool_of(reports, "--compare").stdout
        lines = text[text.index("Held at the peak"):].splitlines()
        tally.check(re.fullmatch(r"  \%s9\.00 MiB, from .* to .*: strange \(strange\.c:1\)" % signs[0], lines[1]) and
                    lines[2] == "    from main (strange.c:2)" and
                    re.match(r"  \%s5\.00 MiB, from [\d.]+ MiB to [\d.]+ MiB: " % signs[1], lines[3]) and len(lines) <= 5,
                    "stacks: compared", text)
    without = json.loads(json.dumps(report))
    del without["stacks"]
    text = tool_of([report, without], "--compare").stdout
    tally.check("Held at the peak" not in text and "Reserved memory, peak" in text, "stacks: compared with none", text)


def a_file_that_has_changed():
    """Checks that the tool takes no names from a file that changed since the report."""
    report, _ = part("leak")
    for module in report["modules"]:
        module["build_id"] = "00" * 20
    done = tool_of([report], "--format=json")
    tally.check(done.stderr.count("is another file than the one that the report is of") == len(report["modules"]) or
                not NAMES, "stacks: another file", done.stderr)
    tally.check(json.loads(done.stdout)["devices"][0]["holders"][0]["stack"][0].count("+0x") == 1,
                "stacks: frames of another file", done.stdout)


def the_rest():
    for name in ("threads", "frees", "resets", "contexts", "forks", "signals", "plugin"):
        for options in (ON, {**ON, "GPUCACHE_BACKEND": "segments"}, {**ON, "GPUCACHE_DISABLE": "1"}):
            arguments = [PLUGIN] if name == "plugin" else []
            report, ran = part(name, *arguments, options=options, what="stacks: %s, %s" % (name, options))
            add_up(report, "stacks: %s, %s" % (name, options), apart=8 * 5000 if name == "threads" else 0)
            if not NAMES:
                continue
            names = named(report)
            if name == "threads":
                sums = of(names, "get", "keep", "make_and_leave")
                tally.check(sums.get("live_count") == 800 and sums["total_count"] == 1600, "stacks: threads", sums)
            elif name == "contexts":
                tally.check(of(names, "of_a_context").get("live_count") == 0, "stacks: blocks of contexts", names)
            elif name == "frees":
                sums = of(names, "frees")
                tally.check(sums["total_count"] == 11 and sums["live_count"] == 9, "stacks: counted once", sums)
            elif name == "resets":
                tally.check(of(names, "activations")["peak_bytes"] == 0, "stacks: a new peak", names)
            elif name == "signals":
                tally.check(of(names, "get", "keep", "on_signal", "signals").get("live_count") == 8,
                            "stacks: through a signal's frame", names)
            elif name == "plugin":
                sums = of(names, "while_opened", "plugin", "main")
                tally.check(sums.get("total_bytes") == 9000 and sums["live_bytes"] == 0, "stacks: in dlopen", names)


def a_library_where_another_was():
    """Loads a second library at the addresses of a closed one: the unwinder's cache and the names of the first are wrong there."""
    paths = [os.path.realpath(os.path.join(PROGRAMS, "libstacks_%s.so" % name)) for name in ("first", "second")]
    for frames in ("1", "24"):
        what = "stacks: a library where another was, %s frames" % frames
        report, ran = part("replaced", paths[0], paths[1], paths[0], paths[0], options={"GPUCACHE_STACKS": frames}, what=what)
        add_up(report, what)
        places = re.findall("replaced at (.*)", ran.err)
        if len(set(places)) != 1:
            tally.note("the libraries lay at different places")
        if not report:
            continue
        tally.check(report["stacks"]["unwinder"] == "backtrace", what + ": the unwinder", report["stacks"])
        held = {path: 0 for path in paths}
        for holder in report["devices"][0]["holders"]:
            path = next((frame for frame in holder["stack"]), "").split("+")[0]
            held[path] = held.get(path, 0) + holder["live_count"]
        tally.check(held == {paths[0]: 24, paths[1]: 8}, what + ": which of them", held)
        if has_libunwind():
            tally.check(ran.err.count("a library was closed that call stacks led through") == 1, what + ": said", ran.err)


def at_a_signal():
    """Checks a report from a signal handler, with frames of the program below."""
    ran, reports = run_with_reports([program("report_stacks"), "signals", "report"], options=ON)
    tally.check([r["reason"] for r in reports] == ["signal", "exit"], "stacks: reports", ran.err)
    for report in reports:
        add_up(report, "stacks: at a signal")


def out_of_memory():
    """Checks that the report of an out of memory names the holders, in lines that fit its box."""
    ran = run([program("report_stacks"), "oom"], options=ON)
    text = ran.err[:ran.err.index("written at exit")]
    tally.check("Held now, 24.00 MiB:" in text and "Held at the peak" not in text, "stacks: at an OOM", text)
    tally.check(re.search(r"^\|   24\.00 MiB in 8: report_stacks\+0x[0-9a-f]+", text, re.M), "stacks: weights", text)
    rest = ran.err[len(text):]
    tally.check("Held at the peak, 24.00 MiB:" in rest and re.search(r"^\| Held now, 0 B +\|$", rest, re.M),
                "stacks: at the end", rest)
    boxed = [line for line in ran.err.splitlines() if line.startswith("|")]
    tally.check(boxed and all(len(line) == 75 for line in boxed), "stacks: columns", ran.err)


# ---- Python ----

def pythons():
    """Returns one Python of each installed version, by its number."""
    found = {}
    places = [shutil.which("python3.%d" % minor) for minor in range(8, 16)] + [shutil.which("python3")]
    for path in places + glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3")):
        if path:
            told = subprocess.run([path, "-c", "import sys; print(sys.version_info[:2], sys.executable)"],
                                  capture_output=True, text=True)
            match = re.match(r"\(3, (\d+)\) (/.*)", told.stdout)
            if match and int(match[1]) >= 8:
                found.setdefault(int(match[1]), match[2])
    return found


def line_of(name):
    with open(os.path.join(HERE, "report_stacks_lines.py"), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.endswith("# line %s\n" % name):
                return number
    raise KeyError(name)


LINES = os.path.join(HERE, "report_stacks_lines.py")


def lines_of_python(minor, path):
    what = "stacks: Python 3.%d" % minor
    ran, report = run_with_report([path, LINES, "5"], options=ON)
    if not tally.check(ran.status == 0 and report, "%s: status %s" % (what, ran.status), ran.err):
        return
    tally.check(report["stacks"]["python"] == "3.%d" % minor, what, report["stacks"])
    add_up(report, what)
    python = [m["path"] for m in report["modules"] if "libpython" in m["path"] or m["path"] == os.path.realpath(path)]
    tally.check(not python, what + ": frames of the interpreter", python)
    short = {}  # the functions without their classes, which 3.10 does not say
    for holder in report["devices"][0]["holders"]:
        lines = tuple(re.sub(r"(?:\w+\.|<locals>\.)*([\w<>]+) \((.*)\)", r"\1 \2", frame) for frame in holder["stack"]
                      if ".py:" in frame and "threading.py" not in frame)
        short[lines] = short.get(lines, 0) + holder["live_bytes"]

    def frame(function, line):
        return "%s %s:%d" % (function, LINES, line_of(line))

    def holds(size, *frames):
        sums = sum(held for lines, held in short.items() if lines[:len(frames)] == frames)
        tally.check(sums == size, "%s: %d, not %d, of %s" % (what, sums, size, frames), json.dumps(
            [(held, lines) for lines, held in short.items()], indent=1))

    inner = frame("allocate", "allocate")
    holds(80 * MIB, inner, frame("forward", "kept"), frame("step", "step"), frame("main", "main"))
    comprehension = [frame("<listcomp>", "weights")] if minor < 12 else []
    holds(32 * MIB, inner, *comprehension, frame("__init__", "weights"))
    holds(1 * MIB, inner, frame("naïve_generator", "generator"))
    holds(6 * MIB, inner, frame("<lambda>", "lambda"))
    holds(5 * MIB, inner, frame("in_thread", "thread"))
    for blank in range(6):
        holds(2 * MIB, inner, "<module> cell.py:%d" % (blank + 1))
    text = tool_of([report]).stdout
    tally.check(re.search(r"^\|   80\.00 MiB in 5: allocate \(report_stacks_lines\.py:\d+\) +\|$", text, re.M),
                what + ": the tool's text", text)
    oom = run([path, LINES, "5", "oom"], options={**ON, "GPUCACHE_MEMORY_LIMIT": "200M"})
    tally.check(re.search(r"^\|   80\.00 MiB in 5: allocate \(report_stacks_lines\.py:\d+\) +\|\n"
                          r"\|     from (Model\.)?forward \(report_stacks_lines\.py:%d\), .* \|$" % line_of("kept"),
                          oom.err, re.M), what + ": at an OOM", oom.err)


def main():
    leaks()
    turned_off()
    one_frame()
    without_libunwind()
    rents()
    folded_of_several()
    compared()
    a_file_that_has_changed()
    the_rest()
    a_library_where_another_was()
    at_a_signal()
    out_of_memory()
    found = pythons()
    tally.note("Python: " + ", ".join("3.%d" % minor for minor in sorted(found)))
    if EMULATED:
        tally.note("no Python for aarch64")
        return
    for minor, path in sorted(found.items()):
        lines_of_python(minor, path)


tally.run(main)
