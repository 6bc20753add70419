#!/usr/bin/env python3
"""Memory in pages that has been idle for GPUCACHE_DECAY_MS goes back by itself, beside work that runs, whatever the
program does meanwhile; and where nothing decays there is no thread."""
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from harness import GPU, LIBRARY, Tally, environment, program, run, run_with_report

if GPU:
    sys.exit(77)  # it asks the simulator what the driver has handed out

DECAY = program("decay")
PAGES = {"GPUCACHE_BACKEND": "pages"}
SOON = {**PAGES, "GPUCACHE_DECAY_MS": "50"}
NEVER = {**PAGES, "GPUCACHE_DECAY_MS": "never"}
OFF = {"GPUCACHE_REPORT": "off"}
WAYS = {"as it comes": {}, "tight": {"GPUCACHE_BUDGET": "0"}, "wait": {"GPUCACHE_REUSE": "wait"},
        "sync": {"GPUCACHE_REUSE": "sync"}}

tally = Tally()


def scene(arguments, options, **more):
    """What it printed, as a dictionary."""
    ran = run([DECAY, *arguments], options={**OFF, **options}, **more)
    said = dict(line.rsplit(" ", 1) for line in ran.out.splitlines())
    tally.check(ran.status == 0 and ran.err == "", "decay: %s: status %s" % (" ".join(arguments), ran.status),
                "%s\n%s%s" % (options, ran.out, ran.err))
    return {what: int(figure) for what, figure in said.items()}


def sleeps():
    for way, options in WAYS.items():
        said = scene(["sleeps"], {**SOON, **options})
        tally.check(said.get("left", 99) <= 2 and said.get("reserved", 99) <= 2 and said.get("again", 0) >= 1000,
                    "decay: idle memory goes back: %s" % way, said)
    said = scene(["sleeps", "300"], NEVER)
    tally.check(said.get("left", 0) == said.get("held") != None, "decay: never: it stays", said)
    said = scene(["sleeps", "300"], {"GPUCACHE_BACKEND": "segments"})
    tally.check(said.get("left", 0) == said.get("held") != None, "decay: segments stay", said)
    said = scene(["sleeps"], SOON, old=True)
    tally.check(said.get("left", 99) <= 2, "decay: a driver without context events", said)


