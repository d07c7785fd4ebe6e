/* The figures of the page, and their summary sentences. */

function runCurves(key, x = "round") {
  return model.runs.flatMap((run, k) => {
    const curve = run.curves[key];
    if (!curve) return [];
    const [mean, low, high] = [curve.mean.values, curve.low.values, curve.high.values];
    return [{ run, name: run.name, colour: runColour(k), dash: runDash(k), x: [...curve[x].values], mean, low, high }];
  });
}

function runDots(key, target) {
  return model.runs.flatMap((run, k) => {
    const column = run.per_client[key];
    if (!column) return [];
    return [
      {
        run,
        name: run.name,
        colour: runColour(k),
        hollow: runHollow(k),
        mean: column.mean.values,
        low: column.low.values,
        high: column.high.values,
        target: target ? run.per_client[target]?.mean.values : null,
      },
    ];
  });
}

function last(line) {
  const k = line.x.length - 1;
  return { mean: line.mean[k], low: line.low[k], high: line.high[k] };
}

/* The values at the end: those of the overview if it has them, so that a quantity is shown with one number only. */
function endings(form, key, opening = "At the end") {
  const ending = (line) => (key && line.run.measures[key].mean !== null ? line.run.measures[key] : last(line));
  return (series) => {
    const texts = series.map((line) => `${line.name} ${withInterval(ending(line), form)}`);
    return series.length ? `${opening}: ${listedRuns(texts, series.map((line) => ending(line).mean))}.` : "";
  };
}

/* The texts of all runs; of many runs only those with the smallest and the largest value. */
function listedRuns(texts, values) {
  if (texts.length <= MAX_COLUMNS) return listed(texts);
  const order = [...texts.keys()].filter((k) => Number.isFinite(values[k])).sort((a, b) => values[a] - values[b]);
  return order.length ? `from ${texts[order[0]]} to ${texts[order[order.length - 1]]}` : "unknown";
}

function roundForm(round) {
  return `round ${fixed(round, 0)}`;
}

const ACCURACY_FIGURE = {
  key: "accuracy",
  name: "Accuracy",
  end: "final_accuracy",
  axes: {
    yLabel: "test accuracy",
    form: percent,
    yText: (v) => `${fixed(100 * v, 0)}%`,
    empty: "No accuracy was recorded.",
    floor: 0,
    ceiling: 1,
    level: targetLevel,
  },
};

/* Runs that learn numbers have no accuracy. */
const LOSS_FIGURE = {
  key: "loss",
  name: "Loss",
  end: null,
  axes: { yLabel: "test loss (squared error)", form: significant, empty: "No loss was recorded.", floor: 0 },
};

function learningFigures() {
  const numbers = model.runs.some((run) => run.curves.loss) && !model.runs.some((run) => run.curves.accuracy);
  const { key, name, end, axes } = numbers ? LOSS_FIGURE : ACCURACY_FIGURE;
  return [
    lineFigure({
      ...axes,
      title: `${name} against rounds`,
      xLabel: "round",
      xForm: roundForm,
      series: () => runCurves(key),
      summary: endings(axes.form, end),
    }),
    lineFigure({
      ...axes,
      title: `${name} against time`,
      xLabel: "simulated time, s",
      xForm: (x) => `${fixed(x, 0)} s of simulated time`,
      series: () => runCurves(key, "clock_s"),
      zeroX: true,
      summary: numbers ? endings(axes.form, end) : timeSummary,
    }),
  ];
}

/* The target accuracy, if the page has exactly one. */
function targetLevel() {
  const [value] = model.targets;
  return model.targets.length === 1 ? { value, name: `target: ${targetText(value)}` } : null;
}

/* The time to each target, with the numbers of the overview; without a target, the end of each curve. */
function timeSummary(series) {
  if (!series.length) return "";
  if (!model.targets.length) {
    const ends = series.map(({ run, name }) => {
      const { final_accuracy, cumulative_delay_s } = run.measures;
      return `${name} ${percent(final_accuracy.mean)} after ${clockText(cumulative_delay_s.mean)}`;
    });
    return `At the end: ${listedRuns(ends, series.map(({ run }) => run.measures.final_accuracy.mean))}.`;
  }
  return model.targets
    .map((target, k) => {
      const times = series.map(({ run, name }) => `${name} ${timeCell(run, k).sentence}`);
      const means = series.map(({ run }) => run.times[k]?.mean ?? NaN);
      return `Time to ${targetText(target)}: ${listedRuns(times, means)}.`;
    })
    .join(" ");
}

function timeFigures() {
  return [
    lineFigure({
      title: "Simulated time",
      xLabel: "round",
      yLabel: "seconds",
      form: clockText,
      xForm: roundForm,
      series: () => runCurves("clock"),
      zero: true,
      floor: 0,
      summary: endings(clockText, "cumulative_delay_s"),
    }),
  ];
}

