#!/usr/bin/env python3
"""Runs `report`, `ctl`, `top` and `metrics` on running processes."""
import glob
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from harness import LIBRARY, Tally, environment
from report_live_page import LIVE, MIB, OFF, COMMAND, Place, Program, eventually

tally = Tally()


def told(place, *arguments):
    """Returns the tool's answer while the programs wait for their next commands."""
    return place.tool(*map(str, arguments))


# ---- report ----

def reports_again():
    """Checks that reports from a file and from the live page equal the library's own report."""
    place = Place()
    with tempfile.TemporaryDirectory() as folder:
        for format in ("json", "text"):
            one = Program(place, {"GPUCACHE_REPORT": folder + "/" + format, "GPUCACHE_REPORT_FORMAT": format,
                                  "RANK": "3", "WORLD_SIZE": "4", "GPUCACHE_MEMORY_LIMIT": "2G"})
            for order in ("allocate 3000000", "allocate 700", "free", "allocate 99999999999", "sync"):
                one.do(order)
            if format == "json":
                page = json.loads(told(place, "report", "--format=json", one.pid).stdout)
            one.end("exit", 7)
        names = sorted(os.listdir(folder))
        tally.check(names == ["json", "json.1", "text", "text.1"], "processes: the library's reports", names)
        written = [json.loads(open(os.path.join(folder, name)).read()) for name in ("json", "json.1")]
        for name, report in zip(("json", "json.1"), written):
            again = json.loads(place.tool("report", "--format=json", os.path.join(folder, name)).stdout)
            tally.check(again == report, "processes: JSON again", "%s\n%s" % (report, again))
        for old, new in (("text", "json"), ("text.1", "json.1")):
            text = open(os.path.join(folder, old)).read()
            again = place.tool("report", os.path.join(folder, new)).stdout
            # of two processes, whose threads may have made more or less of what the library needs for itself, and
            # whose numbers may differ in length
            plain = lambda s: re.sub(r"(?m)after [\d.]+ s +\||pid \d+,|\([\d.]+ s\)|host memory .* +\|| +(?=\|$)", "", s)
            tally.check("host memory %.2f MiB" % (json.load(open(os.path.join(folder, new)))["host_bytes"] / MIB) in again,
                        "processes: host memory from JSON", again)
            tally.check(plain(text) == plain(again), "processes: text from JSON",
                        "\n".join(set(plain(text).splitlines()) ^ set(plain(again).splitlines())))
        last = written[1]["devices"][0]
        last.pop("live"), page["devices"][0].pop("live")
        tally.check(last == page["devices"][0], "processes: the page says what the report said",
                    "%s\n%s" % (last, page["devices"][0]))
        done = place.tool("report", os.path.join(folder, "text"))
        tally.check(done.returncode == 1 and "holds no report of the library as JSON" in done.stderr,
                    "processes: a text report is no JSON", done.stderr)
        for rank, leak in ((0, 0), (1, 0), (2, 0), (3, 500 * MIB)):
            report = json.loads(json.dumps(written[1]))
            report["rank"] = rank
            report["devices"][0]["requested_bytes"]["peak"] = 1000 * MIB + rank + leak
            with open(folder + "/rank%d" % rank, "w") as file:
                file.write("noise\n" + json.dumps(report) + "\n")
        table = place.tool("report", *[folder + "/rank%d" % r for r in (2, 0, 3, 1)])
        rows = table.stdout.splitlines()
        tally.check(table.returncode == 0 and [r.split()[0] for r in rows[1:5]] == ["0", "1", "2", "3"],
                    "processes: ranks in their order", table.stdout + table.stderr)
        tally.check([line.count("*") for line in rows[1:5]] == [0, 0, 0, 1] and "1.46 GiB*" in rows[4],
                    "processes: the rank that is apart is marked", table.stdout)
        report["rank"], report["time_unix"] = 2, report["time_unix"] + 5
        report["devices"][0]["requested_bytes"]["peak"] = 1001 * MIB
        with open(folder + "/rank2.1", "w") as file:
            file.write(json.dumps(report) + "\n")
        table = place.tool("report", *[folder + "/rank" + r for r in ("2.1", "0", "1", "2", "3")])
        rows = table.stdout.splitlines()
        tally.check([r.split()[0] for r in rows[1:5]] == ["0", "1", "2", "3"] and "1001.0 MiB" in rows[3] and
                    "1 earlier report of the same processes is left out" in table.stderr,
                    "processes: the newest report of each process", table.stdout + table.stderr)
        both = place.tool("report", "--compare", folder + "/rank0", folder + "/rank3").stdout
        tally.check(re.search(r"Requested memory, peak +1000.0 MiB +1.46 GiB +\+500.00 MiB +x 1.50", both),
                    "processes: two side by side", both)
        tally.check("too small" not in both + table.stdout, "processes: exact peaks", both)
        report["devices"][0].update(peaks_exact=False, peak_error_bytes=5 * MIB, cpu_wait_seconds=1.5)

        def written_as(name, rank, *devices):
            many = [dict(report["devices"][0], device=device) for device in devices]
            with open(folder + "/" + name, "w") as file:
                file.write(json.dumps(dict(report, rank=rank, devices=many)) + "\n")
            return file.name

        job = [written_as("job%d" % rank, rank, rank) for rank in (0, 1)]
        both = place.tool("report", "--compare", folder + "/rank0", job[1]).stdout
        tally.check("memory may be up to 5.00 MiB too small\n" in both, "processes: two side by side: lower bounds", both)
        tally.check(re.search(r"\ncpu_wait_seconds +[\d.]+ +1.500 ", both), "processes: two side by side: seconds", both)
        tally.check(re.search(r"\ndevice 0: .*, and device 1: .*\n", both), "processes: two ranks side by side", both)
        table = place.tool("report", *job).stdout
        tally.check("PEAK may be up to 5.00 MiB too small\n" in table, "processes: lower bounds in the table", table)
        both = place.tool("report", "--compare", written_as("a", 0, 0, 1), written_as("b", 0, 1, 2)).stdout
        tally.check(re.search(r"\ndevice 0: .*: only before\ndevice 2: .*: only after\n", both) and
                    both.count("device 1: ") == 1, "processes: devices of one side only", both)
        with open(folder + "/long", "w") as file:
            json.dump(report, file, indent=2)
        said = place.tool("report", file.name).stderr
        tally.check("as JSON in one line" in said and "jq -c ." in said, "processes: a report over several lines", said)


