#!/usr/bin/env python3
"""layers.py SOURCE LIBRARY: no circles between layers, nor between the files of the allocator's, none of which
is too long to be held in the head; no lock without a rank; and no munmap() of what host_map() has mapped.

A layer is a folder of src; its arrows are its #include lines. A file of the allocator points to the files
whose functions and variables it names: that stands in the objects of LIBRARY, a static one, because a
header that all share would hide it.
"""
import pathlib
import re
import subprocess
import sys

ALLOCATOR = ("heap", "debug", "source", "policy", "sync", "vmm", "segment", "tcache", "pool")

MOST_LINES = {"layer": 5000, ".c": 500, ".h": 260}

# Arrows of circles that are still there. One that is in none any more fails too.
KNOWN_LAYERS = {("driver", "backend")}
KNOWN_FILES = set()


def layers_of(source):
    arrows = {}
    for file in source.rglob("*.[chS]"):
        layer = file.relative_to(source).parts[0]
        for name in re.findall(r'^#include "([^"]+)"', file.read_text(), re.M):
            other = name.split("/")[0]
            if "/" in name and other != layer:
                arrows.setdefault((layer, other), f"{file.relative_to(source)} includes {name}")
    return arrows


def files_of(source, library):
    """Only names of more than one object: static ones are nobody else's."""
    defined, used, member = {}, {}, None
    out = subprocess.run(["nm", "-A", library], check=True, capture_output=True, text=True).stdout
    for line in out.splitlines():
        where, *_, kind, symbol = line.rsplit(None, 3) if " U " in line else line.split()
        match = re.search(r"src_(%s)_(\w+)\.c\.o" % "|".join(ALLOCATOR), where)
        if not match:
            continue
        member = f"{match[1]}/{match[2]}"
        if kind == "U":
            used.setdefault(member, set()).add(symbol)
        elif kind in "BCDRTVW":
            defined[symbol] = member
    if not used:
        sys.exit(f"nothing of the allocator is in {library}")
    return {(file, defined[symbol]): f"{file}.c uses {symbol} of {defined[symbol]}.c"
            for file, symbols in used.items() for symbol in sorted(symbols)
            if defined.get(symbol, file) != file}


def too_long(source):
    for layer in ALLOCATOR:
        lines = {file: file.read_text().count("\n") for file in (source / layer).iterdir()}
        yield from (f"{file} has {n} lines" for file, n in lines.items() if n > MOST_LINES.get(file.suffix, n))
        if sum(lines.values()) > MOST_LINES["layer"]:
            yield f"src/{layer} has {sum(lines.values())} lines"


def reachable(arrows, start):
    found, todo = set(), [start]
    while todo:
        at = todo.pop()
        for a, b in arrows:
            if a == at and b not in found:
                found.add(b)
                todo.append(b)
    return found


def in_circles(arrows):
    return {(a, b) for a, b in arrows if a in reachable(arrows, b)}


def look(what, arrows, known):
    left = {arrow: why for arrow, why in arrows.items() if arrow not in known}
    bad = [f"a circle of {what}: {arrows[arrow]}" for arrow in sorted(in_circles(left))]
    bad += [f"no circle of {what} any more: {arrow}" for arrow in sorted(known - in_circles(arrows))]
    return bad


source, library = pathlib.Path(sys.argv[1]), sys.argv[2]
bad = look("layers", layers_of(source), KNOWN_LAYERS)
bad += look("files", files_of(source, library), KNOWN_FILES)
bad += too_long(source)
bad += [f"{file} has a lock without a rank (process/lock.h)" for file in sorted(source.rglob("*.[ch]"))
        if "pthread_mutex" in file.read_text() and file.stem != "lock"]
bad += [f"{file} unmaps behind host_bytes(): host_unmap()" for file in sorted(source.rglob("*.c"))
        if re.search(r"\bmunmap\(", text := file.read_text()) and "host_map(" in text and file.stem != "host"]
print("\n".join(bad) if bad else "no circles")
sys.exit(1 if bad else 0)
