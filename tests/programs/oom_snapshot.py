#!/usr/bin/env python3
"""Checks the memory snapshot that GPUCACHE_OOM_SNAPSHOT writes at the first out-of-memory error."""
import os
import pickle
import stat
import subprocess
import sys
import tempfile

import snapshots
from harness import GPU, LIBRARY, PROGRAMS, Tally, environment, program, run, run_with_report, run_with_reports

SNAPSHOT = program("oom_snapshot")
COMMAND = next(os.path.join(folder, "gpucache") for folder in (os.path.dirname(LIBRARY), PROGRAMS + "/../..")
               if os.path.exists(os.path.join(folder, "gpucache")))
BACKENDS = ["segments", "pages"]
tally = Tally()


def written(parts, options, folder):
    """Runs parts of the program with the option. Returns the run, its reports, and the bytes of the files, by name."""
    ran, reports = run_with_reports([SNAPSHOT, *parts], {"GPUCACHE_OOM_SNAPSHOT": folder + "/snapshot", **options})
    files = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            files[name] = file.read()
    return ran, reports, files


def one(what, parts, options, status=0, whole=False):
    """Checks that there is one snapshot that agrees with the report of the error. Returns it and the report."""
    with tempfile.TemporaryDirectory() as folder:
        ran, reports, files = written(parts, options, folder)
        tally.check(ran.status == status, "%s: status %s" % (what, ran.status), ran.err)
        report = next((r for r in reports if r["reason"] == "oom"), None)
        tally.check(list(files) == ["snapshot"] and report, "%s: one snapshot and a report" % what, "%s %s" % (list(files), ran.err))
        mode = stat.S_IMODE(os.stat(folder + "/snapshot").st_mode)
        tally.check(mode == 0o600, "%s: only for its user" % what, oct(mode))
        tally.check("gpucache: out of memory: memory snapshot written to %s/snapshot\n" % folder in ran.err,
                    "%s: says where" % what, ran.err)
        read = snapshots.check(tally, what, files["snapshot"], report, whole)
        replay = subprocess.run([COMMAND, "replay", folder + "/snapshot"], capture_output=True, env=environment(False))
        tally.check(replay.returncode == 0, "%s: gpucache replay reads it" % what, replay.stderr.decode())
        return read, report, ran


def check_pinned(what, snapshot, report):
    host = len(report["devices"])
    sizes = [b["size"] for s in snapshot["segments"] if s["device"] == host for b in s["blocks"]]
    said = sum(device["outside_bytes"]["pinned_host"]["current"] for device in report["devices"])
    tally.check(sum(sizes) == said and snapshot["allocator_settings"]["device %d" % host] == "pinned host memory",
                "%s: pinned memory" % what, "%s, report %d" % (sizes, said))
    return sizes


def contents(backend):
    what = "snapshot, " + backend
    options = {"GPUCACHE_BACKEND": backend, "GPUCACHE_SIM_DEVICES": "2"}
    for seed in range(1, 4):
        snapshot, report, _ = one(what, ["fill=%d" % seed, "pinned", "oom"], options)
        tally.check(len(snapshot["device_traces"]) == len(report["devices"]) + 1, what + ": a trace for each device")
        (entry,) = snapshot["device_traces"][0]
        tally.check(entry["action"] == "oom" and entry["size"] == 1 << 40 and entry["device_free"] > 0, what + ": the error", entry)
        tally.check(len(check_pinned(what, snapshot, report)) == 2, what + ": two pinned blocks")
        blocks = [b for s in snapshot["segments"] for b in s["blocks"]]
        live = [b for b in blocks if b["state"] == "active_allocated"]
        tally.check(len(live) == 400 + 2 and len(blocks) > len(live), what + ": live and free memory", len(live))
        tally.check(all(s["is_expandable"] == (backend == "pages") for s in snapshot["segments"] if s["device"] == 0),
                    what + ": expandable segments are those of pages")
        tally.check(all("GPUCACHE_STACKS" in b["frames"][0]["name"] for b in live), what + ": says how to get stacks")


