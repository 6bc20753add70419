#!/usr/bin/env python3
"""Opens blocks of the pages backend in other processes, with ends, forks and false messages.

ipc_pages.py [--gpu] [PART...]
"""
import array
import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time

from harness import EMULATED, GPU, Tally, environment, part_names, program

MIB = 1 << 20
PAGES = {"GPUCACHE_BACKEND": "pages"}
SEGMENTS = {"GPUCACHE_BACKEND": "segments"}
TIGHT = {**PAGES, "GPUCACHE_BUDGET": "0"}
LIMIT = 120  # seconds for one answer; only a hang takes longer
INVALID_VALUE, INVALID_CONTEXT = 1, 201

tally = Tally()
REFUSED = INVALID_VALUE  # the driver's code for an invalid handle; main() asks for it
GONE = 400  # the exporter


class Process:
    """A process of ipc_pages.c. It reads one command per line and answers each with one line."""

    def __init__(self, options=PAGES, under=True, **more):
        env = environment(under, {"GPUCACHE_REPORT": "off", **options, **more})
        self.child = subprocess.Popen([program("ipc_pages")], env=env, text=True, bufsize=1, start_new_session=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        try:
            os.killpg(self.child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.child.stdin.close()
        self.child.wait()
        self.child.stdout.close()
        self.child.stderr.close()

    def begin(self, *command):
        self.child.stdin.write(" ".join(str(c) for c in command) + "\n")

    def answer(self):
        """Sends a command and returns the answer. No line is read ahead, because select() looks at the pipe."""
        if not select.select([self.child.stdout], [], [], LIMIT)[0]:
            self.child.kill()
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError("ended with %s: %s" % (self.child.wait(), self.child.stderr.read()))
        return line.rstrip("\n")

    def do(self, *command):
        self.begin(*command)
        return self.answer()

    def take(self, n, size, value):
        self.address = self.do("take", n, size, value)
        return self

    def export(self, n):
        code, differs, handle = self.do("export", n).split()
        tally.check((code, differs) == ("0", "0"), "ipc_pages: export: code %s, differs %s" % (code, differs))
        return handle

    def open(self, n, size, handle):
        return int(self.do("open", n, size, handle).split()[0])

    def wrong(self, n, value):
        return int(self.do("wrong", n, value))

    def files(self, expected=None):
        """Returns the descriptors of the process, after the helper has closed those of its requests."""
        end = time.monotonic() + LIMIT / 4
        while True:
            files = self.do("files")
            if expected in (None, files) or time.monotonic() > end:
                return files
            time.sleep(0.01)

    def has_sockets(self, count):
        """Waits until the process has so many sockets, without a command to it."""
        end, there = time.monotonic() + LIMIT / 4, 0
        while there < count:
            if time.monotonic() > end:
                raise RuntimeError("it has not got %d sockets" % count)
            time.sleep(0.01)
            done = subprocess.run(["ls", "-l", "/proc/%d/fd" % self.child.pid], capture_output=True, text=True)
            there = done.stdout.count("-> socket:")

    def stop(self):
        """Stops the process, and returns when all its threads are stopped."""
        os.kill(self.child.pid, signal.SIGSTOP)
        folder = "/proc/%d/task/" % self.child.pid
        while any(open(folder + task + "/stat").read().rsplit(")", 1)[1].split()[0] != "T" for task in os.listdir(folder)):
            time.sleep(0.01)

    def kill(self):
        self.child.kill()
        self.child.wait()

    def leave(self):
        self.child.stdin.close()
        return self.child.wait(LIMIT)


# ---- contents of a handle (src/driver/ipc/ipc_handle.c) ----

U64 = (1 << 64) - 1
MAGIC = 0x3270656863617067


def mix(x):
    x = (x ^ x >> 32) * 0x9E3779B97F4A7C15 & U64
    x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9 & U64
    return x ^ x >> 32


def words_of(handle):
    words = list(struct.unpack("<8Q", bytes.fromhex(handle)))
    return [w ^ mix(words[7] + i & U64) for i, w in enumerate(words[:7])] + words[7:]


def handle_of(words):
    total = 0
    for word in words[:7]:
        total = mix(total + word & U64)
    last = 0x6B << 56 | total >> 8
    return struct.pack("<8Q", *([w ^ mix(last + i & U64) for i, w in enumerate(words[:7])] + [last])).hex()


def name_of(handle):
    return "\0gpucache-ipc-%x" % words_of(handle)[0]


def request(handle, first=0, magic=MAGIC, token=(0, 0), unused=0):
    words = words_of(handle)
    return struct.pack("<4Q2I", magic, words[1] ^ token[0], words[2] ^ token[1], words[3], first, unused)


def connect(handle):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(30)
    peer.connect(name_of(handle))
    return peer


def receive(peer):
    """Receives an answer. Returns its numbers of pages and descriptors, (0, 0) without an answer."""
    try:
        data, control, _, _ = peer.recvmsg(100, 4096)
    except ConnectionError:
        return 0, 0
    fds = array.array("i")
    for level, kind, passed in control:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(passed)
    for fd in fds:
        os.close(fd)
    return (struct.unpack("<3Q4I", data)[3] if len(data) == 40 else 0), len(fds)


def answers_of(handle):
    """Returns for each answer about a block: its first page, its pages, descriptors, and the pages of each."""
    answers, first, pages = [], 0, 1
    with connect(handle) as peer:
        while first < pages:
            peer.send(request(handle, first=first))
            data, fds, _, _ = socket.recv_fds(peer, 100, 16)
            for fd in fds:
                os.close(fd)
            pages, count, length = struct.unpack("<3Q4I", data)[3:6]
            answers.append((first, pages, count, length))
            first += count * length
    return answers


def told(handle, message, passed=()):
    with connect(handle) as peer:
        try:
            peer.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", passed))] if passed else [])
        except ConnectionError:
            pass
        return receive(peer)


def refused(code):
    """Returns whether a code is one of those that a GPU's driver has for an invalid handle."""
    return code in (REFUSED, GONE) or (GPU and code != 0)


# ---- exporter and importer ----

def large():
    """Checks a block of more pages than exporter or importer may have descriptors. Afterwards both have as many as before."""
    size, memory = 10000 * 2 * MIB - 12, {"GPUCACHE_SIM_MEMORY": "64G"}
    with Process(**memory) as exporter, Process(**memory) as importer:
        for one in (exporter, importer):
            one.take(2, 4, 1)
            one.do("limit", max(64, int(one.do("files").split()[0]) + 24))  # a GPU's driver has many descriptors
        exporter.take(0, size, 1)
        handle = exporter.export(0)
        plain = exporter.take(1, 4096, 1).do("files")
        tally.check(importer.open(1, 4096, exporter.export(1)) == 0, "ipc_pages: large: a small one first")
        before = exporter.files(plain), importer.do("files")
        code = importer.open(0, size, handle)
        tally.check(code == 0, "ipc_pages: large: open %d" % code)
        tally.check(importer.wrong(0, 1) == 0, "ipc_pages: large: what it holds")
        importer.do("fill", 0, 2)
        tally.check(exporter.wrong(0, 2) == 0, "ipc_pages: large: what was written there")
        tally.check(importer.do("close", 0) == "0", "ipc_pages: large: close")
        after = exporter.files(plain), importer.do("files")
        tally.check(before == after, "ipc_pages: large: descriptors before %s, after %s" % (before, after))


def short_of_descriptors():
    """Checks that an importer with few descriptors receives a block in more answers."""
    with Process() as exporter, Process() as importer:
        exporter.take(0, 60 * MIB, 5)
        handle = exporter.export(0)
        importer.take(1, 4, 1).do("limit", int(importer.do("files").split()[0]) + 5)
        tally.check(importer.open(0, 60 * MIB, handle) == 0, "ipc_pages: few descriptors for the importer")
        tally.check(importer.wrong(0, 5) == 0, "ipc_pages: few descriptors for the importer: what it holds")
    with Process() as exporter, Process() as importer:
        exporter.take(0, 60 * MIB, 6)
        handle = exporter.export(0)
        exporter.do("limit", int(exporter.do("files").split()[0]) + 5)
        tally.check(importer.open(0, 60 * MIB, handle) == 0, "ipc_pages: few descriptors for the exporter")
        tally.check(importer.wrong(0, 6) == 0, "ipc_pages: few descriptors for the exporter: what it holds")


def short_for_a_moment():
    """Checks an open during which the exporter has no free descriptor for a moment."""
    with Process() as exporter, Process() as importer:
        handle = exporter.take(0, 5 * MIB, 5).export(0)
        files = int(exporter.do("files").split()[0])
        for spare in (2, 1, 0):
            exporter.do("limit", files + spare)
            importer.begin("open", spare, 5 * MIB, handle)
            time.sleep(0.3)
            exporter.do("limit", 1000)
            tally.check(importer.answer().split()[0] == "0", "ipc_pages: short for a moment, %d left" % spare)
            importer.do("ticks")  # interruptions by signals must not shorten its wait
            importer.do("close", spare)


def again_and_again():
    """Checks that repeated opens and closes leak no descriptor, memory or address."""
    with Process() as exporter, Process() as importer:
        exporter.take(0, 5 * MIB, 3)
        handle = exporter.export(0)
        plain = exporter.do("files")
        for turn in range(300):
            if importer.open(0, 5 * MIB, handle) != 0 or importer.do("close", 0) != "0":
                tally.check(False, "ipc_pages: again and again: turn %d" % turn)
                return
            if turn == 0:
                before = plain, importer.do("files")
        after = exporter.files(before[0]), importer.do("files")
        tally.check(before == after, "ipc_pages: again and again: before %s, after %s" % (before, after))


def handles():
    """Checks that handles are equal for the same block, and differ for different blocks."""
    with Process() as exporter:
        seen = []
        for n, size in enumerate((4, 4096, 4096, 3 * MIB, 3 * MIB, 64 * MIB)):
            seen.append(exporter.take(n, size, n).export(n))
            tally.check(exporter.export(n) == seen[-1], "ipc_pages: the same handle again")
        exporter.do("free", 3)
        seen.append(exporter.take(3, 3 * MIB, 9).export(3))
        tally.check(len(set(seen)) == len(seen), "ipc_pages: different handles")
        shared = {a for a, b in zip(*(bytes.fromhex(s) for s in seen[:2])) if a == b}
        tally.check(len(shared) < 16, "ipc_pages: what two handles have in common")
        tally.check(exporter.open(9, 4096, seen[1]) == INVALID_CONTEXT, "ipc_pages: one's own")


def mixed():
    """Checks that an importer may use either backend for its own memory."""
    for ours, theirs in ((SEGMENTS, PAGES), (PAGES, SEGMENTS), (TIGHT, TIGHT)):
        with Process(ours) as importer, Process(theirs) as exporter:
            for n, size in enumerate((4, 5000, 2 * MIB, 33 * MIB + 4)):
                exporter.take(n, size, n + 1)
                code = importer.open(n, size, exporter.export(n))
                tally.check(code == 0 and importer.wrong(n, n + 1) == 0, "ipc_pages: mixed: %d bytes: %d" % (size, code))
            for n in range(4):
                tally.check(importer.do("close", n) == "0", "ipc_pages: mixed: close")


def together():
    """Checks threads that open one block at once. The last close ends the mapping."""
    with Process() as exporter, Process() as importer:
        exporter.take(0, 30 * MIB, 4)
        handle = exporter.export(0)
        tally.check(importer.do("opens", 0, 30 * MIB, handle) == "0 1", "ipc_pages: together: opened")
        for turn in range(8):
            tally.check(importer.wrong(0, 4) == 0, "ipc_pages: together: closed %d times" % turn)
            tally.check(importer.do("close", 0) == "0", "ipc_pages: together: close")
        tally.check(importer.do("close", 0) == str(INVALID_VALUE), "ipc_pages: together: closed too often")


def each_other():
    """Checks two processes that open each other's blocks at the same moment, while both allocate and free."""
    with Process(TIGHT) as a, Process(TIGHT) as b:
        for one in (a, b):
            one.do("churn")
        for turn in range(20):
            a.take(0, 9 * MIB, 1)
            b.take(0, 9 * MIB, 2)
            of_a, of_b = a.export(0), b.export(0)
            a.begin("open", 1, 9 * MIB, of_b)
            b.begin("open", 1, 9 * MIB, of_a)
            said = a.answer(), b.answer()
            good = said == ("0 0", "0 0") and a.wrong(1, 2) == 0 and b.wrong(1, 1) == 0
            tally.check(good, "ipc_pages: each other: turn %d: %s" % (turn, said))
            for one in (a, b):
                one.do("close", 1)
                one.do("free", 0)


def freed_while_open():
    """Checks that an open block stays mapped in the importer after the exporter frees it."""
    with Process(TIGHT, GPUCACHE_SIM_MEMORY="256M") as exporter, Process() as importer:
        for n, size in enumerate((40 * MIB, 4096)):
            handle = exporter.take(n, size, 11).export(n)
            tally.check(importer.open(n, size, handle) == 0 and importer.wrong(n, 11) == 0, "ipc_pages: open")
            exporter.do("free", n)
        for n, size in enumerate((200 * MIB, 3 * MIB + 4, 90 * MIB), 2):  # so other blocks lie there, or none
            exporter.take(n, size, 12)
            tally.check(exporter.wrong(n, 12) == 0, "ipc_pages: what is taken afterwards")
            exporter.do("free", n)
        for n, size in enumerate((40 * MIB, 4096)):
            importer.do("fill", n, 13)
            tally.check(importer.wrong(n, 13) == 0 and importer.do("close", n) == "0", "ipc_pages: freed while it is open")


def anywhere():
    """Checks blocks that begin far inside a segment, in segments of several lengths."""
    with Process() as exporter, Process() as importer:
        sizes = (6, 700, 9, 300, 5, 1200, 40)
        for n, size in enumerate(sizes):
            exporter.take(n, size * MIB, n)
        for n in range(1, len(sizes) - 1):
            exporter.do("free", n)
        exporter.do("free", len(sizes) - 1)
        for n, size in enumerate((61 * MIB + 4, 3 * MIB, 1100 * MIB, 4, 33 * MIB, 850 * MIB + 8), 10):
            exporter.take(n, size, n)
            code = importer.open(n, size, exporter.export(n))
            tally.check(code == 0 and importer.wrong(n, n) == 0, "ipc_pages: anywhere: %d bytes: %d" % (size, code))
            importer.do("fill", n, n + 100)
            tally.check(exporter.wrong(n, n + 100) == 0, "ipc_pages: anywhere: what was written there")
        lengths = {length for n in range(10, 16) for _, _, _, length in answers_of(exporter.export(n))}
        tally.check(len(lengths) > 2, "ipc_pages: anywhere: segments of lengths %s" % lengths)
        for n in range(10, 16):
            tally.check(importer.do("close", n) == "0", "ipc_pages: anywhere: close")


def natively(what, act, **more):
    """Checks that the answers are the same natively, with the driver's own handles."""
    answers = []
    for options in ({"under": False}, {"options": PAGES}):
        with Process(**options, **more) as exporter, Process(**options, **more) as importer:
            answers.append(act(exporter, importer))
    tally.check(answers[0] == answers[1], "ipc_pages: %s: natively %s, here %s" % (what, *answers))
    return answers[1]


def questions():
    def act(exporter, importer):
        said = []
        for n, size in enumerate((100, 70000, 3 * MIB, 12 * MIB)):
            exporter.take(n, size, 1)
            said.append((importer.open(n, size, exporter.export(n)), importer.do("ask", n), importer.wrong(n, 1)))
        return said
    natively("questions", act)


def closed_while_in_use():
    def act(exporter, importer):
        exporter.take(0, 12 * MIB, 1)
        return importer.open(0, 12 * MIB, exporter.export(0)), importer.do("slow", 0)
    natively("closed while in use", act)


def closed_twice_while_in_use():
    """Checks that a close waits for its own work only, not for work of another thread that has opened the block again."""
    with Process() as exporter, Process() as importer:
        handle = exporter.take(0, 12 * MIB, 1).export(0)
        importer.open(0, 12 * MIB, handle)
        said = importer.do("twice", 0, 0, handle)
        tally.check(said == "0 0 0", "ipc_pages: closed twice while in use: %s" % said)
        tally.check(importer.do("close", 0) == str(INVALID_VALUE), "ipc_pages: closed once more")


def closed_while_captured():
    """Checks that a close during a capture waits too, also on a full device. Afterwards the block is closed."""
    for full in ({}, {"GPUCACHE_SIM_FAIL": "cuMemAlloc_v2:0:2:1000000"}):
        with Process() as exporter, Process(**full) as importer:
            handle = exporter.take(0, 12 * MIB, 1).export(0)
            importer.open(0, 12 * MIB, handle)
            said = importer.do("captured", 0)
            tally.check(said == "0 0", "ipc_pages: closed while a stream is captured: %s" % said)
            exporter.kill()
            code = importer.open(0, 12 * MIB, handle)
            tally.check(refused(code), "ipc_pages: closed during a capture, %s, and open still: %d" % (full, code))


def asked_while_closed():
    """Checks that a close that waits for work does not delay queries of blocks."""
    for options in (SEGMENTS, PAGES):
        with Process(options) as exporter, Process(options) as importer:
            handle = exporter.take(0, 5000, 1).export(0)
            importer.open(0, 5000, handle)
            said = importer.do("aside", 0)
            tally.check(said.split()[0] == "0" and said.split()[3] == "0", "ipc_pages: asked while it is closed: %s: %s" % (options, said))


def contexts():
    """Checks that an open block ends with the context that opened it; another context can open it for itself."""
    def act(exporter, importer):
        exporter.take(0, 12 * MIB, 1)
        handle = exporter.export(0)
        said = []
        for turn in range(3):
            importer.do("context", 0)
            said += [importer.open(turn, 12 * MIB, handle), importer.wrong(turn, 1)]
            importer.do("end")
            said += [importer.do("close", turn), importer.open(9, 12 * MIB, handle), importer.wrong(9, 1),
                     importer.do("close", 9)]
        return said
    natively("contexts", act)


def devices():
    """Checks an open on another device than the memory's, and copies by a device where the block is not open."""
    def act(exporter, importer):
        exporter.take(0, 12 * MIB, 1).take(1, 5000, 1)
        handles = [exporter.export(n) for n in range(2)]
        said = [importer.open(0, 12 * MIB, handles[0])]
        importer.do("context", 1)
        said += [importer.wrong(0, 1), importer.open(1, 5000, handles[1]), importer.wrong(1, 1), importer.do("ask", 1)]
        importer.do("fill", 1, 2)
        said += [exporter.wrong(1, 2), importer.do("close", 1)]
        importer.do("end")
        return said + [importer.wrong(0, 1), importer.do("close", 0)]

    def kernels(exporter, importer):
        """Reads the block by kernels of the device that opened it and of a peer, with access given before or after the open."""
        handles = [exporter.take(n, 12 * MIB, 1).export(n) for n in range(2)]
        importer.do("context", 1)
        said = [importer.open(0, 12 * MIB, handles[0]), importer.do("kernel", 0, 1), importer.do("turn"), importer.do("peer"),
                importer.do("kernel", 0, 1), importer.do("turn"), importer.open(1, 12 * MIB, handles[1]),
                importer.do("kernel", 1, 1), importer.do("turn"), importer.do("kernel", 1, 1), importer.do("turn")]
        return said + [importer.do("close", n) for n in range(2)]
    if not GPU:  # tests/gpu/ipc.cu runs on machines with two GPUs
        natively("devices", act, GPUCACHE_SIM_DEVICES="2")
        natively("kernels of devices", kernels, GPUCACHE_SIM_DEVICES="2")


def reached_meanwhile():
    """Checks that a device that gets peer access during an open can reach that block too."""
    if GPU:
        return
    two = {"GPUCACHE_SIM_DEVICES": "2"}
    with Process(**two) as exporter, Process(**two) as importer:
        handle = exporter.take(0, 2 * MIB, 1).export(0)
        real = pages_of(handle)
        slow = handle_of([name_of_ours(0)] + words_of(handle)[1:])
        answer = struct.pack("<3Q4I", MAGIC, 0, 2 * MIB, 1, 1, 1, 0)
        importer.do("context", 1)
        with LISTENER(slow, answer, real, delay=1):
            importer.do("later", 0, 2 * MIB, slow)
            time.sleep(0.5)
            importer.do("turn")
            tally.check(importer.do("peer") == "0", "ipc_pages: access is given at that time")
            tally.check(importer.do("then", 0) == "0", "ipc_pages: the block is opened")
        tally.check(importer.do("kernel", 0, 1) == "0 0 0", "ipc_pages: access that was given at that time")
        for fd in real:
            os.close(fd)


def pages_of(handle):
    with connect(handle) as peer:
        peer.send(request(handle))
        return socket.recv_fds(peer, 100, 16)[1]


def ended(how):
    """Checks that open blocks stay after the end of the exporter, and that later opens are refused."""
    def act(exporter, importer):
        exporter.take(0, 12 * MIB, 1).take(1, 12 * MIB, 2)
        handles = [exporter.export(n) for n in range(2)]
        said = [importer.open(0, 12 * MIB, handles[0])]
        exporter.kill() if how == "killed" else exporter.leave()
        return said + [importer.wrong(0, 1), importer.open(1, 12 * MIB, handles[1]), importer.do("close", 0),
                       importer.open(0, 12 * MIB, handles[0])]
    natively("the exporter has %s" % how, act)


def ended_during_open():
    """Ends the exporter while a large block is being opened: the open fails, and leaks no memory or descriptor."""
    size, memory = 8000 * 2 * MIB, {"GPUCACHE_SIM_MEMORY": "64G"}
    with Process(**memory) as importer:
        importer.take(2, 4, 1)
        for delay in (0, 0.002, 0.01, 0.03):
            with Process(**memory) as exporter:
                before = importer.do("files")
                exporter.take(0, size, 1)
                importer.begin("open", 0, size, exporter.export(0))
                time.sleep(delay)
                exporter.kill()
                code = int(importer.answer().split()[0])
                tally.check(code == 0 or refused(code), "ipc_pages: killed during the call: %d" % code)
                if code == 0:
                    importer.do("close", 0)
                tally.check(importer.do("files") == before, "ipc_pages: killed during the call: descriptors")


def freed():
    """Checks that a handle opens its block only: after the free it is refused, whatever lies at the address."""
    with Process(TIGHT) as exporter, Process() as importer:
        for n, size in enumerate((3 * MIB, 5000)):
            handle = exporter.take(n, size, 1).export(n)
            address = exporter.address
            exporter.do("free", n)
            tally.check(refused(importer.open(n, size, handle)), "ipc_pages: freed")
            again = next((m for m in range(100, 400) if exporter.take(m, size, 2).address == address), 0)
            tally.check(again, "ipc_pages: freed: no block comes back there")
            tally.check(refused(importer.open(n, size, handle)), "ipc_pages: freed, and another one there")
            other = exporter.export(again)
            tally.check(refused(importer.open(n, size, handle)), "ipc_pages: freed, and that one exported")
            tally.check(importer.open(n, size, other) == 0 and importer.wrong(n, 2) == 0, "ipc_pages: that one")


def stopped():
    """Checks that an open waits a bounded time for a stopped exporter, and delays no other call."""
    with Process() as exporter, Process() as importer, Process() as third:
        handle = exporter.take(0, 5 * MIB, 1).export(0)
        there = third.take(0, 5 * MIB, 2).export(0)
        exporter.stop()
        importer.begin("open", 0, 5 * MIB, handle)
        with Process() as other:
            tally.check(other.open(0, 5 * MIB, there) == 0, "ipc_pages: while another one is stopped")
        tally.check(refused(int(importer.answer().split()[0])), "ipc_pages: of one that is stopped")
        os.kill(exporter.child.pid, signal.SIGCONT)
        tally.check(importer.open(0, 5 * MIB, handle) == 0, "ipc_pages: of one that goes on")
        importer.begin("open", 1, 5 * MIB, there)
        tally.check(importer.answer() == "0 0", "ipc_pages: of another one afterwards")


# ---- the helper thread, and programs that disturb it ----

def has_helpers(process, wanted):
    """Returns whether the process has the wanted helper threads within a second: a helper names itself when it runs."""
    for _ in range(100):
        if process.do("helpers") == wanted:
            return True
        time.sleep(0.01)
    return False


def helper():
    off = {"GPUCACHE_LIVE": "off"}  # a process with a pool has the helper thread of decay
    with Process(**off) as exporter, Process(**off) as importer:
        exporter.take(0, 5000, 1)
        tally.check(has_helpers(exporter, "1 0"), "ipc_pages: a helper before the first export")
        files = exporter.do("files")
        handle = exporter.export(0)
        tally.check(has_helpers(exporter, "2 0"), "ipc_pages: a helper, which takes no signals")
        sockets = int(exporter.do("files").split()[1]) - int(files.split()[1])
        tally.check(sockets == 1, "ipc_pages: %d sockets" % sockets)
        importer.open(0, 5000, handle)
        tally.check(importer.do("helpers") == "0 0", "ipc_pages: no helper in an importer")


def end_of_the_driver():
    """Checks that the driver of an ending exporter ends only after the helper's request."""
    if GPU:
        return
    with Process(GPUCACHE_SIM_SWITCH="100", GPUCACHE_SIM_SWITCH_US="50000") as exporter:
        handle = exporter.take(0, 16 * MIB, 1).export(0)
        plain = exporter.files()
        exporter.do("last")
        with connect(handle) as peer:
            peer.send(request(handle))
            exporter.has_sockets(int(plain.split()[1]) + 1)
            time.sleep(0.1)
            status = exporter.leave()
            said = exporter.child.stdout.read().split()
            sockets = str(int(plain.split()[1]) + 1)  # the connection
            tally.check(status == 0 and said == [str(int(plain.split()[0]) + 1), sockets],
                        "ipc_pages: the driver's end: status %s, files %s, not %s" % (status, said, plain))


def forked():
    """Checks that a forked child has no open block and no socket, and that opens after the parent's end fail at once."""
    with Process() as exporter, Process() as importer:
        sockets = exporter.do("files").split()[1]
        handle = exporter.take(0, 5000, 1).export(0)
        with connect(handle):
            time.sleep(0.1)
            child = exporter.do("fork").split()
            tally.check(child[1] == sockets, "ipc_pages: a child has %s sockets, not %s" % (child[1], sockets))
        tally.check(importer.open(0, 5000, handle) == 0, "ipc_pages: while a child lives")
        exporter.kill()
        tally.check(refused(importer.open(1, 5000, exporter_less(handle))), "ipc_pages: only the child is left")


def forks():
    """Checks that a child forked at any moment has no descriptor of the library, in an exporter or an importer."""
    with Process() as exporter, Process() as importer, Process() as third:
        handle = exporter.take(0, 60 * MIB, 1).export(0)
        importer.take(1, 4, 1)
        importer.open(1, 60 * MIB, handle)  # the driver keeps some memory for open blocks
        plain = [one.do("forks", 1) for one in (exporter, importer)]
        exporter.begin("forks", 400)
        done = opened(third, handle, 150)
        said = exporter.answer()
        tally.check(done and said == plain[0], "ipc_pages: children of an exporter: %s, not %s" % (said, plain[0]))
        importer.begin("opening", 0, 0, handle)
        importer.answer()
        said = importer.do("forks", 400)
        tally.check(said == plain[1], "ipc_pages: children of an importer: %s, not %s" % (said, plain[1]))


def guarded_forks():
    """Checks that a fork and an open both end if the fork waits for a lock whose holder opens a block."""
    with Process() as exporter, Process() as importer:
        handle = exporter.take(0, 60 * MIB, 1).export(0)
        importer.take(1, 4, 1)
        importer.begin("guarded", 0, 0, handle)
        importer.answer()
        said = importer.do("forks", 6).split()
        tally.check(len(said) == 2, "ipc_pages: forks under a lock: %s" % said)


def opened(importer, handle, times):
    return all(importer.open(0, 60 * MIB, handle) == 0 and importer.do("close", 0) == "0" for _ in range(times))


def exporter_less(handle):
    """Returns the handle of the same block with other unused bytes, so that no block is open by it yet."""
    words = words_of(handle)
    return handle_of(words[:3] + [words[3] + 1] + words[4:])


def patient_open(importer, n, handle):
    """Opens a block again and again until it is served. Returns the answer and the number of attempts."""
    end, tries = time.monotonic() + LIMIT / 4, 1
    code = importer.open(n, 5000, handle)
    while code and time.monotonic() < end:
        time.sleep(0.01)
        code, tries = importer.open(n, 5000, handle), tries + 1
    return code, tries


def closed_by_its_program():
    """Checks a program that closes all sockets, and opens files of its own at their numbers."""
    if GPU:
        tally.note("ipc_pages: skipped: the driver's own sockets would be closed")
        return
    with Process() as exporter, Process() as importer:
        handle = exporter.take(0, 5000, 1).export(0)
        count = exporter.do("daemon")
        tally.check(int(count) > 100, "ipc_pages: %s files" % count)
        for turn in range(3):
            code, tries = patient_open(importer, turn, handle)
            tally.check(code == 0 and (turn == 0 or tries == 1),
                        "ipc_pages: its socket was closed: turn %d, code %d, tries %d" % (turn, code, tries))
            importer.do("close", turn)
        tally.check(exporter.do("same") == count, "ipc_pages: its own files stay")


def no_number_meanwhile():
    """Checks that the library opens its socket again, if the program closed it while no descriptor was free."""
    if GPU:
        tally.note("ipc_pages: skipped: the driver's own sockets would be closed")
        return
    with Process() as exporter, Process() as importer:
        handle = exporter.take(0, 5000, 1).export(0)
        exporter.do("limit", 40)
        exporter.do("crowd")
        tally.check(refused(importer.open(0, 5000, handle)), "ipc_pages: no number is left for a socket")
        exporter.do("thin")
        code, _ = patient_open(importer, 0, handle)
        tally.check(code == 0, "ipc_pages: a number is left again: %d" % code)


def no_socket():
    """Checks that an export without a socket fails with one message, and that the next export tries again."""
    with Process() as exporter:
        exporter.take(0, 5000, 1)
        exporter.do("limit", int(exporter.do("files").split()[0]))
        said = [exporter.do("export", 0).split()[0] for _ in range(2)]
        tally.check(said == ["801", "801"], "ipc_pages: without a socket: %s" % said)
        exporter.do("limit", 1000)
        handle = exporter.export(0)
        with Process() as importer:
            tally.check(importer.open(0, 5000, handle) == 0, "ipc_pages: a socket in the end")
        exporter.leave()
        err = exporter.child.stderr.read()
        tally.check(err.count("\n") == 1 and "there is no socket" in err, "ipc_pages: without a socket: said", err)


# ---- processes that are no importers or exporters ----

def strangers():
    """Checks that requests for memory that is not exported, and wrong requests, get nothing and delay nobody."""
    with Process() as exporter, Process() as importer:
        handle = exporter.take(0, 100 * MIB, 1).export(0)
        others = [int(exporter.take(n, 5 * MIB, 2).address, 16) for n in (1, 2)]
        exporter.export(2)
        plain = exporter.do("files")
        (_, pages, count, length), last = answers_of(handle)[0], answers_of(handle)[-1][3]
        right = request(handle)
        tally.check(count > 1 and length > 1 and told(handle, right) == (pages, count), "ipc_pages: the right request")
        tally.check(told(handle, request(handle, first=pages - last)) == (pages, 1), "ipc_pages: its last segment")
        tally.check(told(handle, right, passed=[0, 1, 2]) == (pages, count), "ipc_pages: with descriptors")
        for what, message in (("a token", request(handle, token=(1, 0))), ("the other half", request(handle, token=(0, 1 << 63))),
                              ("its end", request(handle, first=pages)), ("not where a segment begins", request(handle, first=1)), ("far beyond", request(handle, first=U64 >> 32)),
                              ("another word", request(handle, magic=MAGIC + 1)), ("the rest", request(handle, unused=1)),
                              ("less", request(handle)[:-1]), ("more", request(handle) + b"x"), ("one byte", b"x"),
                              ("much", b"x" * 60000)):
            tally.check(told(handle, message) == (0, 0), "ipc_pages: a request with another %s" % what)
        for address in others:  # with the token of this exporter
            words = words_of(handle)
            words[3] = address
            tally.check(told(handle, request(handle_of(words))) == (0, 0), "ipc_pages: another block")
        for bit in range(0, 512, 7):
            data = bytearray.fromhex(handle)
            data[bit // 8] ^= 1 << bit % 8
            tally.check(refused(importer.open(1, 5 * MIB, data.hex())), "ipc_pages: bit %d changed" % bit)
        idle = [connect(handle) for _ in range(40)]
        tally.check(importer.open(0, 100 * MIB, handle) == 0, "ipc_pages: while others are silent")
        for peer in idle:
            peer.close()
        tally.check(exporter.files(plain) == plain, "ipc_pages: descriptors after all that")


def crowd():
    """Checks that importers are served during many connections of this user that send nothing and reconnect when closed. A
    connection that sends no request is soon closed."""
    with Process() as exporter, Process() as importer:
        handle = exporter.take(0, 5 * MIB, 1).export(0)
        over = threading.Event()

        def say_nothing():
            silent = []
            while not over.is_set():
                while len(silent) < 300:
                    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
                    try:
                        peer.connect(name_of(handle))
                    except OSError:
                        peer.close()
                        break
                    silent.append(peer)
                poll = select.poll()
                for peer in silent:
                    poll.register(peer, select.POLLIN)
                gone = {fd for fd, _ in poll.poll(5)}
                for peer in [peer for peer in silent if peer.fileno() in gone]:
                    silent.remove(peer)
                    peer.close()
            for peer in silent:
                peer.close()
        thread = threading.Thread(target=say_nothing)
        thread.start()
        try:
            exporter.has_sockets(17)
            for turn in range(3):
                tally.check(importer.open(0, 5 * MIB, handle) == 0, "ipc_pages: while a crowd is silent")
                importer.do("close", 0)
        finally:
            over.set()
            thread.join()


def other_users():
    """Checks that processes of other users are neither served nor accepted as exporters."""
    if os.geteuid() != 0:
        tally.note("ipc_pages: other users: skipped, for want of root")
        return
    with Process() as exporter, Process() as importer:
        handle = exporter.take(0, 5 * MIB, 1).export(0)
        code = as_other("told(%r, request(%r)) == (0, 0)" % (handle, handle))
        tally.check(code == 0, "ipc_pages: another user was served: %d" % code)
        words = words_of(handle)
        words[0] ^= 1
        strange = handle_of(words)
        with LISTENER(strange, other=True) as strange_exporter:
            tally.check(refused(importer.open(1, 5 * MIB, strange)), "ipc_pages: another user's exporter")
            heard = strange_exporter.heard()
            tally.check(heard == 0, "ipc_pages: another user's exporter has heard %d bytes" % heard)


def as_other(sentence):
    """Evaluates a sentence in a process of another user. Returns 0 if it is true."""
    child = os.fork()
    if child == 0:
        try:
            os.setuid(65534)
            os._exit(0 if eval(sentence) else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


OWN_NAMES = int.from_bytes(os.urandom(6), "big") << 8


def name_of_ours(n):
    """Returns a name of this process's own, because this script may run several times at once."""
    return OWN_NAMES | n


class LISTENER:
    """A false exporter, which gives the same answer to a number of requests of each importer."""

    def __init__(self, handle, answer=None, passed=(), other=False, times=1000, delay=0):
        self.door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        read, self.write = os.pipe()
        self.read = os.fdopen(read, "rb")
        ready, go = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            try:
                if other:
                    os.setuid(65534)
                self.door.bind(name_of(handle))
                self.door.listen(8)
                os.write(go, b"x")
                self.serve(answer, passed, times, delay)
            finally:
                os._exit(1)
        os.close(go)
        if os.read(ready, 1) == b"":
            raise RuntimeError("the exporter of the other user has ended")
        for fd in (ready, self.write):
            os.close(fd)
        self.door.close()

    def serve(self, answer, passed, times, delay):
        while True:
            peer, _ = self.door.accept()
            for _ in range(times):
                try:
                    data = peer.recv(1000)
                except ConnectionError:
                    break
                os.write(self.write, data)
                if not data or answer is None:
                    break
                time.sleep(delay)
                peer.sendmsg([answer], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", passed))] if passed else [])
            peer.close()

    def __enter__(self):
        return self

    def heard(self):
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        self.child = 0
        return len(self.read.read())

    def __exit__(self, *unused):
        if self.child:
            self.heard()
        self.read.close()


def false_exporters():
    """Checks that any wrong answer of an exporter gives the driver's error code and leaks no descriptor."""
    def answer(offset=0, size=5 * MIB, pages=3, count=3, magic=MAGIC, length=1, unused=0):
        return struct.pack("<3Q4I", magic, offset, size, pages, count, length, unused)
    with Process() as exporter, Process() as importer:
        handle = exporter.take(0, 5 * MIB, 1).export(0)
        words = words_of(handle)
        before = importer.take(1, 5 * MIB, 1).do("files")
        nothing = os.open("/dev/null", os.O_RDWR)
        small = [exporter.take(n, MIB, n).export(n) for n in range(10, 16)]
        pages = {words_of(one)[3] // (2 * MIB): one for one in small}  # each is a segment
        real = [fd for one in list(pages.values())[:3] for fd in pages_of(one)]
        tally.check(len(real) == 3, "ipc_pages: segments of one page each", real)
        for n, (what, message, passed) in enumerate((
                ("hangs up", None, ()), ("nothing", answer(), ()), ("no memory", answer(), [nothing] * 3),
                ("much that is none", answer(), [nothing] * 250), ("no pages", answer(pages=0), [nothing]),
                ("pages without end", answer(pages=0xFFFFFFFF), [nothing]), ("too much", answer(), [nothing] * 16),
                ("one page and no more", answer(size=59 * MIB, pages=30, count=1), real[:1]), ("its first page with others", answer(), real[:1] + [nothing] * 2),
                ("a size beyond", answer(size=7 * MIB), [nothing]), ("an offset beyond", answer(offset=2 * MIB), [nothing]),
                ("a huge size", answer(size=U64), [nothing]), ("no length", answer(length=0), real),
                ("long ones", answer(count=1, length=3), real[:1]), ("longer ones than there are", answer(length=2), real),
                ("lengths without end", answer(length=0xFFFFFFFF), real), ("the rest", answer(unused=1), real),
                ("another word", answer(magic=1), [nothing]),
                ("less", answer()[:-1], [nothing]), ("more", answer() + b"x", [nothing]))):
            words[0] = name_of_ours(n)
            with LISTENER(handle_of(words), message, passed, times=1):
                code = importer.open(0, 5 * MIB, handle_of(words))
                tally.check(refused(code), "ipc_pages: an exporter that says %s: %d" % (what, code))
        words[0] = name_of_ours(99)
        with LISTENER(handle_of(words), answer(count=1), real[:1], times=1):
            tally.check(importer.open(0, 5 * MIB, handle_of(words)) == 0, "ipc_pages: an exporter that hangs up in between")
            importer.do("close", 0)
        for fd in [nothing] + real:
            os.close(fd)
        # qemu receives up to twice as many descriptors as the program can, and does not close the rest
        tally.check(EMULATED or importer.do("files") == before, "ipc_pages: descriptors after false exporters")
        tally.check(importer.open(0, 5 * MIB, handle) == 0, "ipc_pages: the true one afterwards")


def times():
    """Prints how long an open and a close take. Runs only if it is named."""
    for size in (2 * MIB, 1024 * MIB, 16384 * MIB):
        for label, options in (("natively", {"under": False}), ("segments", {"options": SEGMENTS}), ("pages", {"options": PAGES})):
            with Process(**options, GPUCACHE_SIM_MEMORY="64G") as exporter, \
                    Process(**options, GPUCACHE_SIM_MEMORY="64G") as importer:
                handle = exporter.take(0, size, 1).export(0)
                start = time.monotonic()
                code = importer.open(0, size, handle)
                middle = time.monotonic()
                importer.do("close", 0)
                tally.note("%s: %d MiB: open (%d) %.1f ms, close %.1f ms" % (
                    label, size // MIB, code, (middle - start) * 1e3, (time.monotonic() - middle) * 1e3))


ALL = [large, short_of_descriptors, short_for_a_moment, again_and_again, handles, mixed, together, each_other, freed_while_open, anywhere, questions,
       closed_while_in_use, closed_twice_while_in_use, closed_while_captured, asked_while_closed, contexts, devices, reached_meanwhile, lambda: ended("killed"), lambda: ended("ended"), ended_during_open, freed, stopped,
       helper, end_of_the_driver, forked, forks, guarded_forks, closed_by_its_program, no_number_meanwhile, no_socket, strangers, crowd, other_users, false_exporters]


def main():
    global REFUSED
    named = part_names([part.__name__ for part in ALL + [times] if part.__name__ != "<lambda>"])
    with Process(under=False) as native:
        REFUSED = native.open(0, 4, "5a" * 64)
    tally.check(GPU or REFUSED == INVALID_VALUE, "ipc_pages: nonsense is refused with %d" % REFUSED)
    for part in ALL + [times for _ in named if "times" in named][:1]:
        if not named or part.__name__ in named:
            try:
                part()
            except (RuntimeError, BrokenPipeError) as error:
                tally.check(False, "ipc_pages: %s: %s" % (part.__name__, error))


tally.run(main)
