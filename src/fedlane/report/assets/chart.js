/* The frame of every figure: a heading, a caption, a legend that toggles its entries, and a table of the numbers. */

let figureCount = 0;

/*
 * options: title, summary() -> text, legend() -> [{name, colour, dash, shape}], table() -> [head, rows],
 * draw(width, hidden, note id) -> node to show, vector(width) -> the same as SVG if draw makes a canvas,
 * csv(hidden) -> [head, rows], name() -> more of the saved files' names, when: events that redraw it.
 */
function figureCard(options) {
  const id = `figure-${++figureCount}`;
  const hidden = new Set();
  const note = el("p", { class: "note", id: `${id}-note` });
  const legend = el("div", { class: "legend", role: "group", "aria-label": `Legend of: ${options.title}` });
  const plot = el("div", { class: "plot" });
  const numbers = options.table && tableDetails(options.title, () => scrollTable(options.title, ...options.table()));
  const save = saveButtons({
    title: options.title,
    name: options.name,
    summary: options.summary,
    legend: () => (options.legend?.() ?? []).filter((entry) => !hidden.has(entry.name)),
    draw: (wide) => (options.vector ? options.vector(wide) : options.draw(wide, hidden, note.id)),
    csv: () => options.csv(hidden),
  });
  const figure = el(
    "figure",
    { class: `card ${options.wide ? "wide" : ""}`, id },
    el("figcaption", {}, el("h3", {}, options.title), note),
    options.controls,
    legend,
    plot,
    save,
    numbers,
  );
  let width = 0;

  function redraw() {
    note.textContent = options.summary();
    showLegend();
    const focused = plot.contains(document.activeElement);
    if (width) plot.replaceChildren(options.draw(width, hidden, note.id));
    if (focused) plot.firstChild?.focus();
    save.hidden = !plot.querySelector("svg, canvas");
    numbers?.refresh();
  }

  function showLegend() {
    const entries = options.legend?.() ?? [];
    legend.hidden = entries.length === 0;
    const kept = entries.map((entry) => entry.name).join("\n");
    if (legend.dataset.kept === kept) return; // keeps the focus on a button
    legend.dataset.kept = kept;
    legend.replaceChildren(...entries.map((entry) => legendEntry(entry, hidden, redraw)));
  }

  onWidth(plot, (now) => {
    width = now;
    redraw();
  });
  on(options.when ?? "data theme", redraw);
  redraw();
  return figure;
}

function legendEntry(entry, hidden, redraw) {
  const mark = svg("svg", { width: 20, height: 12, "aria-hidden": "true" }, legendMark(entry));
  if (entry.fixed) return el("span", { class: "entry" }, mark, entry.name);
  const button = el("button", { type: "button", class: "entry", "aria-pressed": "true" }, mark, entry.name);
  button.addEventListener("click", () => {
    hidden.has(entry.name) ? hidden.delete(entry.name) : hidden.add(entry.name);
    button.setAttribute("aria-pressed", String(!hidden.has(entry.name)));
    redraw();
  });
  button.setAttribute("aria-pressed", String(!hidden.has(entry.name)));
  return button;
}

function legendMark({ colour, dash, shape, hollow }) {
  if (shape === "square") return svg("rect", { x: 4, y: 0, width: 12, height: 12, rx: 2, fill: colour });
  if (shape === "dot" && hollow)
    return svg("circle", { cx: 10, cy: 6, r: 3.7, fill: "none", stroke: colour, "stroke-width": 1.8 });
  if (shape === "dot") return svg("circle", { cx: 10, cy: 6, r: 4.5, fill: colour });
  if (shape === "tick") return svg("path", { d: "M4 6H16", stroke: colour, "stroke-width": 2.5 });
  return svg("path", { d: "M1 6H19", stroke: colour, "stroke-width": 2.5, "stroke-dasharray": dash || null });
}

/* Axes of a plot: grid lines, tick labels and axis names. Returns the layer, both scales and the plot's box. */
function axes({ width, height, x, y, xLabel, yLabel, xTicks, yTicks, xText, yText, below = 40 }) {
  const yMarks = yTicks ?? ticks(y[0], y[1], 5);
  const yTexts = yMarks.map((value) => (yText ?? tickText)(value, yMarks));
  const left = 14 + 6.6 * Math.max(...yTexts.map((text) => text.length), 2);
  const box = { left, right: width - 14, top: 22, bottom: height - below };
  const sx = scale(x, [box.left, box.right]);
  const sy = scale(y, [box.bottom, box.top]);
  const xMarks = xTicks ?? ticks(x[0], x[1], Math.max(2, Math.floor(width / 90)));
  const layer = svg("g", { class: "axes", "aria-hidden": "true" });
  yMarks.forEach((value, k) => {
    const at = Math.round(sy(value)) + 0.5;
    layer.append(
      svg("path", { class: "grid", d: `M${box.left} ${at}H${box.right}` }),
      svg("text", { x: box.left - 8, y: at + 4, "text-anchor": "end" }, yTexts[k]),
    );
  });
  for (const value of xMarks) {
    const text = (xText ?? tickText)(value, xMarks);
    layer.append(svg("text", { x: sx(value), y: box.bottom + 18, "text-anchor": "middle" }, text));
  }
  layer.append(
    svg("text", { class: "name", x: box.right, y: height - 4, "text-anchor": "end" }, xLabel),
    svg("text", { class: "name", x: 0, y: 11 }, yLabel),
  );
  return { layer, sx, sy, box };
}

/* A horizontal line at a named value. */
function levelLine(level, box, sy) {
  return [
    svg("path", { class: "level", d: `M${box.left} ${sy(level.value)}H${box.right}` }),
    svg("text", { class: "level-name", x: box.right, y: sy(level.value) - 5, "text-anchor": "end" }, level.name),
  ];
}

function emptyPlot(text) {
  return el("p", { class: "empty" }, text);
}

function plotHeight(width) {
  return width < 480 ? 230 : 270;
}

/* Legend entries of the runs; none for a single run. */
function runLegend(runs = model.runs) {
  if (model.runs.length < 2) return [];
  return runs.map((run) => ({
    name: run.name,
    colour: runColour(model.runs.indexOf(run)),
    dash: runDash(model.runs.indexOf(run)),
  }));
}
