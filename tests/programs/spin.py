#!/usr/bin/env python3
"""Law 3 in every reuse mode, on the new and the old driver. spin.py [--gpu] [PROGRAMS]"""
import sys

from harness import GPU, MODES, Tally, program, run

SIM = {"GPUCACHE_SIM_EAGER": "5", "GPUCACHE_SIM_HANG_MS": "4000"}


def main():
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    count = arguments[0] if arguments else "400"
    tally = Tally()

    def expect(what, command, under=True, options=None, old=False):
        options = {**({} if GPU else SIM), "GPUCACHE_REPORT": "off", **(options or {})}
        ran = run(command, under=under, options=options, old=old, timeout=60)
        tally.check(ran.status == 0, "spin: %s: %s: status %s" % (
            what, " ".join(command[1:]), ran.status), ran.out + ran.err)

    programs = [[program("spin"), "all"], [program("spin"), "random", count, "1", "1"],
                [program("spin"), "random", str(int(count) // 4), "10001", "3"]]
    for command in programs:
        expect("natively", command, under=False)
        for name, options in MODES.items():
            expect(name, command, options=options)
            if not GPU:
                expect(name + ", old driver", command, options=options, old=True)
    if not GPU:
        small = [program("spin"), "full_device"]
        for memory in ("40M", "80M"):
            expect("natively, " + memory, small, under=False,
                   options={"GPUCACHE_SIM_MEMORY": memory})
            for name, options in MODES.items():
                expect(name + ", " + memory, small,
                       options={**options, "GPUCACHE_SIM_MEMORY": memory})
    tally.end()


main()
