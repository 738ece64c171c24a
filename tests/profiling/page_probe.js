// Runs behind the page's own scripts: looks, hovers, zooms; what it saw goes into the document.
const canvas = document.querySelector("#timeline canvas"), box = canvas.getBoundingClientRect();
const colours = () => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, found = {};
  for (let at = 0; at < pixels.length; at += 4) {
    const key = pixels.slice(at, at + 3).join(","); found[key] = (found[key] || 0) + 1;
  }
  return found;
};
const over = (x, y, type = "pointermove", more = {}) => canvas.dispatchEvent(
  new (type === "wheel" ? WheelEvent : PointerEvent)(type, {
    clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, ...more,
  }));
const tip = document.getElementById("tip");
const probe = () => {
  seen.ready = document.documentElement.dataset.ready;
  seen.lanes = timeline.lanes.map((lane) => [lane.name, lane.bars.length]);
  seen.colours = colours();
  const lane = timeline.lanes.findIndex((one) => one.bars.some((bar) => bar.category === "communication"));
  const bar = timeline.lanes[lane].bars.filter((one) => one.category === "communication").sort((a, b) => b.took - a.took)[0];
  over(timeline.x(bar.at + bar.took / 2), Timeline.AXIS + (lane + 0.5) * Timeline.LANE);
  seen.bar = bar; seen.tip = tip.hidden ? null : tip.textContent;
  const exposed = timeline.lanes[0].bars.reduce((a, b) => (b.took > a.took ? b : a));
  over(timeline.x(exposed.at + exposed.took / 2), Timeline.AXIS + Timeline.LANE / 2);
  seen.reason = tip.textContent;
  over(4, 4, "pointerleave"); seen.hiddenAgain = tip.hidden;
  const before = timeline.to - timeline.from;
  over(400, 60, "wheel", {deltaY: -600}); seen.zoomed = (timeline.to - timeline.from) / before;
  over(0, 0, "dblclick"); seen.reset = (timeline.to - timeline.from) / before;
  const rank = document.getElementById("rank");
  rank.value = "0"; rank.dispatchEvent(new Event("change"));
  seen.units = document.querySelectorAll("#units .bar").length;
  seen.waterfall = document.querySelectorAll("#waterfall rect").length;
  seen.sizes = document.querySelectorAll("#sizes circle").length;
  seen.panels = document.querySelectorAll("#buckets svg").length;
  seen.bucketsHidden = document.getElementById("buckets-section").hidden;
  seen.bucketTips = [...document.querySelectorAll("#buckets circle")].map((dot) => {
    dot.dispatchEvent(new PointerEvent("pointermove", { clientX: 100, clientY: 100, bubbles: true }));
    return tip.textContent;
  });
  seen.bucketsText = document.getElementById("buckets").textContent;
  seen.tables = document.querySelectorAll("#tables table").length;
  seen.resources = performance.getEntriesByType("resource").map((entry) => entry.name);
};
probe();
document.body.append(Object.assign(document.createElement("pre"), {id: "seen", textContent: JSON.stringify(seen)}));
