/* Saving a chart: as an SVG file in the light theme, with its styles, and its data as a CSV file. */

const SAVED = { width: 720, pad: 12, row: 20 };

/* The properties of the style sheets that a saved picture carries in its elements. */
const SAVED_STYLES = {
  text: ["fill", "stroke", "stroke-width", "paint-order", "font-size", "font-weight"],
  shape: ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity"],
};

/*
 * Buttons that save a chart. options: title, name() -> more of the file's name, draw(width) -> node that is or contains
 * an svg, legend() -> entries, summary() -> text, csv() -> [head, rows].
 */
function saveButtons(options) {
  const button = (kind, save) =>
    el(
      "button",
      { type: "button", class: "save-as", "aria-label": `Save as ${kind}: ${options.title}`, onclick: save },
      kind,
    );
  const name = () => fileName(["fedlane", options.title, options.name?.() ?? ""].join(" "));
  return el(
    "div",
    { class: "save" },
    el("span", { "aria-hidden": "true" }, "Save"),
    button("SVG", () => download(`${name()}.svg`, "image/svg+xml", savedPicture(options))),
    button("CSV", () => download(`${name()}.csv`, "text/csv", csvText(...options.csv()))),
  );
}

function fileName(text) {
  return text
    .toLowerCase()
    .replace(/[^a-z0-9.=]+/g, "-")
    .replace(/^-+|-+$/g, "")
    .slice(0, 100);
}

function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type: `${type};charset=utf-8` }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/* The text of a self-contained SVG file with a white background, the legend and the chart. */
function savedPicture(options) {
  const root = document.documentElement;
  const theme = root.dataset.theme;
  const stage = el("div", { class: "stage", "aria-hidden": "true" });
  root.dataset.theme = "light";
  colours.clear();
  document.body.append(stage);
  try {
    const drawn = options.draw(SAVED.width);
    const legend = legendLayer(options.legend?.() ?? []);
    stage.append(drawn, svg("svg", {}, legend.layer));
    const chart = drawn.localName === "svg" ? drawn : drawn.querySelector("svg");
    for (const layer of [chart, legend.layer]) carryStyles(layer);
    return pictureText(options, chart, legend);
  } finally {
    stage.remove();
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    colours.clear();
  }
}

function pictureText(options, chart, legend) {
  const [width, height] = [SAVED.width + 2 * SAVED.pad, Number(chart.getAttribute("height"))];
  const tall = height + legend.height + 2 * SAVED.pad;
  const picture = svg(
    "svg",
    { width, height: tall, viewBox: `0 0 ${width} ${tall}`, "font-family": "Helvetica, Arial, sans-serif" },
    svg("title", {}, options.title),
    svg("desc", {}, options.summary?.() ?? ""),
    svg("rect", { width, height: tall, fill: "#ffffff" }),
    svg("g", { transform: `translate(${SAVED.pad} ${SAVED.pad})` }, legend.layer),
    svg("g", { transform: `translate(${SAVED.pad} ${SAVED.pad + legend.height})` }, [...chart.childNodes]),
  );
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(picture)}\n`;
}

/* Write the computed styles into the elements; drop what only the page needs. */
function carryStyles(layer) {
  for (const node of layer.querySelectorAll("[visibility='hidden']")) node.remove();
  const nodes = [...layer.querySelectorAll("*")];
  for (const node of nodes) {
    const style = getComputedStyle(node);
    const kind = node.localName === "text" ? "text" : "shape";
    if (node.localName !== "g")
      for (const property of SAVED_STYLES[kind]) node.setAttribute(property, style.getPropertyValue(property));
  }
  for (const node of nodes) {
    for (const name of node.getAttributeNames())
      if (/^(class|style|role|tabindex|data-.*|aria-.*|id)$/.test(name)) node.removeAttribute(name);
  }
}

/* The legend of a saved picture: marks and names in rows. */
function legendLayer(entries) {
  const layer = svg("g");
  let [x, y] = [0, 0];
  for (const entry of entries) {
    const width = 40 + 6.6 * entry.name.length;
    if (x > 0 && x + width > SAVED.width) [x, y] = [0, y + SAVED.row];
    layer.append(
      svg(
        "g",
        { transform: `translate(${x} ${y})` },
        legendMark(entry),
        svg("text", { x: 26, y: 10.5 }, entry.name),
      ),
    );
    x += width;
  }
  return { layer, height: entries.length ? y + SAVED.row + 6 : 0 };
}

/* Rows of numbers and texts as CSV; numbers keep all their digits, and a missing number is an empty field. */
function csvText(head, rows) {
  return [head, ...rows].map((row) => `${row.map(csvField).join(",")}\r\n`).join("");
}

function csvField(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "";
  if (typeof value !== "string") return Number.isFinite(value) || typeof value === "boolean" ? String(value) : "inf";
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value; // a spreadsheet must not take a name for a formula
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}
