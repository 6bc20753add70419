"""One run of a program, natively or under the library, and the reports the library wrote for it."""

import glob
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

SAFE = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
}
SCRATCH = tempfile.mkdtemp(prefix="gpucache-check-")


class Settings:
    targets = False  # judge the benchmarks by the goals in run.py
    deadline = None  # no program starts after it
    everywhere = {"GPUCACHE_BACKEND": "segments"}  # environment of every run under the library; --set adds to it


class Run:
    """One finished process: output, measured values, status, and the reports that the library wrote for it."""

    def __init__(
        self, command, env=None, library=None, timeout=60, keep_preload=True, reports=True
    ):
        self.command, self.library = command, library
        if Settings.deadline is not None:
            if time.monotonic() > Settings.deadline:
                raise TimeoutError("no time left (--limit)")
            timeout = min(timeout, Settings.deadline + 10 - time.monotonic())
        full = {k: v for k, v in os.environ.items() if not k.startswith("GPUCACHE_")}
        full.update(SAFE)
        folder = tempfile.mkdtemp(dir=SCRATCH)
        if library:
            full["LD_PRELOAD"] = library + (
                (":" + full["LD_PRELOAD"]) if full.get("LD_PRELOAD") and keep_preload else ""
            )
            if reports:
                full["GPUCACHE_REPORT"] = os.path.join(folder, "report-%p")
                full["GPUCACHE_REPORT_FORMAT"] = "json"
            full.update(Settings.everywhere)
        full.update(env or {})
        start = time.monotonic()
        out_path, err_path = os.path.join(folder, "out"), os.path.join(folder, "err")
        self.timed_out = False
        with open(out_path, "wb") as out, open(err_path, "wb") as err:
            child = subprocess.Popen(
                command,
                env=full,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd=folder,
            )
            try:
                self.status = child.wait(timeout)
            except subprocess.TimeoutExpired:
                self.timed_out = True
                try:
                    os.killpg(child.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                self.status = child.wait()
        self.wall = time.monotonic() - start
        text = open(out_path, errors="replace").read()
        self.stderr = open(err_path, errors="replace").read()
        self.lines, self.times = [], {}
        for line in text.splitlines():
            if line.startswith("time: "):
                try:
                    _, name, value, unit = line.split()
                    self.times[name] = (float(value), unit)
                except ValueError:
                    self.lines.append(line)
            elif not line.startswith("note:"):
                self.lines.append(line)
        self.text = text
        self.reports, self.report_trouble = [], None
        for path in sorted(glob.glob(os.path.join(folder, "report-*"))):
            for line in open(path, errors="replace"):
                try:
                    self.reports.append(json.loads(line))
                except ValueError as error:
                    self.report_trouble = "report is no JSON: %s: %.80s" % (error, line)
        shutil.rmtree(folder, ignore_errors=True)

    def ok(self):
        return self.status == 0 and not self.timed_out

    def said(self):
        """Returns status, time and output as text, for a failed run."""
        return "status %s%s after %.1f s\n%s\n%s" % (
            self.status,
            " (time limit)" if self.timed_out else "",
            self.wall,
            self.text[-3000:],
            self.stderr[-3000:],
        )

    def time(self, name=None):
        if name is None:
            return next(iter(self.times.values()))[0] if self.times else None
        return self.times[name][0] if name in self.times else None

    def unit(self, name=None):
        values = self.times.get(name) if name else next(iter(self.times.values()), None)
        return values[1] if values else ""


def library_sums(device):
    """Returns the memory of a device by library, and what has to be the same: requested and unpooled device memory."""
    not_on_device = ("pinned_host", "ipc_imported")  # no device memory of this process
    outside = sum(of["current"] for kind, of in device["outside_bytes"].items() if kind not in not_on_device)
    return sum(row["current"] for row in device["libraries"]), device["requested_bytes"]["current"] + outside


def books(run, clean=False):
    """Returns the errors of the library's reports, '' if there are none: law 4, as far as a report at exit can show it.

    clean: the program has freed all its memory, and has allocated it again and again."""
    if run.report_trouble:
        return run.report_trouble
    if not run.reports:
        return "no report"
    for report in run.reports:
        if report.get("schema") != "gpucache-report/1":
            return "schema %r" % report.get("schema")
        for d in report["devices"]:
            chain = [d[k + "_bytes"] for k in ("requested", "allocated", "active", "reserved")]
            for when in ("current", "peak"):
                values = [c[when] for c in chain]
                if values != sorted(values):
                    return "%s: requested, allocated, active, reserved = %s" % (when, values)
            if d["limit_bytes"] and chain[3]["current"] > d["limit_bytes"]:
                return "reserved beyond the limit"
            if d["ready_bytes"] + d["pending_bytes"] + chain[1]["current"] != chain[3]["current"]:
                return "ready %d + pending %d + allocated %d != reserved %d" % (
                    d["ready_bytes"],
                    d["pending_bytes"],
                    chain[1]["current"],
                    chain[3]["current"],
                )
            for name in ("requested", "allocated", "reserved"):
                b = d[name + "_bytes"]
                if b["total"] - b["freed"] != b["current"]:
                    return "%s: total %d - freed %d != current %d" % (
                        name,
                        b["total"],
                        b["freed"],
                        b["current"],
                    )
            by_library, in_all = library_sums(d)
            if by_library != in_all:
                return "memory by library %d != requested and outside %d" % (by_library, in_all)
            a = d["allocations"]
            if a["total"] - a["freed"] != a["current"]:
                return "allocations: total %(total)d - freed %(freed)d != current %(current)d" % a
            if clean and (a["current"] or chain[0]["current"]):
                return "%d allocations, %d bytes live at the end, the program freed all" % (
                    a["current"],
                    chain[0]["current"],
                )
            if clean and not d["cache_hits"]:
                return "no hit in %d allocations" % a["total"]
            if d["cache_hits"] + d["cache_misses"] < a["total"]:
                return "hits %d + misses %d < allocations %d" % (
                    d["cache_hits"],
                    d["cache_misses"],
                    a["total"],
                )
    return ""


def memory_note(run):
    """Hit rate and peak memory, over all the processes of the run."""
    hits = misses = 0
    requested = reserved = barriers = waits = 0
    for report in run.reports:
        for d in report["devices"]:
            hits += d["cache_hits"]
            misses += d["cache_misses"]
            barriers += d["barriers"]
            waits += d["cpu_waits"]
            if d["requested_bytes"]["peak"] > requested:
                requested, reserved = d["requested_bytes"]["peak"], d["reserved_bytes"]["peak"]
    if hits + misses == 0:
        return ""
    note = "hits %.1f%%" % (100.0 * hits / (hits + misses))
    if requested:
        note += ", reserved/requested %.2f of %.0f MiB" % (reserved / requested, requested / 2**20)
    return note + ", %d barriers, %d waits" % (barriers, waits)
