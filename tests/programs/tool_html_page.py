#!/usr/bin/env python3
"""Checks that the page of `gpucache report --html` is safe, complete and usable.

No text of a report becomes markup, and the page needs no other file. In a browser, if there is one: the page requests
nothing, reports no error, is never wider than the screen, and the keyboard can do all that the pointer can."""
import base64
import hashlib
import html.parser
import json
import os
import re
import resource
import signal
import tempfile
import time

import browser
from browser import Browser
from harness import Tally, frames
from report_live_page import COMMAND, MIB, Place, Program, eventually, fed, write_reports

tally = Tally()
chromium = None  # the Browser, if Chromium is installed
EVIL = "</script></style></title><img src=x onerror=alert(1)>\"'`&<b>\u202e\x07\t\udc80"
STACKS = {"frames": 16, "unwinder": "libunwind", "python": None, "lost_stacks": 0, "lost_blocks": 0}  # the head of a report with stacks
VOID = {"meta", "link", "br", "img", "input"}


class Page(html.parser.HTMLParser):
    """Parses a page into texts, attributes and tags. `wrong` has the tags that are not closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.texts, self.attributes, self.tags, self.open, self.wrong = [], [], [], [], []
        self.feed(text)
        self.close()
        self.wrong += self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attributes]

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append("/" + tag)

    def handle_data(self, data):
        self.texts.append(data)


def page_of(place, folder, *sources, feed=None, failed=0):
    """Writes a page and checks its safety. Returns its path, its text, and the Page as a browser shows it, if there is one."""
    path = os.path.join(folder, "page.html")
    done = fed([COMMAND, "report", "--html=" + path, *map(str, sources)], place, (lambda: feed.do("sync")) if feed else
               (lambda: time.sleep(0.001)))
    tally.check(done.returncode == failed and not done.stdout, "html: is written", done.stderr)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    page = Page(text)
    tally.check(not page.wrong, "html: every tag is closed", page.wrong)
    tally.check(page.tags.count("script") == 2 and "img" not in page.tags, "html: one script, the data, and no more")
    script = text.split("<script>")[1].split("</script>")[0]
    hashed = "script-src 'sha256-%s'" % base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = [value for _, name, value in page.attributes if name == "content" and "default-src" in value]
    tally.check(len(policy) == 1 and "default-src 'none'" in policy[0] and hashed in policy[0] and "unsafe" not in policy[0],
                "html: forbids itself the network, and all other scripts", policy)
    tally.check(not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script), "html: texts are no markup")
    if not chromium:
        return path, text, page
    chromium.look()
    chromium.open(path)
    page = Page(chromium.contents())
    tally.check(not chromium.said() and not chromium.asked(), "html: nothing on the console, nothing asked for", (chromium.said(), chromium.asked()))
    refers = [a for a in page.attributes if a[1] in ("src", "href", "action", "data", "srcset", "poster") and not a[2].startswith("#")]
    tally.check(not refers and "url(" not in text and "@import" not in text, "html: refers to nothing", refers)
    tally.check(not [a for a in page.attributes if a[1].startswith("on")], "html: no handlers in attributes")
    return path, text, page


def tips(page):
    return [value for _, name, value in page.attributes if name == "data-tip"]


def in_browser(path, looks=((390, False), (1600, True))):
    """Checks the visible page at several widths, in light and dark colours, and printed."""
    for width, dark in looks if chromium else ():
        what = "html: %d columns, %s: " % (width, "dark" if dark else "light")
        chromium.look(width, 900, dark, touch=width < 500)
        chromium.open(path)
        chromium.contents()
        seen = chromium.run("({wide: document.documentElement.scrollWidth, background: getComputedStyle(document.body).backgroundColor,"
                            " tips: document.querySelectorAll('[data-tip]').length})")
        tally.check(seen["wide"] <= width, what + "nothing is wider than the screen", seen)
        tally.check(seen["tips"] > 5, what + "its script runs", seen)
        tally.check((seen["background"] == "rgb(14, 19, 25)") == dark, what + "its colours", seen)
        tally.check(not chromium.said(), what + "nothing on the console", chromium.said())
        tally.check(not chromium.asked(), what + "requests nothing", chromium.asked())
        printed = base64.b64decode(chromium.ask("Page.printToPDF", printBackground=True)["data"])
        tally.check(printed.startswith(b"%PDF") and not chromium.said(), what + "is printed", chromium.said())


def of_files(place, folder):
    paths = write_reports(place, folder)
    reports = [json.loads(open(path).read()) for path in paths]
    path, text, page = page_of(place, folder, *reversed(paths))  # the order of the arguments has no effect
    if not chromium:
        return reports
    said = " ".join(page.texts)
    for words in ("live", "Memory over time", "The pool by address", "What holds it", "Allocations by size",
                  "out of memory: device 0 has no room for 93.13 GiB", "of 2.00 GiB that the limit allows",
                  "1 × 70.00 MiB", "reason", "exit"):
        tally.check(words in said, "html: says " + words, said[:3000])
    # the map has as many live bytes as the report
    newest = reports[-1]["devices"][0]
    tally.check(any(tip.startswith("live: 70.00 MiB\nfrom 0x") for tip in tips(page)), "html: a block in the map", tips(page))
    tally.check(sum(p[2] for p in newest["segment_map"]["pieces"]) == newest["allocated_bytes"]["current"] and
                sum(p[1] for p in newest["segment_map"]["pieces"]) == newest["reserved_bytes"]["current"],
                "html: the map is all there is", newest["segment_map"])
    in_browser(path, ((390, False), (390, True), (900, False), (1600, True)))
    return reports


def map_in_words(place, folder, reports):
    """Checks the words for free memory in one piece of the map, and for the sum at its end."""
    report = json.loads(json.dumps(reports[-1]))
    device = report["devices"][0]
    start = 1 << 40
    for address, largest, words in ((start + 4 * MIB, 9, "9.00 MiB free, all of it in one block."),
                                    (start + 4 * MIB, 8, "9.00 MiB free; 1 hole, and the largest free block is 8.00 MiB."),
                                    (0, 3, "9.00 MiB free; the largest free block is 3.00 MiB.")):
        device["fragmentation"]["largest_free_bytes"] = largest * MIB  # the page takes this number from the report
        device["segment_map"]["pieces"] = [[start, 4 * MIB, 4 * MIB, 0, 1], [address, 9 * MIB, 0, 0, 0]]
        file = os.path.join(folder, "map.json")
        with open(file, "w", encoding="utf-8") as out:
            out.write(json.dumps(report) + "\n")
        said = " ".join(page_of(place, folder, file)[2].texts)
        tally.check(words in said, "html: says " + words, re.findall(r"[^.]*largest free block[^.]*\.\d+ [^.]*\.", said))


def axis_and_numbers(place, folder, reports):
    """Checks that all times of an axis have one unit, and that the page writes "1 block", not "1 blocks"."""
    file = os.path.join(folder, "axis.json")
    for moments, labels in (((0.5, 4.5), ["0.5 s", "1.5 s", "2.5 s", "3.5 s", "4.5 s"]), ((30, 150), ["0.5 min", "1 min", "1.5 min", "2 min", "2.5 min"]),
                            ((0.0001, 0.0201), ["0.1 ms", "5.1 ms", "10.1 ms", "15.1 ms", "20.1 ms"])):
        with open(file, "w", encoding="utf-8") as out:
            for moment in moments:
                report = dict(json.loads(json.dumps(reports[-1])), uptime_seconds=moment, time_unix=1000 + moment, stacks={"frames": 16})
                report["devices"][0]["holders"] = [
                    {"live_bytes": MIB, "live_count": count, "peak_bytes": MIB, "peak_count": count, "frames": frames(["f (/a/f.py:%d)" % count])}
                    for count in (1, 2)]
                out.write(json.dumps(report) + "\n")
        _, _, page = page_of(place, folder, file)
        axis = chromium.run("[...document.querySelectorAll('.x span')].map((of) => of.textContent)")
        tally.check(axis == labels, "html: an axis of one unit", axis)
    for words in ("live 1.00 MiB in 1 block\nat the peak 1.00 MiB in 1 block", "live 1.00 MiB in 2 blocks\nat the peak 1.00 MiB in 2 blocks"):
        tally.check(words in tips(page), "html: says " + words, tips(page))
    tally.check("1 block" in page.texts and "2 blocks" in page.texts, "html: numbers of blocks", page.texts)


def hostile(place, folder, reports):
    """Checks that every text of a report stays a text."""
    report = json.loads(json.dumps(reports[-1]))
    device = report["devices"][0]
    report.update({"command": ["/bin/" + EVIL, EVIL, "-->", "http://example.com/x"], "host": EVIL, "version": EVIL, "reason": EVIL})
    device.update({"name": EVIL, "backend": EVIL, "backend_reason": EVIL, "reuse": EVIL, "uuid": EVIL})
    device["live"] = [{"bytes": 5, "count": 7, "frames": frames([EVIL, "f at a.py:3", EVIL * 40])}]
    report["stacks"] = STACKS
    report["oom"] = {"device": 0, "requested_bytes": 1, "verdict": [EVIL]}
    file = os.path.join(folder, "evil.json")
    with open(file, "wb") as out:
        line = json.dumps(report).replace("\\udc80", "") + "\n"
        out.write(line.encode())
    path, text, page = page_of(place, folder, file)
    tally.check("<img" not in text and "<b>\\u" not in text and "\u202e" not in text and "\x07" not in text,
                "html: nothing gets out of its place")
    if chromium:
        tally.check("</script></style></title><img src=x onerror=alert(1)>\"'`&<b>\ufffd\ufffd " in " ".join(page.texts), "html: it is shown")
        tally.check("f at a.py:3" in page.texts, "html: stacks")
        tally.check(not set("\u202e\x07\t") & set("".join(page.texts + tips(page))), "html: nothing that moves other text")
    in_browser(path)
    with open(file, "w") as out:  # the right schema, but fields of wrong types and values
        out.write('{"schema":"gpucache-report/1","devices":[{"device":"x","live":3,"segment_map":{"pieces":[3,[],[1,2,3,4,5],'
                  '[-1,-1,-1,-1,-1],["a"],[0,512,99999999999999999999,7,1]]}},7,{"device":-1}],"command":[1,{}],"uptime_seconds":-4}\n')
    page_of(place, folder, file)  # checks that the console is empty
    for most in (15 << 60, (1 << 64) - 1):  # an axis up to the largest numbers
        with open(file, "w") as out:
            for moment in (1, 2):
                out.write('{"schema":"gpucache-report/1","time_unix":%d,"uptime_seconds":%d,"devices":[{"reserved_bytes":'
                          '{"current":%d}}]}\n' % (100 + moment, moment, most))
        done = place.tool("report", "--html", os.path.join(folder, "axis.html"), file,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16 * MIB, 16 * MIB)))
        tally.check(done.returncode == 0, "html: an axis up to %d" % most, "%s %s" % (done.returncode, done.stderr))


def with_stacks(place, folder, reports):
    """Checks holders by call stack, from a report with GPUCACHE_STACKS: the largest first, named by the program's own line."""
    report = json.loads(json.dumps(reports[-1]))
    row = lambda live, peak, stack: {"live_bytes": live, "live_count": 2, "peak_bytes": peak, "peak_count": 3, "frames": frames(stack)}
    report["stacks"] = STACKS
    report["devices"][0]["holders"] = [
        row(0, 0, ["gone (/a/gone.py:1)"]), row(5 * MIB, 9 * MIB, ["/usr/lib/libx.so+0x1", "small (/a/b/model.py:7)"]),
        row(70 * MIB, 70 * MIB, ["inner (/x/site-packages/torch/y.py:3)", "empty_cuda (/x/libtorch_cuda.so)", "step (/a/b/train.py:77)",
                                 "main (/a/b/train.py:90)", EVIL])] + [row(i, i, ["f%d (/a/f.py:%d)" % (i, i)]) for i in range(1, 60)]
    file = os.path.join(folder, "stacks.json")
    with open(file, "wb") as out:
        out.write(json.dumps(report).replace("\\udc80", "").encode() + b"\n")
    _, text, page = page_of(place, folder, file)
    owns = chromium.run("[...document.querySelectorAll('.rows summary')].map((of) => of.textContent)")
    tally.check(owns[:2] == ["step (train.py:77) ← main (train.py:90)", "small (model.py:7)"], "html: whose line it is", owns[:3])
    said = " ".join(page.texts)
    tally.check(len(owns) == 40 and "gone (" not in said and "21 more hold less." in page.texts, "html: a bounded number", len(owns))
    tally.check("inner (/x/site-packages/torch/y.py:3)" in page.texts and "70.00 MiB" in page.texts, "html: the whole stack")
    flame_graph()
    in_browser(os.path.join(folder, "page.html"))


