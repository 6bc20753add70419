/*
 * The script of gpucache report --html: texts, the data of processes, and the parts of the page.
 *
 * Reports may come from anybody. Each of their texts reaches the page through text(), as a text node or
 * as the value of an attribute that this script names. No function parses markup.
 */

/* ---- elements ---- */

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]/gu;

/** Returns a text whose invisible and direction-changing characters are replaced. */
function text(value) {
  return String(value ?? "").replace(/[\n\t]/g, " ").replace(HIDDEN, "\ufffd");
}

function add(to, children) {
  for (const child of children.flat(Infinity))
    if (child instanceof Node) to.appendChild(child);
    else if (child !== null && child !== undefined && child !== false) to.appendChild(document.createTextNode(text(child)));
  return to;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes || {}))
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "style") for (const [key, style] of Object.entries(value)) element.style.setProperty(key, style);
    else if (name === "data-tip") element.setAttribute(name, String(value).split("\n").map(text).join("\n"));
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, text(value === true ? "" : value));
  return element;
}

/** Makes an element. An attribute that is a function handles the event of the attribute's name. */
function el(tag, attributes, ...children) {
  return add(set(document.createElement(tag), attributes), children);
}

function svg(tag, attributes, ...children) {
  return add(set(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes), children);
}

function part(title, ...children) {
  return el("section", {class: "part"}, el("h3", null, title), children);
}

function hint(...words) {
  return el("p", {class: "hint"}, words);
}

function none(words) {
  return el("p", {class: "none"}, words);
}

/** Makes a legend of [class, words, value]. */
function legend(rows) {
  return el("ul", {class: "key"}, rows.map(([name, words, value]) =>
    el("li", null, el("i", {class: name}), words, value !== undefined && [" ", el("b", null, value)])));
}

function button(words, act, more) {
  return el("button", {type: "button", click: act, ...more}, words);
}

/** Makes a table with `words` above its columns; a cell may be an element or {class, words}. */
function table(words, rows, foot) {
  const cells = (row, tag) => el("tr", null, row.map((cell, i) => {
    const of = cell && cell.words !== undefined ? cell : {words: cell};
    return el(tag, {class: of.class ?? (i === 0 ? "t" : null), "data-bytes": of.bytes}, of.words);
  }));
  return el("div", {class: "scroll", tabindex: 0}, el("table", null, el("thead", null, cells(words, "th")),
    el("tbody", null, rows.map((row) => cells(row, "td"))), foot && el("tfoot", null, cells(foot, "td"))));
}

/** Makes a fold. Its contents are made when it is first opened, or before the page is printed. */
function fold(words, make, attributes) {
  const of = el("details", attributes, el("summary", null, words));
  const fill = () => of.open && of.childElementCount === 1 && add(of, [make()]);
  of.addEventListener("toggle", fill);
  of.fill = fill;
  return of;
}

/* ---- numbers ---- */

function fourDigits(hundredths) {
  return hundredths < 100000 ? Math.floor(hundredths / 100) + "." + String(hundredths % 100).padStart(2, "0")
    : (Math.floor((hundredths + 5) / 10) / 10).toFixed(1);
}

/** Formats bytes as the text report does. */
function size(bytes) {
  if (bytes < 0) return "-" + size(-bytes);
  if (bytes < 1024) return bytes + " B";
  let unit = 1024, name = 0;
  const hundredths = () => Math.floor((bytes * 100 + unit / 2) / unit);
  for (; hundredths() >= 102395 && name < 5; name++) unit *= 1024;
  return fourDigits(hundredths()) + " " + "KMGTPE"[name] + "iB";
}

function percent(part, whole) {
  const share = whole > 0 ? Math.floor(Number(BigInt(Math.floor(part)) * 10000n / BigInt(Math.floor(whole)))) : 0;
  return Math.floor(share / 100) + "." + String(share % 100).padStart(2, "0") + "%";
}

function plural(count, word) {
  return count + " " + word + (count === 1 ? "" : "s");
}

/** Formats a number for an axis: whole, or with one decimal. */
function short(value, name) {
  const rest = value % 1;
  return (value >= 100 || rest < 0.05 || rest > 0.95 ? value.toFixed(0) : value.toFixed(1)) + " " + name;
}

