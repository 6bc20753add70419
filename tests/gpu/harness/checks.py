"""The table that is printed, and the comparisons that fill it."""

import concurrent.futures
import difflib
import json
import os
import sys
import threading

from harness.build import BUILD, HERE
from harness.process import Run, books, memory_note


class Table:
    def __init__(self, out):
        self.rows, self.lock = [], threading.Lock()
        os.makedirs(out, exist_ok=True)
        self.json = open(os.path.join(out, "results.jsonl"), "a")
        self.failures = open(os.path.join(out, "failures.txt"), "a")
        self.part = ""

    def add(self, name, native, library, ratio, ok, note="", detail=None, **more):
        """Adds a row. native, library: numbers or words. ok: True, False, or None for information only."""

        def show(x):
            return "-" if x is None else x if isinstance(x, str) else "%.4g" % x

        row = (
            self.part,
            name,
            show(native),
            show(library),
            "-" if ratio is None else "%.3g" % ratio,
            {True: "ok", False: "FAIL", None: "info"}[ok],
            note,
        )
        with self.lock:
            self.rows.append(row)
            record = dict(
                part=self.part,
                name=name,
                native=native,
                library=library,
                ratio=ratio,
                ok=ok,
                note=note,
                **more,
            )
            self.json.write(json.dumps(record) + "\n")
            self.json.flush()
            if ok is False:
                self.failures.write(
                    "==== %s / %s: %s\n%s\n" % (self.part, name, note, detail or "")
                )
                self.failures.flush()
                print(
                    "FAIL %s / %s: %s\n%s" % (self.part, name, note, (detail or "")[-600:]),
                    flush=True,
                )

    def show(self):
        head = ("part", "check", "native", "library", "ratio", "", "")
        rows = [head] + self.rows
        widths = [max(len(r[i]) for r in rows) for i in range(6)]
        for r in rows:
            print(
                "  ".join(
                    r[i].ljust(widths[i]) if i in (0, 1, 5) else r[i].rjust(widths[i])
                    for i in range(6)
                )
                + ("  " + r[6] if r[6] else "")
            )
        failed = sum(r[5] == "FAIL" for r in self.rows)
        print("%d passed, %d failed" % (sum(r[5] == "ok" for r in self.rows), failed))
        return failed


