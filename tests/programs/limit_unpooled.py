#!/usr/bin/env python3
"""Checks that unpooled memory stays counted while another thread reuses its address."""
from harness import Tally, check_books, program, run_with_report

MIB = 1 << 20
LEFT = 100
# kind: the field of the report, and the bytes of one allocation
KINDS = {"managed": ("managed", 65536), "pinned_host": ("pinned_host", 65536),
         "array": ("array", 65536), "mipmap": ("array", 65536), "virtual": ("virtual", 2 * MIB),
         "mapping": ("virtual", 2 * MIB), "stream_ordered": ("stream_ordered", None),
         "native": (None, 65536)}

tally = Tally()


def one(kind, where, each, options):
    ran, report = run_with_report([program("limit_unpooled"), kind], options={
        "GPUCACHE_SIM_EAGER": "0", **options})
    what = "limit_unpooled: %s, %s" % (kind, options)
    if not tally.check(ran.status == 0 and report, "%s: status %s" % (what, ran.status), ran.err):
        return
    device = report["devices"][0]
    figure = device["outside_bytes"][where] if where else device["reserved_bytes"]
    if each:
        tally.check(figure["current"] == LEFT * each, "%s: %d bytes, not %d" % (
            what, figure["current"], LEFT * each))
    else:  # bytes that the driver keeps
        tally.check(figure["current"] >= LEFT * 65536, what, figure)
    broken = check_books(report)
    tally.check(not broken, what + ": the counters", "\n".join(broken))


def main():
    for _ in range(2):
        for kind, (where, each) in KINDS.items():
            one(kind, where, each, {"GPUCACHE_DISABLE": "1"} if kind == "native" else {})
    one("pinned_host", "pinned_host", 65536, {"GPUCACHE_PINNED": "off"})


tally.run(main)
