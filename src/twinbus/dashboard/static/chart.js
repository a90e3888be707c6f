// Lines over time, in SVG, with a table that says the same.

import { clock, count, fillTable, make, rate } from "./page.js";

const WIDTH = 600;
const HEIGHT = 190;
const LEFT = 56;
const RIGHT = 8;
const TOP = 10;
const BOTTOM = 24;
const TABLE_ROWS = 12;
const LEAST_S = 60;
const MOST_S = 300;

/** series: [{ name, kind, points }], points may have gaps (null). */
export function drawChart(figure, { title, times, series, whole }) {
  const shown = whole ? count : rate;
  figure.setAttribute("aria-label", title);
  const table = figure.querySelector("details") ?? newTable(figure, title);
  const legend = make("figcaption", { class: "legend" }, ...series.map((each) =>
    make("span", { class: "key" },
      make("span", { class: `swatch ${each.kind}`, "aria-hidden": "true" }),
      `${each.name} `, make("b", {}, shown(each.points.at(-1))))));
  figure.replaceChildren(drawing(title, times, series, shown), legend, table);
  fillTable(table.querySelector("table"), title, columns(series), tableRows(times, series, shown), "Nothing yet");
}

function newTable(figure, title) {
  return make("details", {}, make("summary", {}, "As a table"),
    make("div", { class: "scroll", role: "region", "aria-label": `${title}, as a table` }, make("table")));
}

const columns = (series) => [{ name: "Time" }, ...series.map((each) => ({ name: each.name, number: true }))];

/** The newest first, some seconds apart. */
function tableRows(times, series, shown) {
  const step = Math.max(1, Math.floor(times.length / TABLE_ROWS));
  const rows = [];
  for (let index = times.length - 1; index >= 0 && rows.length < TABLE_ROWS; index -= step) {
    rows.push([clock(times[index]), ...series.map((each) => shown(each.points[index]))]);
  }
  return rows;
}

function drawing(title, times, series, shown) {
  const most = nice(Math.max(1, ...series.flatMap((each) => each.points.map((point) => point ?? 0))));
  const end = times.at(-1) ?? 0;
  const length = Math.min(MOST_S, Math.max(LEAST_S, Math.ceil((end - (times[0] ?? end)) / 60) * 60));
  const x = (at) => LEFT + ((at - end + length) / length) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (value / most) * (HEIGHT - TOP - BOTTOM);
  return make("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": summary(title, series, shown) },
    ...[0, 0.5, 1].map((part) => gridLine(y(most * part), shown(most * part))),
    ...[1, 0.75, 0.5, 0.25, 0].map((part) => timeLabel(x(end - part * length), part, part * length)),
    ...series.flatMap((each) => lines(each, times, x, y)));
}

const summary = (title, series, shown) =>
  `${title}. Now: ${series.map((each) => `${each.name} ${shown(each.points.at(-1))}`).join(", ")}.`;

function gridLine(at, label) {
  return make("g", { class: "grid-line" },
    make("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: at, y2: at }),
    make("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, label));
}

function timeLabel(at, part, back) {
  const anchor = part === 1 ? "start" : part === 0 ? "end" : "middle";
  const words = part === 0 ? "now" : `−${Math.floor(back / 60)}:${String(back % 60).padStart(2, "0")}`;
  return make("g", { class: "grid-line" },
    make("text", { x: at, y: HEIGHT - 6, "text-anchor": anchor }, words));
}

/** A line for each stretch without a gap; the area under it where there is one. */
function lines(each, times, x, y) {
  const drawn = [];
  let stretch = [];
  const finish = () => {
    if (stretch.length > 1) {
      const path = stretch.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
      if (each.filled) {
        const base = y(0).toFixed(1);
        drawn.push(make("path", { class: `area ${each.kind}`, d: `${path}L${x(stretch.at(-1)[0]).toFixed(1)} ${base}L${x(stretch[0][0]).toFixed(1)} ${base}Z` }));
      }
      drawn.push(make("path", { class: `curve ${each.kind}`, d: path }));
    }
    stretch = [];
  };
  each.points.forEach((point, index) => (point === null ? finish() : stretch.push([times[index], point])));
  finish();
  return drawn;
}

/** The next round number above. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].map((step) => step * power).find((step) => step >= value);
}
