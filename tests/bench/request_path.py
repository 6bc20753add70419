#!/usr/bin/env python3
"""request_path.py [--list REQUEST] BUILD: how much code one request passes through.

Runs tests/bench/request_path.c under the library and callgrind, on the simulated driver, with the pages
backend. BUILD is a build without optimisation (meson setup --buildtype=debug -Doptimization=0), where
no function is inlined. Prints, for each request, the files and functions of the allocator that run, how many
of these functions are in headers (most are one expression), and the calls among them. --list prints the
functions of one request. Exit status 77: valgrind is missing.
"""

import collections
import os
import shutil
import sys
import tempfile

import callgrind

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "src")
# The folders of src that are not the allocator's.
OTHERS = {"base", "driver", "live", "loader", "options", "process", "report", "stacks", "stats", "trace"}
REQUESTS = ("miss", "first_free", "growth", "large_free")


def folder_of(path):
    """Returns the folder under src of a source file of the allocator, or None."""
    parts = os.path.realpath(path).split(os.sep)
    if "src" not in parts:
        return None
    folder = parts[len(parts) - 1 - parts[::-1].index("src") + 1]
    return folder if folder not in OTHERS and folder != parts[-1] else None


def functions_and_calls(path):
    """Reads one part of callgrind's output: {(file, function): calls of it}."""
    found, calls = set(), collections.Counter()
    file = callee_file = None
    with open(path) as lines:
        for line in lines:
            key, _, value = line.rstrip("\n").partition("=")
            if key == "fl":
                file = callee_file = value
            elif key == "fn":
                found.add((file, value))
                callee_file = file
            elif key in ("cfi", "cfl"):
                callee_file = value
            elif key == "cfn":
                callee = (callee_file, value)
            elif key == "calls":
                calls[callee] += int(value.split()[0])
                found.add(callee)
                callee_file = file
    return {f: calls[f] for f in found if folder_of(f[0])}


def run(build, folder):
    callgrind.run(build, ["request_path"], os.path.join(folder, "out"), {"GPUCACHE_LIVE": "off", "GPUCACHE_BACKEND": "pages"},
                  "--instr-atstart=no")
    parts = [os.path.join(folder, "out.%d" % (i + 1)) for i in range(len(REQUESTS))]
    return dict(zip(REQUESTS, map(functions_and_calls, parts)))


def main():
    arguments = sys.argv[1:]
    listed = arguments[1] if arguments[:1] == ["--list"] else None
    build = os.path.abspath(arguments[2 if listed else 0])
    if not shutil.which("valgrind"):
        print("skipped: no valgrind here")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        requests = run(build, folder)
    if not all(requests.values()):
        sys.exit("request_path: no function of src/ in the profile: BUILD has no debug information, or ccache copied that of another folder")
    print("%-12s %8s %10s %10s %8s" % ("request", "files", "functions", "in headers", "calls"))
    for name, functions in requests.items():
        files = {file for file, _ in functions}
        in_headers = sum(file.endswith(".h") for file, _ in functions)
        print("%-12s %8d %10d %10d %8d" % (name, len(files), len(functions), in_headers, sum(functions.values())))
        if name == listed:
            for (file, function), calls in sorted(functions.items()):
                where = os.path.relpath(os.path.realpath(file), SOURCE)
                print("    %-30s %-36s %6d" % (where, function, calls))
    return 0


if __name__ == "__main__":
    sys.exit(main())
