/* What each client has spent: the tight figure and the paper's. */

/* Both panels on one scale where that leaves both readable. */
function epsilonDomain(key) {
  const all = (which) => runDots(which).flatMap((line) => [...line.mean, ...line.high].filter(Number.isFinite));
  const [tight, paper] = [Math.max(0, ...all("epsilon")), Math.max(0, ...all("epsilon_paper"))];
  const close = tight > 0 && paper > 0 && Math.max(tight, paper) / Math.min(tight, paper) < 8;
  const level = agreed()?.value ?? 0;
  return bounds(
    close ? [0, tight, paper, level] : [0, key === "epsilon" ? tight : paper, key === "epsilon" ? level : 0],
    { zero: true, floor: 0 },
  );
}

/* The agreed epsilon of the whole run, if all runs agree. */
function agreed() {
  const told = new Set(
    model.runs.map((run) =>
      run.privacy?.per === "run" && run.privacy.mechanism === "rigorous" ? run.privacy.epsilon : null,
    ),
  );
  const [value] = told;
  return told.size === 1 && value ? { value, name: `agreed: ${plain(value)}` } : null;
}

const RANGE = "smallest to largest over seeds";

function privacyFigures() {
  const absent = "These runs have no privacy mechanism: nothing is accounted for.";
  return [
    dotFigure({
      title: "Epsilon of each client",
      yLabel: "epsilon",
      form: plain,
      series: () => runDots("epsilon"),
      level: agreed,
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
      empty: "The formula’s figure was not recorded.",
    }),
    lineFigure({
      title: "Largest epsilon over rounds",
      xLabel: "round",
      yLabel: "epsilon",
      form: plain,
      xForm: roundForm,
      level: agreed,
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
  const known = model.runs.filter(largestEpsilon);
  const of = (run) =>
    run.privacy?.per === "run" && run.privacy.epsilon ? ` of ${plain(run.privacy.epsilon)} agreed` : "";
  const named = (bound) =>
    known
      .filter((run) => largestEpsilon(run).bound === bound)
      .map((run) => `${run.name} ${plain(largestEpsilon(run).largest)}${bound === "at most" ? of(run) : ""}`);
  const [most, least] = [named("at most"), named("at least")];
  const upper = most.length ? `Spent at most, an upper bound that holds for the whole run: ${listed(most)}.` : "";
  const lower = least.length
    ? "Leaked at least, a lower bound in the worst case (the mechanism “paper” keeps less than it claims): " +
      `${listed(least)}.`
    : "";
  return `${upper} ${lower}`.trim();
}

function paperSummary() {
  const paper = model.runs.some((run) => run.privacy?.mechanism === "paper");
  return paper
    ? "What formula (6) says of the same uploads. It is not a bound: compare the figure beside it, " +
        "which has a scale of its own."
    : "What formula (6) says of the same uploads, from the tight epsilon of one upload. " +
        "Whiskers here reach from the smallest to the largest over seeds.";
}