def flame_graph():
    """Checks that pointer and keyboard search and zoom the flame graph."""
    chromium.look()
    frames = lambda: chromium.run("[...document.querySelectorAll('.frame')].map((of) => [of.className, of.textContent, of.style.width])")
    found = lambda: chromium.run("document.querySelector('.flame').previousSibling.querySelector('.hint').textContent")
    chromium.run("document.querySelector('input[type=search]').focus()")
    for letter in "TRAIN.py":
        chromium.press(letter)
    hits = [words for name, words, _ in frames() if " hit" in name]
    tally.check(sorted(hits) == ["main (train.py:90)", "step (train.py:77)"], "html: what a search finds", frames())
    tally.check(found().startswith("70.00 MiB, 93.3"), "html: how much a search finds, each byte once", found())
    chromium.run("const search = document.querySelector('input[type=search]'); search.value = ''; search.dispatchEvent(new Event('input'))")
    wide = lambda: [words for name, words, width in frames() if width == "100%" and " above" not in name]
    before = frames()
    chromium.run("[...document.querySelectorAll('.frame')].find((of) => of.textContent.startsWith('step')).click()")
    tally.check("step (train.py:77)" in wide() and "main (train.py:90)" not in wide(), "html: zoomed by the pointer", frames())
    chromium.press("Escape", 27)
    tally.check(frames() == before, "html: the whole again", frames())
    for key, code in (("ArrowDown", 40), ("ArrowDown", 40), ("Enter", 13)):
        chromium.press(key, code)
    tally.check(wide()[0] == "step (train.py:77)", "html: zoomed by the keyboard", frames())


