/* Curves with bands: means over seeds and their 95% intervals. */

/*
 * options: title, xLabel, yLabel, series() -> [{name, colour, dash, x, mean, low, high}] of plain arrays,
 * form: value -> text, xForm: value -> text, zero, ceiling, empty, summary(series), level: {value, name} or null.
 * Few points: marked (a dot at each), joined (false: dots with whiskers and no lines), xTicks, xText, xDomain.
 */
function lineFigure(options) {
  return figureCard({
    title: options.title,
    wide: options.wide,
    summary: () => options.summary(options.series()),
    legend: () => options.legend?.() ?? runLegend(),
    table: () => lineTable(options),
    csv: (hidden) => lineCsv(options, hidden),
    draw: (width, hidden, note) => drawLines(options, width, hidden, note),
  });
}

function drawLines(options, width, hidden, note) {
  const series = options.series().filter((line) => !hidden.has(line.name) && line.x.length);
  if (!series.length) return emptyPlot(options.empty ?? "Nothing to show.");
  const height = plotHeight(width);
  const level = options.level?.();
  const xs = series.flatMap((line) => [line.x[0], line.x[line.x.length - 1]]);
  const values = series.flatMap((line) => [...line.mean, ...line.low, ...line.high]);
  const x = options.xDomain ?? [options.zeroX ? 0 : Math.min(...xs), Math.max(...xs)];
  const y = bounds(level ? [...values, level.value] : values, options);
  const { layer, sx, sy, box } = axes({
    width,
    height,
    x,
    y,
    xLabel: options.xLabel,
    yLabel: options.yLabel,
    xTicks: options.xTicks,
    xText: options.xText,
    yText: options.yText,
  });
  const picture = svg(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      tabindex: "0",
      "aria-label": `${options.title}. Left and right arrows read the values.`,
      "aria-describedby": note,
    },
    layer,
  );
  if (level) picture.append(...levelLine(level, box, sy));
  if (options.joined === false) {
    picture.append(...apartDots(series, sx, sy));
    addCursor(picture, options, series, sx, sy, box);
    return picture;
  }
  for (const line of series)
    picture.append(svg("path", { d: bandPath(line, sx, sy), fill: line.colour, class: series.length > 3 ? "band faint" : "band" }));
  for (const line of series) {
    picture.append(
      svg("path", {
        d: linePath(line, sx, sy),
        stroke: line.colour,
        "stroke-dasharray": line.dash || null,
        class: "line",
      }),
    );
    if (line.x.length === 1 || options.marked)
      line.x.forEach((at, k) => {
        if (line.x.length === 1 && line.low[k] !== line.high[k]) picture.append(whisker(line, k, sx(at), sy));
        if (Number.isFinite(line.mean[k]))
          picture.append(svg("circle", { cx: sx(at), cy: sy(line.mean[k]), r: line.x.length === 1 ? 4 : 3, fill: line.colour }));
      });
  }
  addCursor(picture, options, series, sx, sy, box);
  return picture;
}

/* Dots of several series at the same places, side by side. */
function apartDots(series, sx, sy) {
  const apart = Math.min(13, (0.8 * (sx(1) - sx(0))) / series.length);
  const radius = Math.max(1.5, Math.min(5, apart * 0.42));
  return series.map((line, number) => {
    line.shift = (number - (series.length - 1) / 2) * apart;
    return dotLayer(line, { sx, sy, shift: line.shift, radius, half: 0 });
  });
}

function whisker(line, k, at, sy) {
  const d = `M${at} ${sy.within(line.low[k])}V${sy.within(line.high[k])}`;
  return svg("path", { class: "whisker", stroke: line.colour, d });
}

function linePath(line, sx, sy) {
  let path = "";
  let drawing = false;
  line.x.forEach((x, k) => {
    const known = Number.isFinite(line.mean[k]);
    if (known) path += `${drawing ? "L" : "M"}${sx(x).toFixed(1)} ${sy.within(line.mean[k]).toFixed(1)}`;
    drawing = known;
  });
  return path;
}