def broken_files():
    place = Place()
    cases = ["", "{", '{"schema":"gpucache-report/1"', '{"schema":"gpucache-report/2"}', "[" * 100000, '{"a":' + "[" * 1000000, '{"a":"\\u12',
             '{"schema":"gpucache-report/1","devices":[{"device":', "nonsense", "\x00{}", '{"schema":7}', "{}" * 9]
    for text in cases:
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            done = place.tool("report", file.name)
            words = "a report in it is not whole" if "report/1" in text else "holds no report"
            tally.check(done.returncode == 1 and words in done.stderr and not done.stdout,
                        "processes: a broken file: %r" % text[:40], "%s %s" % (done.returncode, done.stderr))
    whole = '{"schema":"gpucache-report/1","pid":1,"devices":[{"device":0}]}\n'
    for text in (whole + whole[:40], whole + whole[:5], whole[:40] + "\n" + whole, whole[:40] + whole + whole):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            done = place.tool("report", "--format=json", file.name)
            tally.check(done.returncode == 1 and done.stdout.count('"pid":1,') == 1 and
                        done.stderr == "gpucache: %s: a report in it is not whole\n" % file.name,
                        "processes: a whole report and a cut one: %r" % text, "%s %s" % (done.returncode, done.stderr))
    with tempfile.NamedTemporaryFile("w") as file:  # the right schema, but wrong contents
        file.write('{"schema":"gpucache-report/1","devices":[{"device":"x","live":3,"size_classes":[1,{"upper_bytes":-1}]},7],'
                   '"command":[1,{}],"oom":{"verdict":[[]]},"pid":"x","reason":null}\n')
        file.flush()
        tally.check(place.tool("report", file.name).returncode == 0, "processes: a report of another shape")
    with tempfile.NamedTemporaryFile("w") as file:  # device numbers that no machine has, in a wrong order
        for pid, device in ((1, 2147483647), (2, -2147483648)):
            file.write('{"schema":"gpucache-report/1","pid":%d,"devices":[{"device":%d}]}\n' % (pid, device))
        file.flush()
        rows = [row.split()[1] for row in place.tool("report", file.name).stdout.splitlines()[1:3]]
        tally.check(rows == ["2", "1"], "processes: the order of devices", rows)
    for seconds in ("null", "true", "[1]", "{}", '"x"'):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write('{"schema":"gpucache-report/1","stacks":{},"devices":[{"holders":[{"byte_seconds":%s}]}]}\n' % seconds)
            file.flush()
            done = place.tool("report", file.name)
            tally.check(done.returncode == 0, "processes: a holder's byte_seconds is %s" % seconds, "%s %s" % (done.returncode, done.stderr))
    with tempfile.TemporaryDirectory() as folder:  # a FIFO that nobody writes to
        os.mkfifo(folder + "/pipe")
        with open(folder + "/report", "w") as file:
            file.write('{"schema":"gpucache-report/1","stacks":{},"devices":[{"holders":[{"frames":[{"module":"%s/pipe","offset":16}]}]}]}\n' % folder)
        try:
            tally.check(place.tool("report", file.name).returncode == 0, "processes: a stack in a pipe")
        except subprocess.TimeoutExpired:
            tally.check(False, "processes: a stack in a pipe: hangs")
    cap = lambda: resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
    done = place.tool("report", "/dev/zero", preexec_fn=cap)
    tally.check(done.returncode == 1 and "/dev/zero: File too large" in done.stderr, "processes: a file without an end", done.stderr)
    tally.check("No such file" in place.tool("report", "/no/such/file").stderr, "processes: no such file")
    said = place.tool("report", str(os.getpid())).stderr
    tally.check("no process of yours" in said and "or it has GPUCACHE_LIVE=off" in said, "processes: no such process", said)


