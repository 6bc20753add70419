#!/usr/bin/env python3
"""Checks `gpucache run`, `gpucache options` and the ELF notes of the library."""
import glob
import os
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

from harness import LIBRARY, SIM, Tally, environment

tally = Tally()
BUILD = os.path.dirname(LIBRARY)
COMMAND = os.path.join(BUILD, "gpucache")
DEMO = os.path.join(BUILD, "tests", "demo", "demo")
PREFIX_LIBDIR, BINDIR_TO_LIBDIR = sys.argv[1:3]
OWN_FAILURE, CANNOT_EXECUTE, NOT_FOUND = 125, 126, 127


def surroundings(options=None):
    """Returns an environment without a backend, because the tests compare the variables that the command passes on."""
    env = environment(False, options)
    env.pop("GPUCACHE_BACKEND", None)
    return env


def gpucache(*arguments, command=COMMAND, options=None, **more):
    return subprocess.run([command, *arguments], env=surroundings(options), capture_output=True,
                          text=True, errors="replace", timeout=60, stdin=subprocess.DEVNULL, **more)


def shell(script):
    return ["sh", "-c", script]


def same(what, got, expected):
    tally.check(got == expected, "tool_run: " + what, "got:\n%s\nexpected:\n%s" % (got, expected))


def run():
    done = gpucache("run", "--", *shell("exit 7"))
    same("exit status", (done.returncode, done.stdout, done.stderr), (7, "", ""))
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV):
        done = gpucache("run", *shell("kill -%d $$" % number))
        same("dies by %s" % number.name, done.returncode, -number)
    child = subprocess.Popen([COMMAND, "run", *shell("trap 'exit 5' USR1; echo up; while :; do sleep 0.01; done")],
                             env=surroundings(), stdout=subprocess.PIPE)
    child.stdout.readline()
    child.send_signal(signal.SIGUSR1)
    same("a signal reaches the program", child.wait(timeout=60), 5)
    child.stdout.close()
    done = gpucache("run", "--", DEMO)
    tally.check(done.returncode == 0 and "gpucache" in done.stderr and "Requested memory" in done.stderr,
                "tool_run: a program under the library reports", done.stderr)


def environment_of_the_program():
    show = shell('echo "$LD_PRELOAD"; env | grep ^GPUCACHE_ | sort')
    same("LD_PRELOAD", gpucache("run", *show).stdout, LIBRARY + "\n")
    done = gpucache("run", *show, options={"LD_PRELOAD": "libm.so.6"})
    same("an LD_PRELOAD is kept", done.stdout, LIBRARY + ":libm.so.6\n")
    for kept in (LIBRARY, "libm.so.6:" + LIBRARY, LIBRARY + " libm.so.6"):
        done = gpucache("run", *show, options={"LD_PRELOAD": kept})
        same("the library is not preloaded twice", done.stdout, kept + "\n")
    done = gpucache("run", "--memory-limit=8G", "--report-format=json", "--", *show,
                    options={"GPUCACHE_MEMORY_LIMIT": "1G"})
    same("options", done.stdout,
         LIBRARY + "\nGPUCACHE_MEMORY_LIMIT=8G\nGPUCACHE_REPORT_FORMAT=json\n")


def what_is_missing():
    for arguments, status, part in (
        (["run"], OWN_FAILURE, "no program is named"),
        (["run", "--"], OWN_FAILURE, "no program is named"),
        (["run", "--no-such-thing=1", "true"], OWN_FAILURE, "--no-such-thing=1: no such option"),
        (["run", "--memory-limit=abc", "true"], OWN_FAILURE, "--memory-limit=abc: makes no sense: accepted are a size"),
        (["run", "--backend=pages", "--stacks=-3", "true"], OWN_FAILURE, "--stacks=-3: makes no sense"),
        (["run", "--memory-limit", "true"], OWN_FAILURE, "--memory-limit=true: makes no sense"),
        (["run", "--memory-limit"], OWN_FAILURE, "--memory-limit: needs a value"),
        (["run", "/no/such/program"], NOT_FOUND, "/no/such/program: No such file"),
        (["run", "/"], CANNOT_EXECUTE, "/: Permission denied"),
        (["options", "more"], OWN_FAILURE, "takes nothing but"),
        (["nonsense"], OWN_FAILURE, "nonsense: is no command"),
    ):
        done = gpucache(*arguments)
        tally.check(done.returncode == status and part in done.stderr and not done.stdout,
                    "tool_run: %s" % " ".join(arguments), "%d\n%s" % (done.returncode, done.stderr))
    tally.check("usage: gpucache COMMAND" in gpucache("--help").stdout, "tool_run: --help")


