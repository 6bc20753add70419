#!/usr/bin/env python3
"""ablate.py BUILD [--fast] [MECHANISM...]: what gets worse without each mechanism of the policy, as a table.

BUILD is made with `meson setup -Dablation=true BUILD`, which has the switches of src/process/ablation.def. Each
run does without one mechanism. The first row is of the pool as it is; the others show differences from it:

  pages, segments   reserved over requested: mean of the traces of replay.py, and the trace that gets most worse
  calls, barriers, waits  of all those traces with that backend: calls of the driver, barriers, ms of waits on the CPU
  overhead, pair cost, fragmentation  rows of mem_overhead, mem_pair_cost and oom_fragmentation under tests/programs that
          fail, in both backends
  refused           of 1000 requests of oom_fragmentation that the driver alone serves, by backend
  instructions      of the nine patterns of instructions.py together, in per cent

Values of traces are means over replays with a device that is 0 to 20 ms behind (LAGS). A mechanism that concerns one
backend is run on that backend only. Instructions are always counted on segments. --fast runs the traces only.
"""
import os
import re
import subprocess
import sys
import tempfile

import instructions
import programs
import replay

HERE = os.path.dirname(os.path.abspath(__file__))
TESTS = os.path.join(HERE, "..", "programs")
SCRIPTS = {"overhead": "mem_overhead.py", "pair cost": "mem_pair_cost.py", "fragmentation": "oom_fragmentation.py"}
BACKENDS = ("pages", "segments")
LAGS = (0, 500, 2000, 20000)
COLUMNS = ("pages", "worst", "calls", "barriers", "waits ms", "segments", "worst", "calls", "barriers", "waits ms",
           *SCRIPTS, "refused", "instructions %")


def mechanisms():
    with open(os.path.join(HERE, "..", "..", "src", "process", "ablation.def")) as file:
        return dict(re.findall(r'^MECHANISM\((\w+),\s*"([^"]*)"\)', file.read(), re.M))


def concerned(mechanism, known):
    """Returns the backends on which a mechanism acts. Its text begins with one backend, or concerns both."""
    backend = known.get(mechanism, "").partition(":")[0]
    return (backend,) if backend in BACKENDS else BACKENDS


def replayed(build, paths, backends):
    """Returns for each backend the ratios by trace, and calls, barriers and ms of waits of all traces, as means over LAGS."""
    ratios = {backend: {} for backend in backends}
    sums = {backend: [0, 0, 0] for backend in backends}
    for name, path in paths.items():
        for row in replay.replayed(build, path, LAGS, backends)["rows"]:
            of = ratios[row["backend"]]
            of[name] = of.get(name, 0) + row["reserved_over_requested"] / len(LAGS)
            for i, figure in enumerate((row["driver_calls"], row["barriers"], row["waited_us"] / 1000)):
                sums[row["backend"]][i] += figure / len(LAGS)
    return ratios, sums


def tried(build, script, backend):
    """Returns the rows of a script that fail, and its number of refused requests, if it counts them."""
    programs_of = os.path.join(build, "tests", "programs")
    environment = dict(
        os.environ, GPUCACHE_TEST_PROGRAMS=programs_of, GPUCACHE_TEST_SIM=os.path.join(build, "tests", "sim"),
        GPUCACHE_TEST_LIBRARY=os.path.join(build, "libgpucache.so"),
        GPUCACHE_TEST_BACKEND=backend)
    done = subprocess.run([sys.executable, os.path.join(TESTS, script)], env=environment, capture_output=True,
                          text=True, timeout=600)
    if not re.search(r"^\d+ checks, ", done.stdout, re.M):
        sys.exit("%s: %s%s" % (script, done.stdout, done.stderr))
    failed = re.findall(r"^FAIL (.*) \(\w+\.py:\d+\)$", done.stdout, re.M)
    refused = [float(share) for share in re.findall(r"(?:%|\d): ([\d.]+) \(", done.stdout)]
    return failed, sum(refused) / len(refused) if refused else 0


def measured(build, paths, backends, fast):
    """Returns the results of one run. Programs are keyed by (script, backend): failed rows, and the share refused."""
    results = {"backends": backends, "traces": replayed(build, paths, backends)}
    if not fast:
        results["programs"] = {(name, backend): tried(build, script, backend)
                               for name, script in SCRIPTS.items() for backend in backends}
        results["instructions"] = sum(count for count, _ in instructions.measure(build).values())
    return results


def mean(ratios):
    return sum(ratios.values()) / len(ratios)


def of_traces(results, base, backend):
    """Returns the five cells of a backend. `base` is None for the row of all mechanisms."""
    if backend not in results["backends"]:
        return [""] * 5
    ratios, sums = (part[backend] for part in results["traces"])
    if not base:
        worst = max(ratios, key=ratios.get)
        return ["%.3f" % mean(ratios), "%s %.3f" % (worst, ratios[worst]), *("%.0f" % figure for figure in sums)]
    before, were = (part[backend] for part in base["traces"])
    rises = {name: ratios[name] - before[name] for name in ratios}
    worst = max(rises, key=rises.get)
    calls, barriers, waits = sums
    return ["%+.3f" % (mean(ratios) - mean(before)), "%s %+.3f" % (worst, rises[worst]) if rises[worst] > 0.0005 else "",
            "%+.0f %%" % (100 * calls / were[0] - 100), "%+.0f %%" % (100 * barriers / were[1] - 100), "%+.0f" % (waits - were[2])]


def of_programs(results, base):
    row = []
    for name in SCRIPTS:
        found = {backend: results["programs"][name, backend] for backend in results["backends"]}
        row.append("%d" % sum(len(failed) for failed, _ in found.values()))
        if name == "fragmentation":
            row.append(", ".join("%.1f" % refused for _, refused in found.values()))
    row.append("%+.1f" % (100 * results["instructions"] / base["instructions"] - 100) if base else
               "%.0f" % results["instructions"])
    return row


def cells(results, base):
    traces = [cell for backend in BACKENDS for cell in of_traces(results, base, backend)]
    return traces + (of_programs(results, base) if "programs" in results else [])


def main():
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    if not arguments:
        sys.exit(__doc__)
    build, fast, known = os.path.abspath(arguments[0]), "--fast" in sys.argv, mechanisms()
    chosen = arguments[1:] or list(known)
    columns = COLUMNS[:10] if fast else COLUMNS
    print("| without | " + " | ".join(columns) + " |\n" + "| --- " * (1 + len(columns)) + "|")
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: replay.unpacked(name, folder, **({} if name in replay.RECORDED else {"periods": replay.FEW}))
                 for name in (*replay.RECORDED, *programs.PROGRAMS)}
        base = None
        for name in (None, *chosen):
            os.environ["ABLATE"] = name or ""
            results = measured(build, paths, concerned(name, known), fast)
            print("| %s | %s |" % (known.get(name, name) if name else "nothing", " | ".join(cells(results, base))),
                  flush=True)
            for (script, backend), (failed, _) in results.get("programs", {}).items():
                for row in failed:
                    print("%s: %s, %s: %s" % (name, script, backend, row), file=sys.stderr, flush=True)
            base = base or results


if __name__ == "__main__":
    main()