function shortSize(bytes) {
  let unit = 0;
  for (; bytes >= 1024 && unit < 5; unit++) bytes /= 1024;
  return short(bytes, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]);
}

/** Formats a time in the unit that suits `longest`, so that all times of an axis have one unit. */
function duration(seconds, longest) {
  const units = [[172800, 86400, "d"], [7200, 3600, "h"], [120, 60, "min"], [1, 1, "s"], [1e-3, 1e-3, "ms"], [0, 1e-6, "us"]];
  const most = Math.abs(longest ?? seconds);
  const [, unit, name] = most === 0 ? units[4] : units.find(([least]) => most >= least);
  return short(seconds / unit, name);
}

function clock(seconds) {
  const at = new Date(seconds * 1000), two = (value) => String(value).padStart(2, "0");
  if (isNaN(at)) return "?";
  const zone = at.toLocaleTimeString("en-US", {timeZoneName: "short"}).split(" ").pop();
  return at.getFullYear() + "-" + two(at.getMonth() + 1) + "-" + two(at.getDate()) + " " + two(at.getHours()) + ":" +
    two(at.getMinutes()) + ":" + two(at.getSeconds()) + " " + zone;
}

/** Returns the bytes from one line of a grid to the next: a power of two, for four to ten lines. */
function gridStep(most) {
  let step = 1;
  while (step < Math.floor(most / 5) && step < 2 ** 60) step *= 2;
  return step;
}

/* ---- reports ---- */

const UNPOOLED = ["stream_ordered", "virtual", "array", "managed"]; // memory of the device; pinned memory is the host's

function outside(device) {
  const kinds = UNPOOLED.map((kind) => device.outside_bytes[kind]).filter(Boolean);
  return {current: kinds.reduce((sum, of) => sum + of.current, 0), peak: kinds.reduce((sum, of) => sum + of.peak, 0),
    exact: kinds.filter((of) => of.peak > 0).length < 2};
}

function frameText(frame) {
  if (typeof frame === "string") return frame;
  if (!frame.function) return (frame.module ?? frame.file ?? "") + "+0x" + Number(frame.offset ?? 0).toString(16);
  return frame.function + (frame.file ? " (" + frame.file + (frame.line ? ":" + frame.line : "") + ")" : "");
}

const OWN = 1, PYTHON = 2, ENTRY = 4;
const is = (frame, bit) => ((model.frames.get(frame)?.[1] ?? 0) & bit) !== 0;

/** Returns the text of a frame for a short line. */
function brief(frame) {
  return model.frames.get(frame)?.[0] ?? frame;
}

/**
 * Returns the two frames of a stack that the text report names first, by the rules of holders_pick_frames():
 * only Python frames, if there are any; of these only the program's own, or else those outside the driver's callers.
 */
function named(stack) {
  const python = stack.some((frame) => is(frame, PYTHON)), lines = stack.filter((frame) => !python || is(frame, PYTHON));
  const own = lines.filter((frame) => is(frame, OWN)), beyond = lines.filter((frame) => !is(frame, ENTRY));
  return (own.length ? own : beyond.length ? beyond : lines).slice(0, 2).map(brief);
}

function stackOf(holder) {
  return (holder.stack ?? []).map(frameText);
}

function deviceOf(report, ordinal) {
  return report.devices.find((device) => device.device === ordinal);
}

function read(data) {
  const all = data.reports.map((report, i) => ({...report, extra: data.extras[i]}));
  const processes = [];
  const find = (pid, host, rank, start) => {
    let of = processes.find((p) => p.pid === pid && p.host === host && p.rank === rank && Math.abs(p.start - start) < 2);
    if (!of) processes.push(of = {pid, host, rank, start, reports: [], traces: [], name: ""});
    return of;
  };
  for (const report of all)
    find(report.pid, report.host, report.rank, report.time_unix - report.uptime_seconds).reports.push(report);
  for (const trace of data.traces) find(trace.pid, trace.host, trace.rank, trace.began).traces.push(trace);
  processes.sort((a, b) => (a.rank ?? -1) - (b.rank ?? -1) || a.start - b.start);
  processes.forEach((of, i) => {
    of.reports.sort((a, b) => a.time_unix - b.time_unix);
    of.newest = of.reports[of.reports.length - 1];
    of.name = of.newest ? of.newest.extra.name : of.traces[0].name;
    of.number = i;
  });
  return {...data, reports: all, processes, frames: new Map(Object.entries(data.frames))};
}

