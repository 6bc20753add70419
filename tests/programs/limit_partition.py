#!/usr/bin/env python3
"""Checks that the limits that the driver keeps for a cgroup become limit and budget."""
import os
import re
import sys
import tempfile

from harness import EMULATED, GPU, SIM, Tally, program, run, run_with_report

PAIRS = [program("report_contents"), "pairs"]
MOST = (1 << 64) - 1
SOURCE = "nvidia-smi memory-limits"
# NVML is unloaded before the context exists.
MAPPED = """
import ctypes
cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
total = ctypes.c_size_t()
assert cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print(total.value, "libnvidia-ml" in open("/proc/self/maps").read())
"""
# The second thread asks while the first one waits for NVML.
TOGETHER = """
import ctypes, threading, time
cuda = ctypes.CDLL("libcuda.so.1")
assert cuda.cuInit(0) == 0
totals = [ctypes.c_size_t(), ctypes.c_size_t()]
def ask(i):
    time.sleep(0.05 * i)
    assert cuda.cuDeviceTotalMem_v2(ctypes.byref(totals[i]), 0) == 0
threads = [threading.Thread(target=ask, args=(i,)) for i in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(*(total.value for total in totals))
"""
tally = Tally()


class Driver:
    """A simulated driver with limits for the cgroup of the process, and its NVML."""

    def __init__(self, folder, soft, hard, kind="GPU", version="13040"):
        with open(os.path.join(folder, kind), "w") as file:
            file.write("%s 0 1\n" % kind)
        self.options = {"GPUCACHE_SIM_NVML": file.name, "GPUCACHE_SIM_NVML_LIMITS": "%d %d" % (soft, hard),
                        "GPUCACHE_SIM_DRIVER_VERSION": version, "GPUCACHE_SIM_HARD_LIMIT": "%d" % (hard if hard < MOST else 0),
                        "LD_LIBRARY_PATH": SIM + ":" + os.environ["GPUCACHE_TEST_SIM_NVML"]}

    def report(self, options=None):
        return run_with_report(PAIRS, options={**self.options, **(options or {})})[1]["devices"][0]


def hard(folder):
    """Checks that the hard limit of the cgroup is the limit if no option sets a smaller one."""
    driver = Driver(folder, 0, 4 << 30)
    for options, limit, source in (
            ({}, 4 << 30, SOURCE),
            ({"GPUCACHE_MEMORY_LIMIT": "8G"}, 4 << 30, SOURCE),
            ({"GPUCACHE_MEMORY_LIMIT": "none"}, 4 << 30, SOURCE),
            ({"GPUCACHE_MEMORY_LIMIT": "2G"}, 2 << 30, "GPUCACHE_MEMORY_LIMIT"),
            ({"CUDA_DEVICE_MEMORY_LIMIT": "2g"}, 2 << 30, "CUDA_DEVICE_MEMORY_LIMIT")):
        device = driver.report(options)
        tally.check((device["limit_bytes"], device["limit_source"]) == (limit, source), "partition: hard, %s" % options, device)
    text = run(PAIRS, options=driver.options).err
    tally.check("| The limit comes from %s " % SOURCE in text, "partition: in words", text)


def none(folder):
    """Checks that there is no limit if none is set, if it is the whole device, or if NVML cannot be read."""
    for what, driver, more in (
            ("not set", Driver(folder, 0, MOST), {}),
            ("not in this cgroup", Driver(folder, 0, MOST), {"GPUCACHE_SIM_NVML_LIMITS": ""}),
            ("the whole device", Driver(folder, 0, 16 << 30), {}),
            ("a driver before 13.4", Driver(folder, 1 << 30, 4 << 30, version="13000"), {}),
            ("an instance of MIG", Driver(folder, 1 << 30, 4 << 30, kind="MIG"), {}),
            ("NVML never answers", Driver(folder, 1 << 30, 4 << 30), {"GPUCACHE_SIM_NVML_LIMITS": "hang"}),
            ("NVML fails", Driver(folder, 1 << 30, 4 << 30), {"GPUCACHE_SIM_NVML": "/nowhere"}),
            ("no NVML", Driver(folder, 1 << 30, 4 << 30), {"LD_LIBRARY_PATH": SIM})):
        device = driver.report(more)
        tally.check((device["limit_bytes"], device["limit_source"]) == (None, None), "partition: %s" % what, device)
        tally.check(device["total_bytes"] == 16 << 30, "partition: %s: memory of the device" % what, device)