def earlier_reports(place, folder, reports):
    """Checks that a page of several ranks has the earlier reports of each, and their OOMs."""
    files = [os.path.join(folder, "two%d.json" % rank) for rank in (0, 1)]
    for rank, path in enumerate(files):
        of = [dict(one, rank=rank, pid=1000 + rank) for one in (next(one for one in reports if "oom" in one), reports[-1])]
        with open(path, "w") as out:
            out.write("".join(json.dumps(one) + "\n" for one in of))
    text = page_of(place, folder, *files)[1]
    data = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.S).group(1)
    tally.check(data.count('"gpucache-report/1"') == 4 and data.count('"oom":{') == 2, "html: earlier reports of ranks", data[:3000])


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
    far = chromium.run("[...document.querySelectorAll('td.far')].map((of) => of.textContent)")
    tally.check(far == ["1.46 GiB"], "html: the rank that is apart is marked", far)
    places = [value for _, name, value in page.attributes if name == "id"]
    links = [value[1:] for tag, name, value in page.attributes if (tag, name) == ("a", "href")]
    tally.check(len(set(places)) == len(places) and len(links) == 12 and set(links) <= set(places), "html: links", (links, places))
    chromium.open(os.path.join(folder, "page.html"))
    folded = "[...document.querySelectorAll('details.process')].map((of) => of.open)"
    tally.check(chromium.run(folded) == [True] + [False] * 11, "html: many ranks are folded", chromium.run(folded))
    chromium.run("document.querySelectorAll('td a')[7].click()")
    tally.check(eventually(lambda: chromium.run(folded)[7] and chromium.run("!!document.getElementById('p7d0')")), "html: a link opens its rank")
    chromium.look(dark=True)
    chromium.run("dispatchEvent(new Event('beforeprint'))")
    on_paper = "getComputedStyle(document.body).backgroundColor"
    tally.check(all(chromium.run(folded)) and chromium.run(on_paper) == "rgb(255, 255, 255)", "html: on paper all of it, and light")
    chromium.run("dispatchEvent(new Event('afterprint'))")
    tally.check(chromium.run(on_paper) == "rgb(14, 19, 25)", "html: dark again after it is printed")


