#!/usr/bin/env python3
"""Checks that idle memory returns to the driver after GPUCACHE_DECAY_MS."""
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from harness import GPU, LIBRARY, Tally, environment, part_names, program, run, run_with_report

if GPU:
    sys.exit(77)  # asks the simulator for the bytes that the driver has handed out

DECAY = program("mem_decay")
BACKENDS = {name: {"GPUCACHE_BACKEND": name} for name in ("pages", "segments")}
SOON, NEVER = {"GPUCACHE_DECAY_MS": "50"}, {"GPUCACHE_DECAY_MS": "never"}
OFF = {"GPUCACHE_REPORT": "off"}
WAYS = {"as it comes": {}, "tight": {"GPUCACHE_BUDGET": "0"}, "wait": {"GPUCACHE_REUSE": "wait"},
        "sync": {"GPUCACHE_REUSE": "sync"}}

tally = Tally()


def scene(arguments, options, **more):
    """Runs a scene. Returns its lines as a dictionary."""
    ran = run([DECAY, *arguments], options={**OFF, **options}, **more)
    said = dict(line.rsplit(" ", 1) for line in ran.out.splitlines())
    tally.check(ran.status == 0 and ran.err == "", "decay: %s: status %s" % (" ".join(arguments), ran.status),
                "%s\n%s%s" % (options, ran.out, ran.err))
    return {what: int(figure) for what, figure in said.items()}


def sleeps(name, backend):
    soon, never = {**backend, **SOON}, {**backend, **NEVER}
    for way, options in WAYS.items():
        said = scene(["sleeps"], {**soon, **options})
        tally.check(said.get("left", 99) <= 2 and said.get("reserved", 99) <= 2 and said.get("again", 0) >= 1000,
                    "decay: %s: idle memory goes back: %s" % (name, way), said)
    said = scene(["sleeps", "300"], never)
    tally.check(said.get("left", 0) == said.get("held") != None, "decay: %s: never: it stays" % name, said)
    said = scene(["sleeps", "20000"], soon, old=True)
    # Up to BUDGET_FLOOR of the memory that was freed last may stay: only a free can wait for its work.
    tally.check(said.get("left", 99) <= 64 + 2, "decay: %s: a driver without context events" % name, said)