/* ---- the table of several reports ---- */

const METRICS = [
  ["Live", (d) => d.requested_bytes.current, size], ["Peak", (d) => d.requested_bytes.peak, size],
  ["Reserved", (d) => d.reserved_bytes.current, size], ["Peak reserved", (d) => d.reserved_bytes.peak, size],
  ["Outside", (d) => outside(d).current, size], ["OOMs", (d) => d.ooms, String]];

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const low = sorted[(sorted.length - 1) >> 1], high = sorted[sorted.length >> 1];
  return low + Math.floor((high - low) / 2);
}

/** Returns the median, and the distance from it above which a value is marked: the larger of a tenth of
 * the median and five times the median distance. */
function spread(values) {
  const middle = median(values), far = 5 * median(values.map((value) => Math.abs(value - middle)));
  return {middle, far: values.length < 3 ? Infinity : Math.max(far, Math.floor(middle / 10)), most: Math.max(...values)};
}

function share(part, whole) {
  return (whole > 0 ? Math.min(100, 100 * part / whole) : 0).toFixed(3) + "%";
}

function sideBySide(processes) {
  const rows = processes.filter((of) => of.newest).flatMap((of) => of.newest.devices.map((device) => ({of, device})));
  if (rows.length < 2) return null;
  rows.sort((a, b) => (a.of.rank ?? -1) - (b.of.rank ?? -1) || a.device.device - b.device.device);
  const spreads = METRICS.map(([, get]) => spread(rows.map((row) => get(row.device)))), most = spreads[3].most;
  const lines = rows.map(({of, device}) => {
    const live = device.requested_bytes.current, idle = device.pending_bytes + device.ready_bytes;
    return [{class: "n", words: of.rank ?? "\u2013"},
      {class: "n", words: el("a", {href: "#p" + of.number + "d" + device.device}, of.pid)},
      {class: "t", words: of.host}, {class: "n", words: device.device},
      el("span", {class: "mini", "data-tip": "live " + size(live) + ", idle " + size(idle)},
        el("i", {class: "live", style: {width: share(live, most)}}), el("i", {class: "idle", style: {width: share(idle, most)}})),
      ...METRICS.map(([, get, worded], i) => ({words: worded(get(device)), bytes: get(device),
        class: Math.abs(get(device) - spreads[i].middle) > spreads[i].far ? "far" : "n"}))];
  });
  return el("section", {class: "card", id: "side"}, el("div", {class: "head"}, el("h2", null, "Side by side"),
    el("span", {class: "hint"}, plural(rows.length, "device") + " of " + plural(processes.length, "process").replace("processs", "processes"),
      rows.length > 2 && "; red is far from the median")),
    table([{class: "n", words: "Rank"}, {class: "n", words: "PID"}, {class: "t", words: "Host"}, "Device", {class: "t", words: "Now"},
      ...METRICS.map(([name]) => name)], lines,
    [{class: "t", words: "Median"}, "", "", "", "", ...METRICS.map(([, , worded], i) => ({words: worded(spreads[i].middle), bytes: spreads[i].middle}))]));
}

/* ---- two reports ---- */

const CHANGES = [ // [name, value, words, whether more is worse]
  ...[["Live", "requested_bytes"], ["Blocks", "allocated_bytes"], ["Active", "active_bytes"], ["Reserved", "reserved_bytes"]].flatMap(
    ([name, of]) => [[name, (d) => d[of].current, size, true], ["Peak " + name.toLowerCase(), (d) => d[of].peak, size, true]]),
  ["Outside the pool", (d) => outside(d).current, size, true], ["Largest free block", (d) => d.fragmentation.largest_free_bytes, size],
  ["Live allocations", (d) => d.allocations.current, String], ["Allocations in all", (d) => d.allocations.total, String],
  ["Segments", (d) => d.segments.current, String], ["Cache hits", (d) => d.cache_hits, String],
  ["Cache misses", (d) => d.cache_misses, String], ["CPU waits", (d) => d.cpu_waits, String],
  ["OOMs", (d) => d.ooms, String, true], ["OOM retries", (d) => d.oom_retries, String, true]];

