#!/usr/bin/env python3
"""Combines the library with other preloaded libraries and with calls from constructors."""
import re

from harness import EMULATED, GPU, LIBRARY, Tally, program, run, side_by_side

OFF = {"GPUCACHE_REPORT": "off"}
tally = Tally()


def same(what, command, before, preloads, options=OFF):
    native = run(command, under=False, preload=before, options=OFF)
    good = native.status == 0 and native.err == "" and native.out
    if GPU and not good:  # the driver of this machine crashes
        tally.note("chain: %s: left out, natively status %s: %s" % (
            what, native.status, (native.out + native.err)[-200:].replace("\n", " | ")))
        return
    tally.check(good, "chain: %s: natively" % what, native.out + native.err)
    for preload in preloads:
        ran = run(command, preload=preload, options=options)
        tally.check((ran.status, ran.out, ran.err) == (native.status, native.out, native.err),
                    "chain: %s: %s: status %s" % (
                        what, " ".join(re.sub(".*/", "", p) for p in preload), ran.status),
                    "natively:\n%s\nunder the library:\n%s%s" % (native.out, ran.out, ran.err))


def layer(number, kind, level):
    return program("libchain_%d_%s_O%d.so" % (number, kind, level))


def chains():
    """Yields orders of layers that work without the library: a layer that calls dlsym for others must be the last one."""
    if GPU:  # one order of each kind
        yield from ([], [layer(1, "plain", 0), layer(2, "plain", 0)], [layer(1, "override", 2)],
                    [layer(1, "override", 2), layer(2, "plain", 0)], [layer(2, "version", 2)])
        return
    for level in (0, 2):
        one, two = layer(1, "plain", level), layer(2, "plain", level)
        yield from ([], [one], [one, two], [two, one])
        yield [layer(1, "override", level)]
        yield [two, layer(1, "override", level)]
    jumps = [layer(1, "override", 2), layer(2, "override", 2)]
    yield from (jumps, jumps[::-1], [layer(2, "plain", 0), jumps[0]], [jumps[0], layer(2, "plain", 0)])
    yield [jumps[0], layer(2, "override", 0)]
    yield [layer(1, "plain", 2), layer(2, "version", 2)]
    yield [layer(2, "version", 2), layer(1, "plain", 0)]
    yield [layer(1, "plain", 0), layer(2, "version", 0)]
    for kind in ("default", "libc"):
        yield from ([layer(1, kind, 2)], [layer(1, "plain", 0), layer(2, kind, 2)],
                    [layer(1, kind, 2), layer(2, "override", 2)], [jumps[0], layer(2, kind, 2)])


def behind(others, level):
    preloads = [others[:i] + [LIBRARY] + others[i:] for i in range(len(others) + 1)]
    host, twin = program("chain_host"), program("libchain_twin_%s.so" % level)
    # RTLD_NEXT of a layer finds a driver in the global scope only
    wide = ["+libcuda.so.1"] if others else []
    for command in ([program("chain_" + level)], [host] + wide + [twin]):
        what = "%s after %s" % (re.sub(".*/", "", command[-1]),
                                ", ".join(re.sub(".*/", "", o) for o in others) or "none")
        same(what, command, others, preloads[-1:])
        for preload in preloads[:-1]:
            counts_aside(what, command, others, preload)


def main():
    early = program("libchain_early.so")
    opener = [program("chain_opener"), program("libchain_opened.so")]
    jobs = [lambda o=others, l=level: behind(o, l) for others in chains()
            for level in (["O2"] if GPU else ["O0", "O2"])]
    jobs += [lambda c=command: same("%s, a dlsym of its own" % c, [program(c)], [], [[LIBRARY]])
             for command in ("chain_own_O0", "chain_own_O2", "chain_own_old")]
    jobs += [lambda: same("a constructor, linked", [program("chain_with_early")], [], [[LIBRARY]]),
             lambda: same("a constructor, opened", [program("chain_host"), early], [], [[LIBRARY]]),
             lambda: same("a constructor beside a thread", opener, [], [[LIBRARY]]),
             lambda: same("a constructor beside a thread, stacks", opener, [], [[LIBRARY]],
                          dict(OFF, GPUCACHE_STACKS="4", GPUCACHE_LOG="error")),
             lambda: same("twice", [program("chain_O2")], [], [[LIBRARY, LIBRARY]])]
    if not EMULATED:  # preloaded into a program of this machine
        jobs.append(lambda: same("a constructor, preloaded", ["/bin/true"], [early],
                                 [[early, LIBRARY], [LIBRARY, early]]))
    side_by_side(jobs)


def counts_aside(what, command, before, preload):
    """Compares the answers, without the number of allocations that a wrapper behind the library counted."""
    strip = lambda text: re.sub(r"allocated_layer.*", "", text)
    native = run(command, under=False, preload=before, options=OFF)
    ran = run(command, preload=preload, options=OFF)
    tally.check((ran.status, strip(ran.out), ran.err) == (0, strip(native.out), native.err),
                "chain: %s: %s: status %s" % (
                    what, " ".join(re.sub(".*/", "", p) for p in preload), ran.status),
                "natively:\n%s\nunder the library:\n%s%s" % (native.out, ran.out, ran.err))


tally.run(main)