def cut_short():
    """Checks a page whose file is truncated while a tool has it mapped."""
    place, other = Place(), Place()
    one = Program(place)
    name = place.pages()[0]
    os.mkdir(os.path.dirname(other.path(name)), 0o700)
    read = lambda path: open(path, "rb").read()
    for arguments in (("report", str(one.pid)), ("top", "--once"), ("metrics",)):
        shutil.copy(place.path(name), other.path(name))  # a copy: the program itself would crash
        before = read(other.path(name))
        child = subprocess.Popen([COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                 env={**environment(False), **other.options})
        eventually(lambda: read(other.path(name)) != before or child.poll() is not None)  # the tool has asked, and waits
        os.truncate(other.path(name), 0)
        said = child.communicate(timeout=60)[1]
        tally.check(child.returncode >= 0, "processes: a page is cut short during %s" % arguments[0], "%s %s" % (child.returncode, said))
    one.end()


# ---- ctl ----

def waiting(place, one, *arguments):
    """Starts gpucache ctl for a stopped program, and returns when it prints what it waits for."""
    child = subprocess.Popen([COMMAND, "ctl", "--timeout=600", str(one.pid), *arguments], stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True, env={**environment(False), **place.options})
    said = child.stderr.readline()
    tally.check("waiting: it is stopped, by SIGSTOP" in said, "processes: a program that is stopped", said)
    return child


def given_up(place, one, get):
    """Checks commands to a stopped program: the tool gives up after its time limit, or waits."""
    os.kill(one.pid, signal.SIGSTOP)
    done = told(place, "ctl", "--timeout=0.3", one.pid, "limit", "1G")
    tally.check(done.returncode == 124 and "it is stopped, by SIGSTOP or a debugger; nothing was done" in done.stderr and
                done.stderr.count("\n") == 1, "processes: it is said to be stopped", done.stderr)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        child = waiting(place, one, "limit", "1G")
        child.send_signal(number)
        tally.check(child.wait(timeout=60) == -number, "processes: an order is interrupted", child.returncode)
        child.stderr.close()
    child = waiting(place, one, "empty-cache")
    os.kill(one.pid, signal.SIGCONT)
    tally.check(child.wait(timeout=60) == 0 and get()["limit_bytes"] is None,
                "processes: an order after others that were interrupted, and one whose giver was killed", child.stderr.read())
    child.stderr.close()


def two_orders():
    """Checks that an order is not placed while the process executes an earlier one."""
    place = Place()
    one = Program(place, {"GPUCACHE_SIM_SWITCH": "100", "GPUCACHE_SIM_SWITCH_US": "20000"})  # calls of the driver take long
    for order in ["allocate 50000000"] * 8 + ["free"] * 8:
        one.do(order)
    child = subprocess.Popen([COMMAND, "ctl", str(one.pid), "empty-cache"], stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL, env={**environment(False), **place.options})
    begun = eventually(lambda: "empty cache" in place.tool("report", str(one.pid)).stdout)
    os.kill(one.pid, signal.SIGSTOP)
    child.terminate()
    child.wait(timeout=60)
    done = told(place, "ctl", "--timeout=0.3", one.pid, "limit", "1G")
    tally.check(begun and done.returncode == 124 and "an earlier order is still under way; nothing was done" in done.stderr,
                "processes: an order after one that is under way", done.stderr)
    os.kill(one.pid, signal.SIGCONT)
    done = told(place, "ctl", one.pid, "reset-peak")
    tally.check(done.returncode == 0 and one.report()["devices"][0]["limit_bytes"] is None,
                "processes: an order that was not placed is not executed", done.stderr)
    one.end()


def at_work():
    """Checks commands to a program that only allocates and frees."""
    place = Place()
    one = Program(place)
    one.send("quiet 1000000000")
    for arguments in (("limit", "1G"), ("reset-peak",), ("empty-cache",)):
        done = told(place, "ctl", one.pid, *arguments)
        tally.check(done.returncode == 0, "processes: %s while a program allocates" % arguments[0], done.stderr)
    tally.check(one.report()["devices"][0]["limit_bytes"] == 1 << 30, "processes: the limit of a program that allocates")
    one.child.kill()
    one.end()


def last_words():
    """Checks that an ending program completes the command under way first."""
    place = Place()
    slow = {"GPUCACHE_SIM_SWITCH": "100", "GPUCACHE_SIM_SWITCH_US": "20000"}  # calls of the driver take long
    for order, status in (("exit", 7), ("_exit", 8), ("exec /bin/true", 0)):
        one = Program(place, slow)
        for _ in range(4):
            one.do("allocate 50000000")
        for _ in range(4):
            one.do("free")
        child = subprocess.Popen([COMMAND, "ctl", str(one.pid), "empty-cache"], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE, text=True, env={**environment(False), **place.options})
        begun = eventually(lambda: "empty cache" in place.tool("report", str(one.pid)).stdout)
        one.end(order, status)
        err = child.communicate(timeout=60)[1]
        tally.check(begun and child.returncode == 0, "processes: a command during %s" % order, err)


def orders():
    place = Place()
    with tempfile.TemporaryDirectory() as folder:
        one = Program(place, {"GPUCACHE_REPORT": folder + "/%n", "GPUCACHE_REPORT_FORMAT": "json"})
        for order in ("allocate 50000000", "free", "sync"):
            one.do(order)
        get = lambda: one.report()["devices"][0]
        before = get()
        tally.check(before["reserved_bytes"]["current"] > 50000000 and before["requested_bytes"]["peak"] > 50000000,
                    "processes: before an order", before)
        done = told(place, "ctl", one.pid, "empty-cache")
        tally.check(done.returncode == 0 and "given idle memory back" in done.stdout and
                    get()["reserved_bytes"]["current"] < 5000000, "processes: empty-cache", done.stderr)
        told(place, "ctl", one.pid, "reset-peak")
        tally.check(get()["requested_bytes"]["peak"] < 5000000, "processes: reset-peak", get())
        told(place, "ctl", "--device=0", one.pid, "limit", "64M")
        tally.check((get()["limit_bytes"], get()["limit_source"]) == (64 * MIB, "gpucache_set_memory_limit"), "processes: limit", get())
        tally.check("| The limit comes from gpucache_set_memory_limit " in place.tool("report", str(one.pid)).stdout,
                    "processes: where the limit comes from", place.tool("report", str(one.pid)).stdout)
        said = one.do("allocate 100000000")
        tally.check(said == ["allocate 2"], "processes: the limit holds", said)
        done = told(place, "ctl", one.pid, "limit", "none")
        tally.check(get()["limit_bytes"] is None is get()["limit_source"] and one.do("allocate 100000000") == ["allocate 0"],
                    "processes: no limit", get())
        tally.check("holds" not in done.stdout, "processes: without a limit nothing is beyond it", done.stdout)
        done = told(place, "ctl", one.pid, "limit", "64M")
        tally.check(re.search(r"holds 95\.\d+ MiB on GPU 0, more than the limit", done.stdout),
                    "processes: ctl says what exceeds a new limit", done.stdout)
        told(place, "ctl", one.pid, "limit", "none")
        reports = len(os.listdir(folder))
        done = told(place, "ctl", one.pid, "report")
        written = sorted(os.listdir(folder), key=int)
        tally.check(done.returncode == 0 and len(written) == reports + 1 and
                    json.load(open(folder + "/" + written[-1]))["reason"] == "request", "processes: report", written)
        events = place.tool("report", "--events=100", str(one.pid)).stdout
        for words in ("empty cache", "reset peak", "limit set +64.00 MiB", "report ordered", "give back"):
            tally.check(re.search(words, events), "processes: the flight recorder knows: " + words, events)
        done = told(place, "ctl", "--device=1", one.pid, "empty-cache")
        tally.check(done.returncode == 1 and "has not used that device" in done.stderr, "processes: another device", done.stderr)
        one.do("capture on")  # a capture forbids releases
        done = told(place, "ctl", one.pid, "limit", "1G")
        tally.check(done.returncode == 0 and get()["limit_bytes"] == 1 << 30, "processes: a limit in a capture", done.stderr)
        told(place, "ctl", one.pid, "limit", "none")
        emptied = place.tool("report", "--events=100", str(one.pid)).stdout.count("empty cache")
        done = told(place, "ctl", "--timeout=0.3", one.pid, "empty-cache")
        one.do("capture off")
        tally.check(done.returncode == 124 and "a stream is being captured; nothing was done" in done.stderr,
                    "processes: not in a capture", done.stderr)
        told(place, "ctl", one.pid, "reset-peak")
        again = place.tool("report", "--events=100", str(one.pid)).stdout.count("empty cache")
        tally.check(again == emptied, "processes: an order that was given up is not carried out later", again)
        given_up(place, one, get)
        children = [subprocess.Popen([COMMAND, "ctl", str(one.pid), "limit", "%dG" % i], stdout=subprocess.DEVNULL,
                                     env={**environment(False), **place.options}) for i in range(2, 8)]
        tally.check(all(child.wait(timeout=60) == 0 for child in children), "processes: several orders at once")
        one.end("exit", 7)
    off = Program(place)
    done = told(place, "ctl", off.pid, "report")
    tally.check(done.returncode == 1 and "reports are switched off" in done.stderr, "processes: no reports there", done.stderr)
    off.end()
    for arguments, words in (((), "process number"), (("x", "report"), "process number"), (("1",), "empty-cache"),
                             (("1", "sing"), "empty-cache"), (("1", "limit"), "a size"), (("1", "limit", "x"), "a size"),
                             (("1", "report", "2"), "too many"), (("--device=x", "1", "report"), "--device"),
                             (("--device=1", "1", "report"), "wanted with it is empty-cache, reset-peak or limit"),
                             ((str(os.getpid()), "report"), "no process of yours"),
                             ((str(os.getpid()), "report"), "or it has GPUCACHE_LIVE=off")):
        done = place.tool("ctl", *arguments)
        tally.check(done.returncode in (1, 125) and words in done.stderr, "processes: ctl %s" % " ".join(arguments), done.stderr)


# ---- run --max-peak ----

def judged(place, orders, most="64M", program=(LIVE,), options=None, option="--max-peak"):
    done = subprocess.run([COMMAND, "run", option, most, "--", *program], capture_output=True,
                          input="".join(order + "\n" for order in orders), text=True, timeout=60,
                          env={**environment(False, {**OFF, **(options or {})}), **place.options,
                               "TMPDIR": place.folder.name})
    left = [name for name in os.listdir(place.folder.name) if "peaks" in name]
    tally.check(not left, "processes: nothing is left of --max-peak", left)
    return done.returncode, done.stderr


def killed():
    """Checks that a peak of the live page survives SIGKILL."""
    place = Place()
    child = subprocess.Popen([COMMAND, "run", "--max-peak=64M", "--", LIVE], stdin=subprocess.PIPE, text=True,
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                             env={**environment(False, OFF), **place.options})
    child.stdin.write("allocate 100000000\n")
    child.stdin.flush()
    peak = lambda: any(device["requested_bytes"]["peak"] >= 100000000 for name in place.pages()
                       for device in (place.report(int(name.split("-")[0])) or {"devices": []})["devices"])
    seen = eventually(peak)
    child.stdin.write("kill\n")
    child.stdin.flush()
    err = child.communicate(timeout=60)[1]
    tally.check(seen and child.returncode == -signal.SIGKILL and "is above 64.00 MiB" in err,
                "processes: --max-peak, SIGKILL", "%s %s" % (child.returncode, err))


def no_process():
    """Checks that nothing is left if the program cannot be started."""
    user = 65534 if os.getuid() == 0 else None  # the kernel does not bound the processes of root
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        env = {**environment(False, OFF), "TMPDIR": folder}
        command = [COMMAND, "run", "--max-peak=1G", "--", "true"]
        if subprocess.run(command, user=user, group=user, capture_output=True, env=env).returncode != 122:
            tally.note("user %s cannot run the command from its folder" % user)
            return
        done = subprocess.run(command, user=user, group=user, capture_output=True, text=True, env=env,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (0, 0)))
        tally.check(done.returncode == 125 and "unavailable" in done.stderr and os.listdir(folder) == [],
                    "processes: --max-peak without a process", "%s %s" % (done, os.listdir(folder)))