function participationFigures() {
  return [
    dotFigure({
      title: "Participation against quota",
      yLabel: "share of rounds on time",
      form: share,
      cell: (v) => fixed(v, 2),
      ceiling: 1,
      target: "quota",
      series: () => runDots("participation", "quota"),
      summary: participationSummary,
    }),
    dotFigure({
      title: "Selection",
      yLabel: "share of rounds assigned",
      form: share,
      cell: (v) => fixed(v, 2),
      ceiling: 1,
      series: () => runDots("selection"),
      summary: () => "Share of rounds in which each client was assigned, including those in which it was late.",
    }),
    ...(model.runs.some(isAbsenceShown) ? [presenceFigure()] : []),
  ];
}

/* Whether some client of a run was not there in some round. */
function isAbsenceShown(run) {
  return Boolean(run.per_client.present_share?.mean.values.some((value) => value < 1));
}

function presenceFigure() {
  return dotFigure({
    title: "Presence",
    yLabel: "share of rounds present",
    form: share,
    cell: (v) => fixed(v, 2),
    ceiling: 1,
    series: () => runDots("present_share"),
    summary: () => "Share of rounds at whose start each client was there. A client that is absent is owed no turn.",
  });
}

function energyFigure() {
  return dotFigure({
    title: "Energy of each client",
    yLabel: "joules",
    form: joules,
    cell: plain,
    series: () => runDots("energy_j"),
    level: batteryLevel,
    summary: energySummary,
  });
}

/* The clients’ battery, if all runs have the same. */
function batteryLevel() {
  const [value, ...others] = new Set(model.runs.map((run) => run.battery_j));
  return value && !others.length ? { value, name: `battery: ${joules(value)}` } : null;
}

function energySummary(series) {
  const totals = series.map(({ run }) => run.measures.energy_j.mean ?? NaN);
  const texts = series.map(({ run, name }) => `${name} ${withInterval(run.measures.energy_j, joules)}`);
  return (
    `Energy that each client spent on training and uploads, late and failed ones included. ` +
    `All clients together: ${listedRuns(texts, totals)}.`
  );
}

function participationSummary(series) {
  const parts = series.map(({ run, name }) => {
    const minimum = `min. participation ${share(run.measures.min_participation.mean)}`;
    return run.below_quota === null
      ? `${name}: ${minimum}`
      : `${name}: ${run.below_quota || "no"} of ${plural(run.clients, "client")} below quota on average, ${minimum}`;
  });
  const minima = series.map(({ run }) => run.measures.min_participation.mean);
  return `${series.length > MAX_COLUMNS ? listedRuns(parts, minima) : parts.join("; ")}.`;
}

function queueFigures() {
  return [
    lineFigure({
      title: "Longest queue after each round",
      xLabel: "round",
      yLabel: "rounds behind quota",
      form: (v) => fixed(v, 2),
      xForm: roundForm,
      series: () => runCurves("queue"),
      zero: true,
      floor: 0,
      summary: endings((v) => fixed(v, 2), null, "After the last round, longest of all clients"),
      empty: "No queues were recorded in this run.",
    }),
    queueHeatmap(),
  ];
}

function delayFigure() {
  const state = { by: "client" };
  const controls = el(
    "div",
    { class: "switch", role: "group", "aria-label": "Group delays by" },
    ["client", "channel"].map((by) =>
      el(
        "button",
        {
          type: "button",
          "aria-pressed": String(by === state.by),
          onclick: (event) => {
            state.by = by;
            for (const button of controls.children)
              button.setAttribute("aria-pressed", String(button === event.currentTarget));
            notify("view");
          },
        },
        `by ${by}`,
      ),
    ),
  );
  const rows = () => {
    const run = shownRun();
    const { download_s, compute_s, upload_s, late, uploads } = run.parts[state.by];
    return [...uploads.values].flatMap((count, k) =>
      count
        ? [
            {
              name: `${state.by} ${k * (state.by === "client" ? model.clientEvery : model.channelEvery)}`,
              parts: [download_s.values[k], compute_s.values[k], upload_s.values[k]],
              note: `${percent(late.values[k])} of ${fixed(count, 0)} late`,
            },
          ]
        : [],
    );
  };
  return barFigure({
    title: "Parts of the delay",
    controls,
    rows,
    empty: "No upload was recorded in this run.",
    mark: () => (shownRun().deadline_s ? { value: shownRun().deadline_s, name: "deadline" } : null),
    summary: (shown) => delaySummary(shown, state.by),
  });
}

function delaySummary(rows, by) {
  const run = shownRun();
  if (!rows.length) return "";
  const total = (row) => row.parts.reduce((sum, part) => sum + (part || 0), 0);
  const slowest = rows.reduce((a, b) => (total(b) > total(a) ? b : a));
  return (
    `${run.name}, mean over all assigned rounds and ${plural(run.seed_count, "seed")}, ` +
    "including late ones, not capped at the deadline. " +
    `Slowest ${by}: ${slowest.name.replace(`${by} `, "")} with ${seconds(total(slowest))}.`
  );
}
