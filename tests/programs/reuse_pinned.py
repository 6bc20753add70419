#!/usr/bin/env python3
"""Checks that pinned host memory is reused, and only after its work has completed."""
import re
import shutil
import subprocess

from harness import GPU, MODES, Tally, program, run

tally = Tally()


def without_count(text):
    return re.sub(r"driver calls.*\n", "", text)


def calls(ran):
    return int(re.search(r"100 pairs: (\d+)", ran.out).group(1))


def in_a_small_container():
    """Checks that less is kept where the memory cgroup has less than the machine: here 64 KiB."""
    small = ["unshare", "-m", "sh", "-c",
             'mount -t tmpfs none /sys/fs/cgroup && echo 1048576 >/sys/fs/cgroup/memory.max && exec "$@"', "sh"]
    if GPU or not shutil.which("unshare") or subprocess.run(small + ["true"], stderr=subprocess.DEVNULL).returncode != 0:
        print("skipped: no mount namespace for a small container")
        return
    ran = run(small + [program("reuse_pinned"), "count"], options={"GPUCACHE_REPORT": "off"})
    tally.check(ran.status == 0 and calls(ran) == 100, "in a container: status %s" % ran.status, ran.out + ran.err)


def main():
    in_a_small_container()
    native = run([program("reuse_pinned"), "count"], under=False)
    tally.check(native.status == 0, "natively: status %s" % native.status, native.err)
    for seed in range(1, 2 if GPU else 4):
        ran = run([program("reuse_pinned_threads"), "50" if GPU else "300"],
                  options={"GPUCACHE_SIM_SWITCH": "30", "GPUCACHE_SIM_SEED": str(seed)})
        tally.check(ran.status == 0 and set(re.findall(r": (\d+)", ran.out)) == {"0"},
                    "at once, seed %d: status %s" % (seed, ran.status), ran.out + ran.err)
    for name, options in list(MODES.items()) + [("off", {"GPUCACHE_PINNED": "off"})]:
        ran = run([program("reuse_pinned"), "count"], options=dict(options, GPUCACHE_REPORT="off"))
        tally.check(ran.status == 0 and without_count(ran.out) == without_count(native.out),
                    "%s: status %s" % (name, ran.status), ran.out + ran.err)
        if not GPU and ran.status == 0:
            kept = name not in ("off", "sync")
            tally.check(calls(ran) <= 2 if kept else calls(ran) == 100,
                        "%s: %d calls of the driver for 100 pairs" % (name, calls(ran)))
            tally.check(not kept or "calls with one in use: 0" in ran.out,
                        "%s: one in use hides one that is not" % name, ran.out)


tally.run(main)