def where_the_library_is():
    show = shell('echo "$LD_PRELOAD"')
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.realpath(folder)
        moved = os.path.join(prefix, "bin", "gpucache")
        library = os.path.normpath(os.path.join(prefix, "bin", BINDIR_TO_LIBDIR, "libgpucache.so"))
        os.makedirs(os.path.dirname(moved))
        shutil.copy(COMMAND, moved)
        done = gpucache("run", *show, command=moved)
        if not os.path.exists(os.path.join(PREFIX_LIBDIR, "libgpucache.so")):
            tally.check(done.returncode == OWN_FAILURE and "libgpucache.so is neither in " in done.stderr and
                        PREFIX_LIBDIR in done.stderr, "tool_run: no library", done.stderr)
        os.makedirs(os.path.dirname(library))
        shutil.copy(LIBRARY, library)
        same("an installation that was moved", gpucache("run", *show, command=moved).stdout, library + "\n")
        os.symlink(moved, os.path.join(prefix, "link"))
        done = gpucache("run", *show, command=os.path.join(prefix, "link"))
        same("by a symbolic link", done.stdout, library + "\n")

        spaced = os.path.join(prefix, "with a space")
        os.makedirs(spaced)
        shutil.copy(COMMAND, spaced)
        shutil.copy(LIBRARY, spaced)
        done = gpucache("run", DEMO, command=os.path.join(spaced, "gpucache"))
        tally.check(done.returncode == 0 and "Requested memory" in done.stderr and
                    "cannot be preloaded" not in done.stderr, "tool_run: a path with a space", done.stderr)
        colon = os.path.join(prefix, "with:colon")
        shutil.copytree(spaced, colon)
        done = gpucache("run", DEMO, command=os.path.join(colon, "gpucache"))
        tally.check(done.returncode == OWN_FAILURE and "no path with a colon" in done.stderr,
                    "tool_run: a path with a colon", done.stderr)


def elf(machine, code, bits=64):
    """Returns the smallest static program: one segment with its code."""
    base, head, entry = 0x400000, (64, 56) if bits == 64 else (52, 32), 0
    size = sum(head) + len(code)
    entry = base + sum(head)
    ident = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    if bits == 64:
        header = struct.pack("<16sHHIQQQIHHHHHH", ident, 2, machine, 1, entry, 64, 0, 0, 64, 56, 1, 0, 0, 0)
        segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    else:
        header = struct.pack("<16sHHIIIIIHHHHHH", ident, 2, machine, 1, entry, 52, 0, 0, 52, 32, 1, 0, 0, 0)
        segment = struct.pack("<IIIIIIII", 1, 0, base, base, size, size, 5, 0x1000)
    return header + segment + code


def on_musl(folder):
    """Returns a shell whose loader has musl's name. The loader is glibc's, so that the shell runs everywhere."""
    with open(shutil.which("sh"), "rb") as file:
        shell = file.read()
    loader = re.search(rb"/lib[\w/.-]*/ld-linux[\w.-]*\0", shell).group()[:-1]
    short = folder + "/ld-musl-x"
    os.symlink(loader.decode(), short)
    return shell.replace(loader + b"\0", short.encode().ljust(len(loader), b"\0") + b"\0", 1)