def soft(folder):
    """Checks that the soft limit of the cgroup is the budget, unless the option sets another budget."""
    counts = lambda device: [device[name] for name in ("epochs", "barriers", "driver_allocs")]
    plain, small = Driver(folder, 0, MOST), Driver(folder, 1 << 20, MOST)
    as_option = counts(plain.report({"GPUCACHE_BUDGET": "1M"}))
    tally.check(counts(small.report()) == as_option != counts(plain.report()), "partition: soft", counts(small.report()))
    tally.check(counts(small.report({"GPUCACHE_BUDGET": "2G"})) == counts(plain.report({"GPUCACHE_BUDGET": "2G"})),
                "partition: the option beside a soft limit")
    said = re.findall(r"device 0: the budget is (\d+) bytes", run(PAIRS, options={**small.options, "GPUCACHE_LOG": "info"}).err)
    tally.check(said == ["1048576"], "partition: the budget is said", said)


def together(folder):
    """Checks that each of two threads waits for the limits."""
    driver = Driver(folder, 0, 4 << 30)
    options = {**driver.options, "GPUCACHE_SIM_NVML_LIMITS": "0 %d 300" % (4 << 30), "GPUCACHE_REPORT": "off"}
    if not EMULATED:
        ran = run([sys.executable, "-c", TOGETHER], options=options)
        tally.check((ran.status, ran.out) == (0, "%d %d\n" % (4 << 30, 4 << 30)), "partition: two threads", ran.out + ran.err)


def as_natively(folder):
    """Checks that NVML is unloaded again, and never loaded for a driver without these limits. Free memory is that of the cgroup also if nothing tells the limit."""
    driver = Driver(folder, 0, 4 << 30)
    python = [sys.executable, "-c", MAPPED]
    for options, said in ((driver.options, "%d False\n" % (4 << 30)),
                          ({**driver.options, "GPUCACHE_SIM_DRIVER_VERSION": "13000"}, "%d False\n" % (16 << 30))):
        if EMULATED:
            continue  # there is no Python for aarch64
        ran = run(python, options={**options, "GPUCACHE_REPORT": "off"})
        tally.check((ran.status, ran.out) == (0, said), "partition: NVML is closed again", ran.out + ran.err)
    for version in ("13000", "13040"):
        options = {**driver.options, "GPUCACHE_SIM_DRIVER_VERSION": version, "GPUCACHE_REPORT": "off"}
        answers = [run(["sh", "-c", "echo info 0 | %s" % program("limit_neighbours")], under=under, options=options).out
                   for under in (False, True)]
        loads = "libnvidia-ml" in run(PAIRS, options={**options, "LD_DEBUG": "files"}).err
        tally.check(loads == (version == "13040"), "partition: NVML is loaded with driver %s: %s" % (version, loads))
        tally.check(answers == ["%d %d\n" % (4 << 30, 4 << 30)] * 2, "partition: free memory, driver %s" % version, answers)


def main():
    if GPU:  # only an administrator sets limits of a cgroup
        sys.exit(77)
    with open("/proc/self/cgroup") as file:
        if not re.search("^0::", file.read(), re.M):
            print("SKIPPED: this process has no cgroup of version 2")
            sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        for part in (hard, none, soft, together, as_natively):
            part(folder)


tally.run(main)