def stacks(backend):
    what = "snapshot with stacks, " + backend
    snapshot, _, _ = one(what, ["fill=1", "oom"], {"GPUCACHE_BACKEND": backend, "GPUCACHE_STACKS": "16"})
    live = [b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]
    ours = [b for b in live if any("oom_snapshot" in f["filename"] for f in b["frames"])]
    tally.check(len(live) == len(ours) == 400, what + ": who allocated each block", live[0])
    (entry,) = snapshot["device_traces"][0]
    tally.check(any("oom_snapshot" in f["filename"] for f in entry["frames"]), what + ": who asked for too much", entry)


def changes(snapshot):
    return [e for e in snapshot["device_traces"][0] if e["action"] in ("alloc", "free_completed")]


def traced(backend):
    """Checks that a snapshot with a trace has the last events, and that they lead to the memory in the snapshot."""
    what = "snapshot with a trace, " + backend
    with tempfile.TemporaryDirectory() as folder:
        options = lambda name, **more: {"GPUCACHE_BACKEND": backend, "GPUCACHE_TRACE": "%s/%s" % (folder, name), **more}
        snapshot, report, _ = one(what, ["fill=1", "fill=2", "oom"], options("all", GPUCACHE_STACKS="16"), whole=True)
        tally.check(snapshot["device_traces"][0][-1]["action"] == "oom", what + ": the error comes last")
        tally.check(all(any("oom_snapshot" in f["filename"] for f in e["frames"])
                        for e in changes(snapshot) if e["action"] == "alloc"), what + ": who allocated")
        snapshot, report, _ = one(what + ", short", ["fill=%d" % i for i in range(12)] + ["oom"],
                                  options("short", GPUCACHE_TRACE_EVENTS="50"))
        total = report["devices"][0]["allocations"]["total"] + report["devices"][0]["allocations"]["freed"]
        last = changes(snapshot)
        allocated = sum(e["action"] == "alloc" for e in last)
        expected = len(last) // 800 * 600 + max(len(last) % 800 - 200, 0)  # each fill: 600 allocations, then 200 frees
        tally.check(50 <= len(last) < total and allocated == expected, what + ": the last events without a gap",
                    "%d of %d, %d allocations of %d" % (len(last), total, allocated, expected))
        snapshot, _, _ = one(what + ", gone", ["gone", "fill=1", "oom"], options("gone"))
        tally.check(len(changes(snapshot)) == 800, what + ": no block of a segment that is gone", len(changes(snapshot)))
        with tempfile.TemporaryDirectory() as place:
            _, _, files = written(["fill=1", "pairs=100500", "fill=2", "oom"], options("long", GPUCACHE_TRACE_EVENTS="all"), place)
        last = changes(pickle.loads(files["snapshot"]))
        tally.check(len(last) == 200000 and sum(e["action"] == "alloc" for e in last[-800:]) == 600,
                    what + ": no more than browsers show", len(last))


def first_only():
    what = "snapshot of the first"
    snapshot, report, ran = one(what, ["fill=1", "oom", "fill=2", "oom", "oom"], {})
    tally.check(ran.err.count("memory snapshot") == 1, what + ": said once", ran.err)
    live = sum(b["state"] == "active_allocated" for s in snapshot["segments"] for b in s["blocks"])
    tally.check(live == 400, what + ": as it was then", live)
    ran, report = run_with_report([SNAPSHOT, "oom", "oom", "oom"], {})
    tally.check(report["devices"][0]["ooms"] == 3, what + ": the report counts all")


def disabled():
    """Checks that report and snapshot have the driver's memory if the pool is off."""
    one("snapshot, disabled", ["fill=1", "oom"], {"GPUCACHE_DISABLE": "on"})


