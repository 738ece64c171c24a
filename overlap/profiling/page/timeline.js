"use strict";
// The lanes of one rank on a canvas: wheel zooms around the pointer, dragging moves, hovering tells.

const REPORT = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const REASON_COLOURS = ["#e45756", "#f58518", "#b279a2", "#eeca3b", "#ff9da6", "#9d755d", "#72b7b2", "#79706e"];

function duration(us) {
  if (us >= 1e6) return `${(us / 1e6).toFixed(3)} s`;
  return us >= 1000 ? `${(us / 1000).toFixed(3)} ms` : `${us.toFixed(us < 10 ? 2 : 1)} µs`;
}

function showTip(text, event) {
  const tip = $("tip");
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  tip.style.top = `${Math.min(event.clientY + 14, innerHeight - height - 8)}px`;
}

class Timeline {
  static LANE = 24;
  static AXIS = 22;
  static LABELS = 120;

  constructor(canvas) {
    this.canvas = canvas;
    this.from = 0;
    this.to = 1;
    canvas.addEventListener("wheel", (event) => this.zoom(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.grab(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", () => (this.held = null));
    canvas.addEventListener("pointerleave", () => { this.held = null; showTip(""); });
    canvas.addEventListener("dblclick", () => this.show(0, this.rank.span));
    addEventListener("resize", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  load(rank) {
    this.rank = rank;
    this.lanes = [{ name: "exposed", bars: rank.exposed.map(([at, took, reason, name, gain]) =>
      ({ at, took, name: REPORT.names[name], reason: REPORT.reasons[reason], gain, fill: REASON_COLOURS[reason % 8] })) }];
    for (const lane of rank.lanes) {
      this.lanes.push({ name: lane.name, bars: lane.bars.map(([at, took, name, category, unit, phase]) => ({
        at, took, name: REPORT.names[name], category: REPORT.categories[category], unit: REPORT.names[unit], phase: REPORT.names[phase],
      })) });
    }
    for (const lane of this.lanes) lane.longest = Math.max(0, ...lane.bars.map((bar) => bar.took));
    this.show(0, rank.span);
  }

  show(from, to) {
    const least = Math.max(this.rank.span * 1e-7, 0.01);
    const width = Math.min(Math.max(to - from, least), this.rank.span || 1);
    this.from = Math.min(Math.max(from, 0), Math.max(this.rank.span - width, 0));
    this.to = this.from + width;
    this.draw();
  }

  x(us) {
    return Timeline.LABELS + ((us - this.from) / (this.to - this.from)) * (this.width - Timeline.LABELS);
  }

  us(x) {
    return this.from + ((x - Timeline.LABELS) / (this.width - Timeline.LABELS)) * (this.to - this.from);
  }

  draw() {
    const ratio = devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    const height = Timeline.AXIS + this.lanes.length * Timeline.LANE;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = this.width * ratio;
    this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.drawAxis(pen, height);
    this.lanes.forEach((lane, place) => this.drawLane(pen, lane, Timeline.AXIS + place * Timeline.LANE));
  }

  drawAxis(pen, height) {
    const step = 10 ** Math.floor(Math.log10((this.to - this.from) / 4));
    const every = [1, 2, 5].map((times) => times * step).find((one) => (this.to - this.from) / one <= 10) || step * 10;
    pen.fillStyle = colour("faint");
    pen.strokeStyle = colour("rule");
    for (let at = Math.ceil(this.from / every) * every; at <= this.to; at += every) {
      pen.beginPath();
      pen.moveTo(this.x(at), Timeline.AXIS - 5);
      pen.lineTo(this.x(at), height);
      pen.stroke();
      pen.fillText(duration(at), this.x(at) + 3, Timeline.AXIS / 2);
    }
  }

  drawLane(pen, lane, top) {
    pen.fillStyle = colour("field");
    pen.fillRect(0, top, Timeline.LABELS, Timeline.LANE);
    pen.fillStyle = colour("ink");
    pen.save();
    pen.beginPath();
    pen.rect(0, top, Timeline.LABELS - 6, Timeline.LANE);
    pen.clip();
    pen.fillText(lane.name, 8, top + Timeline.LANE / 2);
    pen.restore();
    let drawn = -1;
    for (const bar of this.within(lane, this.from, this.to)) {
      const left = Math.max(this.x(bar.at), Timeline.LABELS);
      const right = Math.min(Math.max(this.x(bar.at + bar.took), left + 0.6), this.width);
      if (right <= drawn) continue; // many bars within one pixel are one
      pen.fillStyle = bar.fill || colour(bar.category);
      pen.fillRect(left, top + 3, right - left, Timeline.LANE - 6);
      drawn = Math.max(drawn, right - 0.5);
      if (right - left > 44) this.drawLabel(pen, bar, left, right, top);
    }
  }

  drawLabel(pen, bar, left, right, top) {
    pen.save();
    pen.beginPath();
    pen.rect(left, top, right - left - 3, Timeline.LANE);
    pen.clip();
    pen.fillStyle = "#ffffff";
    pen.fillText(bar.reason || [bar.phase, bar.unit].filter(Boolean).join(" ") || bar.name, left + 4, top + Timeline.LANE / 2);
    pen.restore();
  }

  *within(lane, from, to) {
    let low = 0, high = lane.bars.length;
    while (low < high) { // the first bar that may reach into the view
      const middle = (low + high) >> 1;
      if (lane.bars[middle].at < from - lane.longest) low = middle + 1; else high = middle;
    }
    for (; low < lane.bars.length && lane.bars[low].at <= to; low++) {
      if (lane.bars[low].at + lane.bars[low].took >= from) yield lane.bars[low];
    }
  }

  zoom(event) {
    event.preventDefault();
    const centre = this.us(event.offsetX);
    const factor = Math.exp(event.deltaY * 0.0015);
    this.show(centre - (centre - this.from) * factor, centre + (this.to - centre) * factor);
  }

  grab(event) {
    this.held = { x: event.offsetX, from: this.from, to: this.to };
    this.canvas.setPointerCapture(event.pointerId);
  }

  move(event) {
    if (this.held) {
      const by = ((event.offsetX - this.held.x) / (this.width - Timeline.LABELS)) * (this.held.to - this.held.from);
      this.show(this.held.from - by, this.held.to - by);
      return;
    }
    const bar = this.at(event.offsetX, event.offsetY);
    showTip(bar ? this.describe(bar) : "", event);
  }

  at(x, y) {
    const lane = this.lanes[Math.floor((y - Timeline.AXIS) / Timeline.LANE)];
    if (!lane || x < Timeline.LABELS) return null;
    const slack = (2 * (this.to - this.from)) / this.width;
    let found = null;
    for (const bar of this.within(lane, this.us(x) - slack, this.us(x) + slack)) {
      if (!found || bar.took > found.took) found = bar;
    }
    return found;
  }

  describe(bar) {
    const lines = [bar.name, `${duration(bar.took)} at ${duration(bar.at)}`];
    if (bar.reason) lines.push(`exposed: ${bar.reason}`, `gain if hidden: about ${duration(bar.gain)}`);
    if (bar.unit) lines.push(`unit: ${bar.unit}`);
    if (bar.phase) lines.push(`phase: ${bar.phase}`);
    if (bar.category) lines.push(bar.category);
    return lines.join("\n");
  }
}
