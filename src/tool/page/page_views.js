
/* ================ one device: values, memory over time, and memory at a moment ================ */

const HOLDERS_MOST = 40, HOLDERS_FEWEST = 5, LEAST_SHARE = 0.1, EVENTS_LAST = 100, POINTS = 800, SIZE_MOST = 2 ** 29; // the upper bound of the last class that has one

function tiles(device) {
  const away = outside(device), lookups = device.cache_hits + device.cache_misses;
  const tile = (name, value, more, bad) => el("div", {class: bad ? "tile bad" : "tile"}, el("span", null, name), el("b", null, value), el("small", null, more));
  return el("div", {class: "tiles"},
    tile("Live", size(device.requested_bytes.current), "in " + device.allocations.current + " allocations"),
    tile(device.peaks_exact ? "Peak live" : "Peak live, at least", size(device.requested_bytes.peak), "asked for by the program"),
    tile("Reserved", size(device.reserved_bytes.current), "in " + device.segments.current + " segments"),
    tile("Peak reserved", size(device.reserved_bytes.peak), device.fragmentation.peak_reserved_over_peak_requested.toFixed(2) + " times peak live"),
    tile("Idle in the pool", size(device.pending_bytes + device.ready_bytes), "largest free block " + size(device.fragmentation.largest_free_bytes)),
    tile("Outside the pool", size(away.current), (away.exact ? "peak " : "peak at most ") + size(away.peak)),
    tile("Hit rate", percent(device.cache_hits, lookups), "of " + lookups + " allocations"),
    tile("Out of memory", String(device.ooms), device.oom_retries + " retries", device.ooms > 0));
}

/** Draws the share of this process in the device's memory, or in the limit. */
function bar(device) {
  const limit = device.limit_bytes, whole = limit || device.total_bytes, live = device.requested_bytes.current;
  const parts = [["live", "live", live], ["round", "rounding", Math.max(0, device.allocated_bytes.current - live)],
    ["pending", "freed, not yet reusable", device.pending_bytes], ["ready", "ready", device.ready_bytes],
    ["outside", "outside the pool", outside(device).current]].filter(([, , bytes]) => bytes > 0);
  const held = parts.reduce((sum, [, , bytes]) => sum + bytes, 0), all = Math.max(whole, held);
  return part(size(held) + " of " + size(whole) + " that the " + (limit ? "limit allows" : "device has"),
    el("div", {class: "bar"}, parts.map(([name, words, bytes]) => el("i", {class: name, style: {width: share(bytes, all)},
      "data-tip": words + ": " + size(bytes) + ", " + (100 * bytes / all).toFixed(1) + "%"}))),
    legend([...parts.map(([name, words, bytes]) => [name, words, size(bytes)]),
      ["rest", limit ? "left of the limit" : "used by others, or free", size(Math.max(0, whole - held))]]));
}

/* ---- zoom of a time interval ---- */

/** Lets pointer, touch, wheel and keys choose an interval of `view`: {from, to, least, most, closest}.
 * Returns the buttons that do the same. */
