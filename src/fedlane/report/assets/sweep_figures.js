/* The choice of a slice of a sweep, its lines with bands, the table of all cells, and what failed. */

const MAX_ROWS = 300; // rows of the table of cells; the saved file has all

function sliceChoosers() {
  const measures = chooser("Measure", "choose-measure", (k) => {
    slice.measure = k;
    notify("view");
  });
  const x = chooser("X axis", "choose-x", (k) => chooseKey("x", varyingKeys()[k].number));
  const series = chooser("Lines", "choose-series", (k) => chooseKey("series", varyingKeys()[k].number));
  const log = el("input", { type: "checkbox", id: "choose-log", onchange: () => setLogarithmic(log.checked) });
  const scaleField = el("label", { class: "field" }, log, el("span", {}, "Logarithmic x axis"));
  const fixed = varyingKeys().map((key) => ({
    key,
    field: chooser(key.name, `fix-${key.number}`, (place) => {
      slice.fixed[key.number] = place;
      notify("view");
    }),
  }));
  const fill = () => {
    const varying = varyingKeys();
    measures.fill(model.sweep.measures.map(({ label }) => label), slice.measure);
    x.fill(varying.map(({ name }) => name), varying.indexOf(sweepKey(slice.x)));
    series.fill(varying.map(({ name }) => name), varying.indexOf(sweepKey(slice.series)));
    for (const { key, field } of fixed) {
      field.fill(key.values, slice.fixed[key.number]);
      field.hidden = !fixedKeys().includes(key);
    }
    scaleField.hidden = !canBeLogarithmic();
    log.checked = slice.logarithmic;
  };
  on("data view", fill);
  return el(
    "div",
    { class: "card player choices", role: "group", "aria-label": "What the figures show" },
    el("div", { class: "fields" }, measures, x, series, scaleField, fixed.map(({ field }) => field)),
  );
}

function setLogarithmic(chosen) {
  slice.logarithmic = chosen;
  notify("view");
}

function canBeLogarithmic() {
  const { numbers } = sweepKey(slice.x);
  return Boolean(numbers) && numbers.length > 2 && numbers.every((value) => value > 0);
}

/* Where the values of the x axis are drawn: their numbers, their logarithms, or their places if they are texts. */
function xPositions() {
  const { numbers, values } = sweepKey(slice.x);
  if (!numbers) return values.map((_, place) => place);
  return slice.logarithmic && canBeLogarithmic() ? numbers.map(Math.log10) : numbers;
}

/* One series for every value of the key of the lines. */
function sliceSeries() {
  const [positions, series] = [xPositions(), sweepKey(slice.series)];
  const joined = Boolean(sweepKey(slice.x).numbers);
  return sliceCells().flatMap((row, k) => {
    const places = [...row.keys()].filter((place) => !joined || row[place] >= 0);
    if (!row.some((cell) => cell >= 0)) return [];
    const measured = places.map((place) => (row[place] >= 0 ? cellMeasure(row[place]) : { mean: NaN, low: NaN, high: NaN }));
    return [
      {
        name: series ? keyText(series, k) : model.sweep.measures[slice.measure].label,
        colour: runColour(k),
        dash: joined ? runDash(k) : "",
        hollow: runHollow(k),
        x: places.map((place) => positions[place]),
        mean: measured.map(({ mean }) => mean),
        low: measured.map(({ low }) => low),
        high: measured.map(({ high }) => high),
        cells: places.map((place) => row[place]),
      },
    ];
  });
}

/* The options of `drawLines` for the chosen slice. */
function sliceOptions(width = SAVED.width) {
  const [x, positions] = [sweepKey(slice.x), xPositions()];
  const valueAt = (at) => x.values[nearest(positions, at)];
  const categories = !x.numbers;
  const few = positions.length <= 12 || categories || slice.logarithmic;
  return {
    title: "Measure along one key",
    seriesLabel: sweepKey(slice.series)?.name ?? "measure",
    xLabel: slice.logarithmic && canBeLogarithmic() ? `${x.name} (logarithmic)` : x.name,
    yLabel: model.sweep.measures[slice.measure].label,
    form: measureForm(),
    xForm: (at) => `${x.name} = ${valueAt(at)}`,
    xTicks: few ? spaced(positions, x.values, width) : undefined,
    xText: few ? valueAt : undefined,
    xDomain: categories ? [-0.5, positions.length - 0.5] : undefined,
    yText: measureTick,
    floor: 0,
    ceiling: measureCeiling(),
    marked: true,
    joined: !categories,
    series: sliceSeries,
    empty: "No cell of the sweep has these values.",
  };
}