class Checks:
    """The checks that the parts of run.py use."""

    def __init__(self, table, library, broken):
        self.table, self.library, self.broken = table, library, broken
        self.native_runs, self.lock, self.later = {}, threading.Lock(), []

    def program(self, name, *args):
        return [os.path.join(BUILD, name), *map(str, args)]

    def python(self, script, *args):
        return [
            sys.executable,
            script if os.path.isabs(script) else os.path.join(HERE, script),
            *map(str, args),
        ]

    def missing(self, label, command):
        why = self.broken.get(os.path.relpath(command[0], BUILD))
        if why:
            self.table.add(label, None, None, None, False, "not built", why)
        return why

    def native(self, command, env=None, timeout=60):
        key = (tuple(command), tuple(sorted((env or {}).items())))
        with self.lock:
            lock = self.native_runs.setdefault(key, [threading.Lock(), None])
        with lock[0]:
            if lock[1] is None:
                lock[1] = Run(command, env, timeout=timeout)
            return lock[1]

    def same(
        self, label, command, env=None, with_library=None, timeout=60, report=True, quick=False
    ):
        """The same output and status natively and under the library. with_library: further
        environment of that run; quick: later, side by side with others, its time means nothing."""
        if self.missing(label, command):
            return
        if quick:
            self.later.append(
                (label, lambda: self.same(label, command, env, with_library, timeout, report))
            )
            return
        native = self.native(command, env, timeout)
        library = Run(command, dict(env or {}, **(with_library or {})), self.library, timeout)
        self.judge(label, native, library, report)

    CLEAN = (
        "alloc_mix",
        "alloc_mix_shared",
        "driver_linked",
        "driver_dlopen",
        "pitch_loop",
        "spin",
    )  # free all they take

    def judge(self, label, native, library, report=True, figure=None, between=None):
        clean = os.path.basename(library.command[0]) in self.CLEAN
        a, b = native.time(figure), library.time(figure)
        ratio = a / b if a and b else None
        trouble = ""
        if native.timed_out or native.status != 0:
            trouble = "natively: status %s%s" % (
                native.status,
                ", time limit" if native.timed_out else "",
            )
        elif library.timed_out:
            trouble = "time limit of the run under the library"
        elif library.status != 0:
            trouble = "status %s under the library" % library.status
        elif native.lines != library.lines:
            trouble = "output differs"
        elif report:
            trouble = books(library, clean)
        if not trouble and between and ratio is not None and not between[0] <= ratio <= between[1]:
            trouble = "native / library %.3f, wanted %.3f or more" % (ratio, between[0])
        detail = None
        if trouble:
            detail = (
                "native: %s\nlibrary: %s" % (native.said(), library.said())
                if trouble != "output differs"
                else difference(native, library)
            )
        said = [line[6:106] for line in library.text.splitlines() if line.startswith("note: ")]
        note = ", ".join([trouble or memory_note(library)] + said[:1]).lstrip(", ")
        unit = native.unit(figure)
        self.table.add(
            label + (" (%s)" % unit if unit else ""),
            a,
            b,
            ratio,
            not trouble,
            note,
            detail,
            native_times=native.times,
            library_times=library.times,
            reports=library.reports[:2],
        )

    def faster(
        self,
        label,
        command,
        at_least,
        env=None,
        with_library=None,
        figure=None,
        rounds=2,
        timeout=90,
        other=None,
    ):
        """Native time over the library's is at_least that. `other`: the (command, environment) of
        the native run if it is another one. The two take turns and the best of each counts; if
        that is not enough, as many turns more."""
        if self.missing(label, command):
            return
        native_command, native_env = other or (command, env)

        def runs(command, env, library):
            key = ("timed", tuple(command), tuple(sorted((env or {}).items())), library)
            return self.native_runs.setdefault(key, [])

        library_env = dict(env or {}, **(with_library or {}))
        sides = [runs(native_command, native_env, None), runs(command, library_env, self.library)]

        def best(side):
            return min(
                (r for r in side if r.time(figure) is not None),
                key=lambda r: r.time(figure),
                default=side[-1],
            )

        for turn in range(2 * rounds):
            if turn >= rounds:
                a, b = best(sides[0]).time(figure), best(sides[1]).time(figure)
                if a is None or b is None or a / b >= at_least:
                    break
            if len(sides[0]) <= turn:
                sides[0].append(Run(native_command, native_env, timeout=timeout))
            if len(sides[1]) <= turn:
                sides[1].append(Run(command, library_env, self.library, timeout))
            if not sides[0][-1].ok() or not sides[1][-1].ok():
                break
        self.judge(label, best(sides[0]), best(sides[1]), figure=figure, between=(at_least, 1e9))

    def flush(self):
        """Runs what was put off, four side by side; its rows stand in the order of the calls."""
        order, first = [label for label, _ in self.later], len(self.table.rows)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda later: later[1](), self.later))
        self.later = []

        def place(row):
            return next((i for i, label in enumerate(order) if row[1].startswith(label)), 0)

        self.table.rows[first:] = sorted(self.table.rows[first:], key=place)


def close(left, right):
    """Lines of words and numbers, numbers equal to 1 %."""
    a, b = " ".join(left).split(), " ".join(right).split()
    if len(a) != len(b):
        return False
    for x, y in zip(a, b):
        try:
            if abs(float(x) - float(y)) > 0.01 * abs(float(y)):
                return False
        except ValueError:
            if x != y:
                return False
    return True


def difference(native, library):
    return (
        "\n".join(
            difflib.unified_diff(native.lines, library.lines, "native", "library", lineterm="", n=1)
        )[:6000]
        + "\n"
        + library.stderr[-1500:]
    )