function zoomable(element, view, changed) {
  const fingers = new Map();
  const move = (from, width) => {
    width = Math.min(Math.max(width, view.closest ?? (view.most - view.least) / 1e6), view.most - view.least);
    view.from = Math.min(Math.max(from, view.least), view.most - width);
    view.to = view.from + width;
    changed();
  };
  const zoom = (factor, at = 0.5) => move(view.from + (view.to - view.from) * at * (1 - factor), (view.to - view.from) * factor);
  const pan = (share) => move(view.from + (view.to - view.from) * share, view.to - view.from);
  const place = (x) => (x - element.getBoundingClientRect().left) / element.clientWidth;
  Object.assign(view, {move, zoom, pan, whole: () => move(view.least, view.most - view.least)});
  set(element, {tabindex: 0,
    wheel(event) {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== element && !event.deltaX) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX / element.clientWidth);
      else zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), place(event.clientX));
    },
    dblclick: (event) => zoom(event.shiftKey ? 3 : 1 / 3, place(event.clientX)),
    pointerdown(event) {
      fingers.set(event.pointerId, event.clientX);
      element.dragged = false;
    },
    pointermove(event) {
      const last = fingers.get(event.pointerId), others = [...fingers].filter(([id]) => id !== event.pointerId);
      if (last === undefined || Math.abs(event.clientX - last) < (element.dragged ? 1 : 4)) return;
      if (!element.dragged) element.setPointerCapture(event.pointerId);
      element.dragged = true;
      fingers.set(event.pointerId, event.clientX);
      if (others.length === 0) return pan((last - event.clientX) / element.clientWidth);
      const [, other] = others[0], before = Math.max(8, Math.abs(last - other)), now = Math.max(8, Math.abs(event.clientX - other));
      zoom(before / now, place((event.clientX + other) / 2));
    },
    keydown(event) {
      const step = event.shiftKey ? 0.5 : 0.1;
      const act = {"+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1 / 0.7), "0": view.whole, Home: view.whole,
        ArrowLeft: () => pan(-step), ArrowRight: () => pan(step)}[event.key];
      if (act && !event.defaultPrevented && !event.ctrlKey && !event.metaKey && !event.altKey) (event.preventDefault(), act());
    }});
  for (const name of ["pointerup", "pointercancel", "pointerleave"]) element.addEventListener(name, (event) => fingers.delete(event.pointerId));
  return el("div", {class: "tools"}, button("+", () => zoom(0.5), {"aria-label": "zoom in"}), button("\u2212", () => zoom(2), {"aria-label": "zoom out"}),
    button("\u2190", () => pan(-0.3), {"aria-label": "earlier"}), button("\u2192", () => pan(0.3), {"aria-label": "later"}), button("Whole", view.whole));
}

/* ---- memory over time ---- */

const LINES = [["Reserved", "reserved"], ["Live", "live"], ["Outside the pool", "outside"]];

/** Keeps only the lowest and the highest point of each interval, if there are more than columns. */
function thin(points) {
  const stretch = Math.floor(points.length / (POINTS / 2)) + 1, kept = [];
  if (points.length <= POINTS) return points;
  for (let from = 0; from < points.length; from += stretch) {
    let low = from, high = from;
    for (let i = from; i < from + stretch && i < points.length; i++) {
      if (points[i].live < points[low].live) low = i;
      if (points[i].live > points[high].live) high = i;
    }
    kept.push(points[Math.min(low, high)], points[Math.max(low, high)]);
  }
  return kept;
}

function when(series, seconds, longest) {
  return series.backwards && seconds > -1e-6 ? "now" : duration(Math.abs(seconds), Math.abs(longest ?? seconds)) + (series.backwards ? " before" : "");
}

/** Draws the interval `view` of a series: {title, hint, points, lines, marks, limit, backwards}. */
function drawSeries(series, view, into) {
  const {points, limit, lines} = series, inside = points.filter((p) => p.t >= view.from && p.t <= view.to);
  const at = (t) => (view.to > view.from ? 1000 * (t - view.from) / (view.to - view.from) : 0).toFixed(2);
  const near = points.filter((p, i) => points[i + 1]?.t >= view.from && points[i - 1]?.t <= view.to || inside.includes(p));
  let most = Math.max(1, ...thin(near).flatMap((p) => lines.map(([, name]) => p[name])));
  if (limit > most && limit / 5 < most / 4) most = limit;
  const step = gridStep(most), top = Math.ceil(most / step) * step, up = (bytes) => (230 * (1 - bytes / top)).toFixed(2);
  const grid = [];
  for (let bytes = 0; bytes <= top; bytes += gridStep(top)) grid.push(bytes);
  const drawn = thin(near), path = (name) => drawn.map((p, i) => (i ? "L" : "M") + at(p.t) + " " + up(p[name])).join("");
  into.svg.replaceChildren(...grid.map((bytes) => svg("line", {class: bytes ? "grid" : "axis", x1: 0, x2: 1000, y1: up(bytes), y2: up(bytes)})),
    ...lines.flatMap(([, name]) => [name !== "outside" && drawn.length && svg("path", {class: "area-" + name,
      d: path(name) + "L" + at(drawn[drawn.length - 1].t) + " 230L" + at(drawn[0].t) + " 230Z"}),
    svg("path", {class: "line line-" + name, d: path(name)})].filter(Boolean)),
    ...(limit && limit <= top ? [svg("line", {class: "limit", x1: 0, x2: 1000, y1: up(limit), y2: up(limit), "data-tip": "limit: " + size(limit)})] : []),
    ...series.marks.filter((mark) => mark.t >= view.from && mark.t <= view.to).flatMap((mark) =>
      [mark.bad ? "mark bad" : "mark", "mark-hit"].map((name) => svg("line", {class: name, x1: at(mark.t), x2: at(mark.t), y1: 0, y2: 230,
        "data-tip": name === "mark-hit" ? mark.words : null}))));
  into.y.replaceChildren(...grid.map((bytes) => el("span", {style: {bottom: (100 * bytes / top).toFixed(2) + "%"}}, shortSize(bytes))));
  into.x.replaceChildren(...[0, 1, 2, 3, 4].map((i) => el("span", {style: {left: i * 25 + "%"}, class: i % 2 ? "minor" : null},
    when(series, view.from + (view.to - view.from) * i / 4, series.backwards ? view.from : view.to))));
}

