#!/usr/bin/env python3
"""Replays files of every kind with `gpucache replay`, and refuses damaged files."""
import json
import lzma
import os
import pickle
import re
import shutil
import subprocess
import tempfile

from harness import LIBRARY, Tally, environment

tally = Tally()
BUILD = os.path.dirname(LIBRARY)
COMMAND = os.path.join(BUILD, "gpucache")
DEMO = os.path.join(BUILD, "tests", "demo", "demo")
MIB = 1 << 20
ROWS = "time_us,thread,op,id,bytes\n" + "".join(
    "%d,0,a,%d,%d\n%d,0,f,%d,\n" % (100 * i, i, (1 + i % 7) * MIB, 100 * i + 50, i) for i in range(200))
folder = tempfile.TemporaryDirectory()


def replay(*arguments, feed=None):
    return subprocess.run([COMMAND, "replay", *map(str, arguments)], env=environment(False), capture_output=True,
                          timeout=120, input=feed, stdin=None if feed is not None else subprocess.DEVNULL)


def file_of(name, content):
    path = os.path.join(folder.name, name)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())
    return path


def answers(*arguments, feed=None):
    done = replay("--format=json", *arguments, feed=feed)
    tally.check(done.returncode == 0, "replays: runs %s" % (arguments,), done.stderr.decode())
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


def refused(what, path, *words, options=(), status=1):
    done = replay(*options, path)
    said = done.stderr.decode()
    tally.check(done.returncode == status and said.count("\n") == 1 and said.startswith("gpucache: ") and
                all(word in said for word in words) and "Traceback" not in said,
                "replays: " + what, "%s %r" % (done.returncode, said))


# ---- rows, packed and not ----

