/* Epsilon of each client: the tight value, and for the mechanism "paper" also the value of its formula. */

/* The delta that a run's epsilon belongs to, as text; empty where it is unknown. */
function atDelta(run) {
  const delta = run.privacy?.delta;
  if (!delta) return "";
  return ` at delta ${delta < 1e-3 ? Number(delta.toPrecision(3)).toExponential() : plain(delta)}`;
}

/* The label of an axis that shows epsilon: with the delta, where all runs have the same. */
function epsilonLabel() {
  const deltas = new Set(model.runs.filter((run) => run.privacy).map(atDelta));
  return deltas.size === 1 ? `epsilon${[...deltas][0]}` : "epsilon at each run’s delta";
}

/* Both figures share a scale if both stay readable. */
function epsilonDomain(key) {
  const all = (which) => runDots(which).flatMap((line) => [...line.mean, ...line.high].filter(Number.isFinite));
  const [tight, paper] = [Math.max(0, ...all("epsilon")), Math.max(0, ...all("epsilon_paper"))];
  const close = tight > 0 && paper > 0 && Math.max(tight, paper) / Math.min(tight, paper) < 8;
  const level = sharedBudget()?.value ?? 0;
  return bounds(
    close ? [0, tight, paper, level] : [0, key === "epsilon" ? tight : paper, key === "epsilon" ? level : 0],
    { zero: true, floor: 0 },
  );
}

/* The budget for the whole run, if it is the same for all runs. */
function sharedBudget() {
  const budgets = new Set(
    model.runs.map((run) =>
      run.privacy?.per === "run" && run.privacy.mechanism === "rigorous" ? run.privacy.epsilon : null,
    ),
  );
  const [value] = budgets;
  return budgets.size === 1 && value ? { value, name: `budget: ${plain(value)}` } : null;
}

const RANGE = "minimum to maximum over seeds";

function privacyFigures() {
  const absent = model.runs.some(unreported)
    ? "No client has reported what it has spent since its last order; the clients’ ledgers have it."
    : "These runs have no privacy mechanism, so no privacy loss is accounted for.";
  const byFormula = model.runs.some((run) => run.per_client.epsilon_paper);
  return [
    dotFigure({
      title: "Epsilon of each client",
      yLabel: epsilonLabel(),
      form: plain,
      series: () => runDots("epsilon"),
      level: sharedBudget,
      domain: () => epsilonDomain("epsilon"),
      spread: RANGE,
      summary: tightSummary,
      empty: absent,
    }),
    byFormula
      ? dotFigure({
          title: "Epsilon by the paper’s formula (6)",
          yLabel: epsilonLabel(),
          form: plain,
          series: () => runDots("epsilon_paper"),
          domain: () => epsilonDomain("epsilon_paper"),
          spread: RANGE,
          summary: () => PAPER_SUMMARY,
          empty: "The value of formula (6) was not recorded.",
        })
      : null,
    lineFigure({
      title: "Largest epsilon over rounds",
      xLabel: "round",
      yLabel: epsilonLabel(),
      form: plain,
      xForm: roundForm,
      level: sharedBudget,
      series: () => runCurves("epsilon"),
      zero: true,
      floor: 0,
      summary: endings(plain),
      empty: absent,
      wide: true,
      spread: RANGE,
    }),
  ];
}

function tightSummary() {
  const accounted = model.runs.filter(largestEpsilon);
  const of = (run) =>
    run.privacy?.per === "run" && run.privacy.epsilon ? ` of a budget of ${plain(run.privacy.epsilon)}` : "";
  const named = (bound) => {
    const runs = accounted.filter((run) => largestEpsilon(run).bound === bound);
    const texts = runs.map((run) => {
      const spent = bound === "at most" ? of(run) + atDelta(run) + unreported(run) : atDelta(run);
      return `${run.name} ${plain(largestEpsilon(run).largest)}${spent}`;
    });
    return texts.length ? listedRuns(texts, runs.map((run) => largestEpsilon(run).largest)) : "";
  };
  const [upperBounds, lowerBounds] = [named("at most"), named("at least")];
  const upper = upperBounds
    ? `Largest epsilon spent, an upper bound for the whole run: ${upperBounds}.`
    : "";
  const lower = lowerBounds
    ? "Largest epsilon leaked, a lower bound (the mechanism “paper” protects less than it claims): " +
      `${lowerBounds}.`
    : "";
  return `${upper} ${lower}`.trim();
}

const PAPER_SUMMARY =
  "The value of formula (6) for the same uploads. It is not a bound: compare it with the previous figure, " +
  "which may have a different scale.";