function pointWords(series, point) {
  return [when(series, point.t) + (series.backwards ? "" : " after its start"), ...series.lines.map(([words, name]) => words + ": " + size(point[name]))].join("\n");
}

function chart(series) {
  const {points} = series, first = points[0].t, last = points[points.length - 1].t;
  const into = {svg: svg("svg", {viewBox: "0 0 1000 230", preserveAspectRatio: "none", role: "img", "aria-label": series.title}),
    x: el("div", {class: "x"}), y: el("div", {class: "y"})};
  const view = {from: first, to: last, least: first, most: last};
  const cross = el("div", {class: "cross", hidden: true}), plot = el("div", {class: "plot", role: "group",
    "aria-label": series.title + ": arrows move, + and - zoom, [ and ] go through the points"}, into.svg, cross);
  let chosen = points.length - 1;
  const point = (i) => {
    chosen = i;
    cross.style.left = (view.to > view.from ? 100 * (points[i].t - view.from) / (view.to - view.from) : 0) + "%";
    cross.hidden = points[i].t < view.from || points[i].t > view.to;
    return pointWords(series, points[i]);
  };
  set(plot, {pointermove(event) {
    const box = plot.getBoundingClientRect(), t = view.from + (view.to - view.from) * (event.clientX - box.left) / box.width;
    let best = 0;
    points.forEach((p, i) => { if (Math.abs(p.t - t) < Math.abs(points[best].t - t)) best = i; });
    const mark = event.target.closest("[data-tip]"), words = point(best);
    showTip(mark ? mark.getAttribute("data-tip") : words, event.clientX, event.clientY);
  },
  pointerleave: () => (cross.hidden = true, hideTip()),
  keydown(event) {
    const to = {"[": chosen - 1, "]": chosen + 1}[event.key];
    if (points[to]) say(point(to));
  }});
  const tools = zoomable(plot, view, () => drawSeries(series, view, into));
  drawSeries(series, view, into);
  const good = series.marks.some((mark) => !mark.bad), bad = series.marks.some((mark) => mark.bad);
  return part(series.title, el("div", {class: "over"}, hint(series.hint), points.length > 8 && tools),
    el("div", {class: "chart"}, into.y, plot, into.x),
    legend([...series.lines.map(([words, name]) => ["stroke line-" + name, words]), ...(series.limit ? [["stroke limit", "Limit"]] : []),
      ...(good ? [["stroke mark", "slow or rare events"]] : []), ...(bad ? [["stroke mark bad", "memory refused"]] : [])]),
    fold("As figures", () => table(["Time", ...series.lines.map(([words]) => words)], points.slice(-2000).map((p) =>
      [when(series, p.t), ...series.lines.map(([, name]) => ({words: size(p[name]), bytes: p[name]}))])), {class: "figures"}));
}

function reportSeries(of, ordinal) {
  const rows = of.reports.map((report) => [report, deviceOf(report, ordinal)]).filter(([, device]) => device);
  const points = rows.map(([report, device]) => ({t: report.uptime_seconds, reserved: device.reserved_bytes.current,
    live: device.requested_bytes.current, outside: outside(device).current}));
  return {title: "Memory over time", hint: "As the reports say, from the start of the process.", points,
    lines: LINES.filter(([, name]) => name !== "outside" || points.some((p) => p.outside)),
    limit: rows.length ? rows[rows.length - 1][1].limit_bytes : 0,
    marks: rows.filter(([report]) => report.oom && report.oom.device === ordinal).map(([report]) =>
      ({t: report.uptime_seconds, bad: true, words: "out of memory: " + size(report.oom.requested_bytes) + " was asked for"}))};
}

