"use strict";
// Draws charts with a cursor in place of the still ones, and pauses updates. Pages work without it.

const charts = new Map();
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clock = (time, length) => (time == null ? "–" : new Date(1000 * time).toISOString().slice(11, 11 + length));
const shown = (value, unit) => (value == null ? "–" : `${+value.toPrecision(4)} ${unit}`);

function options(data, width) {
  const axis = { stroke: color("--muted"), grid: { stroke: color("--soft"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const lines = data.lines.map((line, i) => ({
    label: line.name, stroke: color(`--l${i}`), width: 1.6, spanGaps: false, points: { show: data.x.length < 3 },
    value: (_, value) => shown(value, data.unit),
  }));
  return {
    width, height: 150, legend: { live: true }, cursor: { y: false },
    scales: { x: { range: () => [Math.min(data.x[0], data.x.at(-1) - 900), data.x.at(-1)] }, y: { range: [data.low, data.high] } },
    axes: [{ ...axis, values: (_, times) => times.map((time) => clock(time, 5)) }, { ...axis, size: 46 }],
    hooks: { draw: [(plot) => drawMarks(plot, data.marks)] },
    series: [{ label: "UTC", value: (_, time) => clock(time, 8) }, ...lines],
  };
}

// Dashed lines where something was changed, with its name as long as names do not meet.
function drawMarks(plot, marks) {
  const { ctx, bbox } = plot, end = plot.data[0].at(-1);
  let free = -Infinity;
  ctx.save();
  Object.assign(ctx, { strokeStyle: color("--l1"), fillStyle: color("--l1"), lineWidth: devicePixelRatio, textAlign: "left", textBaseline: "alphabetic", font: `${11 * devicePixelRatio}px system-ui` });
  ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
  for (const mark of marks) {
    const x = plot.valToPos(Math.min(mark.at, end), "x", true), width = ctx.measureText(mark.name).width;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    const left = x + 4 + width > bbox.left + bbox.width ? x - width - 4 : x + 4;
    if (left > free) { ctx.fillText(mark.name, left, bbox.top + 11 * devicePixelRatio); free = left + width + 6 * devicePixelRatio; }
  }
  ctx.restore();
}

function draw(holder) {
  const text = holder.dataset.chart;
  const known = charts.get(holder);
  if (known && known.text === text) return;
  known?.plot.destroy();
  holder.replaceChildren();
  const data = JSON.parse(text);
  const plot = new uPlot(options(data, holder.clientWidth), [data.x, ...data.lines.map((line) => line.values)], holder);
  holder.classList.add("drawn");
  charts.set(holder, { text, plot });
}

function drawAll() {
  for (const [holder, { plot }] of charts) {
    if (!holder.isConnected) { plot.destroy(); charts.delete(holder); }
  }
  document.querySelectorAll("[data-chart]").forEach(draw);
}

let paused = sessionStorage.getItem("paused") === "yes";

function showPause() {
  const button = document.getElementById("pause");
  if (!button) return;
  button.hidden = false;
  button.setAttribute("aria-pressed", String(paused));
  button.textContent = paused ? "Updates paused" : "Pause updates";
}

document.addEventListener("click", (event) => {
  if (event.target.id !== "pause") return;
  paused = !paused;
  sessionStorage.setItem("paused", paused ? "yes" : "no");
  showPause();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelectorAll("details.kill[open]").forEach((one) => { one.open = false; one.querySelector("summary").focus(); });
});
document.addEventListener("htmx:before:request", (event) => {
  const busy = document.activeElement?.matches("main input, main textarea, main select");
  if (paused || busy || document.hidden) event.preventDefault();
});
const tell = (text) => { const stale = document.getElementById("stale"); if (stale) stale.textContent = text; };
document.addEventListener("htmx:error", () => tell("No answer from the server."));
document.addEventListener("htmx:response:error", () => tell("The server could not update this page."));
document.addEventListener("htmx:after:swap", () => { drawAll(); showPause(); tell(""); });
new ResizeObserver(() => charts.forEach(({ plot }, holder) => plot.setSize({ width: holder.clientWidth, height: 150 }))).observe(document.documentElement);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { charts.forEach((one) => { one.text = ""; }); drawAll(); });
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
drawAll();
showPause();
