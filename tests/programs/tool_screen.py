#!/usr/bin/env python3
"""Drives the screen of `gpucache top` on a terminal: keys, mouse, filter, sizes, endings.

SCREENS=1 prints the screens.
"""
import os
import re
import signal
import subprocess
import sys

import pseudo_terminal
from harness import Tally, environment
from pseudo_terminal import BACKSPACE, DOWN, ESCAPE, UP, Terminal, mouse
from report_live_page import COMMAND, LIVE, MIB, Place, Program, eventually

tally = Tally()
FOLDER = pseudo_terminal.described()
WHEEL_UP, WHEEL_DOWN, CLICK = 64, 65, 0
HEAD, FIRST = 1, 2  # screen lines of the column titles and of the first row
NVML = {"LD_LIBRARY_PATH": os.environ.get("GPUCACHE_TEST_SIM_NVML", "")}


def screen(place, many, *arguments, options=None, **more):
    """Returns a terminal with `gpucache top` of these programs only: other tests of this user run at the same time."""
    env = {**environment(False), **place.options, **(options or {})}
    return Terminal([COMMAND, "top", "--interval=0.1", *arguments, *[str(one.pid) for one in many]], env, FOLDER, **more)


def programs(place):
    """Starts three programs with 1, 2 and 3 MiB live. The filter tests search the names of the first two."""
    found = [Program(place, name=name) for name in ("Training", "serving-port=80", "live")]
    for i, one in enumerate(found):
        one.do("allocate %d" % ((i + 1) * MIB))
    return found


def pids(terminal):
    return [int(row.split()[0]) for row in terminal.rows()[FIRST:-1] if re.match(r" *\d+ ", row)]


def shown(terminal, pattern, what):
    good = terminal.shows(pattern)
    return tally.check(good, "screen: " + what, "wanted: %s\n%s" % (pattern, terminal.text()))


def becomes(terminal, condition, what):
    return tally.check(terminal.until(condition), "screen: " + what, terminal.text())


def dump(terminal, what):
    if "SCREENS" in os.environ:
        print("---- %s, %dx%d\n%s" % (what, terminal.columns, terminal.lines, terminal.text()))


def quit_(terminal):
    terminal.type("q")
    status = terminal.end()
    tally.check(status == 0 and terminal.is_restored(), "screen: q ends it", "%s %s" % (status, terminal.modes))


def is_chosen(terminal, one):
    return lambda: [row for row in terminal.marked() if row.split()[0] == str(one.pid)]


def sorted_and_chosen():
    place = Place()
    one, two, three = many = programs(place)
    terminal = screen(place, many)
    becomes(terminal, lambda: pids(terminal) == [three.pid, two.pid, one.pid], "sorted by what is live")
    dump(terminal, "table")
    terminal.type("r")
    becomes(terminal, lambda: pids(terminal) == [one.pid, two.pid, three.pid], "reversed")
    terminal.type("r<<")
    shown(terminal, ">PID", "sorted by process")
    becomes(terminal, lambda: pids(terminal) == sorted(each.pid for each in many), "the lowest number first")
    terminal.type(">>")
    becomes(terminal, lambda: pids(terminal) == [three.pid, two.pid, one.pid], "sorted by what is live again")
    for key, chosen, what in ((DOWN, two, "down"), (DOWN, one, "down again"), (DOWN, one, "no further down"), (UP, two, "up"),
                              (mouse(WHEEL_DOWN, 5, 5), one, "wheel down"), (mouse(WHEEL_UP, 5, 5), two, "wheel up"),
                              (mouse(CLICK, 5, FIRST), three, "a click"), (mouse(CLICK, 5, 20), three, "a click on nothing")):
        terminal.type(key)
        becomes(terminal, is_chosen(terminal, chosen), what)
    terminal.type(mouse(CLICK, terminal.rows()[HEAD].index("CACHED"), HEAD))
    shown(terminal, ">CACHED", "a click on a title sorts by it")
    terminal.type("\r")
    shown(terminal, "^process %d, device 0: live, running" % three.pid, "enter shows one")
    dump(terminal, "one process")
    terminal.type(mouse(WHEEL_DOWN, 1, 1))
    becomes(terminal, lambda: re.search("^process (%d|%d)," % (one.pid, two.pid), terminal.text()), "the wheel shows another")
    terminal.type(ESCAPE)
    shown(terminal, "^ +PID", "Escape goes back")
    quit_(terminal)
    for each in many:
        each.end()