/* ---- the flight recorder of a live page ---- */

function recorded(recorder) {
  return recorder.events.map(([number, coarse, time, ring, device, kind, bytes, address, thread, took]) =>
    ({number, coarse, time, ring, device, kind, bytes, address, thread, took, role: model.roles[kind]}));
}

/**
 * Returns the time after which the recorder has every event of large blocks that the values include: -1 if
 * it has all, Infinity if it lacks even the newest ones. A full ring has lost its older events.
 */
function completeBehind(events, moment) {
  const first = [], last = [];
  for (const event of events) {
    if (event.number > moment.events[event.ring]) continue;
    if (event.number !== (last[event.ring] ?? 0) + 1) first[event.ring] = event.coarse;
    last[event.ring] = event.number;
  }
  for (let ring = 1; ring < moment.events.length; ring++) // ring 0 has no large blocks
    if ((last[ring] ?? 0) !== moment.events[ring]) return Infinity;
  return Math.max(-1, ...first.slice(1).filter((time) => time !== undefined));
}

/** Computes the live bytes before each event, backwards from the current values. Events of several
 * threads within one tick of the clock are one step, because their order is unknown. */
function recorderSeries(report, ordinal) {
  const recorder = report.extra.recorder, device = deviceOf(report, ordinal), moment = recorder?.moments.find((of) => of.device === ordinal);
  if (!device || !moment) return null;
  const events = recorded(recorder), behind = completeBehind(events, moment), blocks = [], marks = [];
  const seconds = (time) => (time - moment.read_ns) / 1e9;
  for (const event of events) {
    const block = event.role === "allocate" || event.role === "free";
    if (event.device !== ordinal || event.number > moment.events[event.ring] || (block ? event.coarse : event.time) <= behind) continue;
    if (block) blocks.push(event);
    else marks.push({t: seconds(event.time), bad: event.role === "refused", words: [model.kinds[event.kind], event.bytes && size(event.bytes),
      event.took && Math.floor(event.took / 1000) + " us"].filter(Boolean).join(", ")});
  }
  blocks.sort((a, b) => a.coarse - b.coarse || a.ring - b.ring || a.number - b.number);
  let live = device.requested_bytes.current;
  const points = [{t: 0, live}], change = (event) => event.role === "allocate" ? event.bytes : -event.bytes;
  for (let end = blocks.length, from; end > 0; end = from) {
    for (from = end - 1; from > 0 && blocks[from - 1].coarse === blocks[end - 1].coarse;) from--;
    const tick = blocks.slice(from, end), several = tick.some((event) => event.ring !== tick[0].ring);
    const steps = several ? [tick.reduce((sum, event) => sum + change(event), 0)] : tick.map(change).reverse();
    for (const step of steps) {
      points.push({t: seconds(tick[0].coarse), live});
      live = Math.max(0, live - step);
      points.push({t: seconds(tick[0].coarse), live});
    }
  }
  return {title: "The last moments", hint: "What was live, by the large blocks that the flight recorder has. What several threads did within a few " +
    "milliseconds is one step.", points: points.reverse(), marks, lines: [LINES[1]], limit: device.limit_bytes, backwards: true};
}

function lastEvents(report) {
  const recorder = report.extra.recorder;
  return fold("Last events", () => table(["Time", "Dev", {class: "t", words: "Event"}, "Size", "Address", "Thread", "Took"],
    recorded(recorder).slice(-EVENTS_LAST).map((event) => {
      const at = recorder.began + event.time / 1e9;
      return [clock(at).slice(11, 19) + "." + String(Math.floor(at * 1000) % 1000).padStart(3, "0"), event.device < 0 ? "" : event.device,
        {class: "t", words: model.kinds[event.kind]}, event.bytes ? size(event.bytes) : "", event.address ? "0x" + event.address.toString(16) : "",
        event.thread, event.took && !/allocate|free/.test(event.role) ? Math.floor(event.took / 1000) + " us" : ""];
    })), {class: "part"});
}

function overTime(of, ordinal) {
  const series = reportSeries(of, ordinal), made = [], newest = of.newest;
  if (series.points.length > 1) made.push(chart(series));
  const last = newest && recorderSeries(newest, ordinal);
  if (last && last.points.length > 2) made.push(chart(last));
  if (series.points.length === 1 && !last && of.traces.length === 0)
    made.push(part("Memory over time", none("One report is one moment. GPUCACHE_REPORT_INTERVAL makes several, a trace (GPUCACHE_TRACE) has every " +
      "allocation, and a running process has a flight recorder.")));
  return made;
}

