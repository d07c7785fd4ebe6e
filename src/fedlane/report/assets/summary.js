/* The measures of the runs: tiles for one run, a table for several, with one row per run if there are many. */

const MAX_COLUMNS = 6; // more runs than this are the rows of the table

/*
 * served: relative to the quotas that the policy serves, so that runs with different slack are not compared in it.
 * alone: shown only for one run (true) or only for several (false).
 */
const MEASURES = [
  { key: "cumulative_delay_s", name: "Simulated time", form: clockText, better: -1 },
  { key: "mean_round_s", name: "Mean round", form: seconds, better: -1 },
  { key: "late_share", name: "Late uploads", form: percent, better: -1 },
  { key: "final_accuracy", name: "Final accuracy", form: percent, better: 1 },
  { key: "min_participation", name: "Min. participation", form: share, better: 1 },
  { key: "quota_shortfall", name: "Largest quota shortfall", form: share, better: -1, served: true, alone: true },
  { key: "problem_shortfall", name: "Largest shortfall from the problem’s quotas", form: share, better: -1, alone: false },
  { key: "energy_j", name: "Energy of all clients", form: joules, better: -1 },
  { key: "coverage_90", name: "Uploads in predicted 90% intervals", form: percent, better: 0 },
  { key: "max_queue", name: "Longest queue of all rounds", form: (v) => fixed(v, 2), better: -1, served: true },
];

/* The largest epsilon of a run's clients, and whether it is an upper or a lower bound. */
function largestEpsilon(run) {
  const largest = run.epsilon_largest;
  return largest === null ? null : { largest, bound: run.privacy?.mechanism === "paper" ? "at least" : "at most" };
}

/* How many clients of a federation have not reported what they spent, as a remark. */
function unreported(run) {
  return run.privacy?.unreported ? `, ${run.privacy.unreported} clients unreported` : "";
}

function overview() {
  const holder = el("div");
  on("data", () => {
    const table = model.runs.length === 1 ? tiles(model.runs[0]) : comparison(model.runs);
    holder.replaceChildren(table, ...overviewNotes());
  });
  return holder;
}

/*
 * The quantities of the overview: {name, better, cell(run)}. A cell is {value, text, details}; its value is null if it
 * must not be compared with those of other runs.
 */
function quantities(runs) {
  const shown = ({ key, alone = runs.length === 1 }) =>
    alone === (runs.length === 1) && runs.some((run) => run.measures[key].mean !== null);
  const measured = MEASURES.filter(shown).map(({ key, name, form, better, served }) => ({
    name,
    better: served && differentSlack(runs) ? 0 : better,
    cell: (run) => measureCell(run, key, form),
  }));
  const times = runs.some((run) => run.times.length)
    ? model.targets.map((target, k) => ({
        name: `Time to ${targetText(target)}`,
        better: -1,
        cell: (run) => timeCell(run, k),
      }))
    : [];
  const spent = runs.some((run) => largestEpsilon(run) || unreported(run));
  return [...measured, ...times, ...(spent ? [{ name: "Largest epsilon", better: 0, cell: epsilonCell }] : [])];
}

function differentSlack(runs) {
  return new Set(runs.map((run) => run.slack)).size > 1;
}

/* The runs of the same scenario, which differ in policy and seeds only: others are not compared with them. */
function comparable(run) {
  return model.runs.filter((other) => other.digest === run.digest);
}

function measureCell(run, key, form) {
  const measure = run.measures[key];
  if (measure.mean === null) return { value: null, text: "–", details: [] };
  const base = comparable(run)[0];
  const first = base.measures[key].mean;
  const name = base === model.runs[0] && model.runs.length > 2 ? "first run" : base.name;
  const ratio =
    key === "cumulative_delay_s" && run !== base && first ? `${fixed(measure.mean / first, 2)} × ${name}` : "";
  return { value: measure.mean, text: form(measure.mean), details: [interval(measure.low, measure.high, form), ratio] };
}

/* The time to the k-th target: a mean over the seeds that reach it, compared only if all of them do. */
function timeCell(run, k) {
  const time = run.times[k];
  if (!time) return { value: null, text: "–", details: [], sentence: "no accuracy" };
  if (!time.reached) return { value: null, text: "not reached", details: [], sentence: "not reached" };
  const missing = time.reached < run.seed_count ? `${time.reached} of ${run.seed_count} seeds` : "";
  return {
    value: missing ? null : time.mean,
    text: clockText(time.mean),
    details: [interval(time.low, time.high, clockText), missing],
    sentence: withInterval(time, clockText) + (missing ? ` (${missing})` : ""),
  };
}

