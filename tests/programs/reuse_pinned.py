#!/usr/bin/env python3
"""Checks that pinned host memory is reused, and only after its work has completed."""
import os
import re
import shutil
import subprocess
import tempfile

from harness import GPU, MODES, Tally, program, run

tally = Tally()


def without_count(text):
    return re.sub(r"driver calls.*\n", "", text)


def calls(ran):
    return int(re.search(r"100 pairs: (\d+)", ran.out).group(1))


# Cgroups, as name: (/proc/self/cgroup, files of /sys/fs/cgroup, whether 64 KiB may be kept at most). A limit of 1 MiB
# allows that.
SMALL = "1048576"
CGROUPS = {
    "a container": ("0::/named/outside", {"memory.max": SMALL}, True),
    "a container, version 1": ("4:memory:/named/outside", {"memory/memory.limit_in_bytes": SMALL}, True),
    "no list of cgroups": ("", {"memory.max": SMALL}, True),
    "a job": ("1:name=systemd:/a\n0::/a/b", {"a/b/memory.max": SMALL, "a/memory.max": "max"}, True),
    "in a job": ("0::/a/b/c", {"a/memory.max": SMALL, "a/b/c/memory.max": "99999999999999"}, True),
    "a job, version 1": ("5:cpu,memory:/a:b/c\n0::/", {"memory/a:b/c/memory.limit_in_bytes": SMALL}, True),
    "in a job, version 1": ("5:memory,cpu:/a/b\n4:cpuset:/", {"memory/a/memory.limit_in_bytes": SMALL}, True),
    "other controllers": ("5:memory2,mem:/a\n4:name=memory:/a\n", {"memory/a/memory.limit_in_bytes": SMALL}, False),
    "another job": ("0::/a/b", {"a/bb/memory.max": SMALL, "b/memory.max": SMALL}, False),
}


def in_cgroup(name, lines, files, small):
    """Checks that less is kept where a memory cgroup of the process has less than the machine."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in {**files, "cgroup": lines}.items():
            os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
            with open(os.path.join(folder, path), "w") as file:
                file.write(text + "\n" if text else "")
        inside = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /sys/fs/cgroup && '
                  'mount --bind "$0/cgroup" /proc/$$/cgroup && exec "$@"', folder]
        if GPU or not shutil.which("unshare") or subprocess.run(inside + ["true"], stderr=subprocess.DEVNULL).returncode:
            print("skipped: no mount namespace for %s" % name)
            return
        ran = run(inside + [program("reuse_pinned"), "count"], options={"GPUCACHE_REPORT": "off"})
        tally.check(ran.status == 0 and (calls(ran) == 100) == small, "cgroup: %s: status %s" % (name, ran.status),
                    ran.out + ran.err)


def main():
    for name, case in CGROUPS.items():
        in_cgroup(name, *case)
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
