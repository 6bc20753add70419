
/* ================ a trace: every allocation over time ================ */

/*
 * A column of pixels shows one state of the pool: its live blocks, the oldest at the bottom. A redraw walks
 * the events of the view once. It keeps a list of the live blocks, in the order of their allocation. Blocks
 * of less than half a pixel become one band at the bottom. A column therefore has at most twice as many
 * blocks as pixels, for any number of blocks in the trace.
 */

const TRACE_HEIGHT = 360, TRACE_WIDTH = 1600, LARGEST = 8;

/** Returns the events of a device. Arrays by event: `t`, `block` (~block for a free), `live`. Arrays by
 * block: `group`, `address`, and the events `came` and `went`. */
function decodeTrace(device, end) {
  const bytes = Uint8Array.from(atob(device.events), (c) => c.charCodeAt(0)), most = bytes.length;
  const of = {t: new Float64Array(most), block: new Int32Array(most), live: new Float64Array(most), group: new Uint32Array(most),
    address: new Float64Array(most), came: new Int32Array(most), went: new Int32Array(most).fill(most), events: 0, blocks: 0, end,
    sizes: Float64Array.from(device.groups, ([size]) => size), stacks: device.groups.map(([, stack]) => stack)};
  let at = 0, time = 0, unit = 0, live = 0;
  const next = () => {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    return value;
  };
  while (at < bytes.length) {
    const event = of.events++, word = next();
    time += Math.floor(word / 2);
    if (word % 2) {
      const block = of.blocks - next();
      of.block[event] = ~block;
      of.went[block] = event;
      live -= of.sizes[of.group[block]];
    } else {
      const block = of.blocks++, group = next(), moved = next();
      unit += moved % 2 ? -(moved + 1) / 2 : moved / 2;
      of.block[event] = block;
      of.came[block] = event;
      of.group[block] = group;
      of.address[block] = unit * 512;
      live += of.sizes[group];
    }
    of.t[event] = time;
    of.live[event] = live;
  }
  return of;
}