/* ---- by address ---- */

function pieceWords([address, bytes, live, cached, segments]) {
  const free = bytes - live - cached;
  const words = address === 0 ? "in no block, wherever it lies: " + size(bytes) : live === bytes ? "live: " + size(bytes)
    : cached === bytes ? "freed, kept for the next such request: " + size(bytes) : free === bytes ? "free: " + size(bytes)
      : size(bytes) + ", of which live " + size(live) + ", freed and kept " + size(cached) + ", free " + size(free);
  return words + (address ? "\nfrom 0x" + address.toString(16) : "") + (segments > 1 ? "\nof " + segments + " segments" : "");
}

function mapWords(device, {pieces, merged_up_to_bytes: grain}) {
  const free = pieces.reduce((sum, [, bytes, live, cached]) => sum + bytes - live - cached, 0), largest = device.fragmentation.largest_free_bytes;
  const holes = pieces.filter(([address, , live, cached]) => live + cached === 0 && address !== 0).length;
  return [(pieces[pieces.length - 1][0] === 0 || device.backend === "pages") && "Memory outside all blocks is at the end. ",
    free === 0 ? "Nothing is free in it." : largest >= free ? size(free) + " free, all of it in one block."
      : size(free) + " free; " + (grain === 0 && holes > 0 ? plural(holes, "hole") + ", and " : "") + "the largest free block is " + size(largest) + ".",
    grain > 0 && " What is shorter than " + size(grain) + " stands together with its neighbours."];
}

/** Draws rows of equal length in order of addresses. The width of a piece is its length; the filled part
 * is live. */
function map(device) {
  const of = device.segment_map, pieces = (of?.pieces ?? []).filter(([, bytes]) => bytes > 0), total = pieces.reduce((sum, [, bytes]) => sum + bytes, 0);
  if (total === 0)
    return part("The pool by address", none(device.reserved_bytes.current ? "This report has no map of the pool." : "The pool holds no memory at this moment."));
  const rows = pieces.length < 8 ? 2 : pieces.length < 40 ? 5 : 10, step = gridStep(total) / 16, length = Math.ceil(total / (rows * step)) * step;
  const lines = Array.from({length: Math.ceil(total / length)}, () => []);
  let at = 0;
  for (const piece of pieces) {
    const [, bytes, live, cached] = piece, words = pieceWords(piece);
    for (let from = at; from < at + bytes;) {
      const row = Math.floor(from / length), to = Math.min(at + bytes, (row + 1) * length);
      const x = 1000 * (from / length - row), width = 1000 * (to - from) / length;
      const box = (name, low, high) => high > low && svg("rect", {class: name, x: x.toFixed(2), width: width.toFixed(2),
        y: (24 * (1 - high)).toFixed(2), height: (24 * (high - low)).toFixed(2)});
      lines[row].push(svg("g", {"data-tip": words}, box("free", (live + cached) / bytes, 1), box("cached", live / bytes, (live + cached) / bytes),
        box("live", 0, live / bytes)));
      if (from === at && x > 0 && width > 4) lines[row].push(svg("line", {class: "edge", x1: x.toFixed(2), x2: x.toFixed(2), y1: 0, y2: 24}));
      from = to;
    }
    at += bytes;
  }
  return part("The pool by address", hint(mapWords(device, of)), lines.map((parts, row) => el("div", {class: "maprow"}, el("span", null, "+" +
    shortSize(row * length)), svg("svg", {viewBox: "0 0 1000 24", preserveAspectRatio: "none", role: "img", "aria-label": "memory by address"}, parts))),
  legend([["live", "live"], ["cached", "freed, kept for the next such request"], ["free", "free"]]));
}

/* ---- by size ---- */

function track(tip, boxes) {
  return el("div", {class: "track", "data-tip": tip}, boxes.map(([name, width]) => el("i", {class: name, style: {width}})));
}

