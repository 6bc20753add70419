#!/usr/bin/env python3
"""Compares the page of a trace with the trace, and searches it by pointer, keyboard and finger.

Prints the frames per second that the browser draws of 200,000 events. No check bounds this number."""
import json
import os
import tempfile

import browser
from browser import Browser
from harness import Tally, program, run_with_report
from report_live_page import MIB, Place, Program, eventually

tally = Tally()
chromium = None
ZOOM = """new Promise((done) => {
    const canvas = document.querySelector("canvas.plot"), box = canvas.getBoundingClientRect(), times = [];
    let last = performance.now();
    canvas.focus();
    const turn = (now) => {
        times.push(now - last);
        last = now;
        canvas.dispatchEvent(new WheelEvent("wheel", {deltaY: times.length % 80 < 40 ? -60 : 60, clientX: box.left + box.width * 0.6,
            clientY: box.top + 50, bubbles: true, cancelable: true}));
        if (times.length < 240) return requestAnimationFrame(turn);
        times.sort((a, b) => a - b);
        done({fps: 1000 * times.length / times.reduce((a, b) => a + b), median: times[120], slowest: times[239]});
    };
    requestAnimationFrame(turn);
})"""
EVENTS = """(() => {
    const trace = model.processes[0].traces[0], of = decodeTrace(trace.devices[0], trace.end_ns);
    return Array.from({length: of.events}, (_, i) => {
        const block = of.block[i] < 0 ? ~of.block[i] : of.block[i];
        return [of.block[i] < 0 ? "free" : "alloc", of.address[block], of.sizes[of.group[block]], of.t[i], of.live[i]];
    });
})()"""

# Returns up to five wrong columns. The height of a column is the live memory at its time. It consists of the blocks that were
# live then, the oldest at the bottom.
PAINTED = """(() => {
    const trace = model.processes[0].traces[0], of = decodeTrace(trace.devices[0], trace.end_ns), wrong = [], width = 300, height = 200;
    for (const [from, to] of [[0, 1], [0.3, 0.31], [0.5, 0.9], [0.98, 1]]) {
        const view = {byEvent: true, from: from * of.events, to: Math.max(to * of.events, from * of.events + 4)};
        const states = columnStates(of, view, width), top = Math.max(1, ...Array.from(states, (state) => liveAt(of, state)));
        const pixels = new Uint32Array(width * height), ids = new Int32Array(width * height).fill(-1);
        paint(of, view, states, top, traceLook(of, null, false), pixels, ids, width, height);
        for (let x = 0; x < width; x++) {
            const column = Array.from({length: height}, (_, y) => ids[(height - 1 - y) * width + x]).filter((id) => id !== -1);
            const blocks = column.filter((id) => id >= 0), state = states[x];
            if (Math.abs(column.length - liveAt(of, state) * height / top) > 1 || blocks.some((id, i) => of.came[id] > state ||
                of.went[id] <= state || (i > 0 && id < blocks[i - 1]))) wrong.push([from, x, column.length, liveAt(of, state) * height / top]);
        }
    }
    const shown = Math.max(...Array.from(columnStates(of, {from: of.t[0], to: of.t[of.events - 1] + 1}, width), (state) => liveAt(of, state)));
    const most = of.live.reduce((a, b) => Math.max(a, b), 0);
    return shown === most ? wrong.slice(0, 5) : [["the peak is lost", shown, most]];
})()"""

# Returns the highest reserved memory of a view of more points than there are pixels. One point of them is a peak.
SHORT_PEAK = """(() => {
    const reserved = Array.from({length: 40001}, (_, i) => [i, i === 20002 ? 9 : 1]);
    return reservedIn({reserved}, {from: 0, to: 40000, byEvent: false}, null).most;
})()"""


def open_page(place, folder, *sources):
    path = os.path.join(folder, "page.html")
    done = place.tool("report", "--html=" + path, *sources)
    tally.check(done.returncode == 0, "trace: is written", done.stderr)
    chromium.look(1280, 900)
    chromium.open(path)
    return path


def text():
    return chromium.run("document.body.innerText")