def shown():
    """The live page of a program that sleeps."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        env = {**environment(True, {**OFF, **SOON}), "XDG_RUNTIME_DIR": folder}
        child = subprocess.Popen([DECAY, "is_looked_at"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 text=True)
        while not child.stdout.readline().startswith("left"):
            pass
        held, tool = None, os.path.join(os.path.dirname(LIBRARY), "gpucache")
        end = time.monotonic() + 60  # the figures come when all has gone
        while time.monotonic() < end and (held is None or held > 2):
            done = subprocess.run([tool, "report", "--format=json", str(child.pid)], text=True, timeout=60,
                                  env={**environment(False), "XDG_RUNTIME_DIR": folder}, capture_output=True)
            for device in json.loads(done.stdout)["devices"] if done.returncode == 0 else []:
                held = device["reserved_bytes"]["current"] >> 20
        child.communicate()
        tally.check(held is not None and held <= 2, "decay: the live page of a program that sleeps: %s" % held,
                    done.stderr)


def beside():
    for way, options in WAYS.items():
        said = scene(["beside"], {**SOON, **options})
        tally.check(said.get("left", 9999) <= 150 and said.get("runs") == 1 and said.get("after", 99) <= 2,
                    "decay: beside a kernel that runs: %s" % way, said)


def in_time(decay_ms, options):
    """What it said when it came back to all of its memory within the decay time; on a busy machine it may not at once."""
    for _ in range(20):
        said = scene(["steady"], {**PAGES, "GPUCACHE_DECAY_MS": decay_ms, **options})
        if said.pop("slowest", 0) < int(decay_ms if decay_ms != "never" else 10**9):
            return said
    tally.note("decay: this machine is never back within %s ms: not compared" % decay_ms)
    return None


def steady():
    said = in_time("500", {"GPUCACHE_BUDGET": "8G"})
    tally.check(said is None or said.get("mapped") == 0, "decay: what comes back in time keeps its mappings", said)
    tight = {"GPUCACHE_BUDGET": "0"}
    said, never = in_time("3000", tight), in_time("never", tight)
    tally.check(said is None or never is None or (said and said == never), "decay: a program at work makes no call more", (said, never))


def in_a_stream():
    said = scene(["in_a_stream"], SOON)
    tally.check(said.get("left", 99) <= 2, "decay: what was freed in the order of a stream", said)


def captures():
    said = scene(["captures"], SOON)
    tally.check(said.get("graph") == 0, "decay: beside a capture", said)


def forks():
    said = scene(["forks"], {**SOON, "GPUCACHE_DECAY_MS": "4"})
    tally.check(said.get("children") == 30 and said.get("left", 99) <= 2, "decay: forks", said)


def ends():
    for how in ("exit", "_exit", "exec", "reset"):
        for ms in range(0, 40, 10):
            said = scene(["ends", how, str(ms)], {**PAGES, "GPUCACHE_DECAY_MS": "16",
                                                  "GPUCACHE_SIM_SWITCH": "10", "GPUCACHE_SIM_EVENTS_GO": "1"})
            tally.check(said.get("left", 0) == 0, "decay: %s after %d ms" % (how, ms), said)
    with tempfile.TemporaryDirectory() as folder:  # for what cannot be executed
        said = scene(["goes_on"], SOON, cwd=folder)
        tally.check(said.get("left", 99) <= 2, "decay: after an exec that failed", said)
        said = scene(["goes_on_often"], {**SOON, "GPUCACHE_DECAY_MS": "4"}, cwd=folder)
        tally.check(said.get("left", 99) <= 2, "decay: after many of them", said)
    ran, report = run_with_report([DECAY, "ends", "exit", "gone"], options=SOON)
    device = report["devices"][0] if report else {"reserved_bytes": {}}
    tally.check(device["reserved_bytes"].get("current") == 2 << 20 and device["driver_frees"] >= 4,
                "decay: the report of it", ran.err)


def threads():
    own = scene(["threads"], {"GPUCACHE_DISABLE": "1"}).get("threads", 0)  # and the simulator's
    for label, options, wanted in (("pages", PAGES, 1), ("pages, never", NEVER, 0),
                                   ("segments", {"GPUCACHE_BACKEND": "segments"}, 0)):
        said = scene(["threads"], options)
        tally.check(said.get("threads") == own + wanted, "decay: threads: %s" % label, (own, said))


def said_of_segments():
    words = ("gpucache: device 0: memory in segments (GPUCACHE_BACKEND=segments) does not go back by itself after "
             "GPUCACHE_DECAY_MS: only pages do\n")
    segments = {**OFF, "GPUCACHE_BACKEND": "segments"}
    for label, options, wanted in (("the default", {}, ""), ("asked for", {"GPUCACHE_DECAY_MS": "5000"}, words),
                                   ("never", {"GPUCACHE_DECAY_MS": "never"}, "")):
        ran = run([DECAY, "threads"], options={**segments, **options})
        tally.check(ran.err == wanted, "decay: segments: %s: what it says" % label, ran.err)
    ran = run([DECAY, "threads"], options={**segments, "GPUCACHE_LOG": "info"})
    tally.check(words in ran.err, "decay: segments: at info", ran.err)


PARTS = (sleeps, shown, beside, steady, in_a_stream, captures, forks, ends, threads, said_of_segments)


def main():
    wanted = [a for a in sys.argv[1:] if not a.startswith("--")]
    with ThreadPoolExecutor(4) as pool:  # they sleep, most of the time
        list(pool.map(lambda part: part(), [part for part in PARTS if not wanted or part.__name__ in wanted]))


tally.run(main)
