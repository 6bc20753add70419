#!/usr/bin/env python3
"""Misuses IPC handles and expects the error codes of the driver."""
import re

from harness import FEW, GPU, Tally, in_pages, program, run

tally = Tally()


def compared(out, options):
    """Replaces the answers that vary on a GPU: its driver opens some changed handles. A handle in pages is always refused."""
    loose = GPU and in_pages(options)
    return [line for line in out.splitlines() if not (loose and line.startswith("ipc_misuse: changed: closed"))]


def same():
    command = [program("ipc_misuse"), "16"]
    for old in (False,) if GPU else (False, True):
        native = run(command, under=False, old=old)
        tally.check(native.status == 0, "ipc_misuse: natively: status %s" % native.status, native.err)
        for name, options in FEW.items():
            ran = run(command, options=dict(options, GPUCACHE_REPORT="off"), old=old)
            expected, said = compared(native.out, options), compared(ran.out, options)
            differ = [pair for pair in zip(expected, said) if pair[0] != pair[1]]
            tally.check((ran.status, said, ran.err) == (0, expected, ""),
                        "ipc_misuse: %s: status %s" % (name, ran.status),
                        "\n".join("natively: %s\nhere:     %s" % d for d in differ) + ran.err)


def look_ups():
    """Checks that the time of a query of other memory does not grow with the number of open blocks."""
    for backend in ("segments", "pages"):
        look_up(backend)


def look_up(backend):
    def ns(count):
        ran = run([program("ipc_misuse"), str(count), "time"],
                  options={"GPUCACHE_REPORT": "off", "GPUCACHE_BACKEND": backend})
        tally.check(ran.status == 0, "ipc_misuse: %d blocks: status %s" % (count, ran.status), ran.err)
        return [float(t) for t in re.search(r"ns: (\S+) (\S+) (\S+)", ran.out).groups()]
    few, many = ns(8), ns(4096)
    for what, a, b in zip(("other memory", "the first one", "the last one"), few, many):
        tally.check(b < 10 * a + 1000, "ipc_misuse: %s: a query of %s takes %.0f ns with 8 open "
                    "blocks, %.0f with 4096" % (backend, what, a, b))


def main():
    same()
    look_ups()


tally.run(main)