def center():
    chromium.run("document.querySelector('canvas.plot').scrollIntoView({block: 'center'})")
    return chromium.run("(() => { const box = document.querySelector('canvas.plot').getBoundingClientRect();"
                        " return [box.left, box.top, box.width, box.height]; })()")


def largest():
    """Returns the texts of the list below the drawing, as soon as it has some."""
    rows = "[...document.querySelectorAll('.picks > *')].map((of) => of.textContent)"
    tally.check(eventually(lambda: chromium.run(rows)), "trace: the largest")
    return chromium.run(rows)


def every_event(place, folder):
    """Checks that page and trace have the same events, and that the page's maximum of live memory is the report's peak."""
    trace = os.path.join(folder, "trace")
    _, report = run_with_report([program("report_stacks"), "leak"], options={"GPUCACHE_STACKS": "24", "GPUCACHE_TRACE": trace})
    file = os.path.join(folder, "report.json")
    with open(file, "w", encoding="utf-8") as out:
        out.write(json.dumps(report) + "\n")
    open_page(place, folder, file, trace)
    snapshot = json.loads(place.tool("snapshot", "--json", trace).stdout)
    wanted = [("alloc" if e["action"] == "alloc" else "free", e["addr"], e["size"])
              for e in snapshot["device_traces"][0] if e["action"] in ("alloc", "free_requested")]
    found, device = chromium.run(EVENTS), report["devices"][0]
    alike = lambda a, b: a[:2] == list(b[:2]) and 0 <= b[2] - a[2] <= max(4096, b[2] / 16)  # a snapshot has rounded sizes of blocks
    differ = next((i for i, (a, b) in enumerate(zip(found, wanted)) if not alike(a, b)), min(len(found), len(wanted)))
    tally.check(differ == len(found) == len(wanted) > 0, "trace: its events", (differ, found[differ:differ + 3], wanted[differ:differ + 3]))
    tally.check([e[3] for e in found] == sorted(e[3] for e in found), "trace: in the order of time")
    tally.check(max(e[4] for e in found) == device["requested_bytes"]["peak"], "trace: its peak", device["requested_bytes"])
    tally.check(found[-1][4] == device["requested_bytes"]["current"], "trace: what lives at its end", found[-1])
    tally.check(chromium.run(PAINTED) == [], "trace: what is painted", chromium.run(PAINTED))
    tally.check(chromium.run(SHORT_PEAK) == 9, "trace: a short peak of reserved memory", chromium.run(SHORT_PEAK))
    allocations = sum(e[0] == "alloc" for e in found)
    tally.check("%d allocations in %d events of the trace" % (allocations, len(found)) in text(), "trace: how many", text()[:2000])
    tally.check(chromium.run("document.querySelectorAll('article').length") == 1, "trace: together with the report of its process")
    rows = largest()
    tally.check(any("(stacks.c" in row or "leak" in row or "keep" in row for row in rows), "trace: who holds most", rows)
    open_page(place, folder, trace)  # without a report
    tally.check("%d allocations in" % allocations in text() and not chromium.said(), "trace: alone", text()[:2000])


