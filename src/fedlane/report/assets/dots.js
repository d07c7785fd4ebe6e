/* A dot with its interval for every client and run, and a short line for its target; many runs are rows of a grid. */

/*
 * options: title, yLabel, series() -> [{name, colour, mean, low, high, target}] over clients, target: name of the short
 * lines or null, form, cell: shorter form in a grid, zero, ceiling, domain() -> [low, high] or null, summary, empty, level.
 */
function dotFigure(options) {
  return figureCard({
    title: options.title,
    summary: () => options.summary(options.series()),
    legend: () => dotLegend(options),
    table: () => dotTable(options),
    csv: (hidden) => dotCsv(options, hidden),
    draw: (width, hidden, note) => drawDots(options, width, hidden, note),
  });
}

function dotLegend(options) {
  const series = options.series();
  if (series.length > MAX_COLUMNS) return gridLegend(options, series);
  const entries = series.length > 1 ? series.map(({ name, colour, hollow }) => ({ name, colour, hollow, shape: "dot" })) : [];
  if (options.target && series.some((line) => line.target)) {
    entries.push({ name: options.target, colour: "var(--ink)", shape: "tick", fixed: true });
  }
  return entries;
}

function drawDots(options, width, hidden, note) {
  const series = options.series().filter((line) => !hidden.has(line.name));
  if (!series.length) return emptyPlot(options.empty ?? "Nothing to show.");
  if (options.series().length > MAX_COLUMNS) return drawGrid(options, series, width, note);
  const height = plotHeight(width);
  const clients = Math.max(...series.map((line) => line.mean.length));
  const level = options.level?.();
  const values = series.flatMap((line) => [...line.mean, ...line.low, ...line.high, ...(line.target ?? [])]);
  const y =
    options.domain?.() ?? bounds(level ? [...values, level.value] : values, { zero: true, floor: 0, ...options });
  const digits = String(clients * model.clientEvery).length;
  const every = Math.max(1, Math.ceil(clients / Math.floor((width - 60) / (13 + 9 * digits))));
  const xTicks = Array.from({ length: clients }, (_, k) => k).filter((k) => k % every === 0);
  const { layer, sx, sy, box } = axes({
    width,
    height,
    x: [-0.6, clients - 0.4],
    y,
    xTicks,
    xText: (k) => String(k * model.clientEvery),
    xLabel: "client",
    yLabel: options.yLabel,
  });
  const step = sx(1) - sx(0);
  const apart = Math.min(13, (step * 0.8) / series.length);
  const radius = Math.max(1.5, Math.min(5, apart * 0.42));
  const picture = svg(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": options.title,
      "aria-describedby": note,
    },
    layer,
  );
  if (level) picture.append(...levelLine(level, box, sy));
  series.forEach((line, number) => {
    const shift = (number - (series.length - 1) / 2) * apart;
    picture.append(dotLayer(line, { sx, sy, shift, radius, half: Math.max(2, apart * 0.5) }));
  });
  picture.addEventListener("pointermove", (event) => {
    const client = Math.round(sx.invert(event.clientX - picture.getBoundingClientRect().left));
    if (client < 0 || client >= clients) return hideTip();
    return showTip(event, [
      el("div", { class: "tip-head" }, `client ${client * model.clientEvery}`),
      ...series.map((line) => dotReading(line, client, options)),
    ]);
  });
  picture.addEventListener("pointerleave", hideTip);
  return picture;
}

function dotLayer(line, { sx, sy, shift, radius, half }) {
  const layer = svg("g");
  line.mean.forEach((mean, client) => {
    if (!Number.isFinite(mean)) return;
    const at = sx(client) + shift;
    const target = line.target?.[client];
    if (Number.isFinite(target)) {
      layer.append(svg("path", { class: "stem", stroke: line.colour, d: `M${at} ${sy(target)}V${sy(mean)}` }));
    }
    if (line.low[client] !== line.high[client] && Number.isFinite(line.low[client])) {
      layer.append(whisker(line, client, at, sy));
    }
    layer.append(
      line.hollow
        ? svg("circle", { cx: at, cy: sy(mean), r: radius, stroke: line.colour, class: "dot hollow" })
        : svg("circle", { cx: at, cy: sy(mean), r: radius, fill: line.colour, class: "dot" }),
    );
    if (Number.isFinite(target))
      layer.append(svg("path", { class: "target", d: `M${at - half} ${sy(target)}H${at + half}` }));
  });
  return layer;
}

function dotReading(line, client, options) {
  const measure = { mean: line.mean[client], low: line.low[client], high: line.high[client] };
  const target = line.target ? `, ${options.target} ${options.form(line.target[client])}` : "";
  return tipRow(line.colour, line.name, `${withInterval(measure, options.form)}${target}`);
}

function dotTable(options) {
  const series = options.series();
  const head = [
    "client",
    ...series.flatMap((line) => [
      line.name,
      options.spread ?? "95% interval",
      ...(line.target ? [options.target] : []),
    ]),
  ];
  const clients = Math.max(0, ...series.map((line) => line.mean.length));
  const rows = Array.from({ length: clients }, (_, client) => [
    String(client * model.clientEvery),
    ...series.flatMap((line) => [
      options.form(line.mean[client]),
      interval(line.low[client], line.high[client], options.form) || "–",
      ...(line.target ? [options.form(line.target[client])] : []),
    ]),
  ]);
  return [head, rows];
}

/* Every dot that is drawn, with all digits. */
function dotCsv(options, hidden) {
  const shown = options.series().filter((line) => !hidden.has(line.name));
  const rows = shown.flatMap((line) =>
    [...line.mean].map((mean, k) => [
      line.name,
      k * model.clientEvery,
      mean,
      line.low[k],
      line.high[k],
      ...(options.target ? [line.target?.[k]] : []),
    ]),
  );
  return [["run", "client", options.yLabel, "low", "high", ...(options.target ? [options.target] : [])], rows];
}
