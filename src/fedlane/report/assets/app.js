/* The page as a whole: header, sections, theme, and updates with new data. */

const SECTIONS = [
  ["overview", "Overview", () => [overview()]],
  ["rounds", "Rounds", () => [roundPlayer(), el("div", { class: "two" }, roundMap(), roundTable()), roundTimeline()]],
  ["learning", "Learning", () => [el("div", { class: "two" }, learningFigures())]],
  ["service", "Participation", () => [el("div", { class: "two" }, participationFigures())]],
  ["queues", "Queues", () => queueFigures()],
  ["delays", "Delays", () => [...timeFigures(), delayFigure()]],
  ["predictions", "Predictions", () => [coverageFigure()], () => model.runs.some((run) => run.curves.coverage)],
  ["energy", "Energy", () => [energyFigure()], () => model.runs.some((run) => run.per_client.energy_j)],
  ["privacy", "Privacy", () => [el("div", { class: "two" }, privacyFigures())]],
  ["scenario", "Scenario", () => [scenarios()]],
];

/* The sections of a page of runs, or of a sweep; a section may be left out where there is nothing to show. */
function pageSections() {
  return model.sweep ? sweepSections() : SECTIONS.filter(([, , , shown]) => !shown || shown());
}

function start() {
  loadData(JSON.parse(byId("data").textContent));
  applyTheme(storedTheme());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours.clear();
    notify("theme");
  });
  addKeys();
  addEventListener("scroll", hideTip, { passive: true });
  build();
  if (model.live) poll();
  document.documentElement.dataset.ready = "yes";
}

/* The page is rebuilt only if this text changes; otherwise new data goes into the existing figures. */
function structure() {
  return JSON.stringify(
    model.runs.map((run) => [
      ...[run.name, run.clients, run.channels, run.privacy?.delta],
      ...["epsilon", "energy_j"].map((column) => Boolean(run.per_client[column])),
      isAbsenceShown(run),
      Boolean(run.curves.coverage),
    ]),
  );
}

let built = "";

function update(data) {
  loadData(data);
  if (structure() !== built) return build();
  if (model.runs.length) clampView(view.follow ? Infinity : view.at);
  showHead();
  return notify("data");
}

/* Limit run, seed and round to the available data. */
function clampView(at) {
  view.run = Math.min(view.run, model.runs.length - 1);
  view.seed = Math.min(view.seed, shownRun().detail.seeds - 1);
  view.at = Math.max(0, Math.min(at, keptRounds(shownRun()) - 1));
}

function build() {
  built = structure();
  listeners.clear();
  showHead();
  showFoot();
  on("data", showFoot);
  if (!model.runs.length && !model.sweep) {
    byId("content").replaceChildren(
      el(
        "p",
        { class: "empty" },
        "Nothing has been written to this folder yet. The page will show the run once its first rounds are written.",
      ),
    );
    return;
  }
  if (model.sweep) startSlice();
  else startView();
  byId("content").replaceChildren(
    ...pageSections().map(([id, name, make]) =>
      el(
        "section",
        { id, class: "part", "aria-labelledby": `${id}-title` },
        el("h2", { id: `${id}-title` }, name),
        make(),
      ),
    ),
  );
  notify("data");
}

/* Start with the first run, or with the last round of the one that is running. */
function startView() {
  const running = model.runs.findIndex((run) => run.state === "running");
  view.run = model.live && running >= 0 ? running : 0;
  view.seed = 0;
  view.follow = model.live && running >= 0;
  clampView(view.follow ? Infinity : 0);
}

function showHead() {
  const names = model.sweep ? [model.sweep.scenario] : [...new Set(model.runs.map((run) => run.scenario))];
  const top = byId("top");
  if (!top.childElementCount) {
    top.append(
      el(
        "div",
        { class: "head-bar" },
        el("a", { class: "brand", href: "#top" }, "FedLane"),
        el(
          "nav",
          { "aria-label": "Sections" },
          pageSections().map(([id, name]) => el("a", { href: `#${id}` }, name)),
        ),
        el("button", { type: "button", id: "theme", class: "theme", onclick: toggleTheme }),
      ),
      el(
        "div",
        { class: "title" },
        el("h1", { id: "heading" }),
        el("p", { id: "facts", class: "facts" }),
        el("p", { id: "state", class: "state", role: "status" }),
      ),
    );
    showThemeName();
  }
  byId("heading").textContent = names.join(" and ") || "Waiting for a run";
  byId("facts").textContent = model.sweep ? sweepFacts() : model.runs.length ? headFacts() : "";
  if (model.sweep) byId("state").hidden = true;
  else showState();
}

