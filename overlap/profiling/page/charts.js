"use strict";
// Everything around the timeline: bars, waterfall, bandwidth by size, tables.

const PARTS = [["compute", "compute"], ["exposed", "exposed communication"], ["copy", "exposed copies"], ["idle", "idle"]];

function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "rect", "text", "line", "circle", "path"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// The end of a qualified name tells units apart.
const tail = (name, most) => (name.length > most ? `…${name.slice(1 - most)}` : name);

function stacked(parts, whole) {
  const bar = element("div", { class: "bar" });
  for (const [name, label, value] of parts) {
    const part = element("div", { style: `width:${(100 * value) / (whole || 1)}%;background:var(--${name})` });
    part.addEventListener("pointermove", (event) => showTip(`${label}\n${duration(value)}`, event));
    part.addEventListener("pointerleave", () => showTip(""));
    bar.append(part);
  }
  return bar;
}

function drawRanks() {
  $("legend").replaceChildren(...PARTS.map(([name, label]) =>
    element("span", {}, element("i", { style: `background:var(--${name})` }), label)));
  const longest = Math.max(...REPORT.ranks.map((rank) => rank.span));
  $("ranks").replaceChildren(...REPORT.ranks.flatMap((rank) => [
    element("span", { class: "name" }, `rank ${rank.rank}`),
    stacked(PARTS.map(([name, label]) => [name, label, rank.parts[name]]), longest),
    element("span", { class: "figure" }, `${duration(rank.span)}, ` +
      (rank.ratio === null ? rank.no_comm_reason : `overlap ratio ${rank.ratio.toFixed(3)}`)),
  ]));
}

function drawUnits(rank) {
  const paying = [...rank.units].sort((a, b) => b.exposed - a.exposed || b.comm - a.comm || b.compute - a.compute).slice(0, 40);
  const longest = Math.max(...paying.map((unit) => unit.comm + unit.compute), 1e-9);
  $("units").replaceChildren(...paying.flatMap((unit) => [
    element("span", { class: "name", title: unit.unit }, tail(unit.unit, 48)),
    stacked([
      ["exposed", "exposed communication", unit.exposed],
      ["hidden", "hidden communication", unit.comm - unit.exposed],
      ["compute", "compute", unit.compute],
    ], longest),
    element("span", { class: "figure" }, unit.comm ? `${duration(unit.exposed)} of ${duration(unit.comm)} exposed` : ""),
  ]));
}

function phasesOf(rank, from, to) {
  const rows = new Map();
  for (const lane of rank.lanes) {
    for (const [at, took, , category, unit, phase] of lane.bars) {
      if (at < from || at >= to) continue;
      const kind = REPORT.categories[category] === "copy" ? "copies" : "";
      const name = [REPORT.names[phase], REPORT.names[unit] || lane.name, kind].filter(Boolean).join(" ");
      const key = `${name}|${category}|${lane.name}`;
      const row = rows.get(key) || { name, category: REPORT.categories[category], bars: [], at };
      row.bars.push([at, took]);
      row.at = Math.min(row.at, at);
      rows.set(key, row);
    }
  }
  return [...rows.values()].sort((a, b) => a.at - b.at).slice(0, 80);
}

function drawWaterfall(rank, timeline, from, to) {
  const rows = phasesOf(rank, from, to), high = 18, names = 260, wide = 1130;
  const end = Math.max(...rows.flatMap((row) => row.bars.map(([at, took]) => at + took)), to);
  const x = (at) => names + ((at - from) / (end - from || 1)) * (wide - names);
  const svg = element("svg", { viewBox: `0 0 ${wide} ${rows.length * high + 4}`, role: "img", "aria-label": "waterfall" });
  rows.forEach((row, place) => {
    const group = element("g", { class: "row" });
    group.append(element("text", { x: names - 8, y: place * high + 13, "text-anchor": "end" }, tail(row.name, 44)));
    group.append(element("line", { class: "rule", x1: names, x2: wide, y1: (place + 1) * high, y2: (place + 1) * high }));
    for (const [at, took] of row.bars.slice(0, 400)) {
      group.append(element("rect", { x: x(at), y: place * high + 3, height: high - 6,
        width: Math.max(x(at + took) - x(at), 0.7), fill: `var(--${row.category})` }));
    }
    const total = row.bars.reduce((sum, [, took]) => sum + took, 0);
    group.addEventListener("pointermove", (event) => showTip(`${row.name}\n${duration(total)} in ${row.bars.length}`, event));
    group.addEventListener("pointerleave", () => showTip(""));
    group.addEventListener("click", () => { timeline.show(row.at, row.at + Math.max(total * 1.2, 1)); $("timeline").scrollIntoView(); });
    svg.append(group);
  });
  $("waterfall").replaceChildren(svg);
}

