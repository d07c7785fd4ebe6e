/* The page as a whole: header, sections, theme, and what happens when new data comes. */

const SECTIONS = [
  ["overview", "Overview", () => [overview()]],
  ["rounds", "Rounds", () => [roundPlayer(), el("div", { class: "two" }, roundMap(), roundTable()), roundTimeline()]],
  ["learning", "Learning", () => [el("div", { class: "two" }, learningFigures())]],
  ["service", "Participation", () => [el("div", { class: "two" }, participationFigures())]],
  ["queues", "Queues", () => queueFigures()],
  ["delays", "Delays", () => [...timeFigures(), delayFigure()]],
  ["privacy", "Privacy", () => [el("div", { class: "two" }, privacyFigures())]],
  ["scenario", "Scenario", () => [scenarios()]],
];

function start() {
  takeData(JSON.parse(byId("data").textContent));
  applyTheme(storedTheme());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    colours.clear();
    tell("theme");
  });
  addKeys();
  addEventListener("scroll", hideTip, { passive: true });
  build();
  if (model.live) poll();
  document.documentElement.dataset.ready = "yes";
}

/* What must be equal for new data to go into the page as it stands. */
function structure() {
  return JSON.stringify(
    model.runs.map((run) => [run.name, run.clients, run.channels, Boolean(run.per_client.epsilon)]),
  );
}

let built = "";

function renew(data) {
  takeData(data);
  if (structure() !== built) return build();
  if (model.runs.length) lookWithin(view.follow ? Infinity : view.at);
  showHead();
  return tell("data");
}

function lookWithin(at) {
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
  if (!model.runs.length) {
    byId("content").replaceChildren(
      el(
        "p",
        { class: "empty" },
        "Nothing has been written to this folder yet. The page shows the run as soon as its first rounds are there.",
      ),
    );
    return;
  }
  const running = model.runs.findIndex((run) => run.state === "running");
  view.run = model.live && running >= 0 ? running : 0;
  view.seed = 0;
  view.follow = model.live && running >= 0;
  lookWithin(view.follow ? Infinity : 0);
  byId("content").replaceChildren(
    ...SECTIONS.map(([id, name, make]) =>
      el(
        "section",
        { id, class: "part", "aria-labelledby": `${id}-title` },
        el("h2", { id: `${id}-title` }, name),
        make(),
      ),
    ),
  );
  tell("data");
}

function showHead() {
  const names = [...new Set(model.runs.map((run) => run.scenario))];
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
          SECTIONS.map(([id, name]) => el("a", { href: `#${id}` }, name)),
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
  byId("heading").textContent = names.join(" and ") || "A run that is about to start";
  byId("facts").textContent = model.runs.length ? headFacts() : "";
  showState();
}

function headFacts() {
  const facts = new Set(
    model.runs.map((run) =>
      [
        plural(run.clients, "client"),
        plural(run.channels, "channel"),
        plural(run.rounds, "round"),
        seedsText(run.seeds),
      ].join(", "),
    ),
  );
  const policies = model.runs.map((run) => run.name);
  return `${listed(policies)} · ${facts.size === 1 ? [...facts][0] : plural(model.runs.length, "run")}`;
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
  const lines = [
    "Means over seeds; bands, whiskers and brackets are 95% Student intervals, " +
      "for epsilon the smallest and largest over seeds. " +
      "Rounds are counted from 1; clients and channels carry their index in the tables.",
  ];
  for (const run of model.runs) {
    const { seeds, every, queue_every } = run.detail;
    const left = [];
    if (seeds < run.seeds.length) left.push(`rounds in detail for the first ${seeds} of ${run.seeds.length} seeds`);
    if (every > 1) left.push(`one round in ${every} in map and timeline`);
    if (queue_every > 1) left.push(`one round in ${queue_every} in the queues’ picture`);
    if (run.curves.every > 1) left.push(`one round in ${run.curves.every} in curves`);
    if (left.length) lines.push(`${run.name}: to keep this page small it holds ${left.join(", ")}.`);
  }
  if (model.runs.some((run) => run.privacy?.randomness.includes("simulation")))
    lines.push("A simulation’s noise follows from its seed: it protects nobody’s data.");
  lines.push(`Made by FedLane ${model.version}.`);
  byId("foot").replaceChildren(...lines.map((line) => el("p", {}, line)));
}

function storedTheme() {
  try {
    return localStorage.getItem("fedlane-theme");
  } catch {
    return null; // a file may not be allowed to store anything
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
  byId("theme").setAttribute("aria-label", `Change to the ${isDark() ? "light" : "dark"} theme`);
}

function toggleTheme() {
  const theme = isDark() ? "light" : "dark";
  applyTheme(theme);
  try {
    localStorage.setItem("fedlane-theme", theme);
  } catch {
    /* it lasts as long as the page */
  }
  showThemeName();
  tell("theme");
}