def hands(place, folder):
    """Checks that pointer and keyboard select a block, and that keyboard and fingers zoom and move the view."""
    trace = os.path.join(folder, "hands")
    one = Program(place, {"GPUCACHE_TRACE": trace})
    for _ in range(3):
        one.do("allocate %d" % (40 * MIB))
    for _ in range(20):
        one.do("allocate %d" % (20 * MIB))
        one.do("free")
    one.end("exit", 7)
    open_page(place, folder, trace)
    chips = lambda: chromium.run("[...document.querySelectorAll('.detail li')].map((of) => of.textContent)")
    rows = largest()
    tally.check(rows[0] == "120.00 MiB" and rows[1] == "3 blocks", "trace: the most in view", rows)
    left, top, width, height = center()
    chromium.run("document.querySelector('canvas.plot').focus()")
    view = lambda: chromium.run("[...document.querySelectorAll('.x span')].map((of) => of.textContent)")
    whole = view()
    chromium.click(left + width - 3, top + height - 8)  # the end of the lowest block
    tally.check(eventually(chips) and "size 40.00 MiB" in chips() and "not freed" in [c.strip() for c in chips()],
                "trace: the block under the pointer", chips())
    address = next(c for c in chips() if c.startswith("address"))
    chromium.press("Escape", 27)
    tally.check(not chips(), "trace: none is chosen", chips())
    for _ in range(2):
        chromium.press("+", 187)
    tally.check(eventually(lambda: view() != whole), "trace: zoomed by the keyboard", view())
    zoomed = view()
    chromium.press("ArrowRight", 39)
    tally.check(eventually(lambda: view() != zoomed), "trace: moved by the keyboard", view())
    for _ in range(3):
        chromium.press("ArrowRight", 39)
    chromium.press("0", 48)
    tally.check(eventually(lambda: view() == whole), "trace: the whole again", (view(), whole))
    chromium.run("document.querySelector('.tools input[type=checkbox]').click()")
    tally.check(eventually(lambda: view()[0] == "0" and view()[-1].isdigit()), "trace: by event", view())
    chromium.run("document.querySelector('canvas.plot').focus()")
    for other in (False, True):
        chromium.press("ArrowUp", 38)
        tally.check(eventually(chips) and (address not in chips()) == other, "trace: a block by the keyboard", chips())
    chromium.look(390, 844, touch=True)
    chromium.open(os.path.join(folder, "page.html"))
    whole, (left, top, width, height) = view(), center()
    touch = lambda kind, *points: chromium.ask("Input.dispatchTouchEvent", type=kind, touchPoints=[
        {"x": left + width * x, "y": top + height / 2, "id": i} for i, x in enumerate(points)])
    touch("touchStart", 0.4, 0.6)
    for spread in (0.25, 0.3, 0.35, 0.4):
        touch("touchMove", 0.5 - spread, 0.5 + spread)
    touch("touchEnd")
    tally.check(eventually(lambda: view() != whole), "trace: zoomed by two fingers", view())
    tally.check(not chromium.said(), "trace: nothing on the console", chromium.said())


def many_events(place, folder):
    """Checks a page of 200,000 events: its size, its drawing, and the note that older events are left out."""
    trace = os.path.join(folder, "many")
    one = Program(place, {"GPUCACHE_TRACE": trace})
    for i in range(60):
        one.do("allocate %d" % ((i % 7 + 1) * MIB))
    one.send("rush %d" % (16 * MIB))
    seen = lambda: json.loads(place.tool("report", "--format=json", str(one.pid)).stdout)["devices"][0]["allocations"]["total"]
    tally.check(eventually(lambda: seen() > 150000), "trace: 150,000 events before the kill")
    one.child.kill()
    one.end()
    path = open_page(place, folder, trace)
    events = len(chromium.run(EVENTS))
    tally.check(events >= 150000 and "older events are not in it" in text(), "trace: its last events", (events, text()[:1000]))
    tally.check(os.path.getsize(path) < 5 * MIB, "trace: the size of a page of %d events" % events, os.path.getsize(path))
    tally.check(chromium.run(PAINTED) == [], "trace: what is painted of many events", chromium.run(PAINTED))
    center()
    drawn = chromium.run(ZOOM)
    print("%d events in %.1f MiB: zoomed at %.0f frames a second, the median frame %.1f ms, the slowest %.1f ms" % (
        events, os.path.getsize(path) / MIB, drawn["fps"], drawn["median"], drawn["slowest"]))
    tally.check(not chromium.said() and not chromium.asked(), "trace: nothing on the console, nothing asked for", chromium.said())


def refused(place, folder):
    with open(os.path.join(folder, "cut"), "wb") as out, open(os.path.join(folder, "trace"), "rb") as whole:
        out.write(whole.read(1000))
    done = place.tool("report", "--html=" + os.path.join(folder, "no.html"), os.path.join(folder, "cut"))
    tally.check(done.returncode == 1 and done.stderr and not os.path.exists(os.path.join(folder, "no.html")), "trace: one that is cut off", done.stderr)


def main():
    place = Place()
    with tempfile.TemporaryDirectory() as folder:
        every_event(place, folder)
        hands(place, folder)
        many_events(place, folder)
        refused(place, folder)


if __name__ == "__main__":
    browser.need()
    with Browser() as chromium:
        tally.run(main)