/* The positions whose texts do not overlap on an axis of this width. */
function spaced(positions, texts, width) {
  const span = positions[positions.length - 1] - positions[0] || 1;
  const room = Math.max(60, width - 90) / span;
  let end = -Infinity;
  return positions.filter((position, k) => {
    const half = 3.6 * texts[k].length + 5;
    if (position * room - half < end) return false;
    end = position * room + half;
    return true;
  });
}

function sliceLines() {
  return figureCard({
    title: "Measure along one key",
    wide: true,
    when: "data theme view",
    summary: linesSummary,
    legend: () => (slice.series < 0 ? [] : sliceSeries().map(({ name, colour, dash, hollow }) => ({ name, colour, dash, hollow, shape: sweepKey(slice.x).numbers ? undefined : "dot" }))),
    table: () => lineTable(sliceOptions()),
    csv: (hidden) => sliceCsv(hidden),
    name: sliceName,
    draw: (width, hidden, note) => drawLines(sliceOptions(width), width, hidden, note),
  });
}

function linesSummary() {
  const series = sweepKey(slice.series);
  const cells = sliceCells().flat();
  if (!cells.some((cell) => cell >= 0)) return "No cell of the sweep has these values.";
  const shape = sweepKey(slice.x).numbers ? "Bands" : "Whiskers";
  const lines = series ? `, for each ${series.name}` : "";
  const several = seedsText(cells);
  const spread = several === "1 seed" ? "One seed, so no intervals." : `${shape}: 95% intervals over ${several}.`;
  return `${capital(model.sweep.measures[slice.measure].label)} over ${sweepKey(slice.x).name}${lines}. ${spread}${fixedText()}`;
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function sliceName() {
  return [model.sweep.measures[slice.measure].name, sweepKey(slice.x).name].join(" ");
}

/* The cells of the slice with all digits, and with the value of every key. */
function sliceCsv(hidden = new Set()) {
  const cells = sliceSeries().filter(({ name }) => !hidden.has(name)).flatMap((line) => line.cells);
  return cellsCsv(cells.filter((cell) => cell >= 0), [slice.measure]);
}

function cellsCsv(cells, measures) {
  const { keys, measures: names, seeds } = model.sweep;
  const head = [
    ...keys.map(({ name }) => name),
    "seeds",
    ...measures.flatMap((m) => [names[m].name, `${names[m].name} low`, `${names[m].name} high`]),
  ];
  const rows = cells.map((cell) => [
    ...keys.map((key) => keyValue(key, cell)),
    seeds[cell],
    ...measures.flatMap((m) => {
      const { mean, low, high } = cellMeasure(cell, m);
      return [mean, low, high];
    }),
  ]);
  return [head, rows];
}

function keyValue(key, cell) {
  const place = key.places[cell];
  return place < 0 ? "" : key.numbers ? key.numbers[place] : key.values[place];
}

/* All cells with all measures. */
function cellsFigure() {
  const { sweep } = model;
  const cells = Array.from({ length: sweep.cells }, (_, k) => k);
  const measures = sweep.measures.map((_, m) => m);
  const head = [...sweep.keys.map(({ name }) => name), "seeds", ...sweep.measures.map(({ label }) => label)];
  const rows = cells.slice(0, MAX_ROWS).map((cell) => [
    ...sweep.keys.map((key) => (key.places[cell] < 0 ? "–" : key.values[key.places[cell]])),
    String(sweep.seeds[cell]),
    ...measures.map((m) => withInterval(cellMeasure(cell, m), measureForm(m))),
  ]);
  const shown = rows.length < cells.length ? `The first ${rows.length} of ${plural(cells.length, "cell")}; the saved file has all. ` : "";
  const save = el(
    "button",
    {
      type: "button",
      class: "save-as",
      "aria-label": "Save as CSV: all cells",
      onclick: () => download(`${fileName(`fedlane sweep ${sweep.folder}`)}.csv`, "text/csv", csvText(...cellsCsv(cells, measures))),
    },
    "CSV",
  );
  return el(
    "div",
    { class: "card" },
    el("p", { class: "note" }, `${shown}Means over seeds and 95% intervals.`),
    el("div", { class: "all-cells" }, scrollTable("All cells", head, rows)),
    el("div", { class: "save" }, el("span", { "aria-hidden": "true" }, "Save"), save),
  );
}

function failureTable() {
  const { failures, failed } = model.sweep;
  const rows = failures.map(({ policy, values, error }) => [policy, values, error]);
  const note = failed > failures.length ? `The first ${failures.length} of ${failed}; failures.json has all.` : "";
  return el(
    "div",
    { class: "card reasons" },
    note ? el("p", { class: "note" }, note) : null,
    scrollTable("Cells that failed", ["policy", "values", "reason"], rows),
  );
}

function sweepScenario() {
  const { toml, scenario, folder } = model.sweep;
  return scenarioCard({ toml, name: `${scenario}, before the grid`, folder }, 0, true);
}
