/* Elements are built without markup: text from a run is only ever set as text. */

const SVG_NAMES = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function el(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG_NAMES, tag), attributes, children);
}

function byId(id) {
  return document.getElementById(id);
}

/* A colour of the style sheet, for canvases; cached until the theme changes. */
const colours = new Map();

function colour(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colours.get(name);
}

/* Listeners by event: "data", "round", "view" or "theme". */
const listeners = new Map();

function on(kinds, listener) {
  for (const kind of kinds.split(" ")) {
    if (!listeners.has(kind)) listeners.set(kind, []);
    listeners.get(kind).push(listener);
  }
}

function notify(kind) {
  for (const listener of listeners.get(kind) ?? []) listener();
}

/* Announce the effect of a key press to screen readers. */
function announce(text) {
  byId("spoken").textContent = text;
}

/* Call the listener with the width whenever it changes. */
function onWidth(node, listener) {
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(node.clientWidth);
    if (width && width !== last) listener((last = width));
  }).observe(node);
}

function showTip(event, lines) {
  const tip = byId("tip");
  tip.replaceChildren(...lines.map((line) => (typeof line === "string" ? el("div", {}, line) : line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const right = event.clientX + 14 + box.width < innerWidth - 8;
  const left = right ? event.clientX + 14 : event.clientX - 14 - box.width;
  tip.style.left = `${Math.max(8, Math.min(left, innerWidth - 8 - box.width))}px`;
  tip.style.top = `${Math.max(8, Math.min(event.clientY + 14, innerHeight - 8 - box.height))}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

/* A line of a tooltip: a swatch, a name and a value. */
function tipRow(fill, name, value) {
  const swatch = el("i", { class: "swatch" });
  swatch.style.background = fill;
  return el("div", { class: "tip-row" }, swatch, el("span", {}, name), el("b", {}, value));
}

/* A label that breaks between its words and parts, never within them; a short one does not break. A mark stays with its start. */
function breakable(text, mark) {
  const pieces = text.length <= 16 ? [text] : text.split(/(?<=[,:/\s])/);
  return pieces.flatMap((piece, k) => [el("span", { class: "piece" }, k ? null : mark, piece), el("wbr")]);
}

/* A table in a scrolling box, so that a wide table never widens the page. */
function scrollTable(label, head, rows) {
  const header = el(
    "tr",
    {},
    head.map((text) => el("th", { scope: "col" }, text)),
  );
  const body = rows.map(([first, ...rest]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, first),
      rest.map((text) => el("td", {}, text)),
    ),
  );
  const table = el(
    "table",
    { class: "numbers" },
    el("caption", { class: "visually-hidden" }, label),
    el("thead", {}, header),
    el("tbody", {}, body),
  );
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, table);
}

/* The numbers of a figure; the table is built when it is opened. */
function tableDetails(label, make) {
  const holder = el("div");
  const fill = () => holder.replaceChildren(make());
  const details = el(
    "details",
    { class: "figure-numbers", ontoggle: () => details.open && fill() },
    el("summary", {}, "Numbers", el("span", { class: "visually-hidden" }, ` of: ${label}`)),
    holder,
  );
  details.refresh = () => details.open && fill();
  return details;
}
