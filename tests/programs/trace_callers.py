#!/usr/bin/env python3
"""Compares the call stacks of traces and snapshots with those of reports."""
import collections
import json
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import tempfile

import browser
from harness import HERE, LIBRARY, PROGRAMS, VARIANT, Tally, environment, part_names, program, run_with_report

COMMAND = next(os.path.join(folder, "gpucache") for folder in (os.path.dirname(LIBRARY), PROGRAMS + "/../..")
               if os.path.exists(os.path.join(folder, "gpucache")))
LINES = os.path.join(HERE, "report_stacks_lines.py")
HEADER, SLOT = 32768, 64 # trace/format.h
STACK, FRAME, MODULE = 11, 12, 13
ON = {"GPUCACHE_STACKS": "16", **({"GPUCACHE_BACKEND": VARIANT} if VARIANT else {})}
# The pickle opcodes that PyTorch's viewer knows and this script uses.
OPCODES = {"PROTO", "STOP", "MARK", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE",
           "EMPTY_LIST", "APPENDS", "EMPTY_DICT", "SETITEMS", "TUPLE2", "BINGET", "BINPUT", "LONG_BINGET", "LONG_BINPUT"}
tally = Tally()

# Many stacks, each of a line of its own. The last one is kept.
MANY = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
cuda.cuCtxSetCurrent(context)
def allocate():
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(4096)) == 0
exec(compile("allocate()", "kept.py", "exec"))
for line in range(int(sys.argv[1])):
    exec(compile("\\n" * line + "allocate()", "many.py", "exec"))
    assert cuda.cuMemFree_v2(pointer) == 0
cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 50))
"""


def trace(folder, command, options=None, status=0):
    path = os.path.join(folder, "trace")
    if os.path.exists(path):
        os.unlink(path)
    ran, report = run_with_report(command, {**ON, "GPUCACHE_TRACE": path, "GPUCACHE_TRACE_EVENTS": "all",
                                            **(options or {})})
    tally.check(ran.status == status, "callers: %s: status %s" % (command, ran.status), ran.err)
    return path, report


def snapshot(path, *more):
    done = subprocess.run([COMMAND, "snapshot", *more, path], capture_output=True, env=environment(False))
    tally.check(done.returncode == 0, "callers: snapshot", done.stderr.decode())
    return done.stdout


def lines_of(frames):
    return tuple("%s (%s:%d)" % (f["name"], f["filename"], f["line"]) for f in frames)


def named(entry):
    return not entry["frames"][0]["name"].startswith("gpucache:")


def python(folder):
    """Compares live allocations with the report's holders, stack by stack. Checks the stack of a failed allocation."""
    path, report = trace(folder, [sys.executable, LINES, "5", "oom"], status=1)
    if not report["stacks"]["python"]:
        tally.note("lines of this Python cannot be read")
        return
    data = snapshot(path)
    opcodes = {op.name for op, _, _ in pickletools.genops(data)}
    tally.check(opcodes <= OPCODES, "callers: opcodes of the pickle", opcodes - OPCODES)
    shot = pickle.loads(data)
    tally.check(json.loads(snapshot(path, "--json")) == json.loads(json.dumps(shot)), "callers: the same as JSON")
    trace_of = shot["device_traces"][0]
    given, freed = collections.Counter(), collections.Counter()
    for entry in trace_of:
        if entry["action"] == "alloc":
            given[lines_of(entry["frames"])] += 1
        elif entry["action"] == "free_completed":
            freed[lines_of(entry["frames"])] += 1
    for holder in report["devices"][0]["holders"]:
        lines = tuple(frame for frame in holder["stack"] if frame.endswith(")"))
        tally.check(lines and given.pop(lines, 0) == holder["total_count"], "callers: as many as the report has of a stack",
                    json.dumps(holder, indent=1))
        tally.check(freed[lines] == holder["total_count"] - holder["live_count"], "callers: frees say who had it", lines)
    tally.check(not given, "callers: stacks that are in no report", given)
    held = [lines_of(b["frames"]) for s in shot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    live = sum(h["live_count"] for h in report["devices"][0]["holders"])
    tally.check(len(held) == live and all("report_stacks_lines.py" in h[0] or "cell.py" in h[0] for h in held),
                "callers: blocks", held)
    oom = [entry for entry in trace_of if entry["action"] == "oom"]
    tally.check(len(oom) == 1 and [f["name"].split(".")[-1] for f in oom[0]["frames"][:2]] == ["allocate", "main"],
                "callers: who asked in vain", oom)
    grown = [entry for entry in trace_of if entry["action"] in ("segment_alloc", "segment_map")]
    tally.check(grown and named(grown[0]), "callers: who made the pool grow", grown[:1])
    lists = {id(entry["frames"]) for entry in trace_of}
    tally.check(len(lists) == len({lines_of(entry["frames"]) for entry in trace_of}) < len(trace_of) / 2,
                "callers: each stack is in the pickle once", "%d lists of %d entries" % (len(lists), len(trace_of)))
    frames = [frame for entry in trace_of for frame in entry["frames"]]
    tally.check(len({id(frame) for frame in frames}) == len({tuple(frame.values()) for frame in frames}),
                "callers: each frame is in the pickle once")


def native(folder):
    """Checks functions of C: by name if the tool reads debug information, else by module and offset."""
    path, report = trace(folder, [program("report_stacks"), "leak"])
    shot = pickle.loads(snapshot(path))
    blocks = [b for s in shot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    tally.check(blocks and all(any("stacks" in f["filename"] or "stacks" in f["name"] for f in b["frames"])
                               for b in blocks), "callers: frames of C", blocks[:1])
    page = os.path.join(folder, "page.html")
    subprocess.run([COMMAND, "report", "--html=" + page, path], check=True, capture_output=True, env=environment(False))
    with open(page, encoding="utf-8") as file:
        shown = browser.data_of(file.read())["traces"][0]
    used = {str(number) for stack in shown["stacks"].values() for number in stack}
    tally.check(used == set(shown["frames"]) and 0 < len(shown["stacks"]) <= len(shown["devices"][0]["groups"]),
                "callers: a page has the stacks of its blocks, and their frames", (len(used), len(shown["frames"])))
    tally.check(any("leak" in text or "stacks" in text for texts in shown["frames"].values() for text in texts),
                "callers: frames of C on the page", used)
    path, _ = trace(folder, [program("trace_records"), "mix=2000,30,2,1"], {"GPUCACHE_DISABLE": "1"})
    entries = pickle.loads(snapshot(path))["device_traces"][0]
    given = [entry for entry in entries if entry["action"] == "alloc"]
    tally.check(given and all(map(named, given)), "callers: of blocks past the pool", given[:1])


def without(folder):
    path, _ = trace(folder, [program("trace_records"), "hold=3,5000"], {"GPUCACHE_STACKS": "0"})
    blocks = [b for s in pickle.loads(snapshot(path))["segments"] for b in s["blocks"]]
    said = {b["frames"][0]["name"] for b in blocks if b["state"] == "active_allocated"}
    tally.check(len(said) == 1 and "GPUCACHE_STACKS" in min(said), "callers: how they are had", said)


def ring(folder):
    """Checks that a small trace keeps the stacks of all live blocks, and does not grow otherwise."""
    path, report = trace(folder, [sys.executable, "-c", MANY, "3000"], {"GPUCACHE_TRACE_EVENTS": "300"})
    if not report["stacks"]["python"]:
        return
    shot = pickle.loads(snapshot(path))
    entries = [e for e in shot["device_traces"][0] if e["action"] == "alloc"]
    expected = [("many.py", line + 1) for line in range(3000 - len(entries), 3000)]
    got = [(e["frames"][1]["filename"], e["frames"][1]["line"]) for e in entries]
    tally.check(len(entries) >= 100 and got == expected, "callers: of the last events", got[:3])
    held = [b for s in shot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    tally.check(len(held) == 1 and held[0]["frames"][1]["filename"] == "kept.py", "callers: of what is older", held)
    data = open(path, "rb").read()
    kinds = collections.Counter(data[at] for at in range(HEADER + 56, len(data), SLOT))
    stacks = len(report["devices"][0]["holders"])
    tally.check(stacks <= kinds[STACK] <= stacks + 1, "callers: each is written once", (stacks, kinds[STACK]))
    tally.check(kinds[FRAME] < 1.1 * stacks, "callers: and so is each frame", kinds[FRAME])
    # the ring, space for the stacks in chunks, a step of growth
    allowed = 2 * (300 // 63 + 66) * 64 * SLOT + 20 * stacks * SLOT * 64 // 63
    tally.check(len(data) <= HEADER + allowed + (1 << 20), "callers: the file is bounded", len(data))


def torn(folder):
    """Checks that a stack with a missing or wrong record is unknown, and that all else stays."""
    path, _ = trace(folder, [program("report_stacks"), "leak"])
    good = open(path, "rb").read()
    whole = pickle.loads(snapshot(path))
    slots = range(HEADER, len(good), SLOT)
    for kind in (STACK, FRAME, MODULE):
        for how in ("zeros", "a word"):
            data = bytearray(good)
            for at in slots:
                if data[at + 56] == kind:
                    data[at:at + SLOT] = bytes(SLOT) if how == "zeros" else struct.pack("<Q", 1 << 40) + data[at + 8:at + SLOT]
            with open(path, "wb") as file:
                file.write(data)
            shot = pickle.loads(snapshot(path))
            bare = lambda of: [{k: v for k, v in e.items() if k != "frames"} for e in of["device_traces"][0]]
            tally.check(bare(shot) == bare(whole), "callers: torn, %s of kind %d: all else stays" % (how, kind))
            if kind == STACK:
                tally.check(not any(map(named, shot["device_traces"][0])), "callers: torn: no stack is known")
    with open(path, "wb") as file: # a number that is much too large
        data = bytearray(good)
        for at in slots:
            words = list(struct.unpack_from("<8Q", data, at))
            if words[7] & 255 in (STACK, FRAME):
                words[0] |= 0xffffffff << 32
                sum_ = (words[7] & 0xffffffff) + 1 + sum(words[i] * (2 * i + 3) for i in range(7))
                words[7] = (sum_ * 0x9e3779b97f4a7c15 % (1 << 64) >> 32) << 32 | words[7] & 0xffffffff
                struct.pack_into("<8Q", data, at, *words)
        file.write(data)
    tally.check(not any(map(named, pickle.loads(snapshot(path))["device_traces"][0])), "callers: numbers of nothing")


def main():
    parts = (python, native, without, ring, torn)
    wanted = part_names([part.__name__ for part in parts])
    with tempfile.TemporaryDirectory() as folder:
        for part in parts:
            if not wanted or part.__name__ in wanted:
                part(folder)


tally.run(main)