def of_a_process(place, folder):
    one = Program(place)
    for _ in range(6):
        for order in ("allocate 50000000", "allocate 20000000", "free", "sync"):
            one.do(order)
    path, text, page = page_of(place, folder, one.pid, feed=one)
    live = [int(value) for _, name, value in page.attributes if name == "data-bytes"]
    tally.check(live[-1] == 6 * 50000000 + 1000 and live.count(5 * 50000000 + 1000) >= 2, "html: the flight recorder's last moments", live)
    tally.check(sum(tip.startswith("live: 47.69 MiB\n") for tip in tips(page)) >= 6, "html: its map", tips(page))
    said = " ".join(page.texts)
    tally.check("Last events" in said and re.search(r"allocate +47.68 MiB", said), "html: its events", said[-3000:])
    one.end("kill", -signal.SIGKILL)
    _, _, page = page_of(place, folder, one.pid)
    said = " ".join(page.texts)
    tally.check("killed" in said and "as after SIGKILL" in said, "html: a killed process", said[:1000])


def refusals(place):
    for arguments, status, words in ((("--html",), 125, "--html=FILE"), (("--html", "/no/such/folder/x", "FILE"), 1, "No such file"),
                                     (("--html=", "FILE"), 125, "--html=: wanted is a file"),
                                     (("--html", "", "FILE"), 125, "--html: wanted is a file"),
                                     (("--html", "/dev/full", "FILE"), 1, "No space left")):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            file.write('{"schema":"gpucache-report/1","devices":[]}\n')
            file.flush()
            done = place.tool("report", *[file.name if a == "FILE" else a for a in arguments])
            tally.check(done.returncode == status and words in done.stderr, "html: %s" % " ".join(arguments), done.stderr)


