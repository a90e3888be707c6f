// The last outages as bars over time, a row for each entity.

import { make, moment, span } from "./page.js";

const WIDTH = 600;
const LEFT = 110;
const ROW = 22;
const MOST_ROWS = 6;
const LEAST_S = 600;

export function drawTimeline(place, outages, now) {
  if (!outages.length) {
    place.replaceChildren();
    return;
  }
  const names = [...new Set(outages.map((each) => each.entity))].slice(0, MOST_ROWS);
  const begin = Math.min(...outages.map((each) => each.began));
  const from = Math.min(begin - (now - begin) * 0.05, now - LEAST_S);
  const x = (at) => LEFT + ((at - from) / (now - from)) * (WIDTH - LEFT - 4);
  const height = names.length * ROW + 26;
  place.replaceChildren(make("svg", {
    class: "timeline", viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
    "aria-label": `Time line of ${outages.length} outages, from ${moment(from)} until now; the table below says the same.`,
  },
  ...names.flatMap((name, row) => [
    make("line", { class: "rail", x1: LEFT, x2: WIDTH - 4, y1: row * ROW + 11, y2: row * ROW + 11 }),
    make("text", { x: LEFT - 8, y: row * ROW + 15, "text-anchor": "end" }, shorten(name)),
  ]),
  ...outages.filter((each) => names.includes(each.entity)).map((each) =>
    bar(x(each.began), x(each.ended ?? now), names.indexOf(each.entity) * ROW, each.ended === null)),
  make("text", { x: LEFT, y: height - 4, "text-anchor": "start" }, moment(from)),
  make("text", { x: WIDTH - 4, y: height - 4, "text-anchor": "end" }, "now")));
}

function bar(from, to, top, open) {
  return make("rect", { class: open ? "outage open" : "outage", x: from, y: top + 4, width: Math.max(3, to - from), height: 14, rx: 3 });
}

const shorten = (name) => (name.length > 15 ? `${name.slice(0, 14)}…` : name);

export const lasted = (outage, now) => span((outage.ended ?? now) - outage.began);
