/* Values per client of many runs: one row per run, one column per client. A stronger colour is a larger value. */

const GRID = { row: 22, label: 16, top: 8, below: 38, char: 6.6 };

/* The legend: rows have their names, so that only the mark of cells below the target needs one. */
function gridLegend(options, series) {
  const marked = options.target && series.some((line) => line.target);
  return marked ? [{ name: `below ${options.target}`, colour: "var(--late)", shape: "tick", fixed: true }] : [];
}

/* Names stand beside their rows, or above them where they are too long for that. */
function gridLayout(series, width) {
  const clients = Math.max(...series.map((line) => line.mean.length));
  const names = GRID.char * Math.max(...series.map((line) => line.name.length));
  const above = width < 480 || names > width * 0.35;
  const left = above ? 0 : names + 12;
  const pitch = GRID.row + (above ? GRID.label : 3);
  const height = GRID.top + pitch * series.length + GRID.below;
  return { width, height, clients, above, left, pitch, cell: (width - left - 2) / clients };
}

function drawGrid(options, series, width, note) {
  const layout = gridLayout(series, width);
  const picture = svg("svg", {
    width,
    height: layout.height,
    viewBox: `0 0 ${width} ${layout.height}`,
    role: "img",
    "aria-label": options.title,
    "aria-describedby": note,
  });
  const largest = Math.max(...series.flatMap((line) => [...line.mean].filter(Number.isFinite)), 0) || 1;
  series.forEach((line, k) => picture.append(gridRow(line, GRID.top + k * layout.pitch, largest, layout, options)));
  picture.append(gridAxis(layout));
  picture.addEventListener("pointermove", (event) => {
    const place = picture.getBoundingClientRect();
    const client = Math.floor((event.clientX - place.left - layout.left) / layout.cell);
    const line = series[Math.floor((event.clientY - place.top - GRID.top) / layout.pitch)];
    if (!line || client < 0 || client >= layout.clients) return hideTip();
    const head = el("div", { class: "tip-head" }, `client ${client * model.clientEvery}`);
    return showTip(event, [head, dotReading(line, client, options)]);
  });
  picture.addEventListener("pointerleave", hideTip);
  return picture;
}

function gridRow(line, top, largest, { width, above, left, cell }, options) {
  const layer = svg("g", { class: "grid-row" });
  const from = top + (above ? GRID.label : 0);
  const room = Math.floor(width / GRID.char);
  const name = line.name.length > room ? `${line.name.slice(0, room - 1)}…` : line.name;
  layer.append(
    above
      ? svg("text", { class: "row-name", x: 0, y: top + 12 }, name)
      : svg("text", { class: "row-name", x: left - 10, y: from + GRID.row / 2 + 4, "text-anchor": "end" }, name),
  );
  line.mean.forEach((value, client) => {
    if (!Number.isFinite(value)) return;
    const at = left + client * cell;
    const strength = 0.06 + 0.94 * Math.min(1, Math.max(0, value / largest));
    const box = { x: at, y: from, width: Math.max(cell - (cell > 6 ? 2 : 0), 0.5), height: GRID.row };
    layer.append(svg("rect", { ...box, rx: cell > 12 ? 2 : 0, fill: "var(--c0)", "fill-opacity": strength }));
    const text = options.cell ? options.cell(value) : options.form(value);
    // text is as dark or as light as the cell is not: both have the same contrast at these strengths
    if (cell >= GRID.char * text.length + 4) {
      const place = { x: at + box.width / 2, y: from + GRID.row / 2 + 4, "text-anchor": "middle" };
      layer.append(svg("text", { ...place, class: strength > (isDark() ? 0.72 : 0.85) ? "cell strong" : "cell" }, text));
    }
    if (line.target && value < line.target[client])
      layer.append(svg("rect", { x: at, y: from + GRID.row - 3, width: box.width, height: 3, fill: "var(--late)" }));
  });
  return layer;
}

function gridAxis({ width, height, clients, left, cell }) {
  const layer = svg("g", { class: "axes", "aria-hidden": "true" });
  const every = Math.max(1, Math.ceil((13 + 9 * String(clients * model.clientEvery).length) / cell));
  for (let client = 0; client < clients; client += every) {
    const place = { x: left + (client + 0.5) * cell, y: height - GRID.below + 17, "text-anchor": "middle" };
    layer.append(svg("text", place, String(client * model.clientEvery)));
  }
  layer.append(svg("text", { class: "name", x: width - 2, y: height - 4, "text-anchor": "end" }, "client"));
  return layer;
}