def filtered():
    place = Place()
    one, two, three = many = programs(place)
    terminal = screen(place, many)
    becomes(terminal, lambda: len(pids(terminal)) == 3, "all")
    for text, expected, what in (("/train", [one.pid], "a text of the command line, in capitals or not"),
                                 (BACKSPACE * 5 + "PORT=8", [two.pid], "another one"),
                                 (ESCAPE, [three.pid, two.pid, one.pid], "none"),
                                 ("/%d\r" % three.pid, [three.pid], "a process number")):
        terminal.type(text)
        becomes(terminal, lambda: pids(terminal) == expected, "filter: " + what)
    shown(terminal, "^gpucache top: 1 process, live 3.00 MiB, .*, with %d$" % three.pid, "the sums are of the rows that are shown")
    terminal.type("/q")
    shown(terminal, r"^no line contains the text of the filter", "filter: no line")
    shown(terminal, r"filter: %dq_" % three.pid, "filter: q is a letter of it")
    terminal.type("\r/" + BACKSPACE * 9 + "x" * 200)
    shown(terminal, r"filter: x{63}_", "filter: bounded")
    terminal.type(ESCAPE)
    becomes(terminal, lambda: len(pids(terminal)) == 3, "filter: Escape empties it")
    quit_(terminal)
    for each in many:
        each.end()


def sizes():
    place = Place()
    many = programs(place)
    terminal = screen(place, many)
    for columns, lines in ((40, 10), (200, 60), (120, 40), (20, 4), (80, 24)):
        terminal.resize(columns, lines)
        shown(terminal, r"(?s)^gpucache top: 3 proc.*q ends$", "%dx%d" % (columns, lines))
        if lines > 5:
            becomes(terminal, lambda: len(pids(terminal)) == 3, "%dx%d: all rows" % (columns, lines))
        if columns in (120, 200):  # columns without values leave the history its width
            shown(terminal, r"PEAK%s +FRAG +HIT +PROGRAM +LIVE OVER TIME$" %
                  (" +LIMIT +NVML +OTHERS +MEM +GPU" if columns == 200 else " +GPU"), "%dx%d: columns" % (columns, lines))
        dump(terminal, "table")
        terminal.type("\r")
        shown(terminal, r"(?s)^process \d+, d(?!.*PID).*q ends$", "%dx%d: one process" % (columns, lines))
        dump(terminal, "one process")
        terminal.type("?")
        shown(terminal, r"^gpucache top: keys", "%dx%d: help" % (columns, lines))
        if lines < 24:
            terminal.type((DOWN + mouse(WHEEL_DOWN, 1, 1)) * 20)
            shown(terminal, r"^HIT ", "%dx%d: the end of the help" % (columns, lines))
        dump(terminal, "help")
        terminal.type("x\r")
        shown(terminal, r"^ +PID", "%dx%d: back" % (columns, lines))
    quit_(terminal)
    for each in many:
        each.end()


def kills():
    place = Place()
    one, two, three = many = programs(place)
    terminal = screen(place, many, "--kill")
    becomes(terminal, lambda: len(pids(terminal)) == 3, "all")
    terminal.type("k")
    shown(terminal, r"^end process %d \(live\) by SIGTERM\? y ends it" % three.pid, "k asks")
    terminal.type("n")
    shown(terminal, "q ends$", "any other key ends nothing")
    terminal.type("ky")
    tally.check(eventually(lambda: three.child.poll() is not None) and three.child.returncode == -signal.SIGTERM,
                "screen: y ends it", three.child.returncode)
    shown(terminal, "^process %d: got SIGTERM" % three.pid, "the result is shown")
    terminal.type("d")
    becomes(terminal, lambda: pids(terminal) == [two.pid, one.pid], "it is gone from the table")
    terminal.type("k")
    shown(terminal, r"^end process %d " % two.pid, "k asks for another")
    two.child.kill()
    two.child.wait()
    terminal.type("y")
    shown(terminal, "^process %d: has ended before" % two.pid, "a process that has ended")
    terminal.type("d" + UP * 3 + "k")
    shown(terminal, "^process %d cannot be ended from here: killed" % three.pid, "killed ones are not ended again")
    terminal.type("q")
    tally.check(terminal.end() == 0 and one.child.poll() is None, "screen: the last one runs")
    terminal = screen(place, many)
    becomes(terminal, lambda: len(pids(terminal)) == 3, "without --kill")
    terminal.type(DOWN * 3 + "kyk")
    shown(terminal, "^k ends a process only if gpucache top was started with --kill", "without --kill: k says so")
    tally.check(one.child.poll() is None, "screen: without --kill nothing ends")
    quit_(terminal)
    for each in many:
        each.end()


