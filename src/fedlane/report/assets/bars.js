/* The parts of a delay: download, compute and upload end to end, one row per client or channel. */

const PHASES = [
  { name: "download", colour: "var(--down)" },
  { name: "compute", colour: "var(--mid)" },
  { name: "upload", colour: "var(--up)" },
];

/* options: title, rows() -> [{name, parts: [s, s, s], note}], mark() -> {value, name} or null, summary, empty. */
function barFigure(options) {
  return figureCard({
    title: options.title,
    wide: true,
    controls: options.controls,
    when: "data theme view",
    summary: () => options.summary(options.rows()),
    legend: () => PHASES.map((phase) => ({ ...phase, shape: "square" })),
    table: () => barTable(options),
    csv: () => barCsv(options.rows()),
    name: () => shownRun().name,
    draw: (width, hidden, note) => drawBars(options, width, hidden, note),
  });
}

function drawBars(options, width, hidden, note) {
  const rows = options.rows();
  if (!rows.length) return emptyPlot(options.empty ?? "Nothing to show.");
  const mark = options.mark?.();
  const total = (row) =>
    row.parts.reduce((sum, part, k) => sum + (hidden.has(PHASES[k].name) || !Number.isFinite(part) ? 0 : part), 0);
  const high = Math.max(...rows.map(total), mark ? mark.value : 0) || 1;
  const line = rows.length > 24 ? 19 : 24;
  const height = rows.length * line + 46;
  const left = 12 + 6.8 * Math.max(...rows.map((row) => row.name.length));
  const right = width - (width < 480 ? 52 : 170);
  const sx = scale([0, high], [left, right]);
  const picture = svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    "aria-label": options.title,
    "aria-describedby": note,
  });
  const marks = ticks(0, high, Math.max(2, Math.floor(width / 110)));
  for (const value of marks) {
    const at = Math.round(sx(value)) + 0.5;
    picture.append(
      svg("path", { class: "grid", d: `M${at} 16V${height - 26}` }),
      svg("text", { x: at, y: height - 10, "text-anchor": "middle" }, `${tickText(value, marks)} s`),
    );
  }
  rows.forEach((row, k) =>
    picture.append(barRow(row, 18 + k * line, line, { sx, left, hidden, total: total(row), wide: width >= 480 })),
  );
  if (mark) {
    picture.append(
      svg("path", { class: "level", d: `M${sx(mark.value)} 14V${height - 26}` }),
      svg("text", { class: "level-name", x: sx(mark.value), y: 10, "text-anchor": "middle" }, mark.name),
    );
  }
  const tall = rows.length > 30; // a long list scrolls in its own box
  return tall
    ? el("div", { class: "tall", tabindex: "0", role: "region", "aria-label": options.title }, picture)
    : picture;
}

function barRow(row, top, line, { sx, left, hidden, total, wide }) {
  const layer = svg("g", { class: "bar-row" });
  let from = 0;
  layer.append(svg("rect", { x: 0, y: top, width: "100%", height: line, fill: "transparent" }));
  row.parts.forEach((part, k) => {
    if (hidden.has(PHASES[k].name) || !Number.isFinite(part)) return;
    const size = Math.max(0, sx(from + part) - sx(from) - 1);
    layer.append(
      svg("rect", {
        x: sx(from),
        y: top + line * 0.16,
        width: size,
        height: line * 0.68,
        rx: 1.5,
        fill: PHASES[k].colour,
      }),
    );
    from += part;
  });
  if (row.slot?.predicted) layer.append(predictionMark(row.slot, sx, top + line * 0.84, line * 0.2));
  const end = sx(total) + 7;
  layer.append(
    svg("text", { x: left - 8, y: top + line / 2 + 4, "text-anchor": "end", class: "row-name" }, row.name),
    svg(
      "text",
      { x: end, y: top + line / 2 + 4, class: "row-value" },
      wide && row.note ? `${seconds(total)}  ·  ${row.note}` : seconds(total),
    ),
  );
  layer.addEventListener("pointermove", (event) =>
    showTip(event, [
      el("div", { class: "tip-head" }, row.name),
      ...row.parts.map((part, k) => tipRow(PHASES[k].colour, PHASES[k].name, seconds(part))),
      row.note ?? "",
    ]),
  );
  layer.addEventListener("pointerleave", hideTip);
  return layer;
}

function barTable(options) {
  const rows = options
    .rows()
    .map((row) => [row.name, ...row.parts.map(seconds), seconds(row.parts.reduce((a, b) => a + b, 0)), row.note ?? ""]);
  return [["", ...PHASES.map((phase) => phase.name), "total", ""], rows];
}

function barCsv(rows) {
  const total = (parts) => parts.reduce((sum, part) => sum + part, 0);
  return [
    ["name", "download_s", "compute_s", "upload_s", "delay_s", "note"],
    rows.map((row) => [row.name, ...row.parts, total(row.parts), row.note ?? ""]),
  ];
}
