/* Epsilon of each client: the tight value and the paper's. */

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
  const absent = "These runs have no privacy mechanism, so no privacy loss is accounted for.";
  return [
    dotFigure({
      title: "Epsilon of each client",
      yLabel: "epsilon",
      form: plain,
      series: () => runDots("epsilon"),
      level: sharedBudget,
      domain: () => epsilonDomain("epsilon"),
      spread: RANGE,
      summary: tightSummary,
      empty: absent,
    }),
    dotFigure({
      title: "Epsilon by the paper’s formula (6)",
      yLabel: "epsilon",
      form: plain,
      series: () => runDots("epsilon_paper"),
      domain: () => epsilonDomain("epsilon_paper"),
      spread: RANGE,
      summary: paperSummary,
      empty: "The value of formula (6) was not recorded.",
    }),
    lineFigure({
      title: "Largest epsilon over rounds",
      xLabel: "round",
      yLabel: "epsilon",
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
  const named = (bound) =>
    accounted
      .filter((run) => largestEpsilon(run).bound === bound)
      .map((run) => `${run.name} ${plain(largestEpsilon(run).largest)}${bound === "at most" ? of(run) : ""}`);
  const [upperBounds, lowerBounds] = [named("at most"), named("at least")];
  const upper = upperBounds.length
    ? `Largest epsilon spent, an upper bound for the whole run: ${listed(upperBounds)}.`
    : "";
  const lower = lowerBounds.length
    ? "Largest epsilon leaked, a lower bound (the mechanism “paper” protects less than it claims): " +
      `${listed(lowerBounds)}.`
    : "";
  return `${upper} ${lower}`.trim();
}

function paperSummary() {
  const paper = model.runs.some((run) => run.privacy?.mechanism === "paper");
  return paper
    ? "The value of formula (6) for the same uploads. It is not a bound: compare it with the previous figure, " +
        "which may have a different scale."
    : "The value of formula (6) for the same uploads, from the tight epsilon of one upload. " +
        "Whiskers show the minimum and maximum over seeds.";
}
