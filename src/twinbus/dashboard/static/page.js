// What both pages share: elements, words for numbers and times. Text is always set as text, never
// as markup: a message id or an entity's name is somebody else's.

export const byId = (id) => document.getElementById(id);

/** make("td", { class: "number" }, "7", child): attributes are set as such, false leaves one out. */
export function make(name, attributes = {}, ...children) {
  const space = name === "svg" || SVG.has(name) ? "http://www.w3.org/2000/svg" : null;
  const element = space ? document.createElementNS(space, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = new Set(["g", "path", "line", "rect", "circle", "text", "polyline"]);

/** A table with a caption for those who hear it; rows are lists of texts or elements. */
export function fillTable(table, caption, columns, rows, empty) {
  const head = make("tr", {}, ...columns.map((column) =>
    make("th", { scope: "col", class: column.number ? "number" : false }, column.name)));
  const body = rows.length
    ? rows.map((cells) => make("tr", {}, ...cells.map((cell, index) => tableCell(cell, columns[index], index))))
    : [make("tr", {}, make("td", { colspan: columns.length, class: "empty" }, empty))];
  table.replaceChildren(
    make("caption", { class: "visually-hidden" }, caption),
    make("thead", {}, head),
    make("tbody", {}, ...body),
  );
  letKeysScroll(table.closest(".scroll"));
}

/** A box that scrolls can be reached by keyboard; one that does not is no stop on the way. */
function letKeysScroll(box) {
  if (!box) return;
  const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
  if (scrolls) box.tabIndex = 0;
  else if (box !== document.activeElement) box.removeAttribute("tabindex");
}

function tableCell(cell, column, index) {
  const attributes = { class: column.number ? "number" : false };
  return index === 0
    ? make("th", { scope: "row", ...attributes }, cell)
    : make("td", attributes, cell);
}

const WHOLE = new Intl.NumberFormat("en");

export const count = (value) => (value === null || value === undefined ? "–" : WHOLE.format(value));

export function rate(value) {
  if (value === null || value === undefined) return "–";
  return value >= 100 ? WHOLE.format(Math.round(value)) : String(Math.round(value * 10) / 10);
}

/** 75 -> "1 min 15 s"; two units at most. */
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

export const ago = (at, now) => (at === null || at === undefined ? "–" : span(now - at));

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

export const clock = (at) => CLOCK.format(at * 1000);

/** With the day, unless that is today. */
export function moment(at) {
  const then = new Date(at * 1000);
  const today = new Date().toDateString() === then.toDateString();
  return today ? clock(at) : `${DAY.format(then)}, ${clock(at)}`;
}

export function money(amount, currency) {
  return new Intl.NumberFormat("en", {
    style: "currency", currency, minimumFractionDigits: 2, maximumFractionDigits: amount && amount < 1 ? 4 : 2,
  }).format(amount);
}
