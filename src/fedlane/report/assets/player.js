/* Selection of run, seed and round: selectors, a slider, play and pause. */

const FRAME_MS = 350;

function chooseRound(at) {
  const last = keptRounds(shownRun()) - 1;
  view.at = Math.max(0, Math.min(last, at));
  view.follow = view.at === last;
  notify("round");
}

function stepRound(by) {
  pause();
  chooseRound(view.at + by);
}

let timer = 0;

function play() {
  if (view.playing) return;
  if (view.at >= keptRounds(shownRun()) - 1) view.at = 0;
  view.playing = true;
  timer = setInterval(() => {
    if (view.at >= keptRounds(shownRun()) - 1) pause();
    else chooseRound(view.at + 1);
  }, FRAME_MS);
  notify("round");
}

function pause() {
  if (!view.playing) return;
  view.playing = false;
  clearInterval(timer);
  notify("round");
}

function chooser(label, id, choose) {
  const select = el("select", { id, onchange: () => choose(Number(select.value)) });
  const field = el("label", { class: "field" }, el("span", {}, label), select);
  field.fill = (names, chosen) => {
    const kept = names.join("\n");
    if (select.dataset.kept !== kept) {
      select.dataset.kept = kept;
      select.replaceChildren(...names.map((name, k) => el("option", { value: k }, name)));
    }
    select.value = String(chosen);
    field.hidden = names.length < 2;
  };
  return field;
}

function roundPlayer() {
  const runs = chooser("Run", "choose-run", (k) => selectRun(k, view.seed));
  const seeds = chooser("Seed", "choose-seed", (k) => selectRun(view.run, k));
  const slider = el("input", {
    type: "range",
    id: "slider",
    min: 1,
    step: 1,
    "aria-label": "Round",
    oninput: () => {
      pause();
      chooseRound(Number(slider.value) - 1);
    },
  });
  const button = el("button", { type: "button", class: "play", onclick: () => (view.playing ? pause() : play()) });
  const back = el(
    "button",
    { type: "button", class: "step", "aria-label": "Previous round", onclick: () => stepRound(-1) },
    "‹",
  );
  const next = el(
    "button",
    { type: "button", class: "step", "aria-label": "Next round", onclick: () => stepRound(1) },
    "›",
  );
  const where = el("output", { class: "where", for: "slider" });
  const player = el(
    "div",
    { class: "player card", role: "group", "aria-label": "Choose a round" },
    el("div", { class: "fields" }, runs, seeds),
    el("div", { class: "transport" }, back, button, next, slider, where),
  );

  function redraw() {
    const run = shownRun();
    if (!run) return;
    const count = keptRounds(run);
    runs.fill(
      model.runs.map(({ name }) => name),
      view.run,
    );
    seeds.fill(run.seeds, view.seed);
    slider.max = String(Math.max(1, count));
    slider.value = String(view.at + 1);
    slider.disabled = button.disabled = back.disabled = next.disabled = count < 2;
    slider.setAttribute("aria-valuetext", count ? roundText(run) : "no round yet");
    slider.style.setProperty("--done", `${count > 1 ? (100 * view.at) / (count - 1) : 0}%`);
    button.textContent = view.playing ? "Pause" : "Play";
    where.textContent = count ? `${roundAt(run, view.at) + 1} / ${run.rounds}` : "";
  }

  on("data view round", redraw);
  return player;
}

function selectRun(run, seed) {
  view.run = run;
  view.seed = Math.min(seed, shownRun().detail.seeds - 1);
  view.at = Math.max(0, Math.min(view.at, keptRounds(shownRun()) - 1));
  notify("view");
}

function roundText(run) {
  const slots = slotsAt(run, view.seed, view.at);
  const late = slots.filter((slot) => !slot.punctual).length;
  const round = roundAt(run, view.at);
  const absent = absentAt(run, view.seed, view.at).length;
  return (
    `round ${round + 1} of ${run.rounds}, ${plural(slots.length, "client")}, ${late || "none"} late, ` +
    `${absent ? `${absent} absent, ` : ""}` +
    `${seconds(delayAt(run, view.seed, view.at))}`
  );
}

/* Arrow keys select a round unless the focused element uses them. */
function addKeys() {
  document.addEventListener("keydown", (event) => {
    const used = event.target.closest?.("input, select, textarea, summary, .scroll, [tabindex='0']");
    if (used || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey || !shownRun()) return;
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    stepRound(by);
    announce(roundText(shownRun()));
  });
}
