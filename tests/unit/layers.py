#!/usr/bin/env python3
"""layers.py SOURCE LIBRARY...: checks that includes and calls go from higher folders of src to lower ones.

FOLDERS lists the folders from the lowest to the highest. A file may include a header, and name a symbol, of its
own folder and of lower ones. There are no exceptions. Calls are read from the symbols of the objects in each
LIBRARY, a static one with all objects of the library or of the command. A circle of files that call each other has
at most MOST_IN_CIRCLE files, and none of ALLOCATOR. Some bounds of style are checked too: lines of a file of
ALLOCATOR, include guards, ranks of locks, host_unmap().

A lower folder calls a higher one through a pointer or a table that it has been given: stats_set_provider(),
LOADER_TABLE, PROCESS_HOOK_TABLE, context_set_callbacks(), device_pool_set_kinds().
"""
import collections
import pathlib
import re
import subprocess
import sys

FOLDERS = """
    loader base options stats process tuning heap debug stacks report live trace
    source policy sync vmm segment tcache pool
    driver/table driver/state driver/context driver/reuse driver/limit backend
    driver/observe driver/ipc driver/hooks driver/control
    replay tool/common tool/report tool/trace tool/replay tool/page tool/screen tool
""".split()

ALLOCATOR = "heap debug source policy sync vmm segment tcache pool".split()
MOST_IN_CIRCLE = 4
MOST_LINES = {".c": 500, ".h": 260}  # of a file of the allocator


def folder_of(file):
    """Returns the folder of FOLDERS that a path relative to SOURCE lies in, or None."""
    parent = str(pathlib.PurePath(file).parent)
    return parent if parent in FOLDERS else None


def includes_of(source):
    """Yields (file, included file) for all files of SOURCE."""
    for path in sorted(source.rglob("*.[chS]")):
        file = str(path.relative_to(source))
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
            if (source / name).exists():
                yield file, name


def calls_of(source, library):
    """Yields (file, file that defines a symbol it names, symbol) for the objects of LIBRARY."""
    sources = {"_".join(path.relative_to(source).parts): str(path.relative_to(source))
               for path in list(source.rglob("*.c")) + list(source.rglob("*.S"))}
    defined, used = {}, []
    out = subprocess.run(["nm", "-A", library], check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        match = re.search(r"src_(\w+\.[cS])\.o", line)
        file = match and sources.get(match[1])
        kind, symbol = line.split()[-2:]
        if file and kind in "Uw":
            used.append((file, symbol))
        elif file and kind in "BCDRTVW":
            defined[symbol] = file
    if not used:
        sys.exit(f"{library} has no object of {source}")
    yield from ((file, defined[symbol], symbol) for file, symbol in used
                if defined.get(symbol, file) != file)


def upward(arrows):
    """Returns a line for each file that names something of a higher folder."""
    bad = []
    for file, other, what in arrows:
        low, high = folder_of(file), folder_of(other)
        if low and high and FOLDERS.index(high) > FOLDERS.index(low):
            bad.append(f"{file} names {what} of {other}, a higher folder")
    return bad


def circles(arrows):
    """Returns the sets of files that reach each other (Tarjan)."""
    graph, index, low, stack, found = collections.defaultdict(set), {}, {}, [], []
    for file, other in arrows:
        graph[file].add(other)

    def search(file):
        index[file] = low[file] = len(index)
        stack.append(file)
        for other in sorted(graph[file]):
            if other not in index:
                search(other)
            if other in stack:
                low[file] = min(low[file], low[other])
        if low[file] == index[file]:
            at = stack.index(file)
            found.append(stack[at:])
            del stack[at:]

    sys.setrecursionlimit(10000)
    for file in sorted(graph):
        if file not in index:
            search(file)
    return found


def look(source, libraries):
    includes = list(includes_of(source))
    calls = [call for library in libraries for call in calls_of(source, library)]
    bad = upward([(file, other, other) for file, other in includes] + [(a, b, symbol) for a, b, symbol in calls])
    for circle in circles({(a, b) for a, b, _ in calls}):
        allocators = [file for file in circle if folder_of(file) in ALLOCATOR]
        if len(circle) > MOST_IN_CIRCLE or (len(circle) > 1 and allocators):
            bad.append("a circle of files: " + ", ".join(sorted(circle)))
    for path in sorted(source.rglob("*.[ch]")):
        file, text = str(path.relative_to(source)), path.read_text()
        if folder_of(file) is None and "/" in file:
            bad.append(f"{file} is in no folder of FOLDERS")
        if folder_of(file) in ALLOCATOR and text.count("\n") > MOST_LINES[path.suffix]:
            bad.append(f"{file} has {text.count(chr(10))} lines")
        guard = re.search(r"^#ifndef (GPUCACHE_\w+_H)$", text, re.M)
        expected = re.sub(r"\W", "_", f"GPUCACHE_{file}").upper()
        if path.suffix == ".h" and (not guard or guard[1] != expected):
            bad.append(f"{file} has another include guard than {expected}")
        if "pthread_mutex" in text and path.stem != "lock":
            bad.append(f"{file} has a lock without a rank (base/lock.h)")
        if path.stem != "host" and re.search(r"\bmunmap\(", text) and "host_map(" in text:
            bad.append(f"{file} unmaps behind host_bytes(): host_unmap()")
    return bad


bad = look(pathlib.Path(sys.argv[1]), sys.argv[2:])
print("\n".join(bad) if bad else "includes and calls go down")
sys.exit(1 if bad else 0)