function changeOf(before, after, worded, worse) {
  const change = after - before;
  return {class: !worse || change === 0 ? "n" : change > 0 ? "n more" : "n less", bytes: change,
    words: change === 0 ? "\u2013" : (change > 0 ? "+" : "\u2212") + worded(Math.abs(change))};
}

/** Returns [words of the stack, peak before, peak after], the largest change first. */
function stackChanges(before, after) {
  const all = new Map();
  [before, after].forEach((device, i) => (device.holders ?? []).forEach((holder) => {
    const stack = stackOf(holder), at = stack.join("\n");
    const row = all.get(at) ?? all.set(at, [named(stack).join(" \u2190 ") || "no frames", 0, 0]).get(at);
    row[i + 1] += holder.peak_bytes;
  }));
  return [...all.values()].filter((row) => row[1] !== row[2]).sort((a, b) => Math.abs(b[2] - b[1]) - Math.abs(a[2] - a[1])).slice(0, 20);
}

function differences(before, after) {
  const parts = after.devices.map((device) => {
    const earlier = deviceOf(before, device.device);
    if (!earlier) return none("Device " + device.device + " is in one of them only.");
    const rows = CHANGES.map(([name, get, worded, worse]) => [name, {bytes: get(earlier), words: worded(get(earlier))},
      {bytes: get(device), words: worded(get(device))}, changeOf(get(earlier), get(device), worded, worse)]);
    const stacks = before.stacks && after.stacks ? stackChanges(earlier, device) : [];
    return part("Device " + device.device, table(["", "Before", "After", "Change"], rows),
      stacks.length > 0 && part("Call stacks that held another amount at the peak", table(["Call", "Before", "After", "Change"],
        stacks.map(([words, a, b]) => [{class: "t wide", words}, size(a), size(b), changeOf(a, b, size, true)]))));
  });
  return parts.length ? parts : none("These reports have no device.");
}

function comparison(model) {
  const all = model.processes.flatMap((of) => of.reports);
  if (all.length < 2) return null;
  const newest = model.processes.filter((of) => of.newest).map((of) => of.newest);
  const label = (report) => report.extra.name + ", " + (report.rank === null ? "" : "rank " + report.rank + ", ") + "pid " + report.pid + ", " +
    duration(report.uptime_seconds) + " after its start";
  const choose = (name, chosen) => el("select", {"aria-label": name, change: () => show()},
    all.map((report, i) => el("option", {value: i, selected: report === chosen}, label(report))));
  const from = choose("before", newest.length > 1 ? newest[0] : all[0]), to = choose("after", newest.length > 1 ? newest[1] : newest[0]);
  const into = el("div");
  const show = () => into.replaceChildren(...[differences(all[from.value], all[to.value])].flat());
  const fill = () => (show(), el("div", null, el("div", {class: "tools"}, el("label", null, "Before ", from), el("label", null, "After ", to)), into));
  const of = fold("Compare two reports", fill, {class: "card compare", open: newest.length === 2});
  if (newest.length === 2) of.fill();
  return of;
}

/* ---- a process ---- */

function notice(lines, bad) {
  lines = lines.filter(Boolean);
  return lines.length ? el("div", {class: bad ? "call bad" : "call"}, lines.map((line) => el("p", null, line.replace(/^gpucache: /, "")))) : null;
}

function chips(rows) {
  return el("ul", {class: "chips"}, rows.filter(Boolean).map(([words, value, more]) =>
    el("li", null, words, " ", el("b", null, value), more && more)));
}

function processChips(of) {
  const newest = of.newest;
  if (!newest) return chips([["pid", of.pid], of.rank !== null && ["rank", of.rank], ["host", of.host], ["began", clock(of.start)]]);
  return chips([["pid", of.pid], of.rank !== null && ["rank", of.rank], ["host", of.host],
    ["figures of", clock(newest.time_unix), ", " + duration(newest.uptime_seconds) + " after its start"],
    ["reason", newest.extra.state ?? newest.reason], ["", of.reports.length, of.reports.length === 1 ? " report" : " reports"],
    newest.driver_version && ["driver of CUDA", Math.floor(newest.driver_version / 1000) + "." + Math.floor(newest.driver_version % 1000 / 10)],
    ["libgpucache", newest.version]]);
}