/** Draws bars with logarithmic lengths: a program may have a million small blocks and ten large ones. */
function sizes(device) {
  const rows = device.size_classes.filter((row) => row.total > 0), bits = (value) => value > 0 ? Math.floor(Math.log2(value)) + 1 : 0;
  const most = bits(Math.max(0, ...rows.map((row) => row.total)));
  if (!rows.length) return part("Allocations by size", none("None yet."));
  return part("Allocations by size", hint("On a logarithmic scale."), el("div", {class: "rows"}, rows.map((row) => [
    el("span", {class: "n"}, row.upper_bytes ? "\u2264 " + shortSize(row.upper_bytes) : "> " + shortSize(SIZE_MOST)),
    track(row.total + " in all, " + row.live + " live", [["total", share(bits(row.total), most)], ["live", share(bits(row.live), most)]]),
    el("span", {class: "n"}, row.total, " ", el("small", null, row.live + " live"))])), legend([["total", "in all"], ["live", "live"]]));
}

/* ---- holders ---- */

function stackList(stack) {
  return el("details", null, el("summary", null, named(stack).join(" \u2190 ")), el("ol", null, stack.map((frame) =>
    el("li", {class: is(frame, OWN) ? "mono own" : "mono"}, frame))));
}

function holderRow(holder, most) {
  const {live_bytes: live, live_count: count, peak_bytes: peak, peak_count: peaks} = holder, stack = stackOf(holder);
  return [el("span", {class: "n"}, size(live)),
    track("live " + size(live) + " in " + plural(count, "block") + "\nat the peak " + size(peak) + " in " + plural(peaks, "block"),
      [["peak", share(peak, most)], ["live", share(live, most)]]),
    el("span", {class: "n"}, el("small", null, count > 0 ? plural(count, "block") : "peak " + size(peak))), stack.length > 0 && stackList(stack)];
}

function holdersBySize(device) {
  const whole = device.requested_bytes.current, groups = device.live.map((of) => ({...of, all: of.bytes * of.count, stack: stackOf(of)}));
  const shown = groups.filter((of, i) => of.stack.length || i < HOLDERS_FEWEST || 100 * of.all / whole >= LEAST_SHARE);
  const rest = whole - shown.reduce((sum, of) => sum + of.all, 0);
  return [hint("Live allocations by size" + (groups.some((of) => of.stack.length) ? " and by the call that made them." : ".")),
    el("div", {class: "rows"}, shown.map((of) => [el("span", {class: "n"}, size(of.all)),
      track((100 * of.all / whole).toFixed(1) + "% of what is live", [["live", share(of.all, whole)]]),
      el("span", {class: "n"}, el("small", null, of.count + " \u00d7 " + size(of.bytes))), of.stack.length > 0 && stackList(of.stack)]),
    rest > 0 && [el("span", {class: "n"}, size(rest)), el("div", {class: "track"}, el("i", {class: "live", style: {width: share(rest, whole)}})),
      el("span", {class: "n"}, el("small", null, "in other sizes"))])];
}

function holders(device) {
  const rows = (device.holders ?? []).filter((of) => of.live_bytes || of.peak_bytes).sort((a, b) => b.live_bytes - a.live_bytes || b.peak_bytes - a.peak_bytes);
  const most = Math.max(1, ...rows.map((of) => Math.max(of.live_bytes, of.peak_bytes)));
  if (!rows.length)
    return part("What holds it", device.live.length ? holdersBySize(device)
      : none(device.requested_bytes.current ? "The sizes of what is live are not known." : "Nothing is live."));
  return part("What holds it", hint("By the call that asked for it."), el("div", {class: "rows"}, rows.slice(0, HOLDERS_MOST).map((of) => holderRow(of, most))),
    rows.length > HOLDERS_MOST && hint(rows.length - HOLDERS_MOST + " more hold less."), legend([["live", "live"], ["peak", "at the peak of the device"]]));
}

function libraries(device) {
  const rows = device.libraries ?? [], most = Math.max(1, ...rows.map((of) => Math.max(of.current, of.peak ?? 0)));
  return rows.length > 0 && part("Who took it, by library", el("div", {class: "rows"}, rows.map((of) => [el("span", {class: "n"}, size(of.current)),
    track(of.name, [["peak", share(of.peak ?? 0, most)], ["live", share(of.current, most)]]),
    el("span", {class: "n"}, of.name, el("small", null, of.peak === null ? "" : " peak " + size(of.peak)))])));
}