def rows_packed():
    plain = answers("--backend=pages", file_of("plain", ROWS))[0]
    tally.check(plain["events"] == 400 and plain["requested_peak_bytes"] == 7 * MIB, "replays: rows", plain)
    for name, packed in (("xz", lzma.compress(ROWS.encode())), ("zst", None)):
        if packed is None:
            if not shutil.which("zstd"):
                print("skipped: there is no zstd to pack with")
                continue
            packed = subprocess.run(["zstd", "-q", "-c"], input=ROWS.encode(), capture_output=True, check=True).stdout
        path = file_of("packed." + name, packed)
        done = replay("--format=json", "--backend=pages", path)
        if b"built without" in done.stderr:
            print("skipped: gpucache was built without what reads " + name)
            continue
        again = json.loads(done.stdout)
        tally.check(again["rows"] == plain["rows"], "replays: packed by " + name, again)
        for count in (7, len(packed) // 2, len(packed) - 1):
            refused("cut off, packed by " + name, file_of("cut." + name, packed[:count]), "not whole")
        if name == "xz":
            lists = lzma.compress(b"\x80\x02" + b"]" * (6 << 20), preset=0)
            refused("millions of lists in a small file", file_of("lists", lists), "more memory than a file of its size")
            packer, part = lzma.LZMACompressor(preset=0), b"0" * (20 << 20)
            zeros = b"".join([packer.compress(part) for _ in range(21)] + [packer.flush()])
            refused("a small file that becomes large", file_of("zeros", zeros), "more than 256 MiB and 1024 times")
    from_pipe = answers("--backend=pages", "-", feed=ROWS.encode())[0]
    tally.check(from_pipe["rows"] == plain["rows"], "replays: the standard input", from_pipe)
    refused("packed by gzip", file_of("gz", b"\x1f\x8b\x08\x00"), "gzip -dc")


# ---- PyTorch's snapshots ----

def entry(action, address, size, time, **more):
    return dict(action=action, addr=address, size=size, stream=0, time_us=1_700_000_000_000_000 + time, frames=[], **more)


def snapshot():
    """Returns a snapshot of two devices. The trace of device 1 lacks its first events."""
    base = 0x7F2400000000
    first = [entry("segment_alloc", base, 20 * MIB, 0), entry("alloc", base, 8 * MIB, 1),
             entry("alloc", base + 8 * MIB, 4 * MIB, 2), entry("free_requested", base, 8 * MIB, 3),
             entry("free_completed", base, 8 * MIB, 4), entry("alloc", base, 6 * MIB, 5),
             dict(action="oom", device_free=5, size=90 * MIB, stream=0, time_us=9, frames=[]),
             dict(action="snapshot", addr=0, size=0, stream=0, time_us=9, frames=[])]
    second = [entry("free_completed", base + 99 * MIB, MIB, 0), entry("free_requested", base, 16 * MIB, 1),
              entry("free_completed", base, 16 * MIB, 2), entry("segment_free", base + 64 * MIB, 40 * MIB, 3),
              entry("alloc", base, 2 * MIB, 4)]

    def segment(device, blocks):
        return dict(device=device, address=base, total_size=20 * MIB, stream=0, is_expandable=device == 1, blocks=blocks)

    def block(size, state, **more):
        return dict(size=size, requested_size=size - 512, state=state, **more)

    segments = [segment(0, [block(6 * MIB, "active_allocated"), block(2 * MIB, "inactive"),
                            block(4 * MIB, "active_allocated"), block(8 * MIB, "inactive")]),
                segment(1, [block(2 * MIB, "active_allocated", address=base), block(MIB, "active_pending_free"),
                            block(3 * MIB, "active_allocated", address=base + 8 * MIB)])]
    return dict(segments=segments, device_traces=[first, second, []], allocator_settings={"x": [1.5, None, (True,)]},
                external_annotations=[])


def snapshots():
    for protocol in (2, 3, 4, 5):
        got = answers("--backend=pytorch", file_of("snapshot", pickle.dumps(snapshot(), protocol)))
        tally.check([one["device"] for one in got] == [0, 1], "replays: a history for each device", got)
        first, second = got
        tally.check(first["events"] == 4 and first["requested_peak_bytes"] == 12 * MIB and first["failures"] == 1 and
                    first["recorded_by"] == "PyTorch" and first["recorded_reserved_peak_bytes"] == 20 * MIB,
                    "replays: a snapshot of protocol %d" % protocol, first)
        # 16 MiB freed without an allocation and 3 MiB live without one existed before the trace
        tally.check(second["events"] == 4 and second["requested_peak_bytes"] == 19 * MIB - 512 and
                    "expandable" in second["recorded_by"] and second["recorded_reserved_peak_bytes"] == 60 * MIB and
                    second["unknown_frees"] == 0, "replays: a snapshot without its front", second)
        tally.check(first["rows"][0]["reserved_peak_bytes"] == 20 * MIB, "replays: PyTorch's own policy", first["rows"])
    of = snapshot()
    of["device_traces"][1].insert(0, entry("snapshot", 0, 0, 0))
    late = answers("--backend=pytorch", file_of("snapshot", pickle.dumps(of)))[1]
    tally.check(late["time_us"] == second["time_us"] == 4, "replays: the time of a first entry of another action", late)
    path = file_of("snapshot", pickle.dumps(snapshot(), 2))
    only = answers("--device=1", "--backend=pytorch", path)
    tally.check([one["device"] for one in only] == [1], "replays: one device", only)
    refused("no such device", path, "nothing of device 5", options=["--device=5"])
    text = replay("--backend=pages", "--device=0", path).stdout.decode()
    tally.check("PyTorch reserved 20.00 MiB when it was recorded: 1.667 times what was requested" in text,
                "replays: what PyTorch reserved", text)


def as_json():
    """Checks that a snapshot as JSON, compact and indented, is the same history."""
    pickled = answers("--backend=pytorch", file_of("snapshot", pickle.dumps(snapshot(), 2)))
    for options in ({"separators": (",", ":")}, {"indent": 1}):
        text = json.dumps(snapshot(), **options) + "\n"
        got = answers("--backend=pytorch", file_of("snapshot", text))
        tally.check(got == pickled, "replays: a snapshot as JSON", got)
    odd = dict(snapshot(), allocator_settings={"x": [1.5, -2e9, None, True, {}, [], 'a"b\\\\', float("nan"), 1 << 90]})
    tally.check(answers("--backend=pytorch", file_of("snapshot", json.dumps(odd))) == pickled, "replays: other values in JSON")
    whole = json.dumps(snapshot())
    for count in [1, 2, *range(3, len(whole), 97), len(whole) - 1]:
        refused("JSON cut off at %d" % count, file_of("p", whole[:count]), "broken JSON at byte", "it ends there")
    for what, text, words in (("more behind it", whole + "{}", "no JSON"), ("a comma too many", whole[:-1] + ",}", "no JSON"),
                              ("no colon", '{"segments" []}', "no JSON"), ("no snapshot", '{"a":1}', "no memory snapshot"),
                              ("a word", '{"a":nil}', "no JSON"), ("wrong bracket", '{"a":[1}}', "no JSON"),
                              ("deep brackets", '{"a":' + "[" * 10000, "too deep"),
                              ("a huge address", whole.replace('"addr": ', '"addr": 9' + "9" * 40, 1), "addr or size")):
        refused("JSON: " + what, file_of("p", text), words)


def as_snapshot(rows):
    sizes, entries = {}, []
    for row in rows.splitlines()[1:]:
        time, _, op, number, size = row.split(",")
        address = (1 << 40) + (int(number) << 32)
        if op == "a":
            sizes[address] = int(size)
        for action in ("alloc",) if op == "a" else ("free_requested", "free_completed"):
            entries.append(entry(action, address, sizes[address], int(time)))
    return pickle.dumps(dict(segments=[], device_traces=[entries]))


def as_rmm(rows):
    lines = ["Thread,Time,Action,Pointer,Size,Stream"]
    for row in rows.splitlines()[1:]:
        time, _, op, number, size = row.split(",")
        lines.append("7,00:00:%02d.%06d,%s,0x%x,%s,0x2" % (int(time) // 10**6, int(time) % 10**6,
                                                           "allocate" if op == "a" else "free", 4096 + int(number),
                                                           size or 0))
    return "\n".join(lines) + "\n"


def the_same_in_every_format():
    expected = answers(file_of("plain", ROWS))[0]["rows"]
    for what, content in (("a snapshot", as_snapshot(ROWS)), ("RMM's log", as_rmm(ROWS))):
        got = answers(file_of("same", content))[0]["rows"]
        tally.check(got == expected, "replays: the same as " + what, "%s\n%s" % (got, expected))


class Caller:
    def __reduce__(self):
        return os.system, ("touch " + folder.name + "/called",)


def bad_snapshots():
    refused("code is refused", file_of("p", pickle.dumps(dict(snapshot(), segments=Caller()))), "refused")
    tally.check(not os.path.exists(folder.name + "/called"), "replays: no code ran")
    refused("protocol 0", file_of("p", pickle.dumps(snapshot(), 0)), "no known format")
    refused("a zip", file_of("p", b"PK\x03\x04"), "no pickle")
    refused("another pickle", file_of("p", pickle.dumps({"a": 1})), "no memory snapshot")
    refused("a list", file_of("p", pickle.dumps([1, 2])), "no memory snapshot")
    whole = pickle.dumps(snapshot(), 4)
    for count in range(2, len(whole), 97):
        refused("cut off at %d" % count, file_of("p", whole[:count]), "at byte", "it ends there")

    def changed(what, *words, **fields):
        of = snapshot()
        of["device_traces"][0][1].update(fields)
        refused(what, file_of("p", pickle.dumps(of)), *words)

    changed("a huge address", "number 1", addr=1 << 200)
    changed("a huge size", "addr or size", size=1 << 48)
    changed("a negative size", "addr or size", size=-1)
    changed("a size of another kind", "addr or size", size="12")
    changed("an action of another kind", "without an action", action=7)
    of = snapshot()
    of["segments"][0]["blocks"] = [7]
    refused("a block of another kind", file_of("p", pickle.dumps(of)), "without a size")
    of = snapshot()
    of["device_traces"][0] = of["device_traces"][0] * 2000  # one list, pickled by reference
    of["device_traces"] = [of["device_traces"][0]] * 60
    refused("the same again and again", file_of("p", pickle.dumps(of)), "again and again")
    itself = []
    itself.append(itself)
    refused("a list in itself", file_of("p", pickle.dumps(dict(snapshot(), device_traces=itself))), "")
    deep = b"\x80\x02" + b"]" * 1000000 + b"a" * 999999 + b"."
    refused("a million lists", file_of("p", deep), "no memory snapshot")


# ---- settings ----

def settings():
    path = file_of("plain", ROWS)
    rows = answers("--backend=segments,pages,whole", "--budget=auto,1G", "--delay=0,0.5", "--reuse", "barrier,sync",
                   path)[0]["rows"]
    tally.check(len(rows) == 2 * 2 * 2 * 2 + 1, "replays: every setting of the lists", len(rows))
    tally.check(rows[1]["delay_us"] == 500 and rows[2]["budget_bytes"] == 1 << 30 and rows[4]["reuse"] == "sync",
                "replays: in their order", rows)
    helped = re.search(r"other allocators: ([^(]*)\(", re.sub(r"\s+", " ", replay("--help").stdout.decode())).group(1)
    words = helped.strip().split(", ")
    names = [answers("--backend=" + word, "--delay=0", path)[0]["rows"][0]["name"] for word in words]
    every = answers("--delay=0", path)[0]["rows"]
    tally.check([row["name"] for row in every] == names and ", ".join(words) in replay("--backend=cats", path).stderr.decode(),
                "replays: the backends of the help, without --backend", (words, names, every))
    delays = [row["delay_us"] for row in answers("--backend=segments", path)[0]["rows"]]
    tally.check(delays == [0, 500, 2000, 20000], "replays: the delays of the help, without --delay", delays)
    again = answers("--backend=segments,pages,whole", "--budget=auto,1G", "--delay=0,0.5", "--reuse", "barrier,sync",
                    path)[0]["rows"]
    tally.check(again == rows, "replays: the same twice", again)
    many = answers("--backend=segments", "--delay=" + ",".join(str(i) for i in range(32)), path)[0]["rows"]
    tally.check(len(many) == 32, "replays: 32 delays", len(many))
    limited = answers("--backend=pages,pytorch", "--limit=6M,none", "--delay=0", path)[0]["rows"]
    tally.check([row["out_of_memory"] for row in limited] == [True, False, True, False], "replays: limits", limited)
    small = answers("--backend=pages,pytorch,whole", "--memory=6M", "--limit=8M,none", "--delay=0", path)[0]["rows"]
    tally.check([row["out_of_memory"] for row in small] == [True] * 6, "replays: the device's memory bounds models too", small)
    tally.check("out of memory at event 13, with 0 B requested" in
                replay("--backend=pages", "--limit=6M", "--delay=0", path).stdout.decode(), "replays: where it ran out")
    periods = answers("--backend=pages", "--delay=0", "--periods=4", path)[0]
    tally.check(periods["periods"] == 4 and len(periods["rows"][0]["pages_mapped_by_period"]) == 4,
                "replays: periods", periods)
    marked = file_of("marked", ROWS + "# period\n30000,0,a,999,5\n")
    tally.check(answers("--backend=pages", "--delay=0", "--periods=4", marked)[0]["periods"] == 4 and
                answers("--backend=pages", "--delay=0", marked)[0]["periods"] == 1, "replays: instead of marked periods")
    table = replay("--backend=pages,pytorch", path, file_of("other", ROWS)).stdout.decode().splitlines()
    tally.check([line.split()[0] for line in table[2:]] == [path, "PyTorch", folder.name + "/other", "PyTorch"] and
                len(table[2].split()) == 2 + 4 + 4, "replays: several files, one table", table)
    of = replay("--backend=pages", "--delay=0", path, file_of("snapshot", pickle.dumps(snapshot(), 2))).stdout.decode().splitlines()
    tally.check("  reserved over requested  mapped, % of live" in of[0] and of[1].endswith(" ms") and
                [line.split("  ")[0] for line in of[2:]] == [path] + [folder.name + "/snapshot, device %d" % i for i in (0, 1)] and
                len({len(line) for line in of[2:]}) == 1, "replays: a table of devices, with one delay", of)
    tiny = file_of("tiny", "0,0,a,1,300\n1,0,f,1\n")
    wide = replay("--backend=pages", path, tiny).stdout.decode().splitlines()[3]
    tally.check(re.search(r"pages( +\d{4,}){4} ", wide), "replays: large ratios", wide)
    each = replay("--each", "--backend=pages", path, path).stdout.decode()
    tally.check(each.count("400 events") == 2, "replays: several files, one by one", each)


def no_budget():
    """Checks that a budget of 0 is not the automatic one: barriers come before growth."""
    path = file_of("plain", ROWS)
    rows = answers("--backend=segments", "--budget=auto,0,1G", "--delay=20", path)[0]["rows"]
    tally.check([row["name"] for row in rows] == ["segments", "segments, budget 0 B", "segments, budget 1.00 GiB"],
                "replays: a budget of 0", [row["name"] for row in rows])
    tally.check([row["budget_bytes"] for row in rows] == [None, 0, 1 << 30], "replays: budgets as JSON", rows)
    tally.check(rows[1]["reserved_peak_bytes"] < rows[2]["reserved_peak_bytes"] and rows[1]["barriers"] > rows[2]["barriers"],
                "replays: what a budget of 0 does", rows)


def decays():
    path = file_of("pause", "0,0,a,1,67108864\n1000,0,f,1\n20000000,0,a,2,20971520\n20000001,0,a,3,16777216\n")
    for options, least in (([], False), (["--decay=never"], True), (["--decay=30000"], True), (["--decay=0"], False)):
        for row in answers("--backend=segments,pages", "--delay=0", *options, path)[0]["rows"]:
            calls = row["driver_calls"]
            never = answers("--backend=" + row["backend"], "--delay=0", "--decay=never", path)[0]["rows"][0]["driver_calls"]
            tally.check((calls == never) == least, "replays: idle memory of %s: %s" % (row["backend"], options), (calls, never))


def wrong_arguments():
    path = file_of("plain", ROWS)
    for option, word in (("--backend=pages,cats", "cudamalloc"), ("--backend=", "segments"), ("--delay=-1", "milliseconds"),
                         ("--delay=1,,2", "milliseconds"), ("--limit=lots", "8G"), ("--budget=00", "auto"), ("--limit=0", "none"),
                         ("--periods=x", "a number up to 1000000"), ("--device=64", "0 to 63"), ("--format=xml", "json"),
                         ("--memory=64T", "32T"), ("--decay=soon", "or never"), ("--decay=-1", "or never"),
                         ("--cats", "wanted is --backend"), ("--delays=1", "wanted is --backend"),
                         ("--delay=" + ",".join("1" * 33), "up to 32 milliseconds")):
        refused(option, path, word, options=[option], status=125)
    refused("1025 settings", path, "more than 1024 settings", status=125,
            options=["--backend=pages", "--reuse=" + ",".join(["wait"] * 32), "--budget=" + ",".join(["1G"] * 32), "--limit=1G,2G"])
    done = replay()
    tally.check(done.returncode == 125 and b"wanted is a file" in done.stderr, "replays: no file", done.stderr)
    refused("no such file", "/no/such/file", "No such file")
    refused("a folder", folder.name, "directory")
    both = replay("--backend=pages", path, "/no/such/file")
    tally.check(both.returncode == 1 and b"400 events" in both.stdout, "replays: one of two files", both.stdout)


# ---- the library's own traces ----

def little_host_memory():
    """Checks that a process that lacks host memory shows no row as finished."""
    rows = "".join("%d,0,a,%d,%d\n" % (i, i, 512 * (i % 50 + 1)) for i in range(1, 100001))
    path = file_of("many.csv", rows)
    words = ["replay", "--backend=pytorch", path]
    whole = subprocess.run([COMMAND, *words], capture_output=True, text=True, env=environment(False), timeout=120)
    for kib in range(20000, 50000, 2000):
        limited = ["sh", "-c", 'ulimit -v %d; exec "$0" "$@"' % kib, COMMAND, *words]
        ran = subprocess.run(limited, capture_output=True, text=True, env=environment(False), timeout=120)
        tally.check(ran.returncode != 0 or ran.stdout == whole.stdout, "replay: %d KiB of host memory" % kib, ran.stdout + ran.stderr)


def own_trace():
    trace, report = folder.name + "/trace", folder.name + "/report"
    subprocess.run([COMMAND, "run", DEMO], capture_output=True, timeout=120, stdin=subprocess.DEVNULL, check=True,
                   env=environment(False, {"GPUCACHE_TRACE": trace, "GPUCACHE_REPORT": report,
                                           "GPUCACHE_REPORT_FORMAT": "json"}))
    if not os.path.exists(trace):
        print("skipped: the library writes no traces yet")
        return
    with open(report) as file:
        told = json.load(file)["devices"][0]
    got = answers("--backend=segments", trace)[0]
    tally.check(got["requested_peak_bytes"] == told["requested_bytes"]["peak"] and
                got["recorded_reserved_peak_bytes"] == told["reserved_bytes"]["peak"] and
                got["events"] == 2 * told["allocations"]["total"] and got["unknown_frees"] == 0,
                "replays: a trace says what the report says", "%s\n%s" % (got, told))
    with open(trace, "rb") as file:
        packed = file_of("packed", lzma.compress(file.read()))
        if b"built without" not in replay(packed).stderr:
            refused("a packed trace", packed, "(a file, not packed, not -)")
    for options in ([], ["--json"]):
        made = subprocess.run([COMMAND, "snapshot", *options, trace], env=environment(False), capture_output=True, timeout=120)
        of = answers("--backend=segments", file_of("own", made.stdout))[0]
        tally.check(of["recorded_by"] == "the library" == got["recorded_by"] and
                    of["recorded_reserved_peak_bytes"] == got["recorded_reserved_peak_bytes"] and
                    of["events"] == got["events"], "replays: the library's own snapshot %s" % options, "%s\n%s" % (of, got))


def main():
    with folder:
        own_trace()
        rows_packed()
        snapshots()
        the_same_in_every_format()
        bad_snapshots()
        as_json()
        settings()
        no_budget()
        decays()
        wrong_arguments()
        little_host_memory()


tally.run(main)
