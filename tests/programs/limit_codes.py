#!/usr/bin/env python3
"""Checks that a refusal by the limit has the driver's code and pointer, also in a capture."""
from harness import Tally, program, run, run_with_report

CODES = program("limit_codes")
LIMIT = {"GPUCACHE_MEMORY_LIMIT": "256M", "GPUCACHE_REPORT": "off"}
WAYS = {"pages": {"GPUCACHE_BACKEND": "pages"}, "segments": {"GPUCACHE_BACKEND": "segments"},
        "disabled": {"GPUCACHE_DISABLE": "1"}}
tally = Tally()


def main():
    native = run([CODES, str(1 << 40)], under=False)  # more than any device has
    tally.check(native.status == 0, "limit_codes: natively: status %s" % native.status, native.out + native.err)
    for name, options in WAYS.items():
        for limited in ({}, LIMIT):
            ran = run([CODES, str(1 << 30 if limited else 1 << 40)], options={"GPUCACHE_REPORT": "off", **options, **limited})
            tally.check((ran.status, ran.out) == (0, native.out),
                        "limit_codes: %s%s" % (name, ", limited" if limited else ""), native.out + ran.out + ran.err)
        _, report = run_with_report([CODES, str(1 << 30)], options={**options, "GPUCACHE_MEMORY_LIMIT": "256M"})
        device = report["devices"][0] if report else {}
        tally.check(device.get("limit_refusals") == device.get("ooms") == 2,
                    "limit_codes: %s: calls in a capture are not out of memory" % name, device)
    unpooled("limited", {"GPUCACHE_MEMORY_LIMIT": "256M"}, 1 << 30, 2, (5, 5))
    unpooled("without a limit", {}, 1 << 40, 0, (4, 0))


def unpooled(name, options, too_much, array, counts):
    """Checks the codes for unpooled memory, and that other errors do not count as out of memory."""
    wanted = ("stream-ordered 2\nmapped 2\nmanaged, wrong flags 1\nmapped, wrong type 1\narray of 4 GiB %d\n"
              "in a capture 900; the capture ends with 901\n" % array)
    for mode, codes in enumerate(((900, 901), (900, 901), (2, 0))):
        for kind in ("", " from a pool"):
            wanted += "stream-ordered%s in a capture of mode %d: %d; the capture ends with %d\n" % (
                kind, mode, *codes)
    ran, report = run_with_report([CODES, str(too_much), "unpooled"], options=options)
    tally.check((ran.status, ran.out) == (0, wanted), "limit_codes: unpooled memory, " + name, wanted + ran.out + ran.err)
    device = report["devices"][0] if report else {}
    tally.check((device.get("ooms"), device.get("limit_refusals")) == counts,
                "limit_codes: unpooled memory, %s: the counters" % name, device)


tally.run(main)
