#!/usr/bin/env python3
"""Checks that library calls add no thread cancellation point."""
import subprocess

from harness import GPU, LIBRARY, MODES, Tally, program, run

# Cancellation points of pthreads(7) that a library may call. fcntl is a cancellation point for F_SETLKW only.
POINTS = """accept accept4 clock_nanosleep close connect creat epoll_wait fdatasync fsync msync nanosleep open openat pause poll
ppoll pread preadv pselect pthread_cond_clockwait pthread_cond_timedwait pthread_cond_wait pthread_join pthread_testcancel
pwrite pwritev read readv recv recvfrom recvmsg select sem_timedwait sem_wait send sendmsg sendto sigsuspend sigtimedwait
sigwait sigwaitinfo sleep system tcdrain usleep wait waitid waitpid write writev fopen fclose fgets fread fprintf printf
opendir readdir closedir""".split()
tally = Tally()


def no_points():
    out = subprocess.run(["nm", "-D", "--undefined-only", LIBRARY], check=True, capture_output=True, text=True).stdout
    used = {line.split()[-1].split("@")[0] for line in out.splitlines()}
    found = sorted(name for name in POINTS if used & {name, name + "64"})
    tally.check(used and not found, "load_cancellation: the library calls %s" % " ".join(found), "")


def main():
    no_points()
    size = {"GPUCACHE_SIM_MEMORY": "64M", "GPUCACHE_REPORT": "off"}
    ways = {"natively": None, **MODES}
    for way, options in ways.items():
        for eager in ("5",) if GPU else ("5", "100"):
            ran = run([program("load_cancellation")], under=options is not None,
                      options={**size, "GPUCACHE_SIM_EAGER": eager, **(options or {})})
            tally.check(ran.status == 0 and ran.out == "end\n", "load_cancellation: %s, eager %s: %s" % (way, eager, ran.status),
                        ran.out + ran.err)


tally.run(main)