/** Returns the first event that is not before `position`. */
function eventAt(of, view, position) {
  if (view.byEvent) return Math.max(0, Math.min(of.events, Math.ceil(position)));
  let low = 0, high = of.events;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (of.t[middle] < position) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Returns for each column the event whose state it shows: of several states the one with most live. */
function columnStates(of, view, width) {
  const states = new Int32Array(width), scale = width / (view.to - view.from);
  let event = eventAt(of, view, view.from);
  for (let column = 0; column < width; column++) {
    let shown = event - 1;
    const end = view.from + (column + 1) / scale;
    for (; event < of.events && (view.byEvent ? event : of.t[event]) < end; event++)
      if (shown < 0 || of.live[event] > of.live[shown]) shown = event;
    states[column] = shown;
  }
  return states;
}

const liveAt = (of, state) => state < 0 ? 0 : of.live[state];

/** Paints blocks into `pixels`, and their numbers into `ids`; the band of small blocks has number -2. */
function paint(of, view, states, top, look, pixels, ids, width, height) {
  const least = top / height / 2, next = of.next ??= new Int32Array(of.blocks), before = of.before ??= new Int32Array(of.blocks);
  let head = -1, tail = -1, small = 0, event = Math.max(0, states[0] + 1);
  const enter = (block) => {
    if (of.sizes[of.group[block]] < least) return void (small += of.sizes[of.group[block]]);
    before[block] = tail;
    next[block] = -1;
    if (tail >= 0) next[tail] = block;
    else head = block;
    tail = block;
  };
  const leave = (block) => {
    if (of.sizes[of.group[block]] < least) return void (small -= of.sizes[of.group[block]]);
    const a = before[block], b = next[block];
    if (a >= 0) next[a] = b;
    else head = b;
    if (b >= 0) before[b] = a;
    else tail = a;
  };
  for (let block = 0; block < of.blocks && of.came[block] < event; block++) if (of.went[block] >= event) enter(block);
  for (let column = 0; column < width;) {
    const state = states[column];
    for (; event <= state; event++)
      if (of.block[event] < 0) leave(~of.block[event]);
      else enter(of.block[event]);
    let end = column + 1, bytes = small, y = height;
    while (end < width && states[end] === state) end++;
    const fill = (id, color, edge) => {
      const to = Math.max(0, height - Math.round(bytes * height / top));
      for (let row = y - 1; row >= to; row--) {
        const line = row * width, paint = row === to && y - to > 3 ? edge : color;
        for (let x = line + column; x < line + end; x++) { // fill() of a typed array is slow for one or two
          pixels[x] = paint;
          ids[x] = id;
        }
      }
      y = Math.min(y, to);
    };
    fill(-2, look.small, look.small);
    for (let block = head; block >= 0; block = next[block]) {
      const group = of.group[block];
      bytes += of.sizes[group];
      fill(block, (block & 1 ? look.odd : look.even)[group], look.edge[group]);
    }
    column = end;
  }
}

/* ---- colours ---- */

function packed(hue, saturation, light) {
  const part = (n) => {
    const k = (n + hue / 30) % 12, a = saturation * Math.min(light, 1 - light);
    return Math.round(255 * (light - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return (255 << 24 | part(4) << 16 | part(8) << 8 | part(0)) >>> 0;
}

/** Returns the colours of groups: one hue for each call stack, or for each size if there are no stacks.
 * If a group is chosen, the others are pale. */
function traceLook(of, chosen, dark) {
  const look = {even: new Uint32Array(of.sizes.length), odd: new Uint32Array(of.sizes.length), edge: new Uint32Array(of.sizes.length),
    small: dark ? packed(210, 0.1, 0.4) : packed(210, 0.1, 0.62)};
  of.sizes.forEach((size, group) => {
    const hue = hueOf(of, group), pale = chosen !== null && hueKey(of, chosen) !== hueKey(of, group);
    const light = (dark ? 0.46 : 0.62) + (hue % 3 - 1) * 0.05, saturation = pale ? 0.06 : dark ? 0.46 : 0.58, wash = pale ? (dark ? -0.2 : 0.2) : 0;
    look.even[group] = packed(hue, saturation, light + wash);
    look.odd[group] = packed(hue, saturation, light + wash - 0.035);
    look.edge[group] = packed(hue, saturation, light + wash - 0.14);
  });
  return look;
}

const hueKey = (of, group) => of.stacks[group] || "size " + of.sizes[group];

function hueOf(of, group) {
  let hash = 2166136261;
  for (const c of String(hueKey(of, group))) hash = Math.imul(hash ^ c.charCodeAt(0), 16777619) >>> 0;
  return Math.floor((hash >>> 8) * 137.508) % 360;
}

/* ---- words ---- */

function traceStack(trace, of, block) {
  return (trace.stacks[of.stacks[of.group[block]]] ?? []).flatMap((frame) => trace.frames[frame] ?? []).map(frameText);
}

function traceTime(ns) {
  return (ns / 1e9).toFixed(6) + " s";
}

function blockWords(trace, of, block) {
  const gone = of.went[block] < of.events, stack = named(traceStack(trace, of, block));
  return [size(of.sizes[of.group[block]]), stack.join(" \u2190 "), "came at " + traceTime(of.t[of.came[block]]),
    gone ? "freed at " + traceTime(of.t[of.went[block]]) + ", after " + duration((of.t[of.went[block]] - of.t[of.came[block]]) / 1e9) : "not freed"]
    .filter(Boolean).join("\n");
}

function blockPart(trace, of, block) {
  const stack = traceStack(trace, of, block), group = of.group[block];
  let alike = 0;
  for (let i = 0; i < of.blocks; i++) alike += hueKey(of, of.group[i]) === hueKey(of, group);
  return [chips([["size", size(of.sizes[group])], ["bytes", of.sizes[group]], ["address", "0x" + of.address[block].toString(16)],
    ["came at", traceTime(of.t[of.came[block]])], of.went[block] < of.events ? ["freed at", traceTime(of.t[of.went[block]])] : ["", "not freed"],
    ["", alike, stack.length ? " allocations of this call stack" : " allocations of this size"]]),
  stack.length ? el("ol", {class: "frames"}, stack.map((frame) => el("li", {class: is(frame, OWN) ? "mono own" : "mono"}, frame)))
    : hint("The trace has no call stack of this block: GPUCACHE_STACKS=16 records them.")];
}

/** Returns what was live after an event, by stack or size: [group, bytes, count], the largest first. */
function largestAt(of, state) {
  const sums = new Map();
  for (let block = 0; block < of.blocks && of.came[block] <= state; block++) {
    if (of.went[block] <= state) continue;
    const group = of.group[block], at = hueKey(of, group), row = sums.get(at) ?? sums.set(at, [group, 0, 0]).get(at);
    row[1] += of.sizes[group];
    row[2]++;
  }
  return [...sums.values()].sort((a, b) => b[1] - a[1]);
}

function css(packedColor) {
  return "rgb(" + (packedColor & 255) + " " + (packedColor >> 8 & 255) + " " + (packedColor >> 16 & 255) + ")";
}

function largestPart(trace, of, view, {most: state, plain}, choose) {
  const rows = largestAt(of, state).slice(0, LARGEST);
  return rows.length ? [hint("The most in this view is " + size(liveAt(of, state)) + " at " +
    traceTime(view.byEvent ? of.t[state] : Math.max(of.t[state], view.from)) + ". Of that:"),
    el("div", {class: "rows picks"}, rows.map(([group, bytes, count]) => {
      const stack = (trace.stacks[of.stacks[group]] ?? []).flatMap((frame) => trace.frames[frame] ?? []).map(frameText);
      return [el("span", {class: "n"}, size(bytes)), el("span", {class: "n"}, el("small", null, plural(count, "block"))),
        el("button", {class: "pick", type: "button", click: () => choose(group)}, el("i", {class: "swatch", style: {background: css(plain.even[group])}}),
          named(stack).join(" \u2190 ") || size(of.sizes[group]) + " each")];
    }))] : [];
}

/* ---- the drawing ---- */

/** Returns the points of the line of reserved memory in the view, and the highest of them. */
function reservedIn(device, view, of) {
  const rows = device.reserved, place = (ns) => view.byEvent ? eventAt(of, {}, ns) : ns, points = [];
  for (let i = 0; i < rows.length; i++) {
    const at = place(rows[i][0]), next = i + 1 < rows.length ? place(rows[i + 1][0]) : Infinity;
    if (next >= view.from && at <= view.to) points.push([at, rows[i][1]]);
  }
  return {points, most: points.reduce((most, [, bytes]) => Math.max(most, bytes), 0)};
}

function refusals(trace, ordinal) {
  return trace.moments.filter(([, on, kind]) => on === ordinal && model.roles[kind] === "refused");
}

function drawLines(context, at, up, trace, device, view, of, reserved, ordinal) {
  const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name).trim();
  const {width, height} = context.canvas, place = (ns) => at(view.byEvent ? eventAt(of, {}, ns) : ns);
  context.lineWidth = Math.max(1, devicePixelRatio || 1);
  context.strokeStyle = color("--ink");
  context.setLineDash([]);
  context.beginPath();
  reserved.points.forEach(([t, bytes], i) => (i && context.lineTo(at(t), up(reserved.points[i - 1][1])), context.lineTo(at(t), up(bytes))));
  if (reserved.points.length) context.lineTo(width, up(reserved.points[reserved.points.length - 1][1]));
  context.stroke();
  const marks = [...trace.marks.map(([t]) => [t, "--label"]), ...refusals(trace, ordinal).map(([t]) => [t, "--bad"])];
  for (const [t, name] of marks.length < 5000 ? marks : []) {
    const x = place(t);
    if (x < 0 || x > width) continue;
    context.strokeStyle = color(name);
    context.globalAlpha = name === "--bad" ? 1 : 0.6;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, height);
    context.stroke();
  }
  context.globalAlpha = 1;
}

/** Draws the view on the canvas, and writes its axes. Returns the blocks under each pixel, and the peak. */
function drawTrace(trace, device, of, view, chosen, into) {
  const {canvas} = into, width = Math.max(2, Math.min(TRACE_WIDTH, Math.round(canvas.clientWidth * (devicePixelRatio || 1)))), height = TRACE_HEIGHT;
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, {width, height});
  const context = canvas.getContext("2d"), image = into.image?.width === width ? into.image : into.image = context.createImageData(width, height);
  const ids = into.ids?.length === width * height ? into.ids : into.ids = new Int32Array(width * height);
  const states = columnStates(of, view, width), most = states.reduce((best, state) => liveAt(of, state) > liveAt(of, best) ? state : best, states[0]);
  const reserved = reservedIn(device, view, of), high = liveAt(of, most), step = gridStep(Math.max(1, high, reserved.most < 2 * high ? reserved.most : 0));
  const top = Math.ceil(Math.max(1, high * 1.02, reserved.most < 2 * high ? reserved.most * 1.02 : 0) / (step / 4)) * (step / 4);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches &&
    !document.documentElement.classList.contains("paper"), look = traceLook(of, chosen, dark);
  const pixels = new Uint32Array(image.data.buffer);
  pixels.fill(0);
  ids.fill(-1);
  paint(of, view, states, top, look, pixels, ids, width, height);
  context.putImageData(image, 0, 0);
  drawLines(context, (t) => width * (t - view.from) / (view.to - view.from), (bytes) => height * (1 - bytes / top), trace, device, view, of, reserved, device.device);
  const grid = [], seconds = (view.to - view.from) / 1e9;
  for (let bytes = 0; bytes <= top; bytes += step) grid.push(bytes);
  into.y.replaceChildren(...grid.map((bytes) => el("span", {style: {bottom: (100 * bytes / top).toFixed(2) + "%"}}, shortSize(bytes))));
  into.x.replaceChildren(...[0, 1, 2, 3, 4].map((i) => {
    const at = view.from + (view.to - view.from) * i / 4, digits = Math.max(0, Math.min(9, 2 - Math.floor(Math.log10(seconds))));
    return el("span", {style: {left: i * 25 + "%"}, class: i % 2 ? "minor" : null}, view.byEvent ? Math.round(at) : (at / 1e9).toFixed(digits) + " s");
  }));
  return {ids, width, height, most, top, plain: chosen === null ? look : traceLook(of, null, dark)};
}

function overview(of, view, strip, changed) {
  const width = 800, context = strip.getContext("2d"), span = view.most - view.least;
  const states = columnStates(of, {byEvent: view.byEvent, from: view.least, to: view.most}, width), top = Math.max(1, ...Array.from(states, (s) => liveAt(of, s)));
  const shape = new Path2D();
  states.forEach((state, x) => shape.rect(x, 40 - 40 * liveAt(of, state) / top, 1, 40));
  Object.assign(strip, {width, height: 40});
  const draw = () => {
    const style = getComputedStyle(document.documentElement), from = width * (view.from - view.least) / span, to = width * (view.to - view.least) / span;
    context.clearRect(0, 0, width, 40);
    context.fillStyle = style.getPropertyValue("--peak").trim();
    context.fill(shape);
    context.globalAlpha = 0.28;
    context.fillStyle = style.getPropertyValue("--ink").trim();
    context.fillRect(0, 0, from, 40);
    context.fillRect(to, 0, width - to, 40);
    context.globalAlpha = 1;
    context.fillRect(Math.min(from, width - 3), 0, Math.max(3, to - from), 2);
  };
  const follow = (event) => {
    if (!event.buttons) return;
    strip.setPointerCapture(event.pointerId);
    const at = view.least + span * (event.clientX - strip.getBoundingClientRect().left) / strip.clientWidth;
    changed(at - (view.to - view.from) / 2, view.to - view.from);
  };
  strip.onpointerdown = strip.onpointermove = follow;
  return draw;
}

/** Handles the pointer, touch and keys of the drawing. Returns its buttons. */
function traceControls(trace, device, of, into) {
  const first = of.t[0], last = Math.max(trace.end_ns, of.t[of.events - 1], first + 1), view = {};
  let chosen = null, shown = null, block = -1, waiting = 0, later = 0, strip = () => {};
  const redraw = () => {
    waiting = 0;
    if (!into.canvas.clientWidth) return;
    shown = drawTrace(trace, device, of, view, chosen, into);
    strip();
    clearTimeout(later);
    later = setTimeout(() => into.list.replaceChildren(...add(document.createElement("div"), largestPart(trace, of, view, shown, choose)).childNodes), 120);
  };
  const changed = () => waiting ||= requestAnimationFrame(redraw);
  const choose = (group, of_block = -1) => {
    chosen = chosen === group && of_block === block ? null : group;
    block = chosen === null ? -1 : of_block;
    into.detail.replaceChildren(...(block >= 0 ? add(document.createElement("div"), blockPart(trace, of, block)).childNodes : []));
    changed();
  };
  const under = (event) => {
    const box = into.canvas.getBoundingClientRect();
    const x = Math.floor((event.clientX - box.left) / box.width * shown.width), y = Math.floor((event.clientY - box.top) / box.height * shown.height);
    return shown.ids[Math.min(shown.height - 1, Math.max(0, y)) * shown.width + Math.min(shown.width - 1, Math.max(0, x))];
  };
  const tools = zoomable(into.canvas, view, changed);
  const extent = (byEvent) => {
    Object.assign(view, byEvent ? {byEvent, least: 0, most: Math.max(1, of.events), closest: 8}
      : {byEvent, least: first, most: last, closest: 100});
    strip = overview(of, view, into.strip, (from, width) => view.move(from, width));
    view.whole();
  };
  set(into.canvas, {pointermove(event) {
    if (!shown || event.buttons) return hideTip();
    const at = under(event);
    if (at === -1) hideTip();
    else showTip(at === -2 ? "blocks of less than " + size(Math.ceil(shown.top / shown.height / 2)) : blockWords(trace, of, at), event.clientX, event.clientY);
  },
  pointerleave: hideTip,
  click(event) {
    const at = into.canvas.dragged ? -1 : under(event);
    if (at >= 0) choose(of.group[at], at);
    else if (!into.canvas.dragged) choose(null);
  },
  keydown(event) {
    if (event.key === "Escape") return choose(null);
    if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
    event.preventDefault();
    const column = [...new Set(Array.from({length: shown.height}, (_, y) => shown.ids[(shown.height - 1 - y) * shown.width + (shown.width >> 1)]))].filter((id) => id >= 0);
    const at = column.indexOf(block), to = column[event.key === "ArrowUp" ? at + 1 : at < 0 ? column.length - 1 : at - 1];
    if (to !== undefined) (choose(of.group[to], to), say(blockWords(trace, of, to)));
  }});
  add(tools, [el("label", null, el("input", {type: "checkbox", change: (event) => extent(event.target.checked)}), "by event")]);
  extent(false);
  new ResizeObserver(changed).observe(into.canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", changed);
  drawings.push(redraw);
  return tools;
}

function traceMarks(trace, ordinal) {
  const rows = [...trace.marks.map(([t, words]) => [t, words, "", ""]), ...trace.moments.filter(([, on]) => on === ordinal || on < 0)
    .map(([t, , kind, bytes, took]) => [t, model.kinds[kind], bytes ? size(bytes) : "", took ? Math.floor(took / 1000) + " us" : ""])];
  rows.sort((a, b) => a[0] - b[0]);
  return rows.length > 0 && fold("Marks and slow events", () => table(["Time", {class: "t", words: "Event"}, "Size", "Took"],
    rows.slice(-1000).map(([t, words, ...more]) => [traceTime(t), {class: "t wide", words}, ...more])), {class: "part"});
}

function tracePart(trace, device) {
  const of = decodeTrace(device, trace.end_ns);
  if (!of.events) return part("Every allocation over time", none("The trace has no allocation on this device."));
  const into = {canvas: el("canvas", {class: "plot", role: "img", "aria-label": "every allocation over time: left and right move, + and - zoom, up and " +
    "down go through the blocks in the middle"}), x: el("div", {class: "x"}), y: el("div", {class: "y"}), strip: el("canvas", {class: "strip"}),
  list: el("div", {class: "part"}), detail: el("div", {class: "detail"})};
  const tools = traceControls(trace, device, of, into);
  return part("Every allocation over time", el("div", {class: "over"}, hint(plural(of.blocks, "allocation") + " in " + plural(of.events, "event") + " of the trace" +
    (trace.dropped ? "; " + trace.dropped + " older events are not in it" : "") + ". The oldest block is at the bottom; one colour is one call stack" +
    (Object.keys(trace.stacks).length ? "" : ", or one size where there is none") + "."), tools),
  el("div", {class: "chart trace"}, el("div", null), into.strip, into.y, into.canvas, into.x),
  legend([["stroke reserve", "Reserved"], ...(trace.marks.length ? [["stroke label", "marks of the program"]] : []), ...(refusals(trace, device.device).length ? [["stroke mark bad", "memory refused"]] : [])]), into.detail, into.list, traceMarks(trace, device.device));
}

const model = read(JSON.parse(document.getElementById("data").textContent));
start();