function epsilonCell(run) {
  const epsilon = largestEpsilon(run);
  if (!epsilon)
    return unreported(run)
      ? { value: null, text: "unreported", details: ["no client has answered its last order"] }
      : { value: null, text: "–", details: [] };
  const bound = epsilon.bound === "at least" ? "leaked at least" : "spent at most";
  return { value: null, text: plain(epsilon.largest), details: [`${bound}${atDelta(run)}${unreported(run)}`] };
}

function tiles(run) {
  const shown = quantities([run]).map(({ name, cell }) => {
    const { text, details } = cell(run);
    return el(
      "div",
      { class: "tile" },
      el("dt", {}, name),
      el("dd", {}, el("b", {}, text), el("span", {}, details.filter(Boolean).join(", "))),
    );
  });
  return el("dl", { class: "tiles" }, shown);
}

function comparison(runs) {
  const columns = quantities(runs).map((quantity) => ({ ...quantity, cells: comparedCells(quantity, runs) }));
  const many = runs.length > MAX_COLUMNS;
  const head = many
    ? [el("th", { scope: "col" }, "Run"), ...columns.map(({ name }) => el("th", { scope: "col" }, name))]
    : [el("td", {}), ...runs.map((run, k) => runHeading(run, k, "col"))];
  const rows = many
    ? runs.map((run, k) => [runHeading(run, k, "row"), ...columns.map(({ cells }) => cells[k])])
    : columns.map(({ name, cells }) => [el("th", { scope: "row" }, name), ...cells]);
  const table = el(
    "table",
    { class: many ? "compare many" : "compare" },
    el("caption", { class: "visually-hidden" }, "Runs side by side, mean and 95% interval over seeds"),
    el("thead", {}, el("tr", {}, head)),
    el(
      "tbody",
      {},
      rows.map((row) => el("tr", {}, row)),
    ),
  );
  return el("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Runs side by side" }, table);
}

function runHeading(run, k, scope) {
  const swatch = el("i", { class: runHollow(k) ? "swatch hollow" : "swatch" });
  swatch.style.color = runColour(k);
  return el("th", { scope, title: run.name }, breakable(run.name, swatch));
}

/* The table's cells of a quantity, one per run, with the best one of each scenario marked. */
function comparedCells({ cell, better }, runs) {
  const cells = runs.map(cell);
  return cells.map(({ value, text, details }, k) => {
    const rivals = cells.filter((other, j) => runs[j].digest === runs[k].digest && other.value !== null);
    const leads =
      better !== 0 &&
      value !== null &&
      rivals.every((other) => better * (value - other.value) >= 0) &&
      rivals.some((other) => other.value !== value);
    return el(
      "td",
      {},
      el("b", { class: leads ? "best" : null }, text),
      leads ? el("span", { class: "visually-hidden" }, " (best)") : null,
      details.filter(Boolean).map((detail) => el("span", { class: /^[[\d]/.test(detail) ? "detail" : "detail words" }, detail)),
    );
  });
}

/* What a reader must know before comparing the numbers. */
function overviewNotes() {
  const told = (key, head) => [...new Set(model.runs.map((run) => run[key]).filter(Boolean))].map((line) => `${head}: ${line}.`);
  const lines = [...told("caution", "Caution"), ...told("remark", "Links")];
  if (model.runs.some((run) => run.digest !== model.runs[0].digest)) {
    const some = model.runs.some((run) => comparable(run).length > 1);
    const names = model.scenarioDifferences;
    const listedNames = names.length > 4 ? [...names.slice(0, 3), `${names.length - 3} more values`] : names;
    lines.push(
      `The runs do not have the same scenario${names.length ? ` (they differ in ${listed(listedNames)})` : ""}: best values ` +
        `and ratios are ${some ? "shown among runs of the same scenario only" : "not shown"}.`,
    );
  }
  if (differentSlack(model.runs))
    lines.push(
      "The policies serve different quotas, because some lower them by a slack. The shortfall is from the problem’s " +
        "quotas for all; queues and the figures of participation refer to the quotas that each policy serves.",
    );
  const learned = model.runs.filter((run) => run.times.length);
  if (model.targets.length && learned.length) {
    const names = listed(model.targets.map(targetText));
    const without = learned.filter((run) => run.target === null).length;
    if (model.targets.length > 1)
      lines.push(`The runs were saved with different target accuracies: the time to each of ${names} is shown for all.`);
    if (model.targetsOmitted) lines.push(`${plural(model.targetsOmitted, "lower target")} not shown.`);
    if (without)
      lines.push(`${plural(without, "run was", "runs were")} saved without a target; the time is shown for ${names}.`);
    lines.push(
      "Time to a target: simulated time until the mean of three successive evaluations reaches it, " +
        "as a mean over the seeds that reach it.",
    );
  }
  return lines.map((line) => el("p", { class: "note remark" }, line));
}
