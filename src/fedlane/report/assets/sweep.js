/* A sweep: its cells, and the slice of them that the figures show. */

/* The chosen measure, the key of the x axis, the key of the lines (-1 for none), and the place of every key's value. */
const slice = { measure: 0, x: 0, series: -1, fixed: [], logarithmic: false };

const SHARES = ["max_participation", "min_participation", "quota_shortfall"];

function loadSweep(sweep) {
  const index = unpack(sweep.index);
  const none = index.values instanceof Uint8Array ? 255 : 65535;
  const { cells } = sweep;
  const keys = sweep.keys.map((key, k) => ({
    ...key,
    number: k,
    places: Array.from(index.values.subarray(k * cells, (k + 1) * cells), (place) => (place === none ? -1 : place)),
  }));
  return { ...sweep, keys, numbers: unpack(sweep.numbers).values };
}

/* Start with the first numeric key on the x axis and a line for every policy. */
function startSlice() {
  const varying = varyingKeys();
  const grid = varying.filter((key) => key.name !== "policy");
  const x = grid.find((key) => key.numbers) ?? grid[0] ?? varying[0] ?? model.sweep.keys[0];
  const series = varying.find((key) => key.name === "policy" && key !== x) ?? varying.find((key) => key !== x);
  const accuracy = model.sweep.measures.findIndex(({ name }) => name === "final_accuracy");
  slice.measure = Math.max(0, accuracy);
  slice.x = x.number;
  slice.series = series ? series.number : -1;
  slice.fixed = model.sweep.keys.map(() => 0);
}

function varyingKeys() {
  return model.sweep.keys.filter((key) => key.values.length > 1);
}

function sweepKey(number) {
  return model.sweep.keys[number];
}

/* Keys that vary and are neither on the x axis nor the lines: one value of each is shown. */
function fixedKeys() {
  return varyingKeys().filter(({ number }) => number !== slice.x && number !== slice.series);
}

/* Put a key on the x axis or make it the lines; what was there takes its place. */
function chooseKey(part, number) {
  const other = part === "x" ? "series" : "x";
  if (slice[other] === number) slice[other] = slice[part];
  slice[part] = number;
  notify("view");
}

function cellMeasure(cell, measure = slice.measure) {
  const at = 3 * (measure * model.sweep.cells + cell);
  const [mean, low, high] = model.sweep.numbers.subarray(at, at + 3);
  return Number.isFinite(low) ? { mean, low, high } : { mean, low: mean, high: mean };
}

/* The cell at a place of the x axis and of the lines; -1 where the sweep has none. */
function sliceCells() {
  const [x, series, fixed] = [sweepKey(slice.x), sweepKey(slice.series), fixedKeys()];
  const rows = (series ? series.values : [""]).map(() => x.values.map(() => -1));
  for (let cell = 0; cell < model.sweep.cells; cell++) {
    const row = series ? series.places[cell] : 0;
    const shown = fixed.every((key) => key.places[cell] === slice.fixed[key.number]);
    if (shown && row >= 0 && x.places[cell] >= 0) rows[row][x.places[cell]] = cell;
  }
  return rows;
}

function measureForm(measure = slice.measure) {
  const { name } = model.sweep.measures[measure];
  const listedMeasure = MEASURES.find(({ key }) => key === name);
  if (listedMeasure) return listedMeasure.form;
  return SHARES.includes(name) ? share : name.endsWith("_s") ? seconds : plain;
}

/* The largest value of a measure, if it is a share. */
function measureCeiling() {
  const { name } = model.sweep.measures[slice.measure];
  return measureForm() === percent || SHARES.includes(name) ? 1 : Infinity;
}

/* Ticks of the chosen measure. */
function measureTick(value, marks) {
  if (measureForm() !== percent) return tickText(value, marks);
  return `${tickText(100 * value, marks.map((mark) => 100 * mark))}%`;
}

function keyText(key, place) {
  return key.name === "policy" ? key.values[place] : `${key.name} = ${key.values[place]}`;
}

function fixedText() {
  const texts = fixedKeys().map((key) => keyText(key, slice.fixed[key.number]));
  return texts.length ? ` Shown for ${listed(texts)}.` : "";
}

/* The number of seeds of the cells in the slice. */
function seedsText(cells) {
  const counts = cells.filter((cell) => cell >= 0).map((cell) => model.sweep.seeds[cell]);
  const [low, high] = [Math.min(...counts), Math.max(...counts)];
  return low === high ? plural(high, "seed") : `${low} to ${plural(high, "seed")}`;
}

function sweepFacts() {
  const { sweep } = model;
  const grid = sweep.keys
    .filter(({ name }) => name !== "policy")
    .map(({ name, values }) => (values.length > 1 ? `${name} (${plural(values.length, "value")})` : `${name} = ${values[0]}`));
  const policies = sweep.keys.find(({ name }) => name === "policy")?.values ?? [];
  const under = policies.length > MAX_COLUMNS ? plural(policies.length, "policy", "policies") : listed(policies);
  const failed = sweep.failed ? `, ${sweep.failed} failed` : "";
  return [
    `Sweep over ${listed(grid)} under ${under}`,
    `${plural(sweep.cells, "cell")}${failed}`,
    ...(sweep.seeds_text ? [sweep.seeds_text] : []),
  ].join(" · ");
}

function sweepSections() {
  return [
    ["explore", "Explore", () => [sliceChoosers(), el("div", { class: "stack" }, sliceLines(), sliceHeat())]],
    ["cells", "Cells", () => [cellsFigure()]],
    ...(model.sweep.failed ? [["failures", "Failures", () => [failureTable()]]] : []),
    ...(model.sweep.toml ? [["scenario", "Scenario", () => [sweepScenario()]]] : []),
  ];
}

function sweepFoot() {
  return [
    "A cell is a policy with one value of every key. Values are means over seeds; bands, whiskers and brackets are 95% " +
      "Student intervals. Cells with different settings are never averaged.",
  ];
}
