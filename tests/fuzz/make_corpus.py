#!/usr/bin/env python3
"""make_corpus.py BUILD: makes corpus/TARGET/* of the fuzz targets anew.

Reports and traces are those of programs of the tests under the simulated driver, in the build folder BUILD. The rest
is written here. The names of this host and its folders are taken out.
"""
import json
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
build = os.path.abspath(sys.argv[1])
PAGE = 2 << 20


def write(target, name, content):
    folder = os.path.join(here, "corpus", target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(content)


def run(program, *arguments, **options):
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": build + "/tests/sim",
                   "LD_PRELOAD": build + "/libgpucache.so", **options}
    subprocess.run([f"{build}/tests/programs/{program}", *arguments], env=environment, check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def reports(scratch):
    for case in ("pairs", "full"):
        path = f"{scratch}/{case}.json"
        run("report_contents", case, GPUCACHE_REPORT=path, GPUCACHE_REPORT_FORMAT="json", GPUCACHE_STACKS="4",
            GPUCACHE_MEMORY_LIMIT="64M")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        text = re.sub(r'"host":"[^"]*"', '"host":"node"', text)
        text = re.sub(r'"pid":\d+', '"pid":7', text)
        text = re.sub(r'"time_unix":[0-9.]+', '"time_unix":1700000000.5', text)
        text = re.sub(r'(/[^" /]+)+/(?=[^" /]+)', "/opt/app/", text)
        write("report", case, text.encode())
    small = {"schema": "gpucache-report/1", "pid": 1, "rank": 3, "host": "n", "command": ["a", "b"],
             "stacks": {"frames": 4, "unwinder": "libunwind", "python": "3.11",
                        "modules": [{"path": "/opt/app/a.so", "build_id": "00ff"}]},
             "devices": [{"device": 0, "name": "G", "live": [{"bytes": 1, "count": 2, "frames": [{"function": "f", "file": "a.py", "line": 3, "python": True}]}],
                          "holders": [{"live_bytes": 1, "live_count": 1, "peak_bytes": 9, "peak_count": 1,
                                       "byte_seconds": 0.5, "stack": ["g (a.c:1)"],
                                       "frames": [{"function": "g", "file": "a.c", "line": 1, "inlined": True},
                                                  {"module": "/opt/app/a.so", "offset": 16, "named": True}]}],
                          "size_classes": [{"upper_bytes": 512, "live": 1, "total": 2},
                                           {"upper_bytes": None, "live": 0, "total": 1}],
                          "segment_map": {"merged_up_to_bytes": 512, "pieces": [[0, 2097152, 512, 512, 1]]}}],
             "oom": {"device": 0, "requested_bytes": 5, "verdict": ["no memory", "none"]}}
    line = json.dumps(small).encode()
    write("report", "two", line + b"\n" + line.replace(b'"pid": 1', b'"pid": 2') + b"\n")
    beyond = {"schema": small["schema"], "command": ["a"],
              "devices": [{"reserved_bytes": {"peak": 1}, "active_bytes": {"peak": 10 ** 18}}]}
    write("report", "peak-beyond-the-whole", json.dumps(beyond).encode() + b"\n")
    write("report", "deep", b'{"schema":"gpucache-report/1","devices":' + b"[" * 90 + b"]" * 90 + b"}\n")
    write("report", "none", b'{"schema":"gpucache-report/1"}\n{"schema":"other"}\nno report\n')


def record(kind, device=0, flags=0, **words):
    """Without a seal, which the target makes."""
    names = ("ticks", "address", "bytes", "value", "detail", "space", "who")
    return struct.pack("<8Q", *(words.get(name, 0) for name in names), device << 16 | flags << 8 | kind)


def piece(kind, number, content):
    texts = [content[i:i + 48] for i in range(0, max(len(content), 1), 48)]
    first = struct.pack("<Q", number << 32 | len(content)) + texts[0].ljust(48, b"\0") + struct.pack("<Q", kind)
    more = [struct.pack("<Q", number << 32 | at + 1) + text.ljust(48, b"\0") + struct.pack("<Q", 14)
            for at, text in enumerate(texts[1:])]
    return first + b"".join(more)


def start(does, devices=1, last=8, first_ticks=0, first_ns=0, tick_ns=1 << 32, dropped=0, until=0, lost=0):
    return struct.pack("<3B7Q", does, devices, last, first_ticks, first_ns, tick_ns, dropped, until, lost, 16 << 30)


def traces(scratch):
    for does, case, *acts in ((6, "hold", "hold=6,100000", "mark=step 1", "drop", "hold=2,9000000", "empty"), (30, "outside", "outside"),
                              (14, "context", "context"), (20, "churn", "churn=4", "oom=99999999999999")):
        path = f"{scratch}/{case}.trace"
        run("trace_records", *acts, GPUCACHE_REPORT="off", GPUCACHE_TRACE=path)
        with open(path, "rb") as file:
            trace = file.read()
        first_ticks, first_ns, tick_ns = struct.unpack_from("<3Q", trace, 80)
        slots = [trace[at:at + 64] for at in range(32768, len(trace), 64)]
        slots = [slot for slot in slots if slot[56] not in (0, 1)] # neither NONE nor CHUNK
        write("trace", case, start(does, first_ticks=first_ticks, first_ns=first_ns, tick_ns=tick_ns) + b"".join(slots[:48]))
    stacks = b"".join((
        piece(11, 1, struct.pack("<3I", 1, 2, 0)), piece(12, 1, struct.pack("<QII", 0, 12, 7) + b"step\0/opt/app/train.py\0"),
        piece(12, 2, struct.pack("<QII", 0x1f3, 0, 2) + b"/opt/app/" + b"a" * 60 + b".so\0"), piece(13, 1, b"/opt/app/a.so\0" + b"00ff\0"),
        record(2, ticks=5, address=4096, bytes=100, value=512, who=1),
        record(9, ticks=6, device=0xffff, address=int.from_bytes(b"step 1\0\0", "little")),
        record(66, ticks=7, address=PAGE, bytes=PAGE, detail=PAGE, space=1),
        record(3, ticks=8, address=4096, bytes=100, value=512, who=5)))
    write("trace", "stacks", start(2 | 4 | 16) + stacks)
    pages = b"".join((
        record(4, ticks=1, address=4 * PAGE, bytes=PAGE, space=1, flags=1),
        record(2, ticks=2, address=4 * PAGE, bytes=PAGE, value=PAGE, space=1),
        record(4, ticks=3, address=5 * PAGE, bytes=PAGE, space=1),
        record(3, ticks=4, address=4 * PAGE, bytes=PAGE, value=PAGE, space=1, flags=8),
        record(5, ticks=5, address=4 * PAGE, bytes=3 * PAGE, space=1),
        record(7, ticks=6, address=1, bytes=9, value=1, detail=9),
        record(69, ticks=7, bytes=PAGE, detail=0, space=1),
        record(6, ticks=8, space=1)))
    write("trace", "pages", start(2 | 4 | 8 | 16, last=2, dropped=3, until=2, lost=1) + pages)
    write("trace", "map-of-many-pages", start(0) + b"".join(
        record(4, ticks=at, address=4 * PAGE, bytes=8 * PAGE, space=1) for at in (1, 2)))
    write("trace", "free-behind-the-context", start(0, dropped=1, until=1) + record(6, ticks=2, space=1)
          + record(3, ticks=3, address=4096, bytes=100, value=512, space=1))
    write("trace", "two-frees-of-one-block", start(0, dropped=1, until=1) + b"".join(
        record(kind, ticks=at, address=4096, bytes=100, value=512, space=1) for at, kind in ((2, 3), (3, 2), (4, 3), (5, 3))))
    write("trace", "header", start(32) + bytes([1]) + struct.pack("<HQ", 736, 1) + pages)


def change(at, content):
    return struct.pack("<IB", at, len(content)) + content


def pages():
    """Places of src/live/page.h; they only have to be near enough."""
    rings, devices = 896, 123840
    event = struct.pack("<7Q", 1, 0, 10 ** 9, 4096, 1 << 21, 5000, 7 << 32 | 2 << 16)
    write("page", "whole", b"\0")
    write("page", "events", b"\0" + change(rings + 8, event) + change(rings + 7232 + 8, event)
          + change(rings + 7232 + 64, struct.pack("<7Q", 2, 0, 10 ** 9, 0, 5, 0, 1 << 16 | 0xffff)))
    write("page", "more-devices", b"\0" + change(736, struct.pack("<I", 64)))
    write("page", "ending", b"\0" + change(864, struct.pack("<2I", 3, 9)) + change(840, struct.pack("<Q", 10 ** 9)))
    write("page", "shorter", b"\xff" + change(devices, struct.pack("<Q", 2)))
    write("page", "head", b"\0" + change(88, b"n" * 64) + change(152, b"h" * 68) + change(220, b"python\0train.py\0")
          + change(732, struct.pack("<2I", 512, 2)))
    write("page", "counters", b"\0" + change(devices + 8, b"\xff" * 200) + change(devices + 16, b"NVIDIA\x1b[2J")
          + change(devices, struct.pack("<Q", 1)))


def patterns():
    def pattern(text, name=b"app", host=b"node", taken=0, limit=63, rank=1):
        return bytes([taken, limit, rank, len(name)]) + name + bytes([len(host)]) + host + text
    write("pattern", "all", pattern(b"/tmp/%p-%h-%e-%r-%n.json"))
    write("pattern", "taken", pattern(b"report.%p.%%", taken=4))
    write("pattern", "numbered", pattern(b"/tmp/%n/%n.txt", taken=3, rank=0))
    write("pattern", "names", pattern(b"/var/%e/%h", name=b"../../etc", host=b".."))
    write("pattern", "short", pattern(b"/tmp/abcdefghijklmnopqrstuvwxyz%e", limit=0))
    write("pattern", "unknown", pattern(b"%x/%"))


def snapshots():
    frames = [{"name": "step", "filename": "/opt/app/train.py", "line": 12}]
    def event(action, at, size, time):
        return {"action": action, "addr": at, "size": size, "stream": 0, "time_us": time, "frames": frames}
    base = 0x7f0000000000
    trace = [event("segment_alloc", base, PAGE, 1), event("alloc", base, 512, 2), event("free_requested", base, 512, 3),
             event("free_completed", base, 512, 4), event("alloc", base + 512, 1024, 5),
             {"action": "oom", "device_free": 0, "size": 1 << 30, "stream": 0, "time_us": 6, "frames": []},
             event("free_requested", base + 8192, 256, 7), event("segment_free", base + PAGE, PAGE, 8)]
    segment = {"device": 0, "address": base, "total_size": PAGE, "allocated_size": 1024, "active_size": 1024,
               "requested_size": 1000, "stream": 0, "segment_type": "large", "is_expandable": False, "frames": frames,
               "blocks": [{"address": base, "size": 512, "requested_size": 0, "state": "inactive", "frames": []},
                          {"address": base + 512, "size": 1024, "requested_size": 1000, "state": "active_allocated",
                           "frames": frames}]}
    whole = {"segments": [segment], "device_traces": [trace, []], "allocator_settings": {"allocator": "libgpucache"},
             "external_annotations": [{"name": "step 1", "stage": "START", "device": 0, "time_us": 2}]}
    for protocol in (2, 3, 4, 5):
        write("pickle", f"protocol{protocol}", pickle.dumps(whole, protocol=protocol))
    odd = {"segments": (None, True, 1.5, -1, 1 << 70, b"bytes", "text", {1, 2}, [[]]), "device_traces": [[]]}
    write("pickle", "kinds", pickle.dumps(odd, protocol=4))
    loop = [1]
    loop.append(loop)
    write("pickle", "loop", pickle.dumps({"segments": loop, "device_traces": [loop]}, protocol=4))
    write("pickle", "call", pickle.dumps({"segments": [ValueError("no")]}, protocol=2))
    write("snapshot", "whole", json.dumps(whole).encode())
    write("snapshot", "spaced", json.dumps({"segments": [], "device_traces": [trace[:3]]}, indent=1).encode())
    write("snapshot", "deep", b'{"segments":' * 90 + b"[" * 90 + b"]" * 90 + b"}" * 90)
    write("snapshot", "texts", json.dumps({"a\"\\/\b\n\u20ac\U0001f600": [1e9, -0.5, True, None, 2 ** 63]}).encode())


def rows():
    write("rows", "trace", b"time_us,thread,op,id,bytes\n# period 1\n0,1,a,1,4096\n5,2,a,2,100\n# period 2\n"
          b"9,1,f,1\n10,1,f,1,\n11,1,a,1,5\n12,2,f,9\n")
    write("rows", "plain", b"a 1 512\na 2 1048576\nf 1\na 1 7\nf 2\nf 3\n")
    write("rows", "rmm", b"Thread,Time,Action,Pointer,Size,Stream\n1,23:59:59:999999,allocate,0x7f0000000000,256,0\n"
          b"2,00:00:01.5,allocate failure,(nil),1024,0x1\n1,00:00:02:000001,free,0x7f0000000000,256,0\n"
          b"1,00:00:03,deallocate,nullptr,0,0x0\n")
    write("rows", "rmm-seconds", b"1,1700000000.123456,allocate,7f00,256,0\r\n1,1700000001.5,free,7f00,256,0\r\n")
    write("rows", "cut", b"0,1,a,1,4096\n1,1,f,1\n2,1,a,2,40\n3,1,")


def messages():
    magic = 0x3270656863617067

    def answer(offset=0, size=PAGE, pages=1, count=1, length=1, sent=None):
        content = struct.pack("<3Q4I", magic, offset, size, pages, count, length, 0)
        return bytes([len(content), count if sent is None else sent]) + content

    def request(token=1, address=PAGE, first=0):
        content = struct.pack("<4Q2I", magic, token, 2, address, first, 0)
        return bytes([len(content), 0]) + content
    write("ipc", "one-answer", bytes([2, 0]) + answer())
    write("ipc", "answers", bytes([2, 0]) + answer(512, 5 * PAGE, 6, 2, 2) + answer(512, 5 * PAGE, 6, 2, 1))
    write("ipc", "fewer-than-said", bytes([3, 0]) + answer(0, 8 * PAGE, 8, 8, 1, 3) + answer(0, 8 * PAGE, 8, 7, 1, 7))
    write("ipc", "refused", bytes([2, 3]) + answer(0, 4 * PAGE, 4, 2) + answer(0, 4 * PAGE, 4, 2))
    write("ipc", "no", bytes([2, 0]) + answer(0, 0, 0, 0, 0))
    write("ipc", "requests", bytes([1, 0, 3]) + request() + request(first=2) + request(first=9))
    write("ipc", "wrong-token", bytes([1, 0, 3]) + request(token=7))
    write("ipc", "other-user", bytes([1, 5, 16]) + request() + request())
    write("ipc", "handle-at-start", bytes([0, 0]) + bytes(56) + struct.pack("<Q", 0x6a << 56 | 4096))
    write("ipc", "handle", bytes([0, 0]) + bytes(range(56)) + struct.pack("<Q", 0x69 << 56 | 100 << 28 | 8))
    write("ipc", "handle-of-pages", bytes([4, 0]) + bytes(range(56)) + struct.pack("<Q", 0x6b << 56 | 77))


shutil.rmtree(os.path.join(here, "corpus"), ignore_errors=True)
with tempfile.TemporaryDirectory() as scratch:
    reports(scratch)
    traces(scratch)
pages()
patterns()
snapshots()
rows()
messages()
