#!/usr/bin/env python3
"""Compares every number on the page of `gpucache report --html` with the report's JSON, in a browser.

A number that no rule below expects is an error. One colour of a page means one thing."""
import collections
import datetime
import html
import json
import os
import re
import tempfile

import browser
from browser import Browser, data_of
from harness import Tally, program, run_with_report
from report_live_page import MIB, Place, Program, eventually, write_reports

tally = Tally()
UNIT = 512  # bytes of the map's units


# ---- values as the tool writes them ----

def four_digits(hundredths):
    return "%d.%02d" % divmod(hundredths, 100) if hundredths < 100000 else "%d.%d" % divmod((hundredths + 5) // 10, 10)


def size(number):
    unit, names = 1024, iter("KMGTPE")
    name = next(names)
    if number < 1024:
        return "%d B" % number
    hundredths = lambda: (number * 100 + unit // 2) // unit
    while hundredths() >= 102395:
        unit, name = unit * 1024, next(names)
    return "%s %siB" % (four_digits(hundredths()), name)


def percent(part, whole):
    return "%d.%02d%%" % divmod(part * 10000 // whole if whole else 0, 100)


def label(number, units):
    """Returns a short text for an axis, without decimals if the value is nearly whole."""
    for least, unit, name in units:
        if number >= least:
            break
    value = number / unit
    rest = value % 1
    return ("%.0f %s" if value >= 100 or rest < 0.05 or rest > 0.95 else "%.1f %s") % (value, name)


def short_size(number):
    return label(number, [(1024 ** i, 1024 ** i, name) for i, name in ((5, "PiB"), (4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB"))] +
                 [(0, 1, "B")])


def duration(seconds, longest=None):
    """Returns a time as the page writes it, in the unit of `longest` if given."""
    units = [(172800, 86400, "d"), (7200, 3600, "h"), (120, 60, "min"), (1, 1, "s"), (0, 0.001, "ms")]
    return label(seconds, units if longest is None else [(0, *next(unit for least, *unit in units if longest >= least))])


def moment(seconds):
    return datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


# ---- the page, without the parts that were compared ----

class Rest:
    def __init__(self, text):
        self.text = text

    def take(self, pattern, part=None):
        """Returns all matches of a pattern, in order, and removes them."""
        found = [html.unescape("\x00".join(m.groups())).split("\x00") if m.groups() else [m.group()]
                 for m in re.finditer(pattern, self.text, re.S)]
        self.text = re.sub(pattern, " ", self.text, flags=re.S)
        return found

    def words(self):
        """Returns the visible text that is left."""
        seen = re.findall(r'(?:data-tip|data-name|aria-label|data-bytes)="([^"]*)"', self.text)
        return [w for w in re.sub("<[^>]*>", "\n", self.text).split("\n") + seen if re.search(r"\d", w)]


def same(what, found, wanted):
    tally.check(found == wanted, "numbers: " + what, "%s\nthe report: %s" % (found, wanted))


def plain(text):
    return html.unescape(re.sub("<[^>]*>", "", text))


# ---- the parts of the page ----

OUTSIDE = ("stream_ordered", "virtual", "array", "managed")  # kinds of unpooled device memory


def chips(rest, report, reports, device):
    found = [plain(li).strip() for ul in rest.take('<ul class="chips">(.*?)</ul>') for li in ul[0].split("<li>")[1:]]
    ready, largest = device["ready_bytes"], device["fragmentation"]["largest_free_bytes"]
    version = divmod(report["driver_version"], 1000)
    wanted = ["pid %d" % report["pid"]] + (["rank %d" % report["rank"]] if report["rank"] is not None else []) + [
        "host " + report["host"], "figures of %s, %s after its start" % (moment(report["time_unix"]), duration(report["uptime_seconds"])),
        "reason " + report["reason"], "%d report%s" % (len(reports), "s" * (len(reports) != 1)),
        "driver of CUDA %d.%d" % (version[0], version[1] // 10), "libgpucache " + report["version"],
        "backend %s: %s" % (device["backend"], device["backend_reason"]), "reuse " + device["reuse"],
        "limit " + (size(device["limit_bytes"]) if device["limit_bytes"] else "none"),
        "external fragmentation " + (percent(max(ready - largest, 0), ready) if ready else "none, nothing is ready")]
    same("chips", found, wanted)
    same("external fragmentation", round(max(ready - largest, 0) / ready if ready else 0, 5),
         round(device["fragmentation"]["external"], 5))


def tiles(rest, device):
    found = rest.take(r'<div class="tile(?: bad)?"><span>(.*?)</span><b>(.*?)</b><small>(.*?)</small></div>')
    get = lambda name, key="current": device[name][key]
    outside = [device["outside_bytes"][kind] for kind in OUTSIDE]
    lookups = device["cache_hits"] + device["cache_misses"]
    exact = sum(kind["peak"] > 0 for kind in outside) < 2
    same("tiles", found, [
        ["Live", size(get("requested_bytes")), "in %d allocations" % get("allocations")],
        ["Peak live" if device["peaks_exact"] else "Peak live, at least", size(get("requested_bytes", "peak")), "asked for by the program"],
        ["Reserved", size(get("reserved_bytes")), "in %d segments" % get("segments")],
        ["Peak reserved", size(get("reserved_bytes", "peak")),
         "%.2f times peak live" % device["fragmentation"]["peak_reserved_over_peak_requested"]],
        ["Idle in the pool", size(device["pending_bytes"] + device["ready_bytes"]),
         "largest free block " + size(device["fragmentation"]["largest_free_bytes"])],
        ["Outside the pool", size(sum(kind["current"] for kind in outside)),
         ("peak " if exact else "peak at most ") + size(sum(kind["peak"] for kind in outside))],
        ["Hit rate", percent(device["cache_hits"], lookups), "of %d allocations" % lookups],
        ["Out of memory", str(device["ooms"]), "%d retries" % device["oom_retries"]]])


def bar(rest, device):
    limit, total = device["limit_bytes"], device["total_bytes"]
    live, allocated = device["requested_bytes"]["current"], device["allocated_bytes"]["current"]
    parts = [("live", live), ("rounding", allocated - live), ("freed, not yet reusable", device["pending_bytes"]),
             ("ready", device["ready_bytes"]), ("outside the pool", sum(device["outside_bytes"][kind]["current"] for kind in OUTSIDE))]
    parts = [(name, number) for name, number in parts if number]
    held = sum(number for _, number in parts)
    whole = max(limit or total, held)
    section, = rest.take(r'<section class="part">(<h3>[^<]* that the (?:limit allows|device has)</h3>.*?)</section>')
    same("bar", plain(re.search("<h3>(.*?)</h3>", section[0])[1]), "%s of %s that the %s" % (
        size(held), size(limit or total), "limit allows" if limit else "device has"))
    same("bar's parts", re.findall('data-tip="(.*?)"', section[0]),
         ["%s: %s, %.1f%%" % (name, size(number), 100 * number / whole) for name, number in parts])
    same("bar's key", [plain(li) for li in section[0].split("<li>")[1:]],
         ["%s %s" % (name, size(number)) for name, number in parts + [
             ("left of the limit" if limit else "used by others, or free", max((limit or total) - held, 0))]])


def map_of(rest, device):
    pieces = device["segment_map"]["pieces"]
    found = [title[0].split("\n") for title in rest.take('<g data-tip="(.*?)">')]
    wanted = []
    for address, number, live, cached, segments in pieces:
        free = number - live - cached
        words = ("live: " if live == number else "freed, kept for the next such request: " if cached == number else
                 "free: " if free == number else "")
        whole = words + size(number) if words else "%s, of which live %s, freed and kept %s, free %s" % (
            size(number), size(live), size(cached), size(free))
        wanted.append(["in no block, wherever it lies: " + size(number)] if address == 0 else [whole, "from 0x%x" % address])
        if segments > 1:
            wanted[-1].append("of %d segments" % segments)
    once = [title for i, title in enumerate(found) if i == 0 or title != found[i - 1]]  # a piece may lie in several rows
    same("map", once, wanted)
    hint, = rest.take(r'The pool by address</h3>\s*<p class="hint">(.*?)</p>') or [[""]]
    free = sum(number - live - cached for _, number, live, cached, _ in pieces)
    sizes = re.findall(r"[\d.]+ [KMGT]?i?B", hint[0].split(" What is shorter")[0])
    largest = size(device["fragmentation"]["largest_free_bytes"])
    tally.check(sizes in ([], [size(free)], [size(free), largest]), "numbers: free in the map", (hint, size(free), largest))
    holes = re.search(r"(\d+) hole", hint[0])
    if holes:
        same("holes", int(holes[1]), sum(live + cached == 0 and address != 0 for address, _, live, cached, _ in pieces))
    total, step = sum(piece[1] for piece in pieces), 1
    while step < total // 5:
        step *= 2
    most = 2 if len(pieces) < 8 else 5 if len(pieces) < 40 else 10
    row = -(-total // (most * step // 16)) * step // 16  # rows begin at round numbers
    same("rows of the map", [w[0] for w in rest.take(r'<div class="maprow"><span>\+(.*?)</span>')],
         [short_size(start) for start in range(0, total, row)] if total else [])


def holders(rest, device):
    section, = rest.take(r'<section class="part"><h3>What holds it</h3>(.*?)</section>')
    section = re.sub("(?s)<details[^>]*>.*?</details>", "", section[0])
    found = re.findall(r'<span class="n">(.*?)</span><div class="track"(?: data-tip="(.*?)")?>.*?<small>(.*?)</small>', section, re.S)
    rows = sorted((h for h in device.get("holders", []) if h["live_bytes"] or h["peak_bytes"]),
                  key=lambda h: (-h["live_bytes"], -h["peak_bytes"]))
    live = device["requested_bytes"]["current"]
    blocks = lambda count: "%d block%s" % (count, "" if count == 1 else "s")
    wanted = [(size(h["live_bytes"]), "live %s in %s\nat the peak %s in %s" % (
        size(h["live_bytes"]), blocks(h["live_count"]), size(h["peak_bytes"]), blocks(h["peak_count"])),
        blocks(h["live_count"]) if h["live_count"] else "peak " + size(h["peak_bytes"])) for h in rows[:40]]
    if not rows:
        groups = [g for i, g in enumerate(device["live"]) if i < 5 or g["bytes"] * g["count"] >= live / 1000]
        wanted = [(size(g["bytes"] * g["count"]), "%.1f%% of what is live" % (100 * g["bytes"] * g["count"] / live),
                   "%d × %s" % (g["count"], size(g["bytes"]))) for g in groups]
        others = live - sum(g["bytes"] * g["count"] for g in groups)
        wanted += [(size(others), "", "in other sizes")] if groups and others else []
    same("holders", [tuple(map(html.unescape, row)) for row in found], wanted)
    more = re.search(r"(\d+) more hold less", section)
    same("more holders", int(more[1]) if more else 0, max(len(rows) - 40, 0))
    same("the rest of holders", re.findall(r"\d+", plain(section)), re.findall(r"\d+", "".join(
        row[0] + html.unescape(row[2]) for row in wanted) + (more[0] if more else "")))


def libraries(rest, device):
    rows = device["libraries"]
    section = rest.take(r'<section class="part"><h3>Who took it, by library</h3>(.*?)</section>')
    found = re.findall(r'<span class="n">([^<]*)</span><div class="track" data-tip="(.*?)">.*?</div>'
                       r'<span class="n">(.*?)<small>(.*?)</small>', section[0][0], re.S) if section else []
    same("libraries", [tuple(map(html.unescape, row)) for row in found],
         [(size(row["current"]), row["name"], row["name"], "" if row["peak"] is None else " peak " + size(row["peak"])) for row in rows])


def sizes(rest, device):
    found = rest.take(r'<span class="n">(≤|&gt;) ([^<]*)</span><div class="track" data-tip="([^"]*)">.*?</div>'
                      r'<span class="n">(\d+) <small>(\d+) live</small></span>')
    uppers = [c["upper_bytes"] for c in device["size_classes"]]
    wanted = [["≤" if c["upper_bytes"] else ">", None, "%d in all, %d live" % (c["total"], c["live"]), str(c["total"]), str(c["live"])]
              for c in device["size_classes"] if c["total"]]
    same("sizes", [[a, None, *more] for a, _, *more in found], wanted)
    same("upper sizes", [row[1] for row in found], [short_size(upper or 512 << 20) for upper in uppers])


def counters(rest, device):
    found = rest.take(r'<tr><td class="t mono">([a-z_]+)</td><td>([^<]*)</td></tr>')
    same("counters", {name: float(value) for name, value in found}, {
        name: value for name, value in device.items() if type(value) in (int, float) and name != "device"})
    found = rest.take(r'<tr><td class="t mono">outside, ([a-z_]+)</td><td>([^<]*)</td></tr>')
    same("outside", [[kind, words.strip()] for kind, words in found], [[kind, "%s, peak %s" % (size(value["current"]), size(value["peak"]))]
                            for kind, value in device["outside_bytes"].items() if value["peak"]])


def rows_of(table):
    """Returns the cells of a table's body by row, each as (text, exact number or "")."""
    return [[(plain(words), exact) for exact, words in re.findall(r'<td(?:[^>]*data-bytes="([^"]*)")?[^>]*>(.*?)</td>', row)]
            for row in re.findall("<tr>(.*?)</tr>", table.split("<tbody>")[1].split("</tbody>")[0])]


def charts(rest, reports, ordinal):
    of = [(r["uptime_seconds"], d) for r in reports for d in r["devices"] if d["device"] == ordinal]
    for table, in rest.take(r'<details class="figures"[^>]*>(.*?)</details>'):
        outside = lambda d: sum(d["outside_bytes"][kind]["current"] for kind in OUTSIDE)
        wanted = {"Reserved": [d["reserved_bytes"]["current"] for _, d in of], "Live": [d["requested_bytes"]["current"] for _, d in of],
                  "Outside the pool": [outside(d) for _, d in of]}
        if not any(wanted["Outside the pool"]):
            del wanted["Outside the pool"]
        same("chart's lines", [plain(name) for name in re.findall("<th[^>]*>(.*?)</th>", table)], ["Time", *wanted])
        same("chart", rows_of(table), [[(duration(t), ""), *[(size(v[i]), str(v[i])) for v in wanted.values()]] for i, (t, _) in enumerate(of)])
        begin, end = of[0][0], of[-1][0]
        same("chart's time axis", [w[0] for w in rest.take(r'<span[^>]*style="left: \d+%;"[^>]*>(.*?)</span>')],
             [duration(begin + (end - begin) * i / 4, end) for i in range(5)])
        grid = [w for w in rest.take(r'<span style="bottom: ([\d.]+)%;">(.*?)</span>')]
        top = next(2 ** s * n for s in range(50) for n in range(1, 9)
                   if short_size(2 ** s * n) == grid[-1][1] and 2 ** s * n >= max(max(v) for v in wanted.values()))
        same("chart's size axis", [g[1] for g in grid], [short_size(round(top * float(g[0]) / 100)) for g in grid])
    for words, in rest.take('data-tip="(limit: .*?|out of memory: .*?)"'):
        asked = [size(r["oom"]["requested_bytes"]) for r in reports if "oom" in r]
        limits = [size(d["limit_bytes"]) for _, d in of if d["limit_bytes"]]
        tally.check(words in ["limit: " + limit for limit in limits] + ["out of memory: %s was asked for" % a for a in asked],
                    "numbers: marks", words)


def flame(rest, device):
    """Checks the flame graph: the bytes of a call are the sum of the calls inside it."""
    (section,), = rest.take(r'<section class="part"><h3>Calls, by what they hold</h3>(.*?)</section>') or [[""]]
    sums = collections.Counter()
    for holder in device.get("holders", []):
        path = ("all of it", *reversed(holder["stack"] or ["no frames"]))
        for i in range(len(path)):
            sums[path[:i + 1]] += holder["live_bytes"]
    total = sums[("all of it",)]
    found = [html.unescape(words) for words in re.findall('(?s)data-tip="(.*?)"', section)]
    same("flame graph", sorted(found), sorted("%s\n%s, %.1f%%" % (path[-1], size(bytes_), 100 * bytes_ / total)
                                             for path, bytes_ in sums.items() if total and bytes_ / total >= 0.001))


def comparison(rest, reports):
    """Compares the first report with the last one."""
    (section,), = rest.take(r'<details class="card compare"[^>]*>(.*?)</details>') or [[""]]
    tally.check(bool(section) == (len(reports) > 1), "numbers: two reports")
    if not section:
        return
    before, after = (report["devices"][0] for report in (reports[0], reports[-1]))
    rows = {row[0][0]: row[1:] for row in rows_of(section)}
    for name, key in (("Live", "requested_bytes"), ("Blocks", "allocated_bytes"), ("Active", "active_bytes"), ("Reserved", "reserved_bytes")):
        for title, figure in ((name, "current"), ("Peak " + name.lower(), "peak")):
            a, b = before[key][figure], after[key][figure]
            change = "–" if a == b else "%s%s" % ("+" if b > a else "−", size(abs(b - a)))
            same("compare: " + title, rows[title], [(size(a), str(a)), (size(b), str(b)), (change, str(b - a))])
    for title, key in (("Cache hits", "cache_hits"), ("OOMs", "ooms")):
        same("compare: " + title, rows[title][:2], [(str(d[key]), str(d[key])) for d in (before, after)])


def colours(text):
    """Checks that each class of a key has one meaning on the whole page and a colour of its own."""
    text, css = text
    meanings = collections.defaultdict(set)
    for name, words in re.findall(r'<li><i class="(?:stroke )?([^"]*)"></i>(.*?)(?= <b>|</li>)', text):
        meanings[name].add(words)
    same("a class of a key means one thing", {k: v for k, v in meanings.items() if len(v) > 1}, {})
    tally.check(len(meanings) > 8, "numbers: keys", meanings)
    names = ("live", "round", "pending", "ready", "cached", "free", "outside", "peak", "total", "mark", "bad", "own", "library", "hit", "label")
    for scheme in re.findall(r"(?s):root \{(.*?)\}", css):  # light, dark, printed
        used = [dict(re.findall(r"--([a-z-]+): (#\w+)", scheme))[name] for name in names]
        same("a colour means one thing", sorted(used), sorted(set(used)))


def shown(page):
    """Returns a page as a browser shows it, and its style."""
    with tempfile.NamedTemporaryFile("w", suffix=".html", encoding="utf-8") as file:
        file.write(page)
        file.flush()
        chromium.open(file.name)
    contents = chromium.contents()
    same("nothing on the console", chromium.said(), [])
    return contents, re.search("(?s)<style>(.*?)</style>", page)[1]


def compare(place, reports, what):
    """Compares every number on a page with reports of one process on one device, in the order of time. Returns page and style."""
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, "%d.json" % i) for i in range(len(reports))]
        for name, report in zip(files, reports):
            with open(name, "w", encoding="utf-8") as out:
                out.write(json.dumps(report) + "\n")
        done = place.tool("report", "--html=-", *files)
        # the same reports with function names
        reports = [json.loads(place.tool("report", "--format=json", name).stdout) for name in files]
    tally.check(done.returncode == 0, "numbers: " + what, done.stderr)
    same("the reports in the page", data_of(done.stdout)["reports"], reports)
    page = shown(done.stdout)
    newest, rest = reports[-1], Rest(page[0])
    device = newest["devices"][0]
    command = " ".join(newest["command"])
    same("command", rest.take('<p class="command mono">(.*?)</p>'), [[command]])
    rest.take("<footer.*?</footer>")
    rest.take("<title>[^<]* - GPU memory</title>|<h1>.*?</h1>")
    comparison(rest, reports)
    same("device", rest.take(r'<h2>Device (\d+)</h2><span class="hint">(.*?)</span>'), [[str(device["device"]), device["name"]]])
    chips(rest, newest, reports, device)
    tiles(rest, device)
    bar(rest, device)
    counters(rest, device)
    ooms = [r for r in reports if "oom" in r]
    verdict = [plain(line) for call in rest.take('<div class="call bad">(.*?)</div>') for line in call[0].split("</p>") if line]
    rest.take('<button type="button" role="tab".*?</button>')
    same("verdict", verdict, [re.sub("^gpucache: ", "", line) for line in ooms[-1]["oom"]["verdict"]] if ooms else [])
    parts = re.split(r'(?=<div class="moment[^"]*" data-name=)', rest.text)
    rest.text = parts[0]
    most = max(reports, key=lambda r: r["devices"][0]["requested_bytes"]["current"])
    for part in parts[1:]:
        one = Rest(part)
        (name, age), = one.take('data-name="(.*?), ([^"]*?) after its start"')
        of = {"Newest": newest, "Most live in a report": most, "Out of memory": ooms[-1] if ooms else None}[name]
        same("moment", age, duration(of["uptime_seconds"]))
        map_of(one, of["devices"][0])
        flame(one, of["devices"][0])
        holders(one, of["devices"][0])
        sizes(one, of["devices"][0])
        libraries(one, of["devices"][0])
        same("nothing else in a moment", one.words(), [])
    charts(rest, reports, device["device"])
    same("nothing else on the page", rest.words(), [])
    return page


def distinct(report):
    """Returns a consistent report in which no two numbers are equal."""
    device = report["devices"][0]
    metrics = {"requested_bytes": (301, 911), "allocated_bytes": (307, 929), "active_bytes": (401, 977), "reserved_bytes": (809, 1201)}
    for name, (now, peak) in metrics.items():
        device[name] = {"current": now * MIB, "peak": peak * MIB, "total": (peak + now) * MIB, "freed": peak * MIB}
    device["allocations"], device["segments"] = ({"current": c, "peak": 5 * c, "total": 7 * c, "freed": 6 * c} for c in (23, 3))
    device["pending_bytes"], device["ready_bytes"] = (401 - 307) * MIB, (809 - 401) * MIB
    device["fragmentation"].update({"largest_free_bytes": 113 * MIB, "external": 1 - 113 / 408, "free_blocks": 17,
                                    "peak_reserved_over_peak_requested": 1201 / 911})
    for i, kind in enumerate(device["outside_bytes"]):
        device["outside_bytes"][kind] = {"current": (i + 3) * 1000003, "peak": (i + 3) * 3000017, "total": 1, "freed": 0}
    for i, name in enumerate(n for n in ("cache_hits", "cache_misses", "ooms", "oom_retries", "epochs", "barriers", "cpu_waits",
                                         "driver_allocs", "driver_frees", "limit_refusals", "invalid_frees", "pinned_hits")):
        device[name] = 1009 + 31 * i
    device["peaks_exact"] = False
    device["libraries"] = [{"name": "libtorch_cuda.so", "current": 211 * MIB, "peak": 853 * MIB},
                           {"name": "lib<b>&co.so", "current": 0, "peak": 59 * MIB},
                           {"name": "small blocks, of any library", "current": 97 * MIB, "peak": None}]
    return report


def copied(report, **more):
    return {**json.loads(json.dumps(report)), **more}


def side_by_side(place, report):
    """Compares the table of several processes with their reports: each row, and the medians."""
    columns = lambda d: [d["requested_bytes"]["current"], d["requested_bytes"]["peak"], d["reserved_bytes"]["current"],
                         d["reserved_bytes"]["peak"], sum(d["outside_bytes"][kind]["current"] for kind in OUTSIDE), d["ooms"]]
    worded = lambda numbers: [size(number) for number in numbers[:-1]] + [str(numbers[-1])]
    with tempfile.TemporaryDirectory() as folder:
        reports, files = [], []
        for rank in range(4):
            reports.append(copied(report, rank=rank, pid=7000 + rank * 7))
            device = reports[-1]["devices"][0]
            for name in ("requested_bytes", "reserved_bytes"):
                device[name]["current"] += rank * rank * MIB
                device[name]["peak"] += rank * rank * MIB
            device["ooms"] = 3 * rank
            files.append(os.path.join(folder, "%d.json" % rank))
            with open(files[-1], "w", encoding="utf-8") as out:
                out.write(json.dumps(reports[-1]) + "\n")
        rest = Rest(shown(place.tool("report", "--html=-", *files).stdout)[0])
    table, = rest.take(r"<h2>Side by side</h2>(.*?)</table>")
    rows = [[plain(cell) for cell in re.split("<td[^>]*>", row)[1:]] for row in re.split("<tr>", table[0])[2:]]
    tips = re.findall('data-tip="(.*?)"', table[0])
    same("side by side", [[cell.strip() for cell in row if cell.strip()] for row in rows if row], [
        [str(r["rank"]), str(r["pid"]), r["host"], str(r["devices"][0]["device"]), *worded(columns(r["devices"][0]))] for r in reports] + [
            ["Median", *worded([(b + c) // 2 for _, b, c, _ in [sorted(of) for of in zip(*[columns(r["devices"][0]) for r in reports])]])]])
    same("side by side: bars", tips, ["live %s, idle %s" % (size(d["requested_bytes"]["current"]), size(
        d["pending_bytes"] + d["ready_bytes"])) for r in reports for d in r["devices"]])


def reports_of_a_process(place):
    with tempfile.TemporaryDirectory() as folder:
        return [json.load(open(path, encoding="utf-8")) for path in write_reports(place, folder)]


def last_moments(pages):
    """Returns (levels of live memory in the chart of the last moments, shown live memory) for each page. One page with all
    reports, each as its own process, lets the browser draw them at once."""
    together = {**data_of(pages[0]), "reports": [], "extras": []}
    for i, page in enumerate(pages):
        data = data_of(page)
        together["reports"].append({**data["reports"][0], "pid": i + 1})
        together["extras"] += data["extras"]
    head, tail = pages[0].split('id="data">')[0], pages[0].split('id="data">')[1].split("</script>", 1)[1]
    contents, _ = shown(head + 'id="data">' + json.dumps(together).replace("<", "\\u003c") + "</script>" + tail)
    found = []
    for part in re.split('(?=<article class="card")', contents)[1:]:
        table = re.search(r'<details class="figures"[^>]*>(.*?)</details>', part, re.S)
        found.append(([int(row[1][1]) for row in rows_of(table[1])] if table else [], re.search(r"<span>Live</span><b>(.*?)</b>", part)[1]))
    return found


def while_it_runs(place, order):
    """Checks that the chart of the last moments ends with the live memory, and has no impossible level. All blocks have one
    size. Events of two threads in one tick of the coarse clock may change their order, which shows one block more; or less,
    down to 0, where the recorder has already lost the other event."""
    one, block, shown_, later = Program(place), 16 * MIB, 0, 0
    most = 3 if order == "handed" else 2
    for _ in range(3):
        one.do("allocate %d" % (3 * MIB))
    start = {i * 3 * MIB + 1000 for i in range(4)}
    one.send("%s %d" % (order, block))
    for _ in range(20):
        for levels, live in last_moments([place.tool("report", "--html=-", str(one.pid)).stdout for _ in range(20)]):
            if not levels:
                continue  # the recorder has overwritten the event since the metrics were read
            first = {0} if order == "handed" and levels[0] == 0 else set()
            tally.check(set(levels) <= first | start | {max(start) + i * block for i in range(1, most + 1)},
                        "numbers: levels while it runs: " + order, sorted(set(levels)))
            same("the end of the chart", size(levels[-1]), live)
            shown_, later = shown_ + 1, later + (not start & set(levels))  # later: the recorder has lost the start
        if shown_ >= 12 and later >= 6:
            break
    tally.check(shown_ >= 12 and later >= 6, "numbers: charts of a process that runs", (shown_, later))
    one.send("stop")
    one.wait()
    one.end("exit", 7)


def after_a_kill(place):
    """Checks the chart after a kill during allocations: the recorder may lack events that the metrics contain."""
    pages, block = [], 16 * MIB
    for _ in range(4):
        one = Program(place)
        for _ in range(3):
            one.do("allocate %d" % (3 * MIB))
        start = {i * 3 * MIB + 1000 for i in range(4)}
        one.send("rush %d" % block)
        seen = lambda: json.loads(place.tool("report", "--format=json", str(one.pid)).stdout)["devices"][0]["allocations"]["total"]
        tally.check(eventually(lambda: seen() > 1000), "numbers: 1000 allocations before the kill")
        one.child.kill()
        one.end()
        pages.append(place.tool("report", "--html=-", str(one.pid)).stdout)
    for levels, _ in last_moments(pages):
        tally.check(set(levels) <= start | {max(start) + block, max(start) + 2 * block}, "numbers: levels after a kill", sorted(set(levels)))


def main():
    place = Place()
    reports = reports_of_a_process(place)
    tally.check(len(reports) == 6 and "oom" in reports[4], "numbers: reports", len(reports))
    compare(place, reports, "a process and an OOM")
    compare(place, reports[:1], "one report")
    _, stacks = run_with_report([program("report_stacks"), "leak"], options={"GPUCACHE_STACKS": "24"})
    page = compare(place, [stacks], "call stacks")
    text = compare_text(place, stacks)
    tally.check(re.findall(r"in \d+: (.*?) +\|", text)[0] in re.search("<summary>([^<]*?) ←", page[0])[1],
                "numbers: names as in the text", page[0])
    many = distinct(copied(stacks))
    colours(compare(place, [many], "distinct numbers"))
    side_by_side(place, many)
    pending = copied(many)
    pending["devices"][0].update({"pending_bytes": (809 - 307) * MIB, "ready_bytes": 0})
    pending["devices"][0]["fragmentation"].update({"largest_free_bytes": 0, "external": 0})
    compare(place, [pending], "nothing but pending memory")
    above = copied(many)
    above["devices"][0]["limit_bytes"] = 500 * MIB
    compare(place, [above], "more held than the limit allows now")
    while_it_runs(place, "turns")
    while_it_runs(place, "handed")
    after_a_kill(place)


def compare_text(place, report):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(json.dumps(report) + "\n")
        file.flush()
        return place.tool("report", file.name).stdout


if __name__ == "__main__":
    browser.need()
    with Browser() as chromium:
        tally.run(main)