def programs_without_the_library():
    """Checks that the tool prints one line, that the program runs, and that no dynamic linker complains."""
    exit_7 = b"\xb8\x3c\0\0\0\xbf\x07\0\0\0\x0f\x05"  # of x86-64
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="g") as folder:
        def program(name, content):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
            os.chmod(file.name, 0o755)
            return file.name

        musl, static = program("musl", on_musl(folder)), program("static", elf(62, exit_7))
        small = program("small", elf(3, b"\xb8\x01\0\0\0\xbb\x07\0\0\0\xcd\x80", 32))
        show = ["-c", 'echo "[$LD_PRELOAD]"; exit 4']
        script = program("script", b"#! %s -u\n" % musl.encode())
        # /bin/sh would make a file: the header, a comment and a command on lines of their own
        s390 = program("s390", elf(22, b"\n: >made\n" * 8))
        for arguments, what, words, status, out in (
                ([musl, *show], musl, "runs on musl", 4, "[]\n"),
                (["musl", *show], "musl", "runs on musl", 4, "[]\n"),
                ([script], script, "its interpreter %s runs on musl" % musl, 0, ""),
                ([program("outer", b"#!%s\n" % script.encode())], folder + "/outer", "its interpreter %s runs" % musl, 0, ""),
                ([static], static, "is linked statically: the library is only in programs that it starts", 7, ""),
                ([small], small, "is a 32-bit program", None, ""),
                ([s390], folder + "/s390", "another kind of processor", None, "")):
            done = gpucache("run", "--", *arguments, options={"PATH": folder + ":" + os.environ["PATH"]})
            line, _, more = done.stderr.partition("\n")
            tally.check(line.startswith("gpucache: %s: " % what) and words in line and "LD_PRELOAD" not in more,
                        "tool_run: what does not work with %s" % arguments[0], done.stderr)
            if status is not None and platform.machine() == "x86_64":
                tally.check((done.returncode, done.stdout, more) == (status, out, ""), "tool_run: runs %s" % arguments[0],
                            "%s %s %s" % (done.returncode, done.stdout, more))
        for options in ([], ["--max-peak-or-none=1G"]):
            done = gpucache("run", *options, "--", s390, cwd=folder)
            tally.check(done.returncode == CANNOT_EXECUTE and "s390: Exec format error" in done.stderr,
                        "tool_run: a program for another processor %s" % options, done.stderr)
            tally.check(not os.path.exists(folder + "/made"), "tool_run: no shell runs it %s" % options)
        same("a script without #!", gpucache("run", "--", program("plain", b"exit 3\n")).returncode, 3)
        # there is no message about programs that load the library, nor about files that are no programs
        loader = os.path.realpath(folder + "/ld-musl-x")
        with open(static, "rb") as file:
            front = file.read()
        for arguments in (["sh", "-c", "true"], [loader, shutil.which("true")], [program("mem_overhead", b"#!/bin/sh\n")],
                          [program("text", b"exit 0\n")], [program("empty", b"")], [program("itself", b"#!%s/itself\n" % folder.encode())],
                          [program("cut", front[:20])], [program("elsewhere", front[:32] + b"\xff" * 8 + front[40:])]):
            said = gpucache("run", "--", *arguments).stderr
            tally.check("library" not in said, "tool_run: nothing is said of %s" % arguments[0], said)


def options():
    done = gpucache("options", "--budget=1G", options={"GPUCACHE_REUSE": "wait"})
    tally.check(done.returncode == 0 and "GPUCACHE_BUDGET=1G (environment)" in done.stdout and
                "GPUCACHE_REUSE=wait (environment)" in done.stdout and
                "GPUCACHE_PINNED=on (default)" in done.stdout, "tool_run: options", done.stdout)


def notes():
    if platform.machine() != "x86_64":
        return
    objects = glob.glob(LIBRARY + ".p/*.o")
    tally.check(len(objects) > 40, "tool_run: the library's objects", LIBRARY)
    for one in objects:
        shown = subprocess.run(["readelf", "-n", one], capture_output=True, text=True).stdout
        tally.check("IBT, SHSTK" in shown, "tool_run: %s lacks its note" % os.path.basename(one))


def main():
    assert SIM
    run()
    environment_of_the_program()
    what_is_missing()
    where_the_library_is()
    programs_without_the_library()
    options()
    notes()


tally.run(main)
