/* The measures of the runs: tiles for one run, a table for several. */

const MEASURES = [
  { key: "cumulative_delay_s", name: "Simulated time", form: (v) => `${fixed(v, v < 100 ? 1 : 0)} s`, better: -1 },
  { key: "mean_round_s", name: "Mean round", form: seconds, better: -1 },
  { key: "late_share", name: "Late uploads", form: percent, better: -1 },
  { key: "final_accuracy", name: "Final accuracy", form: percent, better: 1 },
  { key: "min_participation", name: "Min. participation", form: share, better: 1 },
  { key: "quota_shortfall", name: "Largest quota shortfall", form: share, better: -1 },
  { key: "max_queue", name: "Longest queue", form: (v) => fixed(v, 1), better: -1 },
];

/* The largest epsilon of a run's clients, and whether it is an upper or a lower bound. */
function largestEpsilon(run) {
  const values = run.per_client.epsilon?.high.values;
  if (!values) return null;
  const largest = values.reduce((a, b) => (b > a ? b : a), -Infinity);
  return { largest, bound: run.privacy?.mechanism === "paper" ? "at least" : "at most" };
}

/* How many clients of a federation have not reported what they spent, as a remark. */
function unreported(run) {
  return run.privacy?.unreported ? `, ${run.privacy.unreported} clients unreported` : "";
}

function overview() {
  const holder = el("div");
  on("data", () => holder.replaceChildren(model.runs.length === 1 ? tiles(model.runs[0]) : comparison(model.runs)));
  return holder;
}

function tiles(run) {
  const shown = MEASURES.filter(({ key }) => run.measures[key].mean !== null).map(({ key, name, form }) => {
    const measure = run.measures[key];
    return tile(name, form(measure.mean), interval(measure.low, measure.high, form));
  });
  const epsilon = largestEpsilon(run);
  if (epsilon) {
    shown.push(
      tile(
        "Largest epsilon",
        plain(epsilon.largest),
        `${epsilon.bound === "at least" ? "leaked, a lower bound" : "spent, an upper bound"}${atDelta(run)}${unreported(run)}`,
      ),
    );
  } else if (unreported(run)) {
    shown.push(tile("Largest epsilon", "unreported", "no client has answered its last order"));
  }
  return el("dl", { class: "tiles" }, shown);
}

function tile(name, value, detail) {
  return el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, el("b", {}, value), el("span", {}, detail)));
}

function comparison(runs) {
  const rows = MEASURES.filter(({ key }) => runs.some((run) => run.measures[key].mean !== null)).map((measure) =>
    measureRow(measure, runs),
  );
  if (runs.some(largestEpsilon)) rows.push(epsilonRow(runs));
  const head = el(
    "tr",
    {},
    el("td", {}),
    runs.map((run, k) => {
      const swatch = el("i", { class: "swatch" });
      swatch.style.background = runColour(k);
      return el("th", { scope: "col" }, swatch, run.name);
    }),
  );
  const table = el(
    "table",
    { class: "compare" },
    el("caption", { class: "visually-hidden" }, "Runs side by side, mean and 95% interval over seeds"),
    el("thead", {}, head),
    el("tbody", {}, rows),
  );
  return el("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "Runs side by side" }, table);
}

function measureRow({ key, name, form, better }, runs) {
  const means = runs.map((run) => run.measures[key].mean);
  const values = means.filter((mean) => mean !== null);
  const best = better < 0 ? Math.min(...values) : Math.max(...values);
  const first = means[0];
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, name),
    runs.map((run, k) => {
      const measure = run.measures[key];
      const leads = measure.mean === best && values.some((mean) => mean !== best);
      const ratio =
        key === "cumulative_delay_s" && k > 0 && first && measure.mean !== null
          ? `${fixed(measure.mean / first, 2)} × ${runs[0].name}`
          : "";
      return el(
        "td",
        {},
        el("b", { class: leads ? "best" : null }, measure.mean === null ? "–" : form(measure.mean)),
        leads ? el("span", { class: "visually-hidden" }, " (best)") : null,
        el("span", { class: "detail" }, interval(measure.low, measure.high, form)),
        el("span", { class: "detail" }, ratio),
      );
    }),
  );
}

function epsilonRow(runs) {
  return el(
    "tr",
    {},
    el("th", { scope: "row" }, "Largest epsilon"),
    runs.map((run) => {
      const epsilon = largestEpsilon(run);
      return el(
        "td",
        {},
        el("b", {}, epsilon ? plain(epsilon.largest) : "–"),
        el(
          "span",
          { class: "detail" },
          epsilon ? `${epsilon.bound === "at least" ? "leaked at least" : "spent at most"}${atDelta(run)}${unreported(run)}` : "",
        ),
      );
    }),
  );
}
