#!/usr/bin/env python3
"""gpucache report --html: the page says what the reports say, nothing from outside gets out of its place, and it needs
nothing else. In a browser, where there is one: nothing is requested, nothing goes wrong, nothing is wider than the
screen."""
import html.parser
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time

from harness import Tally
from live import COMMAND, MIB, Place, Program, fed

tally = Tally()
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
EVIL = "</script></style></title><img src=x onerror=alert(1)>\"'`&<b>\u202e\x07\t\udc80"
STACKS = {"frames": 16, "unwinder": "libunwind", "python": None, "lost_stacks": 0, "lost_blocks": 0}  # the head of a report with stacks
VOID = {"meta", "link", "br", "img"}
LOOSE = {"li", "td", "th", "tr", "thead", "tbody", "tfoot"}  # whose ends may be left out


class Page(html.parser.HTMLParser):
    """Its texts, its attributes, and what is not closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.texts, self.attributes, self.tags, self.open, self.wrong = [], [], [], [], []
        self.feed(text)
        self.close()
        self.wrong += self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in VOID | LOOSE:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]

    def handle_endtag(self, tag):
        if tag in LOOSE:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append("/" + tag)

    def handle_data(self, data):
        self.texts.append(data)


def page_of(place, folder, *sources, feed=None):
    path = os.path.join(folder, "page.html")
    done = fed([COMMAND, "report", "--html=" + path, *map(str, sources)], place, (lambda: feed.do("sync")) if feed else
               (lambda: time.sleep(0.001)))
    tally.check(done.returncode == 0 and not done.stdout, "html: is written", done.stderr)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    page = Page(text)
    tally.check(not page.wrong, "html: every tag is closed", page.wrong)
    outside = [a for a in page.attributes if a[1] in ("src", "href", "action", "data", "srcset", "poster")
               and not (a[2] == "data:," or a[2].startswith("#"))]
    tally.check(not outside and "url(" not in text and "@import" not in text, "html: refers to nothing", outside)
    tally.check(not [a for a in page.attributes if a[1].startswith("on")], "html: no handlers in attributes")
    tally.check(page.tags.count("script") == 1 and "img" not in page.tags, "html: one script, and no more")
    tally.check(("meta", "content", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:")
                in page.attributes, "html: forbids itself the network")
    return path, text, page


def points(page):
    return [json.loads(value) for tag, name, value in page.attributes if name == "data-points"]


def in_browser(path, looks=((400, False), (1600, True))):
    """What a person would see: at widths, in light and dark colours."""
    for width, dark in looks:
        with tempfile.TemporaryDirectory() as folder:
            log, look = os.path.join(folder, "net.json"), os.path.join(folder, "look.html")
            with open(path, encoding="utf-8") as file:
                text = file.read()
            # the page's own script has run when this one does
            probe = ("<script>document.title='probe '+JSON.stringify({wide:document.documentElement.scrollWidth<=innerWidth,"
                     "tips:document.querySelectorAll('[data-tip]').length,titles:document.querySelectorAll('svg title').length,"
                     "bg:getComputedStyle(document.body).backgroundColor,dark:matchMedia('(prefers-color-scheme: dark)').matches})"
                     "</script></body>")
            with open(look, "w", encoding="utf-8") as file:
                file.write(text.replace("</body>", probe))
            done = subprocess.run(
                [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
                 "--disable-component-update", "--disable-sync", "--user-data-dir=" + folder + "/profile", "--log-net-log=" + log,
                 "--enable-logging=stderr", "--window-size=%d,900" % width, "--dump-dom"] +
                (["--blink-settings=preferredColorScheme=0"] if dark else []) + ["file://" + look],
                capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
            found = re.search(r"<title>probe (.*?)</title>", done.stdout)
            seen = json.loads(found.group(1).replace("&quot;", '"')) if found else {}
            what = "html: %d columns, %s: " % (width, "dark" if dark else "light")
            tally.check(seen.get("wide"), what + "nothing is wider than the screen", seen or done.stderr)
            tally.check(seen.get("tips", 0) > 5 and seen.get("titles") == 0, what + "its script runs", seen)
            tally.check(seen.get("dark") == dark and (seen.get("bg") == "rgb(14, 19, 25)") == dark, what + "its colours", seen)
            errors = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
            tally.check(not errors, what + "nothing on the console", "\n".join(errors))
            with open(log) as file:
                asked = set(re.findall(r'"url":"((?!chrome|data:|file:|blob:|devtools)[^"]*page[^"]*|https?://[^"]*example[^"]*)"',
                                       file.read()))
            tally.check(not asked, what + "requests nothing", asked)


def of_files(place, folder):
    one = Program(place, {"GPUCACHE_REPORT": folder + "/r%n", "GPUCACHE_REPORT_FORMAT": "json",
                          "GPUCACHE_MEMORY_LIMIT": "2G"})
    for size in (70 * MIB, 30 * MIB, 3 * MIB, 900):
        one.do("allocate %d" % size)
        os.kill(one.pid, signal.SIGUSR2)
        one.do("sync")
    one.do("allocate 99999999999")  # an OOM, and its report
    one.do("free")
    one.do("free")
    one.end("exit", 7)
    names = sorted((n for n in os.listdir(folder) if re.fullmatch(r"r\d+", n)), key=lambda n: int(n[1:]))
    reports = [json.loads(open(os.path.join(folder, n)).read()) for n in names]
    path, text, page = page_of(place, folder, *[os.path.join(folder, n) for n in reversed(names)])  # their order says nothing
    said = " ".join(page.texts)
    for words in ("live", "Memory over time", "The pool by address", "What holds it", "Allocations by size",
                  "out of memory: device 0 has no room for 93.13 GiB", "of 2.00 GiB that the limit allows",
                  "1 × 70.00 MiB", "reason", "exit"):
        tally.check(words in said, "html: says " + words, said[:3000])
    chart = points(page)[0]
    live = next(s for s in chart["series"] if s["name"] == "Live")["values"]
    tally.check(live == [r["devices"][0]["requested_bytes"]["current"] for r in reports], "html: live over time", live)
    tally.check(chart["at"][0] == 0 and chart["at"][-1] == 1 and chart["at"] == sorted(chart["at"]), "html: in time", chart["at"])
    # the map: as much live in it as the report has
    newest = reports[-1]["devices"][0]
    titles = re.findall(r"<title>live: ([^<]*?)\n?(?:from [^<]*)?</title>", text)
    tally.check(any(t.startswith("70.00 MiB") for t in titles), "html: a block in the map", titles)
    tally.check(sum(p[2] for p in newest["segment_map"]["pieces"]) == newest["allocated_bytes"]["current"] and
                sum(p[1] for p in newest["segment_map"]["pieces"]) == newest["reserved_bytes"]["current"],
                "html: the map is all there is", newest["segment_map"])
    if BROWSER:
        in_browser(path, ((400, False), (400, True), (900, False), (1600, True)))
    return reports


def map_in_words(place, folder, reports):
    """What is free in one piece of the map, and what stands at its end as a sum."""
    report = json.loads(json.dumps(reports[-1]))
    device = report["devices"][0]
    start = 1 << 40
    for address, largest, words in ((start + 4 * MIB, 9, "9.00 MiB free, all of it in one block."),
                                    (start + 4 * MIB, 8, "9.00 MiB free; 1 hole, and the largest free block is 8.00 MiB."),
                                    (0, 3, "9.00 MiB free; the largest free block is 3.00 MiB.")):
        device["fragmentation"]["largest_free_bytes"] = largest * MIB  # the page says no other figure than the report
        device["segment_map"]["pieces"] = [[start, 4 * MIB, 4 * MIB, 0, 1], [address, 9 * MIB, 0, 0, 0]]
        file = os.path.join(folder, "map.json")
        with open(file, "w", encoding="utf-8") as out:
            out.write(json.dumps(report) + "\n")
        said = " ".join(page_of(place, folder, file)[2].texts)
        tally.check(words in said, "html: says " + words, re.findall(r"[^.]*largest free block[^.]*\.\d+ [^.]*\.", said))


def axis_and_numbers(place, folder, reports):
    """The times of an axis have one unit, and one block is no "1 blocks"."""
    file = os.path.join(folder, "axis.json")
    for moments, labels in (((0.5, 4.5), ["0.5 s", "1.5 s", "2.5 s", "3.5 s", "4.5 s"]), ((30, 150), ["0.5 min", "1 min", "1.5 min", "2 min", "2.5 min"]),
                            ((0.0001, 0.0201), ["0.1 ms", "5.1 ms", "10.1 ms", "15.1 ms", "20.1 ms"])):
        with open(file, "w", encoding="utf-8") as out:
            for moment in moments:
                report = dict(json.loads(json.dumps(reports[-1])), uptime_seconds=moment, time_unix=1000 + moment, stacks={"frames": 16})
                report["devices"][0]["holders"] = [
                    {"live_bytes": MIB, "live_count": count, "peak_bytes": MIB, "peak_count": count, "stack": ["f (/a/f.py:%d)" % count]}
                    for count in (1, 2)]
                out.write(json.dumps(report) + "\n")
        _, text, page = page_of(place, folder, file)
        axis = re.search(r'<div class="x">(.*?)</div>', text).group(1)
        tally.check(re.findall(r">([^<>]+)</span>", axis) == labels, "html: an axis of one unit", axis)
    tips = [value for _, name, value in page.attributes if name == "data-tip"]
    for words in ("live 1.00 MiB in 1 block\nat the peak 1.00 MiB in 1 block", "live 1.00 MiB in 2 blocks\nat the peak 1.00 MiB in 2 blocks"):
        tally.check(words in tips, "html: says " + words, tips)
    tally.check("1 block" in page.texts and "2 blocks" in page.texts, "html: numbers of blocks", page.texts)


def hostile(place, folder, reports):
    """Whatever stands in a report stays a text."""
    report = json.loads(json.dumps(reports[-1]))
    device = report["devices"][0]
    report.update({"command": ["/bin/" + EVIL, EVIL, "-->", "http://example.com/x"], "host": EVIL, "version": EVIL, "reason": EVIL})
    device.update({"name": EVIL, "backend": EVIL, "backend_reason": EVIL, "reuse": EVIL, "uuid": EVIL})
    device["live"] = [{"bytes": 5, "count": 7, "stack": [EVIL, "f at a.py:3", EVIL * 40]}]
    report["stacks"] = STACKS
    report["oom"] = {"device": 0, "requested_bytes": 1, "verdict": [EVIL]}
    file = os.path.join(folder, "evil.json")
    with open(file, "wb") as out:
        line = json.dumps(report).replace("\\udc80", "") + "\n"
        out.write(line.encode())
    path, text, page = page_of(place, folder, file)
    tally.check("<img" not in text and "<b>\\u" not in text and "\u202e" not in text and "\x07" not in text,
                "html: nothing gets out of its place")
    tally.check("</script></style></title><img src=x onerror=alert(1)>\"'`&<b>" in " ".join(page.texts), "html: it is shown")
    tally.check("f at a.py:3" in page.texts, "html: stacks")
    if BROWSER:
        in_browser(path)
    with open(file, "w") as out:  # the right schema, and nothing as it should be
        out.write('{"schema":"gpucache-report/1","devices":[{"device":"x","live":3,"segment_map":{"pieces":[3,[],[1,2,3,4,5],'
                  '[-1,-1,-1,-1,-1],["a"],[0,512,99999999999999999999,7,1]]}},7,{"device":-1}],"command":[1,{}],"uptime_seconds":-4}\n')
    page_of(place, folder, file)
    for most in (15 << 60, (1 << 64) - 1):  # an axis that ends where numbers do
        with open(file, "w") as out:
            for moment in (1, 2):
                out.write('{"schema":"gpucache-report/1","time_unix":%d,"uptime_seconds":%d,"devices":[{"reserved_bytes":'
                          '{"current":%d}}]}\n' % (100 + moment, moment, most))
        done = place.tool("report", "--html", os.path.join(folder, "axis.html"), file,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16 * MIB, 16 * MIB)))
        tally.check(done.returncode == 0, "html: an axis up to %d" % most, "%s %s" % (done.returncode, done.stderr))


def with_stacks(place, folder, reports):
    """Holders by call stack, as reports with GPUCACHE_STACKS have them: most first, its own line named."""
    report = json.loads(json.dumps(reports[-1]))
    row = lambda live, peak, stack: {"live_bytes": live, "live_count": 2, "peak_bytes": peak, "peak_count": 3, "stack": stack}
    report["stacks"] = STACKS
    report["devices"][0]["holders"] = [
        row(0, 0, ["gone (/a/gone.py:1)"]), row(5 * MIB, 9 * MIB, ["/usr/lib/libx.so+0x1", "small (/a/b/model.py:7)"]),
        row(70 * MIB, 70 * MIB, ["inner (/x/site-packages/torch/y.py:3)", "empty_cuda (/x/libtorch_cuda.so)", "step (/a/b/train.py:77)",
                                 "main (/a/b/train.py:90)", EVIL])] + [row(i, i, ["f%d (/a/f.py:%d)" % (i, i)]) for i in range(1, 60)]
    file = os.path.join(folder, "stacks.json")
    with open(file, "wb") as out:
        out.write(json.dumps(report).replace("\\udc80", "").encode() + b"\n")
    _, text, page = page_of(place, folder, file)
    owns = re.findall(r"<details><summary>(.*?)</summary>", text)
    tally.check(owns[:2] == ["step (train.py:77) &larr; main (train.py:90)", "small (model.py:7)"], "html: whose line it is", owns[:3])
    tally.check(len(owns) == 40 and "gone (" not in text and "21 more hold less." in page.texts, "html: a bounded number", len(owns))
    tally.check("inner (/x/site-packages/torch/y.py:3)" in page.texts and "70.00 MiB" in page.texts, "html: the whole stack")
    if BROWSER:
        in_browser(os.path.join(folder, "page.html"))


def of_ranks(place, folder, reports):
    files = []
    for rank in range(12):
        report = json.loads(json.dumps(reports[-1]))
        report.update({"rank": rank, "pid": 1000 + rank % 6, "host": "node%d" % (rank // 6)})
        report["devices"][0]["requested_bytes"]["peak"] = 1000 * MIB + rank + (500 * MIB if rank == 7 else 0)
        files.append(os.path.join(folder, "rank%d.json" % rank))
        with open(files[-1], "w") as out:
            out.write(json.dumps(report) + "\n")
    _, text, page = page_of(place, folder, *files)
    tally.check(len(re.findall('<td class="far">', text)) == 1 and '<td class="far">1.46 GiB' in text,
                "html: the rank that is apart is marked")
    places = [value for _, name, value in page.attributes if name == "id"]
    links = [value[1:] for tag, name, value in page.attributes if (tag, name) == ("a", "href")]
    tally.check(len(set(places)) == len(places) == 12 and sorted(links) == sorted(places), "html: links", (links, places))
    tally.check(len(re.findall("<details class=\"process\"", text)) == 12 and text.count("<details class=\"process\" open") == 1,
                "html: many ranks are folded")


def of_a_process(place, folder):
    one = Program(place)
    for _ in range(6):
        for order in ("allocate 50000000", "allocate 20000000", "free", "sync"):
            one.do(order)
    path, text, page = page_of(place, folder, one.pid, feed=one)
    live = points(page)[0]["series"][0]
    tally.check(live["name"] == "Live" and live["values"][-1] == 6 * 50000000 + 1000 and
                live["values"].count(5 * 50000000 + 1000) >= 2, "html: the flight recorder's last moments", live)
    tally.check(len(re.findall("<title>live: 47.69 MiB\n", text)) >= 6, "html: its map",
                re.findall("<title>live: .*\n?", text))
    tally.check("Last events" in page.texts and re.search(r"allocate +47.68 MiB", text), "html: its events", text[-3000:])
    one.end("kill", -signal.SIGKILL)
    _, _, page = page_of(place, folder, one.pid)
    said = " ".join(page.texts)
    tally.check("killed" in said and "as after SIGKILL" in said, "html: a killed process", said[:1000])


def refusals(place):
    for arguments, status, words in ((("--html",), 125, "--html=FILE"), (("--html", "/no/such/folder/x", "FILE"), 1, "No such file"),
                                     (("--html", "/dev/full", "FILE"), 1, "No space left")):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write('{"schema":"gpucache-report/1","devices":[]}\n')
            file.flush()
            done = place.tool("report", *[file.name if a == "FILE" else a for a in arguments])
            tally.check(done.returncode == status and words in done.stderr, "html: %s" % " ".join(arguments), done.stderr)


def other_files(place):
    """A page is written to a new file or over a page, and over nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        report = '{"schema":"gpucache-report/1","devices":[]}\n'
        foreign = {"rank0.json": report, "rank1.json": report, "empty": "", "foreign.html": "<!DOCTYPE html>\n<html lang=\"en\"></html>\n"}
        for name, text in foreign.items():
            with open(path(name), "w") as file:
                file.write(text)
        os.symlink(path("rank1.json"), path("link"))
        for arguments, words in ((["--html", path("rank0.json"), path("rank1.json")], "wanted is --html=FILE in front of the reports"),
                                 (["--html", path("rank0.json")], "wanted is --html=FILE in front of the reports"),
                                 (["--html=" + path("rank0.json"), path("rank1.json")], "is not overwritten"),
                                 (["--html=" + path("link"), path("rank1.json")], "is not overwritten"),
                                 (["--html=" + path("empty"), path("rank1.json")], "is not overwritten"),
                                 (["--html=" + path("foreign.html"), path("rank1.json")], "is not overwritten")):
            done = place.tool("report", *arguments)
            tally.check(done.returncode == 125 and words in done.stderr and done.stderr.count("\n") == 1 and not done.stdout,
                        "html: refused: %s" % arguments, done.stderr)
        for name, text in foreign.items():
            with open(path(name)) as file:
                tally.check(file.read() == text, "html: %s is as it was" % name)
        for form in (["--html=" + path("new.html")], ["--html", path("new.html")], ["--html=-"], ["--html=/dev/null"]):
            done = place.tool("report", *form, path("rank0.json"))
            tally.check(done.returncode == 0 and done.stdout.startswith("<!DOCTYPE html>") == (form == ["--html=-"]),
                        "html: written by %s" % form, done.stderr)
        with open(path("new.html"), "a") as file:
            file.write("x" * 100000)
        place.tool("report", "--html=" + path("new.html"), path("rank0.json"))
        with open(path("new.html")) as file:
            tally.check(file.read().endswith("</html>\n"), "html: of the earlier page nothing is left")
        done = place.tool("report", "--html=" + path("full.html"), path("rank0.json"),
                          preexec_fn=lambda: (signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
                                              resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))))
        tally.check(done.returncode == 1 and not os.path.exists(path("full.html")), "html: no half of a page", done.stderr)


