/* The chosen slice of a sweep as a heat map: columns are the x axis, rows are the lines; a stronger colour is more. */

const HEAT_MAP = { top: 8, below: 40, row: 34, weakest: 0.07, light: 0.8 };

function sliceHeat() {
  const figure = figureCard({
    title: "Heat map over two keys",
    wide: true,
    when: "data theme view",
    summary: heatMapSummary,
    table: heatMapTable,
    csv: () => sliceCsv(),
    name: () => `${sliceName()} ${sweepKey(slice.series)?.name ?? ""}`,
    draw: drawHeatMap,
  });
  const show = () => {
    figure.hidden = slice.series < 0;
  };
  on("data view", show);
  return figure;
}

/* Smallest and largest mean of the slice. */
function heatRange(rows) {
  const means = rows.flat().filter((cell) => cell >= 0).map((cell) => cellMeasure(cell).mean).filter(Number.isFinite);
  return means.length ? [Math.min(...means), Math.max(...means)] : null;
}

function heatMapSummary() {
  const range = heatRange(sliceCells());
  if (slice.series < 0 || !range) return "";
  const form = measureForm();
  const { label } = model.sweep.measures[slice.measure];
  const span = range[0] === range[1] ? form(range[0]) : `from ${form(range[0])} to ${form(range[1])}, the strongest colour`;
  return `${capital(label)}, ${span}.${fixedText()}`;
}

function drawHeatMap(width, hidden, note) {
  const rows = sliceCells();
  const range = heatRange(rows);
  if (slice.series < 0 || !range) return emptyPlot("No cell of the sweep has these values.");
  const [x, series] = [sweepKey(slice.x), sweepKey(slice.series)];
  const longest = Math.max(...series.values.map((text) => text.length), 2);
  const left = Math.min(14 + 7.4 * longest, 0.38 * width);
  const box = { left, step: (width - left - 8) / x.values.length, row: rows.length > 20 ? 22 : HEAT_MAP.row };
  const height = HEAT_MAP.top + box.row * rows.length + HEAT_MAP.below;
  const picture = svg(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      tabindex: "0",
      "aria-label": "Heat map over two keys. Arrow keys read the values.",
      "aria-describedby": note,
    },
    rows.flatMap((row, r) => row.map((cell, c) => heatCell(cell, r, c, range, box))),
    heatMapAxes(x, series, width, height, box),
  );
  addHeatReader(picture, rows, box, x, series);
  return picture;
}

/* A rectangle with its number if there is room; a cell that the sweep does not have is grey. */
function heatCell(cell, r, c, [low, high], box) {
  const [x, y] = [box.left + c * box.step, HEAT_MAP.top + r * box.row];
  const { mean } = cell >= 0 ? cellMeasure(cell) : { mean: NaN };
  const known = Number.isFinite(mean);
  const strength = high > low ? (mean - low) / (high - low) : 0.5;
  const opacity = HEAT_MAP.weakest + (1 - HEAT_MAP.weakest) * strength;
  const text = known ? measureForm()(mean) : "–";
  const place = { x: x + 1, y: y + 1, width: Math.max(1, box.step - 2), height: box.row - 2 };
  const shade = known ? { class: "heat-cell", opacity: opacity.toFixed(3) } : { class: "heat-none" };
  const label = { class: known && opacity > HEAT_MAP.light ? "heat-on" : "heat-under", x: x + box.step / 2, y: y + box.row / 2 + 4 };
  return svg(
    "g",
    {},
    svg("rect", { ...place, ...shade }),
    box.step > 7 * text.length + 6 ? svg("text", { ...label, "text-anchor": "middle" }, text) : null,
  );
}

function heatMapAxes(x, series, width, height, box) {
  const layer = svg("g", { class: "axes", "aria-hidden": "true" });
  const fits = Math.floor((box.left - 12) / 7.2);
  series.values.forEach((text, r) => {
    const short = text.length > fits ? `${text.slice(0, Math.max(1, fits - 1))}…` : text;
    layer.append(svg("text", { x: box.left - 8, y: HEAT_MAP.top + (r + 0.5) * box.row + 4, "text-anchor": "end" }, short));
  });
  const middles = x.values.map((_, c) => box.left + (c + 0.5) * box.step);
  for (const at of spaced(middles, x.values, middles[middles.length - 1] - middles[0] + 90)) {
    const text = x.values[middles.indexOf(at)];
    layer.append(svg("text", { x: at, y: height - HEAT_MAP.below + 17, "text-anchor": "middle" }, text));
  }
  layer.append(
    svg("text", { class: "name", x: width - 8, y: height - 4, "text-anchor": "end" }, x.name),
    svg("text", { class: "name", x: 0, y: height - 4 }, `rows: ${series.name}`),
  );
  return layer;
}

/* The value under the pointer, or of the cell that the arrow keys choose. */
function addHeatReader(picture, rows, box, x, series) {
  const frame = svg("rect", { class: "heat-frame", visibility: "hidden", width: box.step, height: box.row });
  picture.append(frame);
  let at = [0, 0];

  function show([r, c], event) {
    at = [r, c];
    const [left, top] = [box.left + c * box.step, HEAT_MAP.top + r * box.row];
    frame.setAttribute("x", left);
    frame.setAttribute("y", top);
    frame.setAttribute("visibility", "visible");
    const place = picture.getBoundingClientRect();
    const heading = `${keyText(series, r)}, ${keyText(x, c)}`;
    const cell = rows[r][c];
    const value = cell < 0 ? "no result" : withInterval(cellMeasure(cell), measureForm());
    const seeds = cell < 0 ? [] : [plural(model.sweep.seeds[cell], "seed")];
    const where = event ?? { clientX: place.left + left + box.step / 2, clientY: place.top + top };
    showTip(where, [el("div", { class: "tip-head" }, heading), value, ...seeds]);
    return `${heading}: ${value}`;
  }

  function hide() {
    frame.setAttribute("visibility", "hidden");
    hideTip();
  }

  picture.addEventListener("pointermove", (event) => {
    const place = picture.getBoundingClientRect();
    const c = Math.floor((event.clientX - place.left - box.left) / box.step);
    const r = Math.floor((event.clientY - place.top - HEAT_MAP.top) / box.row);
    return r >= 0 && r < rows.length && c >= 0 && c < rows[0].length ? show([r, c], event) : hide();
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.key === "Escape") return hide();
    if (!(event.key in moves)) return undefined;
    event.preventDefault();
    event.stopPropagation();
    const [down, right] = moves[event.key];
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    const visible = frame.getAttribute("visibility") === "visible";
    const next = visible ? [within(at[0] + down, rows.length), within(at[1] + right, rows[0].length)] : at;
    return announce(show(next));
  });
}

function heatMapTable() {
  const [x, series] = [sweepKey(slice.x), sweepKey(slice.series)];
  if (!series) return [[x.name], []];
  const rows = sliceCells().map((row, r) => [
    series.values[r],
    ...row.map((cell) => (cell < 0 ? "–" : withInterval(cellMeasure(cell), measureForm()))),
  ]);
  return [[series.name, ...x.values.map((_, c) => keyText(x, c))], rows];
}