function headFacts() {
  const facts = new Set(
    model.runs.map((run) =>
      [
        plural(run.clients, "client"),
        plural(run.channels, "channel"),
        plural(run.rounds, "round"),
        run.seeds_text,
      ].join(", "),
    ),
  );
  return [runsText(), ...(facts.size === 1 ? facts : [])].join(" · ");
}

/* The runs by name; many runs by what differs between them. */
function runsText() {
  const names = listed(model.runs.map((run) => run.name));
  if (model.runs.length === 1) return names;
  const shared = model.policy ? `${model.policy}, ` : "";
  const differ = model.differences.length ? ` that differ in ${listed(model.differences.slice(0, 6))}` : "";
  return `${shared}${plural(model.runs.length, "run")}${model.runs.length > MAX_COLUMNS ? differ : `: ${names}`}`;
}

function showState() {
  const state = byId("state");
  const text = stateText();
  const unfinished = model.live || stateKind() !== "done" || text !== "finished";
  state.hidden = !unfinished;
  state.className = `state ${stateKind()}`;
  if (state.textContent !== text) state.textContent = text;
}

function showFoot() {
  const lines = model.sweep ? sweepFoot() : runsFoot();
  lines.push(`Generated by FedLane ${model.version}.`);
  byId("foot").replaceChildren(...lines.map((line) => el("p", {}, line)));
}

/* How to read the numbers of runs, and what was left out. */
function runsFoot() {
  const lines = [
    "Values are means over seeds. Bands, whiskers and brackets are 95% Student intervals; for epsilon they are " +
      "the minimum and maximum over seeds, and the largest epsilon is that of all clients and seeds. " +
      "Rounds are numbered from 1; clients and channels have the same indices as in the run’s tables.",
  ];
  for (const run of model.runs) {
    const { seeds, every, queue_every } = run.detail;
    const omitted = [];
    if (seeds < run.seed_count) omitted.push(`details of rounds only for the first ${seeds} of ${run.seed_count} seeds`);
    if (every > 1) omitted.push(`one in every ${every} rounds in the map and the timeline`);
    const moves = run.movement?.round ?? [];
    if (moves.length > 2 && moves[1] > moves[0] + 1)
      omitted.push(`positions of one in every ${moves[1] - moves[0]} rounds, with straight lines between them`);
    if (queue_every > 1) omitted.push(`one in every ${queue_every} rounds in the queue figure`);
    if (run.curves.every > 1) omitted.push(`one in every ${run.curves.every} rounds in the curves`);
    if (run.toml_shortened) omitted.push("the scenario with its long values shortened");
    if (omitted.length) lines.push(`${run.name}: to keep this page small, it contains ${omitted.join(", ")}.`);
  }
  if (model.clientEvery > 1)
    lines.push(`To keep this page small, figures per client show one in every ${model.clientEvery} clients.`);
  if (model.channelEvery > 1)
    lines.push(`To keep this page small, delays by channel show one in every ${model.channelEvery} channels.`);
  if (model.runs.some((run) => run.privacy?.randomness.includes("simulation")))
    lines.push("The noise of a simulation is determined by its seed, so it does not protect any data.");
  return lines;
}

function storedTheme() {
  try {
    return localStorage.getItem("fedlane-theme");
  } catch {
    return null; // a page opened from a file may have no storage
  }
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function applyTheme(theme) {
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
  colours.clear();
}

function showThemeName() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Switch to the ${isDark() ? "light" : "dark"} theme`);
}

function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  applyTheme(theme);
  try {
    localStorage.setItem("fedlane-theme", theme);
  } catch {
    /* the choice lasts until the page is closed */
  }
  showThemeName();
  notify("theme");
}
