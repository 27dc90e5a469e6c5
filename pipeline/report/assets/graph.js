"use strict";
// The placed graph: boxes in boxes, laid out row by row as Python ordered them. Names are set as text, never as HTML.
(() => {
  const source = document.getElementById("graph-data");
  if (!source) return;
  const g = JSON.parse(source.textContent);
  const view = document.querySelector(".graph-view"), side = document.querySelector(".graph-side");
  const field = document.getElementById("graph-search"), hits = document.getElementById("graph-hits");
  const status = document.getElementById("graph-status");
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 168, HEIGHT = 42, GAP_X = 18, GAP_Y = 34, PAD = 14, HEAD = 20, ASIDE = 130, MOST_HITS = 60, WIRES = 4000, LABELS = 250, READABLE = 0.7, LEAST = 0.1, MOST = 3;
  const FEW = 12, MANY = 40;  // boxes at first: the largest are opened until there are some, and not too many
  const children = (number) => g.boxes[number].rows.flat();
  const atFirst = () => {
    const found = new Set([0]);
    for (let seen = children(0); seen.length < FEW;) {
      const closed = seen.filter((code) => code < 0 && !found.has(-1 - code)).map((code) => -1 - code);
      const largest = closed.sort((a, b) => g.boxes[b].high - g.boxes[b].low - g.boxes[a].high + g.boxes[a].low)[0];
      if (largest === undefined || seen.length + children(largest).length > MANY) break;
      found.add(largest);
      seen = seen.concat(children(largest));
    }
    return found;
  };
  const open = atFirst();
  let chosen = null, wires = [], reach = 0, zoom = null;

  const make = (tag, attributes, text) => {
    const found = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
    if (text !== undefined) found.textContent = text;
    return found;
  };
  const html = (tag, text, kind) => {
    const found = document.createElement(tag);
    if (text !== undefined) found.textContent = text;
    if (kind) found.className = kind;
    return found;
  };
  // Controls and marks that turn the direction of text are shown, so that they cannot steer what stands around them.
  const shown = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (c) => `⟨U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);
  const short = (text, most) => (text.length <= most ? text : `${text.slice(0, Math.ceil((most - 1) / 2))}…${text.slice(text.length - Math.floor((most - 1) / 2))}`);
  const name = (op) => shown(g.names[op]);
  // As bytes_text of pipeline/core/figures.py has them: powers of 1000, four digits.
  const SIZES = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]];
  const bytes = (n) => { const unit = SIZES.find(([size]) => n >= size); return unit ? `${+(n / unit[0]).toPrecision(4)} ${unit[1]}` : `${n} B`; };
  const time = (us) => (us === null ? "not known" : us < 0 ? "not supported" : us >= 1e6 ? `${(us / 1e6).toPrecision(4)} s` : us >= 1e3 ? `${(us / 1e3).toPrecision(4)} ms` : `${Number(us.toPrecision(4))} µs`);
  const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

  // Of every box: operations by device, and seconds by device, from sums over the order in which its operations lie.
  const p = g.devices.length, sums = { count: [], us: [] };
  for (let d = 0; d < p; d++) {
    const count = new Float64Array(g.shown + 1), us = new Float64Array(g.shown + 1);
    for (let i = 0; i < g.shown; i++) {
      const mine = g.device[i] === d, cost = g.times[d][i];
      count[i + 1] = count[i] + (mine ? 1 : 0);
      us[i + 1] = us[i] + (mine && cost > 0 ? cost : 0);
    }
    sums.count.push(count); sums.us.push(us);
  }
  const within = (kind, box, d) => sums[kind][d][g.boxes[box].high] - sums[kind][d][g.boxes[box].low];
  const boxOf = new Int32Array(g.shown);  // the innermost box of each operation
  g.boxes.forEach((box, number) => { for (const row of box.rows) for (const code of row) if (code >= 0) boxOf[code] = number; });
  const folded = new Map();  // constants, by the operation that shows them
  g.home.forEach((home, i) => { if (!folded.has(home)) folded.set(home, []); folded.get(home).push(g.shown + i); });
  const crossing = new Int32Array(g.source.length).map((_, e) => (g.device[g.source[e]] === g.device[g.target[e]] ? 0 : 1));

  const sizes = new Map();
  const size = (code) => {
    if (code >= 0 || !open.has(-1 - code)) return [WIDTH, HEIGHT];
    const rows = g.boxes[-1 - code].rows.map((row) => row.map(size));
    const width = Math.max(WIDTH, ...rows.map((row) => row.reduce((sum, [w]) => sum + w + GAP_X, -GAP_X))) + 2 * PAD;
    const height = rows.reduce((sum, row) => sum + Math.max(...row.map(([, h]) => h)) + GAP_Y, -GAP_Y) + 2 * PAD + HEAD;
    sizes.set(code, [width, height]);
    return [width, height];
  };
  const sized = (code) => sizes.get(code) ?? [WIDTH, HEIGHT];

  let places;
  const lay = (code, x, y) => {
    const [width, height] = sized(code);
    places.set(code, { x, y, width, height });
    if (code >= 0 || !open.has(-1 - code)) return;
    let top = y + PAD + HEAD;
    for (const row of g.boxes[-1 - code].rows) {
      const wide = row.reduce((sum, each) => sum + sized(each)[0] + GAP_X, -GAP_X), tall = Math.max(...row.map((each) => sized(each)[1]));
      let left = x + (width - wide) / 2;
      for (const each of row) {
        lay(each, left, top + (tall - sized(each)[1]) / 2);
        left += sized(each)[0] + GAP_X;
      }
      top += tall + GAP_Y;
    }
  };

  // Which closed box, or operation, stands for each operation now.
  const standing = () => {
    const found = new Int32Array(g.shown);
    const fill = (code) => {
      if (code >= 0) { found[code] = code; return; }
      const box = g.boxes[-1 - code];
      if (!open.has(-1 - code)) found.fill(code, box.low, box.high);
      else for (const row of box.rows) row.forEach(fill);
    };
    fill(-1);
    return found;
  };

  const describe = (code) => {
    if (code >= 0) return `${name(code)}, ${g.types[g.type[code]]}, on ${shown(g.devices[g.device[code]])}`;
    const box = g.boxes[-1 - code];
    return `${shown(box.label)}: ${plural(box.high - box.low, "operation")} on ${onDevices(-1 - code)}`;
  };
  const onDevices = (box) => g.devices.filter((_, d) => within("count", box, d) > 0).map(shown).join(" and ");

  const draw = (focus) => {
    places = new Map(); sizes.clear(); size(-1); lay(-1, 0, 0);
    const root = make("svg", { role: "group", "aria-label": "placed graph, from inputs to outputs" });
    const under = make("g", {}), lines = make("g", {}), boxes = make("g", {}), labels = make("g", {});
    for (const [code, place] of places) if (code !== -1) (code < 0 && open.has(-1 - code) ? under : boxes).append(drawBox(code, place));
    reach = 0;
    connect(lines, labels);
    const [width, height] = [Math.max(sized(-1)[0], reach) + 8, sized(-1)[1] + 8];  // wires may lead around the boxes
    zoom ??= Math.min(1, Math.max(READABLE, view.clientWidth / width));  // as much as can still be read
    for (const [name, value] of [["viewBox", `-4 -4 ${width} ${height}`], ["width", width * zoom], ["height", height * zoom]]) root.setAttribute(name, value);
    root.append(under, lines, boxes, labels);
    view.replaceChildren(root);
    if (focus !== undefined) root.querySelector(`[data-code="${focus}"]`)?.focus({ preventScroll: true });
    status.textContent = `${plural(g.names.length, "operation")}; ${places.size - 1} boxes shown`;
  };

  const drawBox = (code, place) => {
    const isBox = code < 0, isOpen = isBox && open.has(-1 - code);
    const found = make("g", { class: `box${isOpen ? " open" : ""}${code === chosen ? " chosen" : ""}`, tabindex: 0, role: "button", "data-code": code, "aria-label": describe(code) });
    if (isBox) found.setAttribute("aria-expanded", isOpen);
    found.append(make("title", {}, describe(code)));
    found.append(make("rect", { class: "body", x: place.x, y: place.y, width: place.width, height: place.height, rx: isBox ? 7 : 2 }));
    let x = place.x + 1;
    const total = isBox ? g.boxes[-1 - code].high - g.boxes[-1 - code].low : 1;
    for (let d = 0; d < p; d++) {  // a band of the devices' colours, by how many operations each has
      const part = isBox ? within("count", -1 - code, d) / total : g.device[code] === d ? 1 : 0;
      if (!part) continue;
      found.append(make("rect", { class: `device${d % 7}`, x, y: place.y + 1, width: part * (place.width - 2), height: 5 }));
      x += part * (place.width - 2);
    }
    const mark = isBox ? (isOpen ? "− " : "+ ") : "";
    const label = isBox ? shown(g.boxes[-1 - code].label) : name(code);
    found.append(make("text", { x: place.x + 7, y: place.y + 20 }, mark + short(label, isOpen ? Math.max(22, Math.floor(place.width / 9)) : 22)));
    if (!isOpen) {
      const under = isBox ? `${plural(total, "operation")}, ${onDevices(-1 - code)}` : `${g.types[g.type[code]]}, ${shown(g.devices[g.device[code]])}`;
      found.append(make("text", { class: "under", x: place.x + 7, y: place.y + 35 }, short(under, 26)));
    }
    found.addEventListener("click", (event) => { event.stopPropagation(); choose(code, true); });
    found.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault(); event.stopPropagation(); choose(code, true);
    });
    return found;
  };

  const connect = (lines, labels) => {
    const stands = standing(), pairs = new Map();
    for (let e = 0; e < g.source.length; e++) {
      const a = stands[g.source[e]], b = stands[g.target[e]];
      if (a === b) continue;
      const key = `${a} ${b}`, known = pairs.get(key) ?? { a, b, bytes: 0, cut: 0, tensors: 0 };
      known.bytes += g.bytes[e]; known.cut += crossing[e] * g.bytes[e]; known.tensors += 1; known.crosses |= crossing[e];
      pairs.set(key, known);
    }
    wires = [...pairs.values()].sort((x, y) => (y.crosses ?? 0) - (x.crosses ?? 0)).slice(0, WIRES);
    // Labels of the largest tensors come first; one that would cover a box or another label is left to the tip of its wire.
    const overlap = (a, b) => a.x < b.x + b.width && b.x < a.x + a.width && a.y < b.y + b.height && b.y < a.y + a.height;
    const taken = [...places].filter(([code]) => code >= 0 || !open.has(-1 - code)).map(([, place]) => place);
    wires.sort((x, y) => y.cut - x.cut);
    let told = 0;
    for (const wire of wires) {
      const from = places.get(wire.a), to = places.get(wire.b);
      const [d, x, y] = route(from, to);
      const touches = chosen !== null && (wire.a === chosen || wire.b === chosen);
      const path = make("path", { class: `wire${wire.crosses ? " cut" : ""}${touches ? " near" : ""}`, d });
      path.append(make("title", {}, `${plural(wire.tensors, "tensor")}, ${bytes(wire.bytes)}${wire.crosses ? `, of which ${bytes(wire.cut)} between devices` : ""}`));
      lines.append(path);
      const words = bytes(wire.cut), spot = { x: x + 4, y: y - 6, width: 6 * words.length, height: 12 };
      if (!wire.crosses || told >= LABELS || taken.some((other) => overlap(other, spot))) continue;
      taken.push(spot); told += 1;
      labels.append(make("text", { class: "bytes", x: x + 4, y: y + 4 }, words));
    }
  };

  // The way of a wire, and where its label stands: straight down to the next row, or around what lies between.
  const route = (from, to) => {
    const x1 = from.x + from.width / 2, y1 = from.y + from.height, x2 = to.x + to.width / 2, y2 = to.y, fall = y2 - y1;
    if (fall <= GAP_Y * 2 || Math.abs(x2 - x1) > WIDTH) {
      const bend = Math.max(14, Math.abs(fall) / 2.5);
      return [`M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`, (x1 + x2) / 2, (y1 + y2) / 2];
    }
    const [a, b] = [from.x + from.width, to.x + to.width], [from_y, to_y] = [y1 - from.height / 2, y2 + to.height / 2];
    const out = Math.max(a, b) + Math.min(ASIDE, 16 + fall / 9);
    reach = Math.max(reach, out);
    return [`M${a} ${from_y}C${out} ${from_y} ${out} ${to_y} ${b} ${to_y}`, (a + b + 6 * out) / 8, (from_y + to_y) / 2];
  };

  const choose = (code, toggle) => {
    if (toggle && code < 0 && code !== -1) { if (open.has(-1 - code)) open.delete(-1 - code); else open.add(-1 - code); }
    chosen = code;
    draw(code); tell(code);
  };

  const reveal = (op) => {
    const at = op < g.shown ? op : g.home[op - g.shown];
    for (let box = boxOf[at]; box >= 0; box = g.boxes[box].in) open.add(box);
    chosen = at;
    draw(); tell(op);
    const place = places.get(at), still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    view.scrollTo({ left: zoom * (place.x + place.width / 2) - view.clientWidth / 2, top: zoom * place.y - view.clientHeight / 3, behavior: still ? "auto" : "smooth" });
    view.querySelector(`[data-code="${at}"]`).focus({ preventScroll: true });
  };

  const row = (table, what, value) => {
    const line = table.insertRow();
    line.append(html("th", what)); line.cells[0].scope = "row";
    const cell = line.insertCell();
    cell.append(html("span", value, "name"));
  };
  const tell = (code) => {
    side.replaceChildren();
    const table = html("table");
    if (code < 0) tellBox(-1 - code, table); else tellOperation(code, table);
    side.append(table);
    if (code >= 0) {
      const near = wires.length && code < g.shown ? neighbours(code) : [];
      if (near.length) { side.append(html("h3", "Tensors")); const list = html("ul"); near.forEach((words) => list.append(html("li", words))); side.append(list); }
    }
  };
  const tellBox = (number, table) => {
    const box = g.boxes[number];
    side.append(html("h3", number === 0 ? "All operations" : shown(box.label)));
    row(table, "operations", (box.high - box.low).toLocaleString("en"));
    for (let d = 0; d < p; d++) if (within("count", number, d)) row(table, `on ${shown(g.devices[d])}`, within("count", number, d).toLocaleString("en") + (within("us", number, d) ? `, ${time(within("us", number, d))} by the profile` : ""));
  };
  const tellOperation = (op, table) => {
    const here = g.device[op];
    const title = html("h3"); title.append(html("span", name(op), "name")); side.append(title);
    row(table, "type", shown(g.types[g.type[op]]));
    row(table, "shape", g.shapes[g.shape[op]] || "scalar");
    row(table, "runs on", shown(g.devices[here]));
    for (let d = 0; d < p; d++) row(table, `time on ${shown(g.devices[d])}`, time(g.times[d][op]));
    if (g.weights[op]) row(table, "weights", bytes(g.weights[op]));
    row(table, "why it is there", g.reasons[g.reason[op]]);
    for (let d = 0; d < p; d++) if (d !== here) {
      const [own, there, before, after] = [g.times[here][op], g.times[d][op], g.transfers[here][op], g.transfers[d][op]];
      if ([own, there, before, after].every((v) => v !== null && v >= 0)) row(table, `alone on ${shown(g.devices[d])}`, `operation ${signed(there - own)}, transfers ${signed(after - before)}`);
    }
    const inside = folded.get(op) ?? [];
    if (inside.length) row(table, "with it", `${plural(inside.length, "constant")}, ${bytes(inside.reduce((sum, i) => sum + g.weights[i], 0))}: ${inside.slice(0, 8).map((i) => short(name(i), 60)).join(", ")}`);
    if (op >= g.shown) row(table, "shown in", name(g.home[op - g.shown]));
  };
  const signed = (us) => `${us < 0 ? "−" : "+"}${time(Math.abs(us))}`;
  const neighbours = (op) => {
    const found = [];
    for (let e = 0; e < g.source.length && found.length < 40; e++) {
      const out = g.source[e] === op;
      if (!out && g.target[e] !== op) continue;
      found.push(`${out ? "to" : "from"} ${short(name(out ? g.target[e] : g.source[e]), 80)}: ${bytes(g.bytes[e])}${crossing[e] ? ", between devices" : ""}`);
    }
    return found;
  };

  field.addEventListener("input", () => {
    const wanted = field.value.trim().toLowerCase();
    hits.replaceChildren();
    if (!wanted) return;
    let count = 0;
    for (let i = 0; i < g.names.length; i++) {
      if (!g.names[i].toLowerCase().includes(wanted)) continue;
      if (count++ >= MOST_HITS) continue;
      const item = html("li"), button = html("button", `${short(name(i), 160)} (${g.types[g.type[i]]})`);
      button.type = "button";
      button.addEventListener("click", () => reveal(i));
      item.append(button); hits.append(item);
    }
    status.textContent = count > MOST_HITS ? `${plural(count, "operation")} found; the first ${MOST_HITS} are listed` : `${plural(count, "operation")} found`;
  });
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    hits.querySelector("button")?.click();
  });
  // Zooming keeps what is below the pointer, or in the middle, where it is; dragging moves the graph.
  const zoomTo = (wanted, x = view.clientWidth / 2, y = view.clientHeight / 2) => {
    const root = view.querySelector("svg"), [, , width, height] = root.getAttribute("viewBox").split(" ").map(Number);
    const before = zoom, [left, top] = [view.scrollLeft, view.scrollTop];
    zoom = Math.min(MOST, Math.max(LEAST, wanted));
    root.setAttribute("width", width * zoom); root.setAttribute("height", height * zoom);
    view.scrollLeft = (left + x) * zoom / before - x; view.scrollTop = (top + y) * zoom / before - y;
  };
  const fit = () => {
    const [, , width, height] = view.querySelector("svg").getAttribute("viewBox").split(" ").map(Number);
    zoomTo(Math.min(view.clientWidth / width, view.clientHeight / height));
  };
  for (const [id, act] of [["graph-in", () => zoomTo(zoom * 1.25)], ["graph-out", () => zoomTo(zoom / 1.25)], ["graph-fit", fit]]) document.getElementById(id).addEventListener("click", act);
  view.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;  // without it the wheel scrolls
    event.preventDefault();
    const at = view.getBoundingClientRect();
    zoomTo(zoom * Math.exp(-event.deltaY / 400), event.clientX - at.left, event.clientY - at.top);
  }, { passive: false });
  view.addEventListener("keydown", (event) => {
    const act = { "+": () => zoomTo(zoom * 1.25), "-": () => zoomTo(zoom / 1.25), "0": fit }[event.key];
    if (act && !event.ctrlKey) { event.preventDefault(); act(); }
  });
  let drag = null, dragged = false;
  view.addEventListener("pointerdown", (event) => {
    dragged = false;
    if (event.button === 0 && event.pointerType === "mouse") drag = { x: event.clientX, y: event.clientY, left: view.scrollLeft, top: view.scrollTop };
  });
  addEventListener("pointermove", (event) => {
    if (!drag) return;
    const [x, y] = [event.clientX - drag.x, event.clientY - drag.y];
    dragged ||= Math.hypot(x, y) > 4;
    if (dragged) { view.scrollLeft = drag.left - x; view.scrollTop = drag.top - y; }
  });
  addEventListener("pointerup", () => { drag = null; });
  view.addEventListener("click", (event) => { if (dragged) { event.stopPropagation(); dragged = false; } }, true);

  document.getElementById("graph-close").addEventListener("click", () => { open.clear(); for (const box of atFirst()) open.add(box); chosen = null; draw(); tell(-1); view.scrollTo(0, 0); });
  draw(); tell(-1);
})();