def endings():
    place = Place()
    one = Program(place)
    for name, send in (("SIGTERM", None), ("SIGINT", lambda t: t.type("\x03")), ("SIGQUIT", lambda t: t.type("\x1c")),
                       ("SIGHUP", None), ("SIGSEGV", None), ("SIGABRT", None), ("SIGBUS", None), ("SIGFPE", None),
                       *((name, None) for name in ("SIGXCPU", "SIGXFSZ", "SIGTRAP", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR"))):
        number = getattr(signal, name)
        terminal = screen(place, [one])
        becomes(terminal, lambda: pids(terminal) == [one.pid], "before " + name)
        tally.check(not terminal.is_restored() and terminal.modes.get("1000"), "screen: has modes of its own", terminal.modes)
        if send:
            send(terminal)
        else:
            os.kill(terminal.pid, number)
        status = terminal.end()
        expected = -signal.SIGABRT if name == "SIGBUS" else -number
        tally.check(status == expected and terminal.is_restored(), "screen: restored after " + name,
                    "%s %s %s" % (status, terminal.modes, terminal.outside))
    terminal = screen(place, [one], first=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    becomes(terminal, lambda: pids(terminal) == [one.pid], "before the terminal goes")
    os.close(terminal.slave)
    os.close(terminal.master)
    tally.check(eventually(lambda: terminal.child.poll() is not None), "screen: ends with its terminal", terminal.child.poll())
    terminal.child.kill()
    one.end()


def nvml():
    place = Place()
    one = Program(place)
    file = os.path.join(place.folder.name, "nvml")
    with open(file, "w") as out:
        out.write("GPU 4294967296 17179869184 37\n7 1073741824\n%d 2147483648\n" % one.pid)
    terminal = screen(place, [one], options={**NVML, "GPUCACHE_SIM_NVML": file}, columns=160)
    shown(terminal, r"^ +%d +0 .* 2.00 GiB +1.00 GiB +25%% +37%% " % one.pid, "columns of NVML")
    terminal.type("\r")
    shown(terminal, r"^NVML: this process 2.00 GiB, others 1.00 GiB, in use 4.00 GiB of 16.00 GiB", "NVML's values of one")
    shown(terminal, r"GPU busy 37% of the time", "the busy time of one")
    terminal.type("\r")
    terminal.resize(80, 24)
    shown(terminal, r"PID DEV +>LIVE +CACHED +RESERVED +PEAK +MEM +GPU +PROGRAM$", "80 columns with NVML")
    dump(terminal, "table with NVML")
    quit_(terminal)
    terminal = screen(place, [one], options={"LD_LIBRARY_PATH": "/nonexistent"}, columns=160)
    shown(terminal, r"^ +%d +0 .*  -  .*  -  .*  -  +- " % one.pid, "without NVML")
    terminal.resize(80, 24)
    shown(terminal, r"PID DEV +>LIVE +CACHED +RESERVED +PEAK +FRAG +HIT +PROGRAM$", "80 columns without NVML")
    quit_(terminal)
    one.end()


def unknown_values():
    """A process without a limit comes behind the others, in both orders of the column LIMIT."""
    place = Place()
    unlimited, large, small = many = Program(place), Program(place, {"GPUCACHE_MEMORY_LIMIT": "2G"}), Program(place, {"GPUCACHE_MEMORY_LIMIT": "1G"})
    terminal = screen(place, many, columns=200)
    becomes(terminal, lambda: len(pids(terminal)) == 3, "before unknown values")
    terminal.type(mouse(CLICK, terminal.rows()[HEAD].index("LIMIT"), HEAD))
    becomes(terminal, lambda: pids(terminal) == [large.pid, small.pid, unlimited.pid], "the largest limit first, no limit last")
    terminal.type("r")
    becomes(terminal, lambda: pids(terminal) == [small.pid, large.pid, unlimited.pid], "the smallest limit first, no limit last")
    quit_(terminal)
    for each in many:
        each.end()


def holders():
    """Checks the call stacks of one process: the same names as in reports."""
    place = Place()
    one = Program(place, {"GPUCACHE_STACKS": "24"})
    bare = Program(place)
    for i in range(3):
        one.do("allocate %d" % (2 * MIB))
    terminal = screen(place, [one], columns=120, lines=40)
    becomes(terminal, lambda: pids(terminal) == [one.pid], "before the holders")
    terminal.type("\r")
    shown(terminal, "^Held now, 6.00 MiB:$", "the sum of the holders")
    named = os.environ.get("GPUCACHE_TEST_NAMES") == "yes"
    name = r"(main|allocate) \((live|report_live_page\.c:\d+)\)" if named else r"live\+0x[0-9a-f]+"
    shown(terminal, r"^  6.00 MiB in \d: " + name, "a holder by name")
    dump(terminal, "holders")
    one.do("allocate %d" % (5 * MIB))
    shown(terminal, "^Held now, 11.00 MiB:$", "the holders are kept up to date")
    terminal.resize(80, 24)
    shown(terminal, "(?s)^Held now, 11.00 MiB:.*q ends$", "holders on 80x24")
    dump(terminal, "holders")
    quit_(terminal)
    report = place.tool("report", str(one.pid)).stdout
    tally.check(re.search(r"(?m)^\| Held now, 11.00 MiB: ", report) and re.search(r"(?m)^\|   [0-9.]+ MiB in \d: " + name, report),
                "screen: the report of a process has the same holders", report)
    tally.check("holders" not in one.report()["devices"][0], "screen: the JSON of a process has no holders", one.report())
    report = place.tool("report", str(bare.pid)).stdout
    tally.check(report and "Held now" not in report, "screen: a report without stacks", report)
    terminal = screen(place, [bare])
    becomes(terminal, lambda: pids(terminal) == [bare.pid], "before one without stacks")
    terminal.type("\r")
    shown(terminal, "^held by: unknown, GPUCACHE_STACKS is not set there$", "without stacks")
    quit_(terminal)
    one.end()
    bare.end()


def libraries():
    """Checks the libraries that allocated memory, in the view of one process."""
    place = Place()
    one = Program(place)
    for i in (2, 3):
        one.do("allocate %d" % (i * MIB))
    terminal = screen(place, [one], columns=120, lines=40)
    becomes(terminal, lambda: pids(terminal) == [one.pid], "before the libraries")
    terminal.type("\r")
    shown(terminal, r"^by library +now +peak$", "the head of the libraries")
    rows = one.report()["devices"][0]["libraries"]
    tally.check([row["name"] for row in rows] == [os.path.basename(LIVE), "small blocks, of any library"], "screen: two libraries", rows)
    shown(terminal, r"^%s +5.00 MiB +5.00 MiB\nsmall blocks, of any library +1000 B +-$" % re.escape(os.path.basename(LIVE)),
          "the libraries, most first")
    dump(terminal, "libraries")
    one.do("free")
    terminal.resize(80, 19)
    shown(terminal, r"^%s +2.00 MiB +5.00 MiB\nothers +1000 B +-$" % re.escape(os.path.basename(LIVE)), "a low screen adds up the others")
    terminal.resize(36, 30)
    shown(terminal, r"^small blo\.\.\. +1000 B +-$", "a narrow screen cuts names")
    dump(terminal, "libraries on 36x30")
    quit_(terminal)
    one.end()


def without_a_cursor():
    place = Place()
    one = Program(place)
    for name in ("dumb", "unknown", "no-such-terminal", None):
        master, slave = os.openpty()
        env = {**environment(False), **place.options, "TERM": name or ""}
        if not name:
            env.pop("TERM")
        child = subprocess.Popen([COMMAND, "top", str(one.pid)], env=env, stdin=slave, stdout=slave, stderr=subprocess.PIPE, text=True)
        said = child.communicate(timeout=60)[1]
        table = os.read(master, 65536).decode()
        tally.check(child.returncode == 0 and "prints the table once: this terminal (TERM)" in said and str(one.pid) in table,
                    "screen: TERM is %s" % name, "%s %s" % (said, table))
        os.close(master), os.close(slave)
    one.end()


def missing():
    """Returns what this test needs and lacks on this machine; None: nothing."""
    built_with = subprocess.run([COMMAND, "--version"], capture_output=True, text=True).stdout
    if not re.search(r"(?m)^  ncurses +yes", built_with):
        return "gpucache was built without ncurses (package libncurses-dev)"
    return None if FOLDER else "there is no tic(1) (package ncurses-bin)"


def main():
    reason = missing()
    if reason:
        print("SKIPPED: " + reason)
        sys.exit(77)
    for part in (sorted_and_chosen, filtered, sizes, kills, endings, nvml, unknown_values, holders, libraries,
                 without_a_cursor):
        if len(sys.argv) < 2 or part.__name__ in sys.argv[1:]:
            part()


if __name__ == "__main__":
    tally.run(main)