/** Returns holders and libraries in one column: the list of sizes in the other column is long. */
function holdersAndLibraries(device) {
  const parts = [holders(device), libraries(device)].filter(Boolean);
  return parts.length > 0 && el("div", null, parts);
}

/* ---- a flame graph of holders ---- */

const WEIGHTS = [["live", "live now", (of) => of.live_bytes], ["peak", "at the peak", (of) => of.peak_bytes], ["total", "asked for in all", (of) => of.total_bytes],
  ["byte-seconds", "bytes times seconds", (of) => of.byte_seconds]];

/** Makes the tree of calls, from the outermost frame. The value of a node includes its children's. */
function flameTree(rows, weight) {
  const root = {name: "all of it", value: 0, children: new Map(), depth: 0};
  for (const of of rows) {
    const value = weight(of);
    if (!(value > 0)) continue;
    const frames = stackOf(of).reverse();
    let node = root;
    node.value += value;
    for (const name of frames.length ? frames : ["no frames"]) {
      if (!node.children.has(name)) node.children.set(name, {name, value: 0, children: new Map(), depth: node.depth + 1, parent: node});
      node = node.children.get(name);
      node.value += value;
    }
  }
  return root;
}

const sorted = (node) => [...node.children.values()].sort((a, b) => b.value - a.value);

/** Returns the sum of the nodes that a search finds. Of nested nodes only the outermost counts. */
function found(node, matches) {
  return matches(node) ? node.value : sorted(node).reduce((sum, child) => sum + found(child, matches), 0);
}

function flameBoxes(root, top, matches, words) {
  const boxes = [];
  const box = (node, left, width) => {
    const name = node === root ? "root" : is(node.name, OWN) ? "own" : "library";
    boxes.push(el("div", {class: "frame " + name + (matches && matches(node) ? " hit" : "") + (node.depth < top.depth ? " above" : "") +
      (width > 0.02 ? "" : " narrow"), role: "treeitem",
      "aria-level": node.depth + 1, "aria-label": node.name + ", " + words(node.value), tabindex: node === top ? 0 : -1,
      "data-tip": node.name + "\n" + words(node.value) + ", " + (100 * node.value / root.value).toFixed(1) + "%",
      style: {left: 100 * left + "%", width: 100 * width + "%", top: 21 * node.depth + "px"}}, width > 0.02 ? brief(node.name) : ""));
    boxes[boxes.length - 1].node = node;
  };
  for (let node = top.parent; node; node = node.parent) box(node, 0, 1);
  const fill = (node, left, width) => {
    if (width < 0.001) return;
    box(node, left, width);
    for (const child of sorted(node)) {
      const part = width * child.value / node.value;
      fill(child, left, part);
      left += part;
    }
  };
  fill(top, 0, 1);
  return boxes;
}

function flame(device) {
  const rows = device.holders ?? [], usable = WEIGHTS.filter(([, , weight]) => rows.some((of) => weight(of) > 0));
  if (!usable.length) return null;
  let weight = usable[0], root, top;
  const graph = el("div", {class: "flame", role: "tree", "aria-label": "calls and what they hold: arrows move, Enter zooms, Escape shows all"});
  const search = el("input", {type: "search", placeholder: "Search functions and files", size: 26, "aria-label": "search", input: () => draw()});
  const sum = el("span", {class: "hint", "aria-live": "polite"});
  const words = (value) => weight[0] === "byte-seconds" ? size(Math.floor(value)) + " \u00d7 s" : size(value);
  const draw = (focus) => {
    const wanted = search.value.toLowerCase(), matches = wanted && ((node) => node.name.toLowerCase().includes(wanted));
    const boxes = flameBoxes(root, top, matches, words), hits = matches ? found(root, matches) : 0;
    graph.style.height = 21 * (1 + Math.max(...boxes.map((box) => box.node.depth))) + "px";
    graph.replaceChildren(...boxes);
    sum.replaceChildren();
    add(sum, [matches ? words(hits) + ", " + percent(hits, root.value) + " found" : top === root ? "" : brief(top.name) + ": " + words(top.value)]);
    if (focus) boxes.find((box) => box.node === focus)?.focus();
  };
  const zoom = (node) => (top = node, draw(node));
  const choose = (name) => (weight = WEIGHTS.find((of) => of[0] === name), root = top = flameTree(rows, weight[2]), draw());
  set(graph, {click: (event) => event.target.node && zoom(event.target.node), keydown(event) {
    const node = event.target.node, beside = node?.parent ? sorted(node.parent) : [], at = beside.indexOf(node);
    const to = {ArrowUp: node?.parent, ArrowDown: node && sorted(node)[0], ArrowLeft: beside[at - 1], ArrowRight: beside[at + 1]}[event.key];
    if (to) ([...graph.children].find((box) => box.node === to) ?? {focus: () => zoom(to)}).focus();
    else if (event.key === "Enter") zoom(node);
    else if (event.key === "Escape") zoom(root);
    else return;
    event.preventDefault();
  }});
  choose(weight[0]);
  return part("Calls, by what they hold", el("div", {class: "tools"}, el("select", {"aria-label": "width", change: (event) => choose(event.target.value)},
    usable.map(([name, words]) => el("option", {value: name}, words))), search, button("Whole", () => zoom(root)), sum), graph,
  legend([["own", "the program's own code"], ["library", "libraries"], ["hit", "found"]]));
}

