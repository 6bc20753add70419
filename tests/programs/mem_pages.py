#!/usr/bin/env python3
"""Checks how the library chooses a backend, and attributes of memory in pages and segments."""
import os
import re
import resource
import tempfile

from harness import EMULATED, GPU, LIBRARY, Tally, program, run, run_with_report

PAGES = {"GPUCACHE_BACKEND": "pages"}
SEGMENTS = {"GPUCACHE_BACKEND": "segments"}
AUTO = {"GPUCACHE_BACKEND": "auto"}
SUPPORTED = "driver and device support them"
WARNING = ("gpucache: the driver makes no IPC handles of memory in pages; GPUCACHE_BACKEND=segments makes them "
           "possible\n")

tally = Tally()


def answers():
    """Checks that the answers on pages equal the native ones."""
    two = {} if GPU else {"GPUCACHE_SIM_DEVICES": "2"}
    native = run([program("mem_pages")], under=False, options=two)
    tally.check(native.status == 0 and native.err == "", "mem_pages: natively: status %s" % native.status,
                native.out[-500:] + native.err)
    for label, options in (("relaxed", {}), ("tight", {"GPUCACHE_BUDGET": "0"}), ("segments", SEGMENTS)):
        compare(label, native.out, {**two, **options})
    if not GPU:  # a driver that cannot export VMM pages: the library warns, and refuses exports
        without = re.sub(r"(legacy ipc handle) 0$", r"\1 801", native.out, flags=re.M)
        without = re.sub(r"(legacy ipc 0) 1, several 0 1$", r"\1 0, several 0 0", without, flags=re.M)
        compare("no descriptors", without, {**two, "GPUCACHE_SIM_DRIVER_VERSION": "12010"}, WARNING)


def compare(label, expected, options, err=""):
    ran = run([program("mem_pages")], options={**PAGES, **options, "GPUCACHE_REPORT": "off"})
    lines, expected = ran.out.splitlines(), expected.splitlines()
    tally.check(len(lines) == len(expected), "mem_pages: %s: %d lines, natively %d: status %s" % (
        label, len(lines), len(expected), ran.status), ran.out[-500:] + ran.err)
    for here, there in zip(lines, expected):
        tally.check(here == there, "mem_pages: %s: an answer" % label, "natively: %s\nhere:     %s" % (there, here))
    tally.check(ran.err == err, "mem_pages: %s: the warnings" % label, ran.err)


def chosen(what, options, backend, reason, arguments=(), **more):
    ran, report = run_with_report([program("mem_pages"), *arguments], options=options, **more)
    device = report["devices"][0] if report else {}
    tally.check((device.get("backend"), device.get("backend_reason")) == (backend, reason),
                "mem_pages: %s: %s, %s" % (what, device.get("backend"), device.get("backend_reason")), ran.err)


def limit_addresses():
    """Sets a limit of addresses that is large enough for a driver."""
    resource.setrlimit(resource.RLIMIT_AS, (1 << 46, resource.getrlimit(resource.RLIMIT_AS)[1]))