function commandOf(of) {
  return of.newest && el("p", {class: "command mono"}, of.newest.command.join(" "));
}

function processPart(of, alone, open) {
  const inside = () => {
    const oom = [...of.reports].reverse().find((report) => report.oom), newest = of.newest;
    const ordinals = new Set([...(newest?.devices ?? []).map((d) => d.device), ...of.traces.flatMap((t) => t.devices.map((d) => d.device))]);
    return el("div", null, !alone && [commandOf(of), processChips(of)], oom && notice(oom.oom.verdict, true),
      newest && [notice([newest.extra.note]), notice([newest.extra.sizes_note])],
      [...ordinals].sort((a, b) => a - b).map((ordinal) => deviceCard(of, ordinal, model.processes.length > 8)),
      ordinals.size === 0 && notice(["This process has used no device."]));
  };
  if (alone) return inside();
  const made = fold([of.name, el("small", null, " pid " + of.pid + (of.rank === null ? "" : ", rank " + of.rank))], inside,
    {class: "process", open, id: "p" + of.number});
  if (open) made.fill();
  return made;
}

/* ---- the page ---- */

const drawings = []; // functions that draw a canvas again

/** Opens the part that an address such as #p3d0 names. The part may not be made yet. */
function follow() {
  const found = /^#(p\d+)(d\d+)?$/.exec(location.hash), of = found && document.getElementById(found[1]);
  if (of && of.tagName === "DETAILS") (of.open = true, of.fill());
  if (found) document.getElementById(found[0].slice(1))?.scrollIntoView();
}

function showTip(words, x, y) {
  const tip = document.getElementById("tip");
  tip.textContent = words;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = x + 14 + box.width > innerWidth - 6 ? x - 14 - box.width : x + 14;
  const top = y + 16 + box.height > innerHeight - 6 ? y - 12 - box.height : y + 16;
  tip.style.left = Math.max(6, left) + "px";
  tip.style.top = Math.max(6, top) + "px";
}

function hideTip() {
  document.getElementById("tip").hidden = true;
}

function say(words) {
  document.getElementById("said").textContent = words;
}

function tipUnder(event) {
  if (event.target.closest?.(".plot")) return;
  const of = event.target.closest?.("[data-tip]");
  if (of) showTip(of.getAttribute("data-tip"), event.clientX, event.clientY);
  else hideTip();
}

/** Prepares the page for print (light colours, every process unfolded), or for the screen again. */
function setPrintLook(printed) {
  document.documentElement.classList.toggle("paper", printed);
  if (printed) document.querySelectorAll("details.process, details.compare").forEach((of) => (of.open = true, of.fill()));
  drawings.forEach((draw) => draw());
}

function start() {
  const {processes} = model, alone = processes.length === 1, same = new Set(processes.map((of) => of.name)).size === 1;
  const title = !same ? processes.length + " processes" : alone ? processes[0].name : processes[0].name + ": " + processes.length + " processes";
  document.title = text(title) + " - GPU memory";
  add(document.getElementById("header"), [el("p", {class: "kicker"}, "GPU memory"), el("h1", null, title),
    alone && [commandOf(processes[0]), processChips(processes[0])]]);
  add(document.getElementById("main"), [sideBySide(processes), comparison(model),
    processes.map((of, i) => processPart(of, alone, i === 0 || processes.length <= 2))]);
  add(document.getElementById("footer"), [el("p", null, "Written by gpucache " + model.written.version + ", " + clock(model.written.time_unix) +
    ". Live: asked for by the program and not freed. Reserved: held by the pool from the driver.")]);
  for (const name of ["pointermove", "pointerdown"]) document.addEventListener(name, tipUnder);
  document.addEventListener("scroll", hideTip, true);
  addEventListener("hashchange", follow);
  addEventListener("beforeprint", () => setPrintLook(true));
  addEventListener("afterprint", () => setPrintLook(false));
  follow();
}