def peaks():
    killed()
    no_process()
    place = Place()
    shell = ("sh", "-c", '"$0"; exit 0', LIVE)
    tally.check(judged(place, ["allocate 60000000", "free"]) == (0, ""), "processes: a peak below --max-peak")
    for what, orders, status, more in (
            ("exit", ["allocate 100000000", "free"], 123, {}),
            ("_exit", ["allocate 100000000", "free", "_exit"], 8, {}),
            ("small blocks", ["allocate 1000000"] * 70, 123, {}),
            ("exec", ["allocate 100000000", "exec /bin/true"], 123, {}),
            ("SIGABRT", ["allocate 100000000", "abort"], -signal.SIGABRT,
             {"options": {"GPUCACHE_REPORT": "/dev/null", "GPUCACHE_LIVE": "off"}}),
            ("no page", ["allocate 100000000", "free"], 123, {"options": {"GPUCACHE_LIVE": "off"}}),
            ("no pool", ["allocate 100000000", "free"], 123, {"options": {"GPUCACHE_DISABLE": "1"}}),
            ("a child's", ["allocate 100000000"], 123, {"program": shell}),
            ("vfork", ["allocate 100000000", "vfork", "exit"], 7, {})):
        got, err = judged(place, orders, **more)
        tally.check(got == status and re.search(r"peak on device 0, \S+ MiB \(\d+ bytes\), is above 64.00 MiB", err),
                    "processes: --max-peak, %s" % what, "%s %s" % (got, err))
    for script, option, status in (("exit 0", "--max-peak", 122), ("exit 6", "--max-peak", 6),
                                   ("exit 0", "--max-peak-or-none", 0), ("exit 6", "--max-peak-or-none", 6)):
        got, err = judged(place, [], program=("sh", "-c", script), option=option)
        tally.check(got == status and err.count("\n") == 1 and "no process used CUDA" in err and
                    ("--max-peak-or-none lets that pass" in err) == (status == 122),
                    "processes: %s of nothing, %s" % (option, script), "%s %s" % (got, err))
    tally.check(judged(place, ["allocate 100000000"], option="--max-peak-or-none")[0] == 123, "processes: --max-peak-or-none judges")
    tally.check(judged(place, ["allocate 100"], option="--max-peak-or-none") == (0, ""), "processes: --max-peak-or-none")
    tally.check(judged(place, [], program=("/no/such/program",))[0] == 127, "processes: --max-peak of no program")
    for wrong in ("x", "0", ""):
        tally.check(judged(place, [], most=wrong)[0] == 125, "processes: --max-peak '%s'" % wrong)
    # gpucache stays as the parent: it forwards signals, and ends with the program's status
    for number, script, status in ((signal.SIGUSR1, "trap 'exit 5' USR1; echo up; while :; do sleep 0.01; done", 5),
                                   (signal.SIGTERM, "echo up; exec sleep 60", -signal.SIGTERM),
                                   (signal.SIGINT, "echo up; exec sleep 60", -signal.SIGINT)):
        child = subprocess.Popen([COMMAND, "run", "--max-peak=1G", "sh", "-c", script], env=environment(False),
                                 # a shell's job in the background ignores it
                                 preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        child.stdout.readline()
        child.send_signal(number)
        tally.check(child.wait(timeout=60) == status, "processes: --max-peak passes on %s" % number.name, child.returncode)
        child.stdout.close()
    child = subprocess.Popen(["nohup", COMMAND, "run", "--max-peak=1G", "sh", "-c", "echo up; sleep 0.5; exit 6"],
                             env=environment(False), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    child.stdout.readline()
    child.send_signal(signal.SIGHUP)
    tally.check(child.wait(timeout=60) == 6, "processes: --max-peak under nohup", child.returncode)
    child.stdout.close()


def one_pool():
    show = ("sh", "-c", "env | grep -E '^(PYTORCH|XLA|TF_FORCE)_' | sort")
    done = subprocess.run([COMMAND, "run", "--one-pool", *show], capture_output=True, text=True, timeout=60,
                          env={**environment(False), "XLA_PYTHON_CLIENT_PREALLOCATE": "true"})
    tally.check(done.stdout.split() == ["PYTORCH_NO_CUDA_MEMORY_CACHING=1", "TF_FORCE_GPU_ALLOW_GROWTH=true",
                                        "XLA_PYTHON_CLIENT_ALLOCATOR=platform", "XLA_PYTHON_CLIENT_PREALLOCATE=true"],
                "processes: --one-pool", done.stdout)
    tally.check("PREALLOCATE=true is kept" in done.stderr and "CuPy" in done.stderr and
                "PYTORCH_NO_CUDA_MEMORY_CACHING=1: " in done.stderr, "processes: --one-pool says what it set", done.stderr)


# ---- metrics ----

def parse_plain(text, pids):
    """Returns {family: (type, [(labels, value)])} of these processes, and the breaches of rules of both formats."""
    families, broken, current = {}, [], None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            if name in families:
                broken.append("twice: " + name)
            current = name
            families[name] = (kind, [])
        elif line.startswith("# "):
            pass
        else:
            match = re.match(r"([a-z_]+)\{(.*)\} ([\d.]+)$", line)
            if not match or match.group(1).replace("_total", "") != current.replace("_total", ""):
                broken.append("not of its family: " + line)
            elif int(re.search(r'pid="(\d+)"', line).group(1)) in pids:
                families[current][1].append((match.group(2), float(match.group(3))))
        if not line:
            broken.append("an empty line")
    return families, broken


def metrics():
    place = Place()
    name = os.path.join(place.folder.name, 'a "b\\ c')
    shutil.copy(LIVE, name)
    programs = [Program(place, {"RANK": "1", "WORLD_SIZE": "2"}), Program(place)]
    odd = subprocess.Popen([name], env={**environment(True, OFF), **place.options}, stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, text=True)
    odd.stdin.write("sync\n")
    odd.stdin.flush()
    odd.stdout.readline()
    programs[0].do("allocate 5000")
    texts = {format: told(place, "metrics", "--format=" + format).stdout
             for format in ("openmetrics", "prometheus")}
    for format, text in texts.items():
        families, broken = parse_plain(text, {one.pid for one in programs} | {odd.pid})
        tally.check(not broken, "processes: metrics as " + format, "\n".join(broken))
        tally.check(all(len(rows) in (3, 18) for kind, rows in families.values()), "processes: a row for each device",
                    {name: len(rows) for name, (kind, rows) in families.items()})
        live = dict(families["gpucache_requested_bytes"][1])
        mine = [value for labels, value in live.items() if 'pid="%d"' % programs[0].pid in labels]
        tally.check(mine == [6000], "processes: the metrics", live)
        tally.check('program="a \\"b\\\\ c"' in text, "processes: names with quotes", text[:600])
        tally.check(text.endswith("# EOF\n") == (format == "openmetrics"), "processes: the end of " + format, text[-80:])
    done = place.tool("metrics", "--format=xml")
    tally.check(done.returncode == 125 and "--format" in done.stderr, "processes: another format", done.stderr)
    judge(texts)
    empty = Place().tool("metrics")
    tally.check(empty.returncode == 0 and empty.stdout.endswith("# EOF\n"), "processes: metrics of others", empty.stdout[-80:])
    odd.communicate("exit\n")
    for one in programs:
        one.end()


def judge(texts):
    """Checks metrics by the parsers of Prometheus and others, if they are installed."""
    # where scripts/test.sh puts it
    sys.path += glob.glob(os.path.join(os.path.dirname(os.path.dirname(LIBRARY)), "tools", "prometheus_client-*"))
    try:
        from prometheus_client.openmetrics.parser import text_string_to_metric_families
        families = list(text_string_to_metric_families(texts["openmetrics"]))
        tally.check(len(families) > 30, "processes: prometheus_client reads it", len(families))
    except ImportError:
        print("SKIPPED: what prometheus_client makes of the metrics: it is not here")
    promtool = shutil.which("promtool")
    if promtool:
        done = subprocess.run([promtool, "check", "metrics"], input=texts["prometheus"], capture_output=True, text=True)
        tally.check(done.returncode == 0, "processes: promtool check metrics", done.stdout + done.stderr)
    else:
        print("SKIPPED: promtool check metrics: there is no promtool (package prometheus)")


# ---- top ----

def lines_of(text):
    """Returns messages without the one about pages of another version, which other processes may cause."""
    return [line for line in text.splitlines() if "under other versions" not in line]


def top():
    place = Place()
    many = [Program(place, {"RANK": str(i + 10), "WORLD_SIZE": "18"}) for i in range(8)]
    for i, one in enumerate(many):
        one.do("allocate %d" % ((i + 1) * 1000000))
    done = told(place, "top", "--once", *[one.pid for one in many])
    rows = lines_of(done.stdout)
    tally.check(done.returncode == 0 and len(rows) == 9 and rows[0].split()[:3] == ["PID", "DEV", ">LIVE"],
                "processes: top once", done.stdout)
    tally.check([int(row.split()[0]) for row in rows[1:]] == [one.pid for one in reversed(many)],
                "processes: top sorts by what is live", done.stdout)
    only = lines_of(place.tool("top", "--once", str(many[3].pid)).stdout)
    tally.check(len(only) == 2 and only[1].split()[0] == str(many[3].pid), "processes: top of one", only)
    none = place.tool("top", "--once", str(os.getpid()), str(many[3].pid))
    tally.check(none.returncode == 1 and none.stderr == "gpucache: %d: no process of yours uses CUDA under the library\n" %
                os.getpid() and len(lines_of(none.stdout)) == 2, "processes: top of one that is none", none.stderr)
    killed = many.pop(0)
    killed.child.kill()
    killed.end()
    shown = re.findall(r"^ *(\d+) ", place.tool("top", "--once").stdout, re.M)
    tally.check(str(killed.pid) not in shown and str(many[0].pid) in shown, "processes: top leaves the killed out", shown)
    dead = place.tool("top", "--once", str(killed.pid)).stdout
    tally.check("(killed)" in dead, "processes: but not if they are asked for", dead)
    tally.check("--once" in place.tool("top", "--twice").stderr, "processes: top --twice")
    script = os.path.join(place.folder.name, "train.py")
    with open(script, "w") as file:
        file.write("import ctypes, sys\ncuda, context = ctypes.CDLL('libcuda.so.1'), ctypes.c_void_p()\n"
                   "cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)\n"
                   "cuda.cuMemAlloc_v2(ctypes.byref(context), ctypes.c_size_t(9))\nprint(flush=True), sys.stdin.read()\n")
    child = subprocess.Popen([sys.executable, script], env={**environment(True), **place.options, "GPUCACHE_REPORT": "off"},
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    named = place.tool("top", "--once", str(child.pid)).stdout
    tally.check(re.search(r" python[\w.]* train\.py\n", named), "processes: top names the script of an interpreter", named)
    child.communicate()
    if shutil.which("tmux"):
        on_a_screen(place, many)
    for one in many:
        one.end()


def nvml():
    """Checks that `top` shows NVML's memory next to the library's, if there is an NVML."""
    place = Place()
    one = Program(place)
    one.do("allocate 50000000")
    folder, file = os.environ["GPUCACHE_TEST_SIM_NVML"], os.path.join(place.folder.name, "nvml")

    def shown(text, path=folder):
        if text is not None:
            with open(file, "w") as out:
                out.write(text)
        env = {**environment(False), **place.options, "GPUCACHE_SIM_NVML": file, "LD_LIBRARY_PATH": path}
        rows = subprocess.run([COMMAND, "top", "--once", str(one.pid)], env=env, capture_output=True, text=True).stdout.splitlines()
        return rows[0].split(), re.findall(r"[\d.]+ [KMGT]iB|[\d.]+ B|\S+", rows[1])

    many = "".join("%d 7\n" % (10000000 + i) for i in range(40))
    for what, text, expected in (
            ("the process, others and the device", "GPU 4294967296 17179869184 37\n7 5\n%d 2147483648\n9 3\n",
             ["2.00 GiB", "8 B", "25%", "37%"]),
            ("a part of a device", "MIG 8589934592 17179869184\n%d 1073741824\n", ["1.00 GiB", "0 B", "50%", "-"]),
            ("many processes", "GPU 0 17179869184 0\n" + many + "%d 1073741824\n", ["1.00 GiB", "280 B", "0%", "0%"]),
            ("a process that it cannot tell", "GPU 4294967296 17179869184 100\n8 9\n%d -1\n", ["-", "9 B", "25%", "100%"]),
            ("another that it cannot tell", "GPU 4294967296 17179869184 1\n8 -1\n%d 1\n9 5\n", ["1 B", "-", "25%", "1%"]),
            ("a process that it does not see", "GPU 4294967296 17179869184 1\n8 9\n", ["-", "-", "25%", "1%"]),
            ("another kind of device", "XYZ 1 2 3\n", ["-", "-", "-", "-"]),
            ("a device without figures", "GPU -1 -1 -1\n", ["-", "-", "-", "-"]),
            ("a busy time that is none", "GPU -1 -1 101\n", ["-", "-", "-", "-"])):
        head, row = shown(text % one.pid if "%d" in text else text)
        tally.check(head[7:11] == ["NVML", "OTHERS", "MEM", "GPU"] and row[7:11] == expected, "processes: NVML, " + what,
                    "%s\n%s" % (head, row))
    for what, text, path in (("no driver", "", folder), ("no NVML", "GPU 1 2 3\n", "/nonexistent")):
        head, row = shown(text, path)
        tally.check(row[7:11] == ["-"] * 4 and len(row) == len(head), "processes: without NVML's values: " + what,
                    "%s\n%s" % (head, row))
    one.end()


def on_a_screen(place, many):
    socket = os.path.join(place.folder.name, "tmux")
    def tmux(*arguments):
        return subprocess.run(["tmux", "-S", socket, "-f", "/dev/null", *arguments], capture_output=True, text=True,
                              env={**environment(False), **place.options, "TERM": "xterm", "LC_ALL": "C.UTF-8"})
    def shown(wanted, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            screen = tmux("capture-pane", "-p").stdout
            if re.search(wanted, screen):
                return screen
            time.sleep(0.1)
        return tally.check(False, "processes: on the screen: " + wanted, screen) or screen
    pids = [str(one.pid) for one in many]
    if tmux("new-session", "-d", "-x", "140", "-y", "40", COMMAND, "top", "--interval=0.2", *pids).returncode != 0:
        print("note: tmux does not run here")
        return
    shown(r"gpucache top: 7 processes, live ")
    screen = shown(r"\n +%d .* live" % many[-1].pid)
    tally.check("No such" not in screen, "processes: top on a screen", screen)
    if "SCREENS" in os.environ:
        print(screen)
    tmux("send-keys", "Down", "Enter")
    screen = shown(r"process %d, device 0: live, running" % many[-2].pid)
    tally.check(re.search(r"requested +[\d.]+ MiB", screen) and re.search(r"allocate +[\d.]+ MiB", screen),
                "processes: one process in detail", screen)
    if "SCREENS" in os.environ:
        print(screen)
    tmux("send-keys", "?")
    screen = shown(r"(?m)^gpucache top: keys and columns$")
    for words in ("enter  ", "< >, left, right  ", "q  ", "OTHERS  ", "HIT  "):
        tally.check("\n" + words in screen, "processes: the help of top has " + words, screen)
    tmux("send-keys", "d")  # must only go back
    shown(r"process %d, device 0: live, running" % many[-2].pid)
    tmux("send-keys", "Enter", ">")
    screen = shown(">CACHED")
    tally.check("? help" in screen, "processes: top names the key for help", screen)
    for size, head in (("40", r"PID +LIVE +>CACHED +PROGRAM"), ("20", ""),
                       ("80", r"PID DEV +LIVE +>CACHED +RESERVED +PEAK +FRAG +HIT +PROGRAM"),
                       ("75", r"PID DEV +LIVE +>CACHED +RESERVED +PEAK +FRAG +PROGRAM"),
                       ("200", r"PID +DEV +LIVE +>CACHED +RESERVED +PEAK +LIMIT +NVML +OTHERS +MEM +GPU +FRAG +HIT +PROGRAM +LIVE OVER TIME")):
        tmux("resize-window", "-x", size, "-y", "3" if size == "20" else "16")
        # the last line is drawn last
        screen = shown(r"(?s)\n +%s.*q ends *\n*$" % head if size != "20" else "gpucache top")
        if "SCREENS" in os.environ:
            print(screen)
        if size != "20":
            tally.check(re.search(r"q ends *\n*$", screen), "processes: top of %s columns: how to end it" % size, screen)
        if size == "80":
            tally.check(re.search(r"(?m)^ +%s .*%%  li rank 15$" % pids[4], screen), "processes: a name gives way to a rank", screen)
        if size == "40":  # whole columns and whole numbers
            tally.check(re.match(r"gpucache top: 7 processes\n", screen), "processes: top of 40 columns: no half figure", screen)
            tally.check(re.search(r"\n +%s +[\d.]+ MiB +[\d.]+ [KM]?i?B  live" % pids[1], screen), "processes: top of 40 columns", screen)
            tmux("send-keys", "Enter")
            screen = shown(r"(?s)\n +now +peak *\n.*CPU waits")
            tally.check(not re.search(r"taken|[,;]\w", screen), "processes: one of 40 columns", screen)
            tmux("send-keys", "Enter")
            shown(r"\n +PID")
    many[-1].child.kill()
    many.pop().end()
    shown(r"\(killed\)")
    tmux("resize-window", "-x", "75", "-y", "16")
    shown(r"(?m)^ +%s .*\(killed\)$" % pids[-1])
    shown(r"gpucache top: 6 processes, live [^,]*, reserved [^,]*, killed 1\n")
    tmux("send-keys", "d")
    shown(r"gpucache top: 6 processes, live [^,]*, reserved [^,]*\n")
    tmux("send-keys", "q")
    end = time.monotonic() + 60
    while tmux("has-session").returncode == 0 and time.monotonic() < end:
        time.sleep(0.1)
    tally.check(tmux("has-session").returncode != 0, "processes: q ends it")
    tmux("kill-server")


def main():
    reports_again()
    broken_files()
    cut_short()
    orders()
    at_work()
    two_orders()
    last_words()
    peaks()
    one_pool()
    metrics()
    top()
    nvml()


if __name__ == "__main__":
    tally.run(main)
