#!/usr/bin/env python3
"""Other preloaded libraries beside ours, before and behind it; calls from constructors; twins."""
import itertools
import re

from harness import GPU, LIBRARY, Tally, program, run

OFF = {"GPUCACHE_REPORT": "off"}
tally = Tally()


def same(what, command, before, preloads):
    native = run(command, under=False, preload=before, options=OFF)
    tally.check(native.status == 0 and native.err == "" and native.out,
                "chain: %s: natively" % what, native.out + native.err)
    for preload in preloads:
        ran = run(command, preload=preload, options=OFF, timeout=20)
        tally.check((ran.status, ran.out, ran.err) == (native.status, native.out, native.err),
                    "chain: %s: %s: status %s" % (
                        what, " ".join(re.sub(".*/", "", p) for p in preload), ran.status),
                    "natively:\n%s\nunder the library:\n%s%s" % (native.out, ran.out, ran.err))


def main():
    for at in ("O0", "O2"):
        one, two = program("libchain_1_%s.so" % at), program("libchain_2_%s.so" % at)
        twin, linked = program("libchain_twin_%s.so" % at), program("chain_" + at)
        host = program("chain_host")
        for others in ([], [one], [one, two], [two, one]):
            places = range(len(others) + 1)
            preloads = [others[:i] + [LIBRARY] + others[i:] for i in places]
            names = "%s, %d others" % (at, len(others))
            if others:
                # a wrapper behind ours does not see the calls that ours answers
                same(names + ", linked", [linked], others, preloads[len(others):])
                same(names + ", twin", [host, twin], others, preloads[len(others):])
                for preload in preloads[:-1]:
                    counts_aside(names, [linked], others, preload)
                    counts_aside(names + ", twin", [host, twin], others, preload)
            else:
                same(names + ", linked", [linked], others, preloads)
                same(names + ", twin", [host, twin], others, preloads)
    for mixed in itertools.permutations([program("libchain_1_O0.so"), program("libchain_2_O2.so"),
                                         LIBRARY]):
        others = [p for p in mixed if p != LIBRARY]
        counts_aside("mixed", [program("chain_O2")], others, list(mixed))
    early = program("libchain_early.so")
    same("a constructor, linked", [program("chain_with_early")], [], [[LIBRARY]])
    same("a constructor, opened", [program("chain_host"), early], [], [[LIBRARY]])
    same("a constructor, preloaded", ["/bin/true"], [early], [[early, LIBRARY], [LIBRARY, early]])
    same("twice", [program("chain_O2")], [], [[LIBRARY, LIBRARY]])
    tally.end()


def counts_aside(what, command, before, preload):
    """The same answers, but for how often a wrapper behind ours saw an allocation."""
    strip = lambda text: re.sub(r"allocated_layer.*", "", text)
    native = run(command, under=False, preload=before, options=OFF)
    ran = run(command, preload=preload, options=OFF, timeout=20)
    tally.check((ran.status, strip(ran.out), ran.err) == (0, strip(native.out), native.err),
                "chain: %s: %s: status %s" % (
                    what, " ".join(re.sub(".*/", "", p) for p in preload), ran.status),
                "natively:\n%s\nunder the library:\n%s%s" % (native.out, ran.out, ran.err))


main()
