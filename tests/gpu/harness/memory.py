"""Measures memory and time of a program of tests/bench/workloads.py: with PyTorch's own cache, with that and
expandable segments, and uncached under the library on segments and on pages. No other process may use the GPU."""

import os

from harness.build import BENCH
from harness.checks import close
from harness.process import Run, books

PROGRAMS = ("gpt", "resnet", "gnn", "inference", "moe", "diffusion", "adapters", "amr")
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
RUNS = {  # by turns
    "own": {},
    "expandable": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "segments": dict(UNCACHED, GPUCACHE_BACKEND="segments"),
    "pages": dict(UNCACHED, GPUCACHE_BACKEND="pages"),
}
OURS = ("segments", "pages")  # under the library
DEFAULT = "pages"  # has bounds. Segments are the fallback of old drivers: their rows are for comparison
MORE_TURNS = 3  # runs of one program differ by a fifth to a third on some hosts
RESERVED, TIME = 1.06, 1.02  # at most: reserved over requested, ms over those of PyTorch's own cache


def excess(run):
    """Peak reserved over peak requested."""
    if run.library is None:
        return run.time("peak_reserved_over_live")
    peaks = [(d["requested_bytes"]["peak"], d["reserved_bytes"]["peak"]) for r in run.reports for d in r["devices"]]
    requested, reserved = max(peaks, default=(0, 0))
    return reserved / requested if requested else None


class Turns:
    """The runs of one program: the first of each kind is judged, the time is the best of all."""

    def __init__(self, c, name):
        self.command = c.python(os.path.join(BENCH, "workloads.py"), name, "--nvml")
        self.library, self.runs = c.library, {who: [] for who in RUNS}
        self.take(RUNS)
        for _ in range(MORE_TURNS):  # is it noise?
            own, ours = self.ms("own"), self.ms(DEFAULT)
            if not own or not ours or ours <= TIME * own:
                break
            self.take(["own", DEFAULT])

    def take(self, names):
        for who in names:
            env = RUNS[who]
            self.runs[who].append(Run(self.command, env, self.library if who in OURS else None, timeout=120))

    def first(self, who):
        return self.runs[who][0]

    def ms(self, who):
        return min((t for t in (r.time("per_step_least") for r in self.runs[who]) if t), default=None)

    def nvml(self, who):
        return self.first(who).time("peak_nvml")

    def excess(self, who):
        return excess(self.first(who))

    def trouble(self, who):
        failed = [r for r in self.runs[who] if not r.ok()]
        if failed:
            return "%s: status %s%s" % (who, failed[0].status, ", time limit" if failed[0].timed_out else "")
        wrong = books(self.first(who)) if who in OURS else ""
        if not wrong and not close(self.first(who).lines, self.first("own").lines):
            wrong = "losses differ: %s / %s" % (self.first(who).lines[-1:], self.first("own").lines[-1:])
        return wrong


def check(c, name):
    """Adds three rows for each kind of run but PyTorch's own cache: time, reserved bytes, and bytes as NVML sees them."""
    turns = Turns(c, name)

    def row(label, figure, base, who, most=None):
        """Compares two runs. most(value of `base`) is the bound of `who`; None: no bound."""
        left, right = figure(base), figure(who)
        wrong = turns.trouble(base) or turns.trouble(who)
        if not wrong and None in (left, right):
            wrong = "no figure"
        if not wrong and most and right > most(left):
            wrong = "wanted %.4g or less" % most(left)
        runs = turns.runs[base] + turns.runs[who]
        c.table.add(
            "%s: %s, %s: %s" % (name, base, who, label),
            left,
            right,
            right / left if left and right else None,
            False if wrong else True if most else None,
            wrong,
            "".join(r.said() for r in runs) if wrong else None,
            turns=[r.time("per_step_least") for r in runs],
            times=turns.first(who).times,
            reports=turns.first(who).reports[:1],
        )

    for label, figure, most in (
            ("ms", turns.ms, lambda own: TIME * own),
            ("reserved/requested", turns.excess, lambda own: RESERVED),
            ("NVML, MiB", turns.nvml, lambda own: own)):
        row(label, figure, "own", "expandable")
        row(label, figure, "own", "segments")
        row(label, figure, "own", DEFAULT, most)
