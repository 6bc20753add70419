#!/usr/bin/env python3
"""Checks the call stacks of inlined C++ code in every output, and the call sites of its buffers."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

import browser
from harness import HERE, SIM, Tally, environment, run_with_report
from report_live_page import COMMAND

tally = Tally()
NAMES = os.environ.get("GPUCACHE_TEST_NAMES") == "yes"  # the tool was built with libdw
SOURCE = os.path.join(HERE, "inlined.cpp")
SIZES = {"weights": 8, "gradients": 4, "activations": 2}  # MiB


def tool(*arguments):
    done = subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, env=environment(False), timeout=60
    )
    tally.check(
        done.returncode == 0 and not done.stderr, "inlined: " + " ".join(arguments), done.stderr
    )
    return done.stdout


def lines_of_source():
    with open(SOURCE, encoding="utf-8") as file:
        return {
            found[1]: number
            for number, line in enumerate(file, 1)
            for found in [re.search(r"// line (\w+)$", line)]
            if found
        }


def frames_of(name, brief):
    """Returns the program's own frames of a buffer, innermost first."""
    lines, file = lines_of_source(), os.path.basename(SOURCE) if brief else SOURCE
    places = (
        [("Buffer::Buffer", "constructor")]
        + ([("tensor", "tensor")] if name != "activations" else [])
        + [("main", name)]
    )
    return ["%s (%s:%d)" % (function, file, lines[line]) for function, line in places]


def compare_with_more(folder, file, report):
    """Compares the report with one in which every buffer of the program is larger by its own size."""
    more = json.loads(json.dumps(report))
    for holder in more["devices"][0]["holders"]:
        holder["peak_bytes"] *= 2
    path = os.path.join(folder, "more.json")
    with open(path, "w", encoding="utf-8") as out:
        out.write(json.dumps(more) + "\n")
    return tool("report", "--compare", file, path)


def check_objects(name, holder):
    """Checks that frames as objects and as texts agree, and that the objects name the inlined functions."""
    frames = holder["frames"]
    own = [frame for frame in frames if frame.get("named")]
    texts = ["%s (%s:%d)" % (f["function"], f["file"], f["line"]) for f in own]
    tally.check(texts == frames_of(name, False), "inlined: objects: " + name, frames)
    tally.check(
        [frame.get("inlined", False) for frame in own] == [True] * (len(own) - 1) + [False],
        "inlined: objects: what was inlined: " + name,
        own,
    )
    tally.check(
        len({(frame["module"], frame["offset"]) for frame in own}) == 1,
        "inlined: objects: one place in the program: " + name,
        own,
    )


def is_own(frame):
    return SOURCE in frame


def shown(page):
    """Returns the calls that a page names; None without a browser."""
    if not browser.PATH:
        return None
    with browser.Browser() as chromium:
        chromium.open(page)
        return chromium.run("[...document.querySelectorAll('.rows summary')].map((of) => of.textContent)")