function bandPath(line, sx, sy) {
  const known = [...line.x.keys()].filter((k) => Number.isFinite(line.low[k]) && Number.isFinite(line.high[k]));
  if (known.length < 2 || known.every((k) => line.low[k] === line.high[k])) return "";
  const point = (k, values) => `${sx(line.x[k]).toFixed(1)} ${sy.within(values[k]).toFixed(1)}`;
  const over = known.map((k) => point(k, line.high));
  const under = known.reverse().map((k) => point(k, line.low));
  return `M${over.join("L")}L${under.join("L")}Z`;
}

function nearest(values, wanted) {
  let best = 0;
  values.forEach((value, k) => {
    if (Math.abs(value - wanted) < Math.abs(values[best] - wanted)) best = k;
  });
  return best;
}

/* A vertical rule that follows the pointer or the arrow keys and shows the value of every curve. */
function addCursor(picture, options, series, sx, sy, box) {
  const rule = svg("path", { class: "rule", visibility: "hidden" });
  const marks = series.map((line) => svg("circle", { r: 4, fill: line.colour, class: "mark", visibility: "hidden" }));
  picture.append(rule, ...marks);
  const first = series.reduce((longest, line) => (line.x.length > longest.x.length ? line : longest));
  let at = first.x.length - 1;

  function readings(x) {
    return series.map((line, k) => {
      const near = nearest(line.x, x);
      marks[k].setAttribute("cx", sx(line.x[near]) + (line.shift ?? 0));
      marks[k].setAttribute("cy", Number.isFinite(line.mean[near]) ? sy(line.mean[near]) : -10);
      marks[k].setAttribute("visibility", "visible");
      const measure = { mean: line.mean[near], low: line.low[near], high: line.high[near] };
      return { line, x: line.x[near], text: withInterval(measure, options.form) };
    });
  }

  function show(x, event) {
    rule.setAttribute("d", `M${Math.round(sx(x)) + 0.5} ${box.top}V${box.bottom}`);
    rule.setAttribute("visibility", "visible");
    const values = readings(x);
    const heading = el("div", { class: "tip-head" }, options.xForm(values.length === 1 ? values[0].x : x));
    showTip(event, [heading, ...values.map(({ line, text }) => tipRow(line.colour, line.name, text))]);
    return values;
  }

  function hide() {
    for (const node of [rule, ...marks]) node.setAttribute("visibility", "hidden");
    hideTip();
  }

  picture.addEventListener("pointermove", (event) => {
    const left = picture.getBoundingClientRect().left;
    const wanted = sx.invert(Math.max(box.left, Math.min(box.right, event.clientX - left)));
    at = nearest(first.x, wanted);
    show(first.x[at], event);
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") return hide();
    if (!(event.key in steps)) return undefined;
    event.preventDefault();
    event.stopPropagation();
    at = Math.max(0, Math.min(first.x.length - 1, at + steps[event.key]));
    const place = picture.getBoundingClientRect();
    const values = show(first.x[at], { clientX: place.left + sx(first.x[at]), clientY: place.top + box.top });
    return announce(`${options.xForm(first.x[at])}: ${values.map(({ line, text }) => `${line.name} ${text}`).join(", ")}`);
  });
}

/* A table of about 60 rows, with evenly spaced points of each curve. */
function lineTable(options) {
  const rows = [];
  const series = options.series();
  for (const line of series) {
    const step = Math.max(1, Math.ceil(line.x.length / Math.max(10, 60 / series.length)));
    line.x.forEach((x, k) => {
      if ((line.x.length - 1 - k) % step) return;
      rows.push([
        line.name,
        options.xForm(x),
        options.form(line.mean[k]),
        interval(line.low[k], line.high[k], options.form) || "–",
      ]);
    });
  }
  return [[options.seriesLabel ?? "run", options.xLabel, options.yLabel, options.spread ?? "95% interval"], rows];
}

/* Every point that is drawn, with all digits. */
function lineCsv(options, hidden) {
  const shown = options.series().filter((line) => !hidden.has(line.name));
  const rows = shown.flatMap((line) => [...line.x].map((x, k) => [line.name, x, line.mean[k], line.low[k], line.high[k]]));
  return [["run", options.xLabel, options.yLabel, "low", "high"], rows];
}