def together():
    """Ends the process while threads write a snapshot or wait for it. Reports are off, because that end may cut one short."""
    for count in range(2, 12):
        what = "snapshot, %d threads" % count
        with tempfile.TemporaryDirectory() as folder:
            ran = run([SNAPSHOT, "fill=%d" % count, "threads=%d" % count],
                      options={"GPUCACHE_OOM_SNAPSHOT": folder + "/snapshot", "GPUCACHE_REPORT": "off"})
            tally.check(ran.status == 0 and os.listdir(folder) == ["snapshot"] and ran.err.count("snapshot written to") == 1,
                        what, "%s %s %s" % (ran.status, os.listdir(folder), ran.err))
            with open(folder + "/snapshot", "rb") as file:
                snapshot = snapshots.check(tally, what, file.read())
            live = sum(b["state"] == "active_allocated" for s in snapshot["segments"] for b in s["blocks"])
            tally.check(live == 400, what + ": all that lives", live)


def left():
    """Checks that an exit waits for another thread that writes, so that the file is complete."""
    with tempfile.TemporaryDirectory() as folder:
        ran = run([SNAPSHOT, "leave"], options={"GPUCACHE_OOM_SNAPSHOT": folder + "/snapshot", "GPUCACHE_REPORT": "off"})
        with open(folder + "/snapshot", "rb") as file:
            data = file.read()
        if tally.check(ran.status == 0 and data.endswith(b"."), "snapshot, exit: whole", "%s, %d bytes" % (ran.status, len(data))):
            snapshots.check(tally, "snapshot, exit", data)


def forked():
    """Checks that a child of a process without CUDA writes a snapshot at its own first error."""
    with tempfile.TemporaryDirectory() as folder:
        ran, _, files = written(["fork", "fill=1", "oom"], {"GPUCACHE_OOM_SNAPSHOT": folder + "/%p"}, folder)
        tally.check(ran.status == 0 and len(files) == 2, "snapshot, fork: one for each process", "%s %s" % (files.keys(), ran.err))
        for data in files.values():
            snapshots.check(tally, "snapshot, fork", data)
    with tempfile.TemporaryDirectory() as folder:  # the child has no CUDA, its parent goes on
        native = run([SNAPSHOT, "fill=1", "fork", "oom"], under=False)
        ran, _, files = written(["fill=1", "fork", "oom"], {}, folder)
        tally.check((ran.status, ran.out) == (native.status, native.out) and list(files) == ["snapshot"],
                    "snapshot, fork after CUDA", "%s %s %s" % (files.keys(), ran.out, ran.err))
        snapshots.check(tally, "snapshot, fork after CUDA", files["snapshot"])


def refused():
    for place, why in (("/proc/none/snapshot", "no such directory"), ("/dev/full", "not a file"), ("/", "is a directory"),
                       ("/proc/none" + "/" * 1000 + "snapshot", "no such directory")):
        ran = run([SNAPSHOT, "fill=1", "oom", "oom"], options={"GPUCACHE_OOM_SNAPSHOT": place, "GPUCACHE_REPORT": "off"})
        lines = [line for line in ran.err.splitlines() if "GPUCACHE_OOM_SNAPSHOT" in line]
        tally.check(ran.status == 0 and len(lines) == 1 and why in lines[0] and "no memory snapshot is written" in lines[0],
                    "snapshot to %s: one warning" % place, ran.err)
    ran = run([SNAPSHOT, "oom"], options={"GPUCACHE_OOM_SNAPSHOT": "%q", "GPUCACHE_REPORT": "off"})
    tally.check("GPUCACHE_OOM_SNAPSHOT" in ran.err and "accepted are" in ran.err, "snapshot: a pattern without meaning", ran.err)


def full_disk():
    """Checks that an incomplete file is deleted: a viewer would call it damaged."""
    with tempfile.TemporaryDirectory() as folder:
        ran = run([SNAPSHOT, "fill=1", "file=5000", "oom"],
                  options={"GPUCACHE_OOM_SNAPSHOT": folder + "/snapshot", "GPUCACHE_REPORT": "off"})
        tally.check(ran.status == 0 and not os.listdir(folder) and ran.err.count("file size limit exceeded") == 1,
                    "snapshot: no half file", "%s %s" % (os.listdir(folder), ran.err))


def main():
    if GPU:
        print("needs the simulator")
        sys.exit(77)
    for backend in BACKENDS:
        contents(backend)
        stacks(backend)
        traced(backend)
    first_only()
    disabled()
    together()
    left()
    forked()
    refused()
    full_disk()


tally.run(main)
