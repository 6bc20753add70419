#!/usr/bin/env python3
"""Gives the `gpucache` command damaged and hostile files."""
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile

from harness import Tally, environment, frames, program
from report_live_page import COMMAND, Place, Program

tally = Tally()
# Escape sequences, line breaks, C1 controls, a change of direction, bytes that are not UTF-8.
EVIL = "\x1b]0;owned\x07\x1b[31mRED\x1b[2J\rINJECTED\n\x9b31m\u202e\u2028\x7f"
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffd]")


def safe(text):
    """Returns whether a terminal only shows the text."""
    return not UNSAFE.search(text) and not re.search("^INJECTED", text, re.M)


def bytes_of(place, *arguments):
    done = subprocess.run([COMMAND, *arguments], env={**environment(False), **place.options}, capture_output=True,
                          timeout=60, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def evil_report(pid, module=EVIL):
    holder = {"live_bytes": 5, "live_count": 1, "peak_bytes": 50 + pid, "peak_count": 1, "byte_seconds": 3.5}
    return {"schema": "gpucache-report/1", "version": EVIL, "reason": EVIL, "pid": pid, "rank": None, "host": EVIL,
            "command": [EVIL, "--x=" + EVIL], "time_unix": 1.5, "uptime_seconds": 2.5, "driver_version": 13000, "host_bytes": 5,
            "oom": {"device": 0, "requested_bytes": 5, "verdict": [EVIL, EVIL]},
            "stacks": {"frames": 16, "unwinder": EVIL, "python": EVIL, "lost_stacks": 0, "lost_blocks": 0},
            "modules": [{"path": module, "build_id": "00"}, {"path": EVIL, "build_id": EVIL}],
            "devices": [{"device": 0, "name": EVIL, "uuid": EVIL, "backend": EVIL, "reuse": EVIL, "backend_reason": EVIL,
                         "total_bytes": 1 << 34, "requested_bytes": {"current": 5, "peak": 50, "total": 5, "freed": 0},
                         "held": {"live_bytes": 5, "live_count": 1, "peak_bytes": 5, "peak_count": 1},
                         "live": [{"bytes": 5, "count": 1, "frames": frames([EVIL, "f (%s.py:3)" % EVIL])}],
                         "holders": [{"frames": frames([EVIL, EVIL + " (/a/" + EVIL + ".py:3)"]), **holder},
                                     {"frames": [{"module": EVIL, "offset": 16}, {"module": module, "offset": 4096},
                                                 {"function": EVIL, "file": EVIL, "line": 3, "inlined": True}],
                                      **holder}]}]}


def texts():
    """Checks that no control character of a file reaches the terminal, and that the JSON has the whole text."""
    place = Place()
    with tempfile.TemporaryDirectory() as folder:
        module = folder + "/\x1b[31mRED\x07.so"
        shutil.copy(sys.executable, module)  # another build than the report names, which the tool notes
        names = [folder + "/" + EVIL.replace("/", "") + str(pid) for pid in (7, 8)]
        for pid, name in zip((7, 8), names):
            with open(name, "w") as file:
                file.write(json.dumps(evil_report(pid, module)) + "\n")
        for arguments in ((names[0],), names, ("--each", *names), ("--compare", *names), ("--folded=live", names[0]),
                          ("--folded=peak", *names)):
            status, out, err = bytes_of(place, "report", *arguments)
            shown = [word for word in arguments if word.startswith("-")] + [len(arguments)]
            tally.check(status == 0 and "31m" in out and safe(out), "hostile: texts of a report %s" % shown, repr(out))
            tally.check(safe(err), "hostile: messages about a report %s" % shown, repr(err))
            if os.environ.get("GPUCACHE_TEST_NAMES") == "yes":
                tally.check("is another file" in err, "hostile: the module's path is said %s" % shown, repr(err))
        status, out, err = bytes_of(place, "report", "--format=json", names[0])
        again = json.loads(out)
        tally.check(status == 0 and safe(out), "hostile: a report as JSON again", repr(out))
        tally.check([again["host"][:20], again["devices"][0]["backend"]] == [EVIL[:20], EVIL],
                    "hostile: JSON keeps the texts", again)
        for command in ("report", "replay", "timeline", "snapshot"):
            status, out, err = bytes_of(place, command, folder + "/" + EVIL, *(["--json"] if command == "snapshot" else []))
            tally.check(status != 0 and "RED" in err and safe(out + err), "hostile: a name that %s does not find" % command,
                        repr(err))


def pages():
    """Does the same with a live page, whose owner may write any bytes."""
    place = Place()
    one = Program(place)
    for order in ("allocate 5000", "sync"):
        one.do(order)
    path = place.path(place.pages()[0])
    with open(path, "r+b") as file:
        page = file.read()
        uuid = re.search(rb"GPU-[0-9a-f-]{36}", page).group()
        for text in (b"segments", b"barrier", b"live", uuid):
            evil = b"\x1b[31m\xc2\x9b\r\n"[:len(text)]
            page = page.replace(text + b"\0", evil + text[len(evil):] + b"\0")
        file.seek(0)
        file.write(page)
    for arguments in (("metrics",), ("metrics", "--format=prometheus"), ("top", "--once"), ("report", str(one.pid))):
        status, out, err = bytes_of(place, *arguments)
        tally.check(status == 0 and len(out) > 100 and safe(out + err), "hostile: a live page, %s" % arguments[0], repr(out))
    one.child.kill()
    one.end()


def measured(path):
    """Runs `report` on a file. Returns its status, its output, and its peak of memory in MiB."""
    with tempfile.TemporaryFile("w+") as err:
        child = subprocess.Popen([COMMAND, "report", path], env=environment(False), stdout=subprocess.DEVNULL, stderr=err)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        return child.returncode, err.read(), used.ru_maxrss >> 10


def memory():
    """Checks that a small file takes little memory, and that a file is read whole or refused."""
    head = '{"schema":"gpucache-report/1","pid":%d,"devices":[%s]}\n'
    cases = (("devices", head % (1, ",".join(["{}"] * 300000)), "more devices than the library knows"),
             ("reports", (head % (1, ",".join(["{}"] * 64))) * 4000, "takes more memory"),
             ("nodes", '{"schema":"gpucache-report/1","a":[' + "{}," * 8000000 + "{}]}\n", "takes more memory"))
    with tempfile.TemporaryDirectory() as folder:
        for name, text, words in cases:
            path = folder + "/" + name
            with open(path, "w") as file:
                file.write(text)
            status, said, most = measured(path)
            tally.check(status == 1 and words in said, "hostile: memory: %s" % name, "%s %s" % (status, said))
            tally.check(most < 700, "hostile: memory: %s take less" % name, "%d MiB" % most)
        with open(path, "w") as file:  # as many as the library allows
            file.write(head % (1, ",".join('{"device":%d}' % i for i in range(64))))
        status, said, most = measured(path)
        tally.check(status == 0 and not said, "hostile: a report of 64 devices", said)
        count = 16000  # as many as the library allows: each report counts, also without a device
        with open(path, "w") as file:
            file.write('{"schema":"gpucache-report/1","devices":[]}\n' * count)
        status, said, most = measured(path)
        tally.check(status == 0 and most < 128, "hostile: %d reports without a device" % count, "%s %d MiB" % (said, most))


MAPS = """
import mmap, os, sys
file = open("a", "w+b")
file.truncate(1 << 20)
mapping = mmap.mmap(file.fileno(), 1 << 20)
os.unlink("a")
if sys.argv[1] == "FIFO":
    os.mkfifo("a (deleted)")
else:
    os.rename("trace", "a (deleted)")
print(flush=True)
sys.stdin.read()
"""


def traces():
    """Checks a process whose maps name another file than the mapped one: a FIFO, or another user's trace."""
    for kind in ("FIFO", "trace"):
        place = Place()
        with tempfile.TemporaryDirectory() as folder:
            one = Program(place, {"GPUCACHE_TRACE": folder + "/trace"})
            one.do("allocate 5000")
            one.end("exit", 7)
            with open(folder + "/trace", "rb") as file:
                tally.check(file.read(8)[:6] == b"gptrac", "hostile: there is a trace")
            child = subprocess.Popen([sys.executable, "-c", MAPS, kind], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            child.stdout.readline()
            for command in ("snapshot", "timeline"):
                try:
                    done = subprocess.run([COMMAND, command, str(child.pid)], env=environment(False), capture_output=True,
                                          timeout=60, stdin=subprocess.DEVNULL)
                    tally.check(done.returncode == 1 and b"records no trace" in done.stderr and not done.stdout,
                                "hostile: %s of a process whose maps name a %s" % (command, kind), done.stderr)
                except subprocess.TimeoutExpired:
                    tally.check(False, "hostile: %s of a process whose maps name a %s: hangs" % (command, kind))
            child.communicate()


def swapped():
    """Checks a module's file that becomes a FIFO between stat() and open()."""
    place = Place()
    shim = program("libswapped.so")
    with tempfile.TemporaryDirectory() as folder:
        module = folder + "/module"
        shutil.copy(sys.executable, module)
        with open(folder + "/report", "w") as file:
            file.write(json.dumps(evil_report(7, module)) + "\n")
        try:
            done = subprocess.run([COMMAND, "report", file.name], capture_output=True, timeout=60, stdin=subprocess.DEVNULL,
                                  env={**environment(False, preload=[shim]), "GPUCACHE_TEST_SWAPPED": module})
            tally.check(done.returncode == 0 and done.stdout, "hostile: a module becomes a FIFO", done.stderr)
        except subprocess.TimeoutExpired:
            tally.check(False, "hostile: a module becomes a FIFO: hangs")
        if os.environ.get("GPUCACHE_TEST_NAMES") == "yes":
            tally.check(stat.S_ISFIFO(os.stat(module).st_mode), "hostile: the module was looked at")


def refused():
    """Checks that the tool names a folder for live pages that another user owns or may enter."""
    cases = [("has mode 0755 instead of 0700", lambda path: (os.mkdir(path), os.chmod(path, 0o755))),
             ("is no folder", lambda path: open(path, "w").close())]
    if os.geteuid() == 0:
        cases.append(("belongs to user 2002", lambda path: (os.mkdir(path, 0o700), os.chown(path, 2002, 2002))))
    else:
        print("SKIPPED: the folder of another user: only root can make one")
    for words, make in cases:
        place = Place()
        make(place.folder.name + "/gpucache")
        for arguments in (("top", "--once", "4194300"), ("report", "4194300"), ("ctl", "4194300", "report")):
            done = place.tool(*arguments)
            said = "gpucache: %s/gpucache %s" % (place.folder.name, words)
            tally.check(said in done.stderr, "hostile: %s: the folder %s" % (arguments[0], words), done.stderr)
    place = Place()
    done = place.tool("top", "--once", "4194300")
    tally.check(place.folder.name not in done.stderr, "hostile: nothing is said of a folder that is missing", done.stderr)


def main():
    texts()
    pages()
    memory()
    traces()
    swapped()
    refused()


if __name__ == "__main__":
    tally.run(main)