function drawSizes(rank) {
  const points = rank.sizes;
  $("sizes-section").hidden = !points.length;
  if (!points.length) return;
  const wide = 1130, high = 260, left = 60, low = 30;
  const sizes = points.map((point) => Math.log10(point.bytes));
  const [least, most] = [Math.floor(Math.min(...sizes)), Math.ceil(Math.max(...sizes) + 1e-9)];
  const fastest = Math.max(...points.map((point) => point.busbw));
  const x = (bytes) => left + ((Math.log10(bytes) - least) / (most - least || 1)) * (wide - left - 20);
  const y = (speed) => high - low - (speed / fastest) * (high - low - 20);
  const svg = element("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": "bandwidth by message size" });
  for (let power = least; power <= most; power++) {
    const label = power < 3 ? `${10 ** power} B` : power < 6 ? `${10 ** (power - 3)} kB` : power < 9 ? `${10 ** (power - 6)} MB` : `${10 ** (power - 9)} GB`;
    svg.append(element("line", { class: "rule", x1: x(10 ** power), x2: x(10 ** power), y1: 10, y2: high - low }));
    svg.append(element("text", { class: "faint", x: x(10 ** power), y: high - 10, "text-anchor": "middle" }, label));
  }
  for (const part of [0, 0.5, 1]) {
    svg.append(element("text", { class: "faint", x: left - 8, y: y(part * fastest) + 4, "text-anchor": "end" }, (part * fastest).toPrecision(3)));
  }
  svg.append(element("text", { class: "faint", x: 0, y: 10 }, "GB/s"));
  [...new Set(points.map((point) => point.kind))].forEach((kind, number) => {
    const own = points.filter((point) => point.kind === kind), fill = REASON_COLOURS[(number * 3 + 6) % 8];
    svg.append(element("path", { d: curve(own, x, y), fill: "none", stroke: fill, "stroke-width": 1.5, opacity: 0.6 }));
    for (const point of own) {
      const dot = element("circle", { cx: x(point.bytes), cy: y(point.busbw), r: 3.5, fill, "fill-opacity": 0.7 });
      dot.addEventListener("pointermove", (event) => showTip(`${kind}\n${point.bytes} B, ${point.busbw.toFixed(2)} GB/s`, event));
      dot.addEventListener("pointerleave", () => showTip(""));
      svg.append(dot);
    }
    svg.append(element("text", { x: left + 14 + number * 130, y: 14, style: `fill:${fill}` }, kind || "unknown kind"));
  });
  $("sizes").replaceChildren(svg);
}

// Through the median of each size.
function curve(points, x, y) {
  const sizes = [...new Set(points.map((point) => point.bytes))].sort((a, b) => a - b);
  const middles = sizes.map((bytes) => {
    const speeds = points.filter((point) => point.bytes === bytes).map((point) => point.busbw).sort((a, b) => a - b);
    return [x(bytes), y(speeds[speeds.length >> 1])];
  });
  return middles.map(([px, py], place) => `${place ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
}

function drawTables() {
  $("tables").replaceChildren(...REPORT.sheets.map((sheet) => {
    const text = (place) => place === 0 || place > sheet.heads.length - sheet.texts;
    const row = (cells, tag) => element("tr", {}, ...cells.map((cell, place) =>
      element(tag, text(place) ? { class: "text" } : {}, cell)));
    const table = element("table", {}, element("caption", {}, sheet.title),
      element("thead", {}, row([sheet.left, ...sheet.heads], "th")),
      element("tbody", {}, ...sheet.rows.map((cells) => row(cells, "td"))));
    const box = element("div", { class: "scroll" }, table);
    if (sheet.note) box.append(element("p", { class: "hint" }, sheet.note));
    return box;
  }));
  $("notes-section").hidden = !REPORT.notes.length;
  $("notes").replaceChildren(...REPORT.notes.map((note) => element("li", {}, note)));
}

function start() {
  $("source").textContent = `${REPORT.source} · ${REPORT.ranks.length} rank${REPORT.ranks.length > 1 ? "s" : ""} · ${REPORT.options}`;
  drawRanks();
  drawTables();
  drawBuckets();
  const timeline = new Timeline($("timeline").querySelector("canvas"));
  $("rank").append(...REPORT.ranks.map((rank, place) => element("option", { value: place }, String(rank.rank))));
  const chosen = () => REPORT.ranks[Number($("rank").value)];
  const drawStep = () => {
    const [, from, to] = chosen().steps[Number($("step").value)];
    drawWaterfall(chosen(), timeline, from, to);
  };
  const load = () => {
    const rank = chosen();
    timeline.load(rank);
    drawUnits(rank);
    drawSizes(rank);
    $("step").replaceChildren(...rank.steps.map(([name], place) => element("option", { value: place }, name)));
    drawStep();
  };
  $("rank").value = String(REPORT.worst);
  $("rank").addEventListener("change", load);
  $("step").addEventListener("change", drawStep);
  load();
  document.documentElement.dataset.ready = "true";
  window.timeline = timeline;
}

start();
