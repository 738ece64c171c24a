"use strict";
// Curves of `overlap bench bucket`: bandwidth of a call, and what a step beside compute came to, by bucket size.

const PANEL = { wide: 370, high: 240, left: 46, right: 26, top: 42, low: 26 };
const short = (value) => String(Number(value.toPrecision(3)));
const lineColour = (number) => REASON_COLOURS[(number * 3 + 6) % 8];

function binary(bytes) {
  const unit = Math.min(Math.floor(Math.log2(Math.max(bytes, 1)) / 10), 3);
  return `${short(bytes / 1024 ** unit)} ${["B", "KiB", "MiB", "GiB"][unit]}`;
}

// Scales of one panel and its axes: sizes by their logarithm, the rest from 0.
function panel(title, sizes, values) {
  const { wide, high, left, right, top, low } = PANEL;
  const [least, most] = [Math.log2(Math.min(...sizes)), Math.log2(Math.max(...sizes))];
  const largest = Math.max(...values) || 1;
  const x = (bytes) => left + ((Math.log2(bytes) - least) / (most - least || 1)) * (wide - left - right);
  const y = (value) => high - low - (value / largest) * (high - low - top);
  const svg = element("svg", { viewBox: `0 0 ${wide} ${high}`, role: "img", "aria-label": title });
  svg.append(element("text", { x: 0, y: 12 }, title));
  const every = Math.max(1, Math.ceil((most - least) / 4));
  for (let power = Math.ceil(least); power <= most; power += every) {
    svg.append(element("line", { class: "rule", x1: x(2 ** power), x2: x(2 ** power), y1: top, y2: high - low }));
    svg.append(element("text", { class: "faint", x: x(2 ** power), y: high - 8, "text-anchor": "middle" }, binary(2 ** power)));
  }
  for (const part of [0, 0.5, 1]) {
    const at = y(part * largest);
    svg.append(element("line", { class: "rule", x1: left, x2: wide - right, y1: at, y2: at }));
    svg.append(element("text", { class: "faint", x: left - 6, y: at + 4, "text-anchor": "end" }, short(part * largest)));
  }
  return { svg, x, y, named: 0 };
}

// A line with a dot per point that tells; `dash` for what was not measured.
function line(at, name, points, colour, tell, dash = "") {
  const places = points.map(([bytes, value]) => [at.x(bytes), at.y(value)]);
  const path = places.map(([px, py], place) => `${place ? "L" : "M"}${px.toFixed(1)} ${py.toFixed(1)}`).join("");
  at.svg.append(element("path", { d: path, fill: "none", stroke: colour, "stroke-width": 1.5, "stroke-dasharray": dash }));
  at.svg.append(element("text", { x: PANEL.left + at.named++ * 80, y: 27, style: `fill:${colour}` }, name));
  if (!tell) return;
  points.forEach((point, place) => {
    const dot = element("circle", { cx: places[place][0], cy: places[place][1], r: 3.5, fill: colour });
    dot.addEventListener("pointermove", (event) => showTip(tell(point[2]), event));
    dot.addEventListener("pointerleave", () => showTip(""));
    at.svg.append(dot);
  });
}

function tellCall(call) {
  return `${binary(call.bytes)} alone\n${duration(call.time_us)} a call, busbw ${short(call.busbw)} GB/s\nfit ${short(call.fit)} GB/s`;
}

function tellRow(row) {
  return [
    `${binary(row.bucket_bytes)}, ${row.in_flight} in flight, ${row.buckets} a step`,
    `step ${row.step_ms.toFixed(2)} ms; alone ${row.alone_ms.toFixed(2)}, compute ${row.compute_ms.toFixed(2)}`,
    `exposed ${row.exposed_ms.toFixed(2)} ms, compute ${row.slowdown.toFixed(2)}x`,
    `busbw ${short(row.busbw_alone_gbps)} GB/s alone, ${short(row.busbw_beside_gbps)} beside compute`,
  ].join("\n");
}

function drawBandwidth(curve, groups) {
  const asked = curve.busbw === null ? 0 : curve.busbw * curve.share;
  const speeds = [...curve.calls.flatMap((call) => [call.busbw, call.fit]), ...curve.rows.map((row) => row.busbw_beside_gbps), asked];
  const at = panel("busbw, GB/s", curve.calls.map((call) => call.bytes), speeds);
  if (asked) at.svg.append(element("line", { x1: PANEL.left, x2: PANEL.wide - PANEL.right, y1: at.y(asked), y2: at.y(asked), stroke: "var(--faint)", "stroke-dasharray": "2 3" }));
  if (curve.bucket !== null) at.svg.append(element("line", { class: "recommended", x1: at.x(curve.bucket), x2: at.x(curve.bucket), y1: PANEL.top, y2: PANEL.high - PANEL.low, stroke: "var(--exposed)" }));
  line(at, "call alone", curve.calls.map((call) => [call.bytes, call.busbw, call]), "var(--communication)", tellCall);
  line(at, "fit", curve.calls.map((call) => [call.bytes, call.fit]), "var(--faint)", null, "4 3");
  groups.forEach(([count, rows], number) =>
    line(at, `beside, ${count}`, rows.map((row) => [row.bucket_bytes, row.busbw_beside_gbps, row]), lineColour(number), tellRow));
  return at.svg;
}

function drawRows(title, key, curve, groups) {
  const at = panel(title, curve.rows.map((row) => row.bucket_bytes), curve.rows.map((row) => row[key]));
  groups.forEach(([count, rows], number) =>
    line(at, `${count} in flight`, rows.map((row) => [row.bucket_bytes, row[key], row]), lineColour(number), tellRow));
  return at.svg;
}

function summary(curve) {
  const reach = curve.busbw === null ? "no bandwidth: larger sizes took no longer" : `${(100 * curve.share).toFixed(0)} % of ${short(curve.busbw)} GB/s`;
  const parts = [curve.bucket === null ? `no measured size reaches its share (${reach})` : `recommended: ${binary(curve.bucket)}, the smallest bucket that reaches ${reach}`];
  const best = curve.fastest;
  if (best) parts.push(`shortest step: ${binary(best.bucket_bytes)} x ${best.in_flight}, ${best.step_ms.toFixed(1)} ms`);
  return parts.join("; ");
}

function drawBuckets() {
  $("buckets-section").hidden = !REPORT.buckets.length;
  $("buckets").replaceChildren(...REPORT.buckets.map((curve) => {
    const groups = [...new Set(curve.rows.map((row) => row.in_flight))].map((count) => [count, curve.rows.filter((row) => row.in_flight === count)]);
    const panels = [drawBandwidth(curve, groups)];
    if (groups.length) panels.push(drawRows("exposed, ms a step", "exposed_ms", curve, groups), drawRows("compute beside / alone", "slowdown", curve, groups));
    return element("div", {}, element("p", {}, [curve.label, curve.machine].filter(Boolean).join(" · ")),
      element("div", { class: "panels" }, ...panels), element("p", { class: "hint" }, summary(curve)));
  }));
}