def other_files(place):
    """Checks that a page is written to a new file or over an older page, and never over another file."""
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        report = '{"schema":"gpucache-report/1","devices":[]}\n'
        others = {"rank0.json": report, "rank1.json": report, "empty": "", "other.html": "<!DOCTYPE html>\n<html lang=\"en\"></html>\n"}
        for name, text in others.items():
            with open(path(name), "w") as file:
                file.write(text)
        os.symlink(path("rank1.json"), path("link"))
        for arguments, words in ((["--html", path("rank0.json"), path("rank1.json")], "wanted is --html=FILE in front of the reports"),
                                 (["--html", path("rank0.json")], "wanted is --html=FILE in front of the reports"),
                                 (["--html=" + path("rank0.json"), path("rank1.json")], "is not overwritten"),
                                 (["--html=" + path("link"), path("rank1.json")], "is not overwritten"),
                                 (["--html=" + path("empty"), path("rank1.json")], "is not overwritten"),
                                 (["--html=" + path("other.html"), path("rank1.json")], "is not overwritten")):
            done = place.tool("report", *arguments)
            tally.check(done.returncode == 125 and words in done.stderr and done.stderr.count("\n") == 1 and not done.stdout,
                        "html: refused: %s" % arguments, done.stderr)
        for name, text in others.items():
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
    """Checks that the median of an even number of devices is the mean of the middle two, in the table and on the page."""
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
            page_of(place, folder, *files[:count])
            medians_ = chromium and chromium.run("[...document.querySelectorAll('tfoot td')].map((of) => of.textContent)")
            tally.check(not chromium or medians_[0] == "Median" and medians_[5] == wanted, "html: the page's median of %d" % count, medians_)


def main():
    place = Place()
    with tempfile.TemporaryDirectory() as folder:
        reports = of_files(place, folder)
        hostile(place, folder, reports)
        earlier_reports(place, folder, reports)
        if chromium:
            map_in_words(place, folder, reports)
            axis_and_numbers(place, folder, reports)
            with_stacks(place, folder, reports)
            of_ranks(place, folder, reports)
            of_a_process(place, folder)
        medians(place, reports)
    refusals(place)
    other_files(place)


if __name__ == "__main__":
    if browser.PATH:
        with Browser() as chromium:
            tally.run(main)
    print("SKIPPED: the checks in a browser: Chromium is not installed")
    tally.run(main)