def choices():
    chosen("asked for", PAGES, "pages", "GPUCACHE_BACKEND=pages")
    chosen("auto", AUTO, "pages", SUPPORTED)
    chosen("nothing said", {"GPUCACHE_BACKEND": ""}, "pages", SUPPORTED)
    chosen("segments", {"GPUCACHE_BACKEND": "segments"}, "segments", "GPUCACHE_BACKEND=segments")
    for options in (PAGES, AUTO):
        chosen("disabled", {**options, "GPUCACHE_DISABLE": "1"}, "none", "GPUCACHE_DISABLE")
    verbs = program("libibverbs.so.1")
    with_verbs = {"preload": [LIBRARY, verbs]}
    chosen("auto with libibverbs", AUTO, "segments", "libibverbs is loaded", **with_verbs)
    chosen("asked for with libibverbs", PAGES, "pages", "GPUCACHE_BACKEND=pages", **with_verbs)
    chosen("segments with libibverbs", {"GPUCACHE_BACKEND": "segments"}, "segments", "GPUCACHE_BACKEND=segments",
           **with_verbs)
    chosen("libibverbs comes later", {**PAGES, "GPUCACHE_BUDGET": "0"}, "pages", "GPUCACHE_BACKEND=pages", [verbs])
    chosen("auto, libibverbs comes later", {**AUTO, "GPUCACHE_BUDGET": "0"}, "pages", SUPPORTED, [verbs])
    chosen("another library comes later", {**PAGES, "GPUCACHE_BUDGET": "0"}, "pages", "GPUCACHE_BACKEND=pages",
           [program("libplugin_deep.so")])
    if not EMULATED:  # qemu-user ignores RLIMIT_AS
        limited = {"preexec_fn": limit_addresses}
        chosen("auto with ulimit -v", AUTO, "segments", "ulimit -v limits addresses", **limited)
        chosen("asked for with ulimit -v", PAGES, "pages", "GPUCACHE_BACKEND=pages", **limited)
    linked = {"preload": [LIBRARY, program("libcufile.so.0")]}
    chosen("auto with libcufile", AUTO, "pages", SUPPORTED, **linked)
    both = {"preload": [LIBRARY, program("libcufile.so.0"), verbs]}
    chosen("auto with both", AUTO, "segments", "libibverbs is loaded", **both)
    if GPU:
        return
    for options, reason in ((PAGES, "GPUCACHE_BACKEND=pages"), (AUTO, SUPPORTED)):
        name = options["GPUCACHE_BACKEND"] + ": "
        chosen(name + "CUDA 12.4", options, "pages", reason, old=True)
        chosen(name + "a device without", {**options, "GPUCACHE_SIM_VMM": "0"}, "segments",
               "the device has no virtual memory management")
        chosen(name + "no descriptors", {**options, "GPUCACHE_SIM_DRIVER_VERSION": "12010"},
               "pages" if options is PAGES else "segments",
               reason if options is PAGES else "the driver makes no IPC handles of pages")
        chosen(name + "two devices", {**options, "GPUCACHE_SIM_DEVICES": "2"}, "pages", reason)
        chosen(name + "no peer access", {**options, "GPUCACHE_SIM_DEVICES": "2", "GPUCACHE_SIM_PEER": "0"}, "segments",
               "another device could not reach its pages")
        for call, refusal in (("cuMemAddressReserve", "the driver refuses to reserve addresses"),
                              ("cuMemCreate", "the driver refuses to create pages"),
                              ("cuMemMap", "the driver refuses to map pages"),
                              ("cuMemSetAccess", "the driver refuses to map pages")):
            chosen(name + call, {**options, "GPUCACHE_SIM_FAIL": call + ":0:801:1"}, "segments", refusal)
        ran = run([program("mem_pages")], options={**options, "GPUCACHE_SIM_VMM": "0", "GPUCACHE_REPORT": "off",
                                               "GPUCACHE_LOG": "info"})
        tally.check("backend segments (the device has no virtual memory management)" in ran.err,
                    "mem_pages: %sa device without VMM: the reason in the log" % name, ran.err)


# Shares of the smallest stack, with what the thread itself and the simulated driver take. A first call leaves a quarter
# of the stack to the program, execvp half of it, also in a debug build.
STACK_MOST = {"grow": 1, "first": 0.75, "pinned": 0.75, "exec": 0.5}


def smallest_stack():
    """Returns the bytes of PTHREAD_STACK_MIN on the machine of the programs (e_machine of their ELF header)."""
    with open(program("mem_pages"), "rb") as file:
        return 131072 if file.read(20)[18] == 183 else 16384  # 183: aarch64


def little_stack():
    """Checks that allocations fit on the smallest stack of a thread, also the first ones. The folder of live pages is
    full, so that the process removes those of dead processes."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    for name, share in STACK_MOST.items():
        with tempfile.TemporaryDirectory() as folder:
            pages = os.path.join(folder, "gpucache")
            os.mkdir(pages, 0o700)
            for number in range(2 ** 22 + 1, 2 ** 22 + 101):  # more than any process has
                open(os.path.join(pages, "%d-1-%d" % (number, namespace)), "w").close()
            ran = run([program("mem_pages"), "stack", name],
                      options={**PAGES, "GPUCACHE_BUDGET": "256M", "GPUCACHE_REPORT": "off", "XDG_RUNTIME_DIR": folder})
        tally.check(ran.status == 0 and int(ran.out) <= share * smallest_stack(),
                    "mem_pages: bytes of stack: %s" % name, ran.out + ran.err)


def main():
    answers()
    choices()
    if not GPU:
        little_stack()


tally.run(main)
