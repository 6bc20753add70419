#!/usr/bin/env python3
"""Memory in pages: asked about, it is that of cuMemAlloc; and where there can be none there are segments."""
import re

from harness import GPU, Tally, program, run, run_with_report

PAGES = {"GPUCACHE_BACKEND": "pages"}
WARNING = ("gpucache: IPC handles cannot be had of memory in pages; GPUCACHE_BACKEND=segments makes them "
           "possible\n")

tally = Tally()


def answers():
    """The same lines as natively, but for IPC handles, which there are none of."""
    two = {} if GPU else {"GPUCACHE_SIM_DEVICES": "2"}
    native = run([program("paged")], under=False, options=two)
    tally.check(native.status == 0 and native.err == "", "paged: natively: status %s" % native.status,
                native.out[-500:] + native.err)
    for label, options in (("relaxed", {}), ("tight", {"GPUCACHE_BUDGET": "0"})):
        ran = run([program("paged")], options={**PAGES, **two, **options, "GPUCACHE_REPORT": "off"})
        lines, expected = ran.out.splitlines(), native.out.splitlines()
        tally.check(len(lines) == len(expected), "paged: %s: %d lines, natively %d: status %s" % (
            label, len(lines), len(expected), ran.status), ran.out[-500:] + ran.err)
        for here, there in zip(lines, expected):
            ipc = re.search(r"legacy ipc( handle)? ", there)
            there = re.sub(r"\b0 1\b", "0 0", there) if ipc and not ipc.group(1) else \
                re.sub(r"handle 0$", "handle 801", there)
            tally.check(here == there, "paged: %s: an answer" % label, "natively: %s\nhere:     %s" % (there, here))
        tally.check(ran.err == WARNING, "paged: %s: warned once" % label, ran.err)


def chosen(what, options, backend, reason, **more):
    ran, report = run_with_report([program("paged")], options=options, **more)
    device = report["devices"][0] if report else {}
    tally.check((device.get("backend"), device.get("backend_reason")) == (backend, reason),
                "paged: %s: %s, %s" % (what, device.get("backend"), device.get("backend_reason")), ran.err)


def choices():
    chosen("asked for", PAGES, "pages", "GPUCACHE_BACKEND=pages")
    chosen("auto", {}, "segments", "pages only on request")
    chosen("segments", {"GPUCACHE_BACKEND": "segments"}, "segments", "GPUCACHE_BACKEND=segments")
    chosen("disabled", {**PAGES, "GPUCACHE_DISABLE": "1"}, "none", "GPUCACHE_DISABLE")
    if GPU:
        return
    chosen("CUDA 12.4", PAGES, "pages", "GPUCACHE_BACKEND=pages", old=True)
    chosen("a device without", {**PAGES, "GPUCACHE_SIM_VMM": "0"}, "segments",
           "the device has no virtual memory management")
    chosen("no peer access", {**PAGES, "GPUCACHE_SIM_DEVICES": "2", "GPUCACHE_SIM_PEER": "0"}, "segments",
           "another device could not reach its pages")
    for call, reason in (("cuMemAddressReserve", "the driver refuses to reserve addresses"),
                         ("cuMemCreate", "the driver refuses to create pages"),
                         ("cuMemMap", "the driver refuses to map pages"),
                         ("cuMemSetAccess", "the driver refuses to map pages")):
        chosen(call, {**PAGES, "GPUCACHE_SIM_FAIL": call + ":0:801:1"}, "segments", reason)
    ran = run([program("paged")], options={**PAGES, "GPUCACHE_SIM_VMM": "0", "GPUCACHE_REPORT": "off",
                                           "GPUCACHE_LOG": "info"})
    tally.check("backend segments (the device has no virtual memory management)" in ran.err,
                "paged: a device without: said at info", ran.err)


def main():
    answers()
    choices()


tally.run(main)