def shown(name, backend):
    """Checks the live page of a program that makes no call."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        env = {**environment(True, {**OFF, **backend, **SOON}), "XDG_RUNTIME_DIR": folder}
        child = subprocess.Popen([DECAY, "is_looked_at"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 text=True)
        line = child.stdout.readline()
        while line and not line.startswith("left"):
            line = child.stdout.readline()
        if not line:
            tally.check(False, "decay: %s: the live page: the program ended with status %d" % (name, child.wait()))
            return
        held, tool = None, os.path.join(os.path.dirname(LIBRARY), "gpucache")
        end = time.monotonic() + 60  # the program prints its values after the last release
        while time.monotonic() < end and (held is None or held > 2):
            done = subprocess.run([tool, "report", "--format=json", str(child.pid)], text=True, timeout=60,
                                  env={**environment(False), "XDG_RUNTIME_DIR": folder}, capture_output=True)
            for device in json.loads(done.stdout)["devices"] if done.returncode == 0 else []:
                held = device["reserved_bytes"]["current"] >> 20
        child.communicate()
        tally.check(held is not None and held <= 2, "decay: %s: the live page of a program that sleeps: %s" % (name, held),
                    done.stderr)


def during_a_kernel(name, backend):
    for way, options in WAYS.items():
        said = scene(["during_a_kernel"], {**backend, **SOON, **options})
        tally.check(said.get("left", 9999) <= 150 and said.get("runs") == 1 and said.get("after", 99) <= 2,
                    "decay: %s: during a kernel: %s" % (name, way), said)


def in_time(decay_ms, options):
    """Returns the values of a run that used all of its memory again within the decay time. A busy machine may need several runs."""
    for _ in range(20):
        said = scene(["steady"], {**options, "GPUCACHE_DECAY_MS": decay_ms})
        if said.pop("slowest", 0) < int(decay_ms if decay_ms != "never" else 10**9):
            return said
    tally.note("decay: this machine is never back within %s ms: not compared" % decay_ms)
    return None


def steady(name, backend):
    said = in_time("500", {**backend, "GPUCACHE_BUDGET": "8G"})
    tally.check(said is None or said.get("given_back") == 0, "decay: %s: what comes back in time loses nothing" % name, said)
    tight = {**backend, "GPUCACHE_BUDGET": "0"}
    said, never = in_time("3000", tight), in_time("never", tight)
    tally.check(said is None or never is None or (said and said == never),
                "decay: %s: a program at work makes no call more" % name, (said, never))


def in_a_stream(name, backend):
    said = scene(["in_a_stream"], {**backend, **SOON})
    tally.check(said.get("left", 99) <= 2, "decay: %s: what was freed in the order of a stream" % name, said)


def managed(name, backend):
    said = scene(["managed"], {**backend, "GPUCACHE_DECAY_MS": "12000", "GPUCACHE_SIM_MEMORY": "1G"})
    tally.check(said.get("left", 99) <= 2,
                "decay: %s: managed memory that needs the space gets it at once" % name, said)
    tally.check(said.get("later", 99) <= 2,
                "decay: %s: next to managed memory one tick is enough" % name, said)
    tally.check(said.get("queries", 9999) <= 100, "decay: %s: managed memory waits for no work after the last free" % name, said)
    late = {**backend, "GPUCACHE_DECAY_MS": "3600000", "GPUCACHE_SIM_MEMORY": "1G"}
    said = scene(["managed_first"], late)
    tally.check(said.get("went") == 1, "decay: %s: memory freed next to managed memory goes before the tick" % name, said)
    if name == "pages":  # with segments, the driver has each segment only later, so all of them go
        tally.check(said.get("rest", 0) >= 100, "decay: %s: and no more of it than managed memory needs" % name, said)
    said = scene(["prefetches"], late)
    tally.check(said.get("before", 0) >= 400 and said.get("after", 99) <= 2,
                "decay: %s: a prefetch of managed memory gets the space at once" % name, said)
    with tempfile.TemporaryDirectory() as folder:
        said = scene(["managed_never"], {**late, **NEVER}, cwd=folder)
    tally.check(said.get("stays") == 1, "decay: %s: never, after a failed exec: it stays next to managed memory" % name, said)
    said = scene(["managed_in_use"], late)
    tally.check(said.get("queries", 9999) <= 150 and said.get("went") == 1,
                "decay: %s: a kernel that uses freed memory is asked rarely" % name, said)
    said = scene(["managed_little"], late)
    tally.check(said.get("stays") == 1, "decay: %s: a few MiB next to managed memory stay" % name, said)


def captures(name, backend):
    said = scene(["captures"], {**backend, **SOON})
    tally.check(said.get("graph") == 0, "decay: %s: during a capture" % name, said)


def forks(name, backend):
    said = scene(["forks"], {**backend, "GPUCACHE_DECAY_MS": "4"})
    tally.check(said.get("children") == 30 and said.get("left", 99) <= 2, "decay: %s: forks" % name, said)


def ends(name, backend):
    soon = {**backend, **SOON}
    for how in ("exit", "_exit", "exec", "reset"):
        for ms in range(0, 40, 10):
            said = scene(["ends", how, str(ms)], {**backend, "GPUCACHE_DECAY_MS": "16",
                                                  "GPUCACHE_SIM_SWITCH": "10", "GPUCACHE_SIM_EVENTS_GO": "1"})
            tally.check(said == ({"left": 0} if how == "reset" else {}), "decay: %s: %s after %d ms" % (name, how, ms), said)
    with tempfile.TemporaryDirectory() as folder:  # for what cannot be executed
        said = scene(["goes_on"], soon, cwd=folder)
        tally.check(said.get("left", 99) <= 2, "decay: %s: after an exec that failed" % name, said)
        said = scene(["goes_on_often"], {**soon, "GPUCACHE_DECAY_MS": "4"}, cwd=folder)
        tally.check(said.get("left", 99) <= 2, "decay: %s: after many of them" % name, said)
    ran, report = run_with_report([DECAY, "ends", "exit", "gone"], options=soon)
    device = report["devices"][0] if report else {"reserved_bytes": {}}
    tally.check(device["reserved_bytes"].get("current") == 2 << 20 and device["driver_frees"] >= 4,
                "decay: %s: the report of it" % name, ran.err)


def threads(name, backend):
    own = scene(["threads"], {"GPUCACHE_DISABLE": "1"}).get("threads", 0)  # and the thread of the simulator
    for label, options in (("the default", {}), ("never", NEVER)):
        said = scene(["threads"], {**backend, **options})
        tally.check(said.get("threads") == own + 1, "decay: %s: threads: %s" % (name, label), (own, said))


def free_that_waits():
    """Checks decay on a driver whose free waits for all work."""
    words = ("gpucache: device 0: idle memory in segments (GPUCACHE_BACKEND=segments) does not go back by itself after "
             "GPUCACHE_DECAY_MS: without stream-ordered memory a free waits for the device\n")
    own = scene(["threads"], {"GPUCACHE_DISABLE": "1"}).get("threads", 0)
    waits = {**OFF, **BACKENDS["segments"], "GPUCACHE_SIM_POOLS": "0"}
    for label, options, wanted in (("the default", {}, ""), ("asked for", {"GPUCACHE_DECAY_MS": "5000"}, words),
                                   ("never", NEVER, "")):
        ran = run([DECAY, "threads"], options={**waits, **options})
        tally.check(ran.err == wanted and ran.out == "threads %d\n" % (own + 1),
                    "decay: a free that waits: %s: what it says" % label, ran.out + ran.err)
    ran = run([DECAY, "threads"], options={**waits, "GPUCACHE_LOG": "info"})
    tally.check(words in ran.err, "decay: a free that waits: at info", ran.err)
    for backend in BACKENDS.values():
        ran = run([DECAY, "threads"], options={**OFF, **backend, "GPUCACHE_LOG": "info"})
        tally.check("by itself" not in ran.err, "decay: no word of it elsewhere", ran.err)
    refuses = {**BACKENDS["segments"], **SOON, "GPUCACHE_SIM_FAIL": "cuMemFreeAsync:0:801:1000000"}
    said = scene(["sleeps", "500"], refuses)  # whatever the attributes of the device are
    tally.check(said.get("left", 0) == said.get("held") != None, "decay: a free that is refused", said)


PARTS = (sleeps, shown, during_a_kernel, steady, in_a_stream, managed, captures, forks, ends, threads)


def main():
    wanted = part_names([part.__name__ for part in (*PARTS, free_that_waits)])
    parts = [(part, (name, backend)) for name, backend in BACKENDS.items() for part in PARTS] + [(free_that_waits, ())]
    with ThreadPoolExecutor(4) as pool:  # the scenes sleep for most of their time
        list(pool.map(lambda one: one[0](*one[1]), [one for one in parts if not wanted or one[0].__name__ in wanted]))


tally.run(main)