def medians(place, reports):
    """The median of an even number of devices is the mean of the middle two, in the table and on the page."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for rank, live in enumerate((10, 30, 20, 60)):
            report = json.loads(json.dumps(reports[-1]))
            report.update({"rank": rank, "pid": 1000 + rank})
            report["devices"][0]["requested_bytes"]["current"] = live * MIB
            files.append(os.path.join(folder, "%d.json" % rank))
            with open(files[-1], "w") as out:
                out.write(json.dumps(report) + "\n")
        for count, wanted in ((4, "25.00 MiB"), (3, "20.00 MiB"), (2, "20.00 MiB")):
            text = place.tool("report", *files[:count]).stdout
            tally.check(re.search(r"^median +%s " % wanted, text, re.M), "html: the median of %d" % count, text)
            _, page, _ = page_of(place, folder, *files[:count])
            tally.check(re.search(r">Median<td>%s" % wanted, page), "html: the page's median of %d" % count,
                        re.findall(">Median.*", page))


def main():
    place = Place()
    if not BROWSER:
        print("SKIPPED: what a browser makes of the page: there is no chromium here")
    with tempfile.TemporaryDirectory() as folder:
        reports = of_files(place, folder)
        map_in_words(place, folder, reports)
        axis_and_numbers(place, folder, reports)
        hostile(place, folder, reports)
        with_stacks(place, folder, reports)
        of_ranks(place, folder, reports)
        of_a_process(place, folder)
        medians(place, reports)
    refusals(place)
    other_files(place)


if __name__ == "__main__":
    tally.run(main)
