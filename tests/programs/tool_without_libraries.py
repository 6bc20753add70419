#!/usr/bin/env python3
"""Checks the messages of builds without the optional libraries, `cuda.h` or pip.

The first argument is the command that was built without the optional libraries.
"""
import json
import lzma
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile

from harness import LIBRARY, Tally, environment, frames
from report_live_page import Place

tally = Tally()
LESSER = sys.argv[1]
BUILD = os.path.dirname(LIBRARY)
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FEATURES = ["ncurses", "libdw", "liblzma", "libzstd"]


def lesser(*arguments, **more):
    return subprocess.run([LESSER, *arguments], env={**environment(False), **Place().options}, capture_output=True, text=True,
                          timeout=60, stdin=more.pop("stdin", subprocess.DEVNULL), **more)


def features():
    rows = re.findall(r"(?m)^  (\w+) +(yes|no) ", lesser("--version").stdout)
    tally.check(rows == [(name, "no") for name in FEATURES], "no libraries: --version", rows)
    with open(os.path.join(BUILD, "meson-logs", "meson-log.txt"), encoding="utf-8") as file:
        log = re.sub("\033\\[[\\d;]*m", "", file.read())
    own = subprocess.run([os.path.join(BUILD, "gpucache"), "--version"], capture_output=True, text=True).stdout
    for name, there in re.findall(r"(?m)^  (\w+) +(yes|no) ", own):
        tally.check(re.search(r"(?m)^ +%s, .*: %s$" % (name, there.upper()), log), "no libraries: meson's summary has %s, %s" % (name, there))


def on_a_terminal(*arguments):
    """Returns stderr of a command whose standard input and output are a terminal."""
    ours, theirs = pty.openpty()
    try:
        return subprocess.run([LESSER, *arguments], env={**environment(False), **Place().options}, stdin=theirs, stdout=theirs,
                              stderr=subprocess.PIPE, text=True, timeout=60).stderr
    finally:
        os.close(ours)
        os.close(theirs)


def top():
    note = "gpucache: top: prints the table once: this gpucache was built without ncurses\n"
    tally.check(note in on_a_terminal("top"), "no libraries: top on a terminal")
    tally.check(note not in on_a_terminal("top", "--once"), "no libraries: top --once on a terminal")
    tally.check(note not in lesser("top").stderr, "no libraries: top into a pipe")


def report(folder):
    note = "call stacks show files and offsets instead of names: this gpucache was built without libdw"
    for stack, times in ((["/bin/true+0x10", "/bin/false+0x10"], 1), (["named (/a/b.py:3)"], 0)):
        row = {"live_bytes": 5, "live_count": 1, "peak_bytes": 5, "peak_count": 1, "frames": frames(stack)}
        file = os.path.join(folder, "report")
        with open(file, "w", encoding="utf-8") as out:
            out.write(json.dumps({"schema": "gpucache-report/1", "stacks": {"frames": 16}, "devices": [{"device": 0, "holders": [row, row]}]}) + "\n")
        done = lesser("report", file)
        tally.check(done.returncode == 0 and done.stderr.count(note) == times, "no libraries: report of %s" % stack, done.stderr)


def replay(folder):
    for name, content, words in (("xz", lzma.compress(b"a 1 1\n"), "built without liblzma: xz -dc FILE | gpucache replay -"),
                                 ("zst", b"\x28\xb5\x2f\xfd", "built without libzstd: zstd -dc FILE | gpucache replay -")):
        file = os.path.join(folder, name)
        with open(file, "wb") as out:
            out.write(content)
        done = lesser("replay", file)
        tally.check(done.returncode == 1 and done.stderr.count("\n") == 1 and words in done.stderr, "no libraries: replay of " + name, done.stderr)


def header(folder):
    hint = "python3 scripts/cuda_headers.py fetch cuda 13.0"
    with open(os.path.join(ROOT, "meson.build"), encoding="utf-8") as file:
        tally.check(len(re.findall(r"(?m)^ +error\('.*cuda\.h.* \+ cuda_hint\)$", file.read())) == 2, "no libraries: meson's errors name the script")
    if shutil.which("meson"):
        done = subprocess.run(["meson", "setup", folder + "/build", ROOT, "-Dtoolkit=/no/such"], capture_output=True, text=True, timeout=120)
        tally.check(done.returncode != 0 and hint in done.stdout, "no libraries: meson without cuda.h", done.stdout + done.stderr)
    else:
        print("SKIPPED: what meson says without cuda.h: it is not here")
    script = os.path.join(ROOT, "scripts", "cuda_headers.py")
    for what, flags, arguments, words in (("a Python without pip", ["-S", "-E"], ["fetch", folder + "/cuda"], "needs pip"),
                                          ("no version", [], ["fetch", folder + "/cuda", "new"], "new"),
                                          ("a version that there is none of", [], ["fetch", folder + "/cuda", "99.9"], "pip could not download")):
        done = subprocess.run([sys.executable, *flags, script, *arguments], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "PIP_NO_INDEX": "1"})
        if what != "a Python without pip" and "needs pip" in done.stderr:
            print("SKIPPED: cuda_headers.py with %s: there is no pip here" % what)
            continue
        tally.check(done.returncode == 1 and done.stderr.count("\n") == 1 and done.stderr.startswith("cuda_headers.py: ") and words in done.stderr,
                    "no libraries: cuda_headers.py with " + what, done.stderr)
        tally.check(not os.path.exists(folder + "/cuda/include"), "no libraries: nothing is left of it")


def main():
    features()
    top()
    with tempfile.TemporaryDirectory() as folder:
        report(folder)
        replay(folder)
        header(folder)


tally.run(main)