def call_sites(compiler):
    """Checks three call sites of buffers.cpp, some of them inlined, with their lines and bytes."""
    source = os.path.join(HERE, "buffers.cpp")
    with tempfile.TemporaryDirectory() as folder:
        program, file = os.path.join(folder, "buffers"), os.path.join(folder, "report.json")
        subprocess.run(
            [compiler, "-std=c++17", "-O2", "-g", "-DDEVICE", "-o", program, source, "-L" + SIM]
            + ["-l:libcuda.so.1"],
            check=True,
        )
        _, report = run_with_report([program], options={"GPUCACHE_STACKS": "24"})
        with open(file, "w", encoding="utf-8") as out:
            out.write(json.dumps(report) + "\n")
        folded = tool("report", "--folded=peak", file).splitlines()
    found = {}
    for row in folded:
        stack, size = row.rsplit(" ", 1)
        sites = re.findall(r";(load|cache|step) \(buffers\.cpp:(\d+)\);", stack)
        tally.check(len(sites) == 1, "call sites: one in each stack", row)
        for site in sites:
            found[site] = found.get(site, 0) + int(size)
        tally.check(
            "_start (buffers.cpp:" not in stack,
            "call sites: code without line numbers has none of the code before it",
            row,
        )
    with open(source, encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    expected = {
        (name, str(number)): size << 20
        for name, size in (("load", 12), ("cache", 10), ("step", 3))
        for number, line in enumerate(lines, 1)
        if line.endswith("// line " + name)
    }
    tally.check(found == expected, "call sites: lines and bytes at the peak", folded)


def main():
    compiler = shutil.which("g++")
    if not compiler or not NAMES:
        print(
            "SKIPPED: there is no g++"
            if not compiler
            else "SKIPPED: the tool was built without libdw"
        )
        sys.exit(77)
    call_sites(compiler)
    with tempfile.TemporaryDirectory() as folder:
        program, file = os.path.join(folder, "inlined"), os.path.join(folder, "report.json")
        subprocess.run(
            [
                compiler,
                "-std=c++17",
                "-O2",
                "-g",
                "-o",
                program,
                SOURCE,
                "-L" + SIM,
                "-l:libcuda.so.1",
            ],
            check=True,
        )
        trace = os.path.join(folder, "trace")
        _, report = run_with_report(
            [program], options={"GPUCACHE_STACKS": "24", "GPUCACHE_TRACE": trace}
        )
        with open(file, "w", encoding="utf-8") as out:
            out.write(json.dumps(report) + "\n")
        named = json.loads(tool("report", "--format=json", file))
        text = tool("report", file)
        page = os.path.join(folder, "page.html")
        tool("report", "--html=" + page, file)
        summaries = shown(page)
        folded = tool("report", "--folded=live", file).splitlines()
        compared = compare_with_more(folder, file, report)
        snapshot = json.loads(tool("snapshot", "--json", trace))
    frames = {
        event["size"]
        >> 20: ["%s (%s:%d)" % (f["name"], f["filename"], f["line"]) for f in event["frames"]]
        for events in snapshot["device_traces"]
        for event in events
        if event["action"] == "alloc"
    }
    holders = {h["live_bytes"] >> 20: h for h in named["devices"][0]["holders"]}
    tally.check(
        sorted(holders) == [2, 4, 8], "inlined: three holders", named["devices"][0]["holders"]
    )
    for name, size in SIZES.items():
        stack = holders.get(size, {"stack": []})["stack"]
        tally.check(
            [frame for frame in stack if is_own(frame)] == frames_of(name, False),
            "inlined: JSON: " + name,
            stack,
        )
        tally.check(
            any("/include/c++/" in frame for frame in stack),
            "inlined: JSON has the library's frames: " + name,
            stack,
        )
        check_objects(name, holders.get(size, {"frames": []}))
        innermost, *callers = frames_of(name, True)
        tally.check(
            re.search(
                r"^  \+%d\.00 MiB, from %d\.00 MiB to %d\.00 MiB: %s\n    from %s$"
                % (size, size, 2 * size, re.escape(innermost), re.escape(", ".join(callers))),
                compared,
                re.M,
            ),
            "inlined: compare: " + name,
            compared,
        )
        tally.check(
            re.search(
                r"^\|   %d\.00 MiB in 1: %s +\|\n\|     from %s +\|$"
                % (size, re.escape(innermost), re.escape(", ".join(callers))),
                text,
                re.M,
            ),
            "inlined: text: " + name,
            text,
        )
        tally.check(
            summaries is None or "%s ← %s" % (innermost, callers[0]) in summaries,
            "inlined: page: " + name,
            summaries,
        )
        rows = [row for row in folded if row.endswith(" %d" % (size << 20))]
        own = (
            [frame for frame in rows[0].rsplit(" ", 1)[0].split(";") if "(inlined.cpp:" in frame]
            if len(rows) == 1
            else rows
        )
        tally.check(own == frames_of(name, True)[::-1], "inlined: folded: " + name, folded)
        tally.check(
            [frame for frame in frames.get(size, []) if is_own(frame)] == frames_of(name, False),
            "inlined: snapshot: " + name,
            frames,
        )


tally.run(main)
