/* What the policy predicted about uploads: 90% intervals and medians, and whether the uploads agreed with them. */

/* The prediction for the k-th embedded upload of a run, or null. */
function predictionAt(run, k) {
  const { predicted } = run.detail;
  if (!predicted) return null;
  const [low, median, high] = ["low", "median", "high"].map((name) => predicted[`predicted_${name}_s`].values[k]);
  const open = high >= run.deadline_s * (1 - 1e-4); // the upload may as well be late
  return Number.isFinite(median) ? { low, median, high, open, covered: predicted.covered.values[k] === 1 } : null;
}

function predictionText({ low, median, high, open }) {
  const ends = `${plain(low)} to ${seconds(high)}${open ? " or late" : ""}`;
  return `predicted ${ends}, median ${open && median >= high ? "late" : seconds(median)}`;
}

/* How many of a round's uploads lie in their intervals, as part of a sentence; empty without predictions. */
function coveredFact(slots) {
  const stated = slots.filter((slot) => slot.predicted);
  if (!stated.length) return "";
  return `${stated.filter((slot) => slot.predicted.covered).length} of ${plural(stated.length, "upload")} in the predicted 90% intervals`;
}

/* The interval of an upload as a line from `sx(low)` to `sx(high)`, a stroke for the median, and one for what happened. */
function predictionMark(slot, sx, top, height) {
  const { low, median, high, covered } = slot.predicted;
  const middle = top + height / 2;
  const layer = svg("g", { class: covered ? "predicted" : "predicted missed" });
  layer.append(
    svg("path", { class: "interval", d: `M${sx(low)} ${middle}H${sx(high)}` }),
    svg("path", { class: "median", d: `M${sx(median)} ${top}v${height}` }),
  );
  if (Number.isFinite(slot.total)) layer.append(svg("path", { class: "happened", d: `M${sx(slot.total)} ${top}v${height}` }));
  return layer;
}

function predictionLegend() {
  const entry = (name, path) =>
    el("span", { class: "entry" }, svg("svg", { width: 20, height: 12, "aria-hidden": "true" }, ...path), name);
  return [
    entry("predicted 90% interval and median", [
      svg("path", { class: "interval", d: "M1 6H19" }),
      svg("path", { class: "median", d: "M10 1V11" }),
    ]),
    entry("what it took", [svg("path", { class: "happened", d: "M10 1V11" })]),
  ];
}

/* Whether the 90% intervals cover 90% of the uploads, over the rounds. */
function coverageFigure() {
  return lineFigure({
    title: "Coverage of the predicted 90% intervals",
    wide: true,
    xLabel: "round",
    yLabel: "share of uploads in their intervals",
    form: percent,
    yText: (v) => `${fixed(100 * v, 0)}%`,
    xForm: (round) => `rounds up to ${fixed(round, 0)}`,
    series: () => runCurves("coverage"),
    floor: 0,
    ceiling: 1,
    level: () => ({ value: 0.9, name: "90%" }),
    summary: coverageSummary,
  });
}

function coverageSummary(series) {
  const texts = series.map(({ run, name }) => `${name} ${withInterval(run.measures.coverage_90, percent)}`);
  return (
    "Before each round, the policy predicts a 90% interval for the delay of every upload. Predictions are calibrated if " +
    "they cover 90% of the uploads; a late upload is covered if its interval reaches the deadline. " +
    `Over all rounds: ${listedRuns(texts, series.map(({ run }) => run.measures.coverage_90.mean ?? NaN))}.`
  );
}