/* ---- at a moment ---- */

/** Returns the reports to show: the last OOM, the newest, and the one with the most live memory. */
function momentsOf(of, ordinal, few) {
  const reports = of.reports.filter((report) => deviceOf(report, ordinal)), newest = of.newest, live = (report) => deviceOf(report, ordinal)?.requested_bytes.current ?? -1;
  const oom = [...reports].reverse().find((report) => report.oom && report.oom.device === ordinal);
  const fullest = reports.reduce((best, report) => live(report) > live(best) ? report : best, newest);
  return [oom && oom !== newest && ["Out of memory", oom], [oom === newest ? "Out of memory" : "Newest", newest],
    fullest !== newest && fullest !== oom && !few && ["Most live in a report", fullest]].filter(Boolean);
}

function moments(of, ordinal, few) {
  const views = momentsOf(of, ordinal, few).map(([name, report]) => {
    const device = deviceOf(report, ordinal), title = name + ", " + duration(report.uptime_seconds) + " after its start";
    return [title, el("div", {class: "moment", "data-name": title}, map(device), flame(device), el("div", {class: "columns"}, holdersAndLibraries(device), sizes(device)))];
  });
  if (views.length === 1) return views[0][1];
  const tabs = views.map(([title], i) => button(title, () => choose(i), {role: "tab"}));
  const choose = (chosen) => views.forEach(([, view], i) => {
    view.classList.toggle("away", i !== chosen);
    tabs[i].setAttribute("aria-selected", i === chosen);
  });
  choose(0);
  return el("div", {class: "moments"}, el("div", {class: "tabs", role: "tablist"}, tabs), views.map(([, view]) => view));
}

/* ---- the view of a device ---- */

function counters(device) {
  const rows = Object.entries(device).filter(([name, value]) => typeof value === "number" && name !== "device");
  return fold("All counters", () => table(["Counter", "Value"], [...rows.map(([name, value]) => [{class: "t mono", words: name}, value]),
    ...Object.entries(device.outside_bytes).filter(([, of]) => of.peak).map(([name, of]) =>
      [{class: "t mono", words: "outside, " + name}, size(of.current) + ", peak " + size(of.peak)])]), {class: "part"});
}

function deviceCard(of, ordinal, few) {
  const device = of.newest && deviceOf(of.newest, ordinal), id = "p" + of.number + "d" + ordinal;
  const traces = of.traces.flatMap((trace) => trace.devices.filter((one) => one.device === ordinal).map((one) => tracePart(trace, one)));
  const head = (name) => el("div", {class: "head"}, el("h2", null, "Device " + ordinal), el("span", {class: "hint"}, name));
  if (!device) return el("article", {class: "card", id}, head(of.traces[0]?.devices.find((one) => one.device === ordinal)?.name), traces);
  const ready = device.ready_bytes, largest = device.fragmentation.largest_free_bytes;
  return el("article", {class: "card", id}, head(device.name),
    chips([["backend", device.backend, ": " + device.backend_reason], ["reuse", device.reuse], ["limit", device.limit_bytes ? size(device.limit_bytes) : "none"],
      ["external fragmentation", ready ? percent(Math.max(0, ready - largest), ready) : "none, nothing is ready"]]),
    tiles(device), bar(device), overTime(of, ordinal), traces, moments(of, ordinal, few), of.newest.extra.recorder && lastEvents(of.newest), counters(device));
}
