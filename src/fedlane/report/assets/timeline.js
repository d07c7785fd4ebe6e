/* The timeline: one column per round, one row per client, with the channel in the cell. */

const LINE = { left: 40, top: 22, below: 4, strip: 64 };

function roundTimeline() {
  return figureCard({
    title: "Timeline",
    wide: true,
    when: "data theme view round",
    summary: () => timelineSummary(shownRun()),
    legend: () => [
      { name: "on time (fainter if fast)", colour: "var(--ok)", shape: "square", fixed: true },
      { name: "late", colour: "var(--late)", shape: "square", fixed: true },
      ...(shownRun().detail.present
        ? [{ name: "absent", colour: "var(--mid)", shape: "tick", fixed: true }]
        : []),
    ],
    table: () => timelineTable(shownRun(), 30),
    draw: (width) => drawTimeline(shownRun(), width),
    vector: (width) => vectorTimeline(shownRun(), width),
    csv: () => slotsCsv(shownRun()),
    name: shownName,
  });
}

function timelineSummary(run) {
  const every = run.detail.every;
  const thinned = every > 1 ? ` This page contains one in every ${every} rounds.` : "";
  return (
    `${run.name}, seed ${run.seeds[view.seed]}: the assigned clients, with their channels. ` +
    `The strip below shows the duration of every round. Click on either to select a round.${thinned}`
  );
}

/* The range of rounds that fits, around the selected one. */
function timelineWindow(run, width) {
  const count = keptRounds(run);
  const cell = 18;
  const fit = Math.max(1, Math.floor((width - LINE.left - 8) / cell));
  const size = Math.min(count, fit);
  const first = Math.max(0, Math.min(count - size, view.at - Math.floor(size / 2)));
  return {
    first,
    size,
    cell: count <= fit ? Math.min(30, Math.floor((width - LINE.left - 8) / Math.max(size, 1))) : cell,
  };
}

function timelineLayout(run, width) {
  const row = run.clients <= 24 ? 18 : Math.max(4, Math.floor(430 / run.clients));
  return { row, height: LINE.top + row * run.clients + LINE.below, window: timelineWindow(run, width) };
}

function drawTimeline(run, width) {
  if (!keptRounds(run)) return emptyPlot("No round has been completed yet.");
  const { row, height, window } = timelineLayout(run, width);
  const canvas = sharpCanvas(width, height);
  canvas.setAttribute("role", "img");
  canvas.setAttribute(
    "aria-label",
    `Assignments of rounds ${roundAt(run, window.first) + 1} to ${roundAt(run, window.first + window.size - 1) + 1}`,
  );
  paintTimeline(canvas.getContext("2d"), run, { row, window });
  canvas.addEventListener("pointermove", (event) => timelineTip(event, canvas, run, { row, window }));
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("click", (event) => {
    const k = Math.floor((event.clientX - canvas.getBoundingClientRect().left - LINE.left) / window.cell);
    if (k >= 0 && k < window.size) chooseRound(window.first + k);
  });
  return el("div", {}, canvas, drawStrip(run, width, window));
}

/* The timeline and the strip below it as one SVG. */
function vectorTimeline(run, width) {
  const { row, height, window } = timelineLayout(run, width);
  const pen = new SvgPen(width, height + LINE.strip);
  paintTimeline(pen, run, { row, window });
  pen.shift = height;
  paintStrip(pen, run, width, window);
  return pen.finished();
}

function paintTimeline(pen, run, { row, window }) {
  timelineGrid(pen, run, { row, window });
  for (let k = 0; k < window.size; k++) {
    timelineAbsent(pen, run, k, row, window);
    for (const slot of slotsAt(run, view.seed, window.first + k)) timelineCell(pen, run, slot, k, row, window.cell);
  }
}

function timelineGrid(pen, run, { row, window }) {
  pen.font = "11.5px system-ui, sans-serif";
  pen.textAlign = "end";
  const bottom = LINE.top + row * run.clients;
  const every = Math.ceil(13 / row);
  for (let client = 0; client < run.clients; client++) {
    if (row > 10) {
      pen.fillStyle = colour("--line");
      pen.fillRect(LINE.left, LINE.top + client * row + row - 1, window.size * window.cell, 1);
    }
    pen.fillStyle = colour("--ink-2");
    if (client % every === 0) pen.fillText(String(client), LINE.left - 8, LINE.top + client * row + row / 2 + 4);
  }
  pen.textAlign = "center";
  const now = LINE.left + (view.at - window.first) * window.cell;
  pen.fillStyle = colour("--shade");
  pen.fillRect(now, 0, window.cell, bottom);
  const step = Math.ceil(44 / window.cell);
  for (let k = 0; k < window.size; k++) {
    const at = window.first + k;
    const chosen = at === view.at;
    if (!chosen && (at % step || Math.abs(at - view.at) * window.cell < 34)) continue;
    pen.fillStyle = colour(chosen ? "--ink" : "--ink-2");
    pen.font = `${chosen ? "600 " : ""}11.5px system-ui, sans-serif`;
    pen.fillText(String(roundAt(run, at) + 1), LINE.left + (k + 0.5) * window.cell, 14);
  }
}

/* Late cells fill their row; cells on time are lower, and fainter the faster they were. */
function timelineCell(pen, run, slot, k, row, cell) {
  const x = LINE.left + k * cell;
  const y = LINE.top + slot.client * row;
  const inset = slot.punctual && row > 10 ? 3 : row > 10 ? 1 : 0;
  const used = run.deadline_s ? Math.min(1, slot.total / run.deadline_s) : 1;
  pen.globalAlpha = slot.punctual ? 0.3 + 0.7 * used : 1;
  pen.fillStyle = colour(slot.punctual ? "--ok" : "--late");
  pen.fillRect(x + 1, y + inset, cell - 2, row - 2 * inset - (row > 6 ? 1 : 0));
  pen.globalAlpha = 1;
  if (row < 14 || cell < 15) return;
  pen.fillStyle = slot.punctual && used < 0.5 ? colour("--ink") : colour("--on-mark");
  pen.font = "10.5px system-ui, sans-serif";
  pen.textAlign = "center";
  pen.fillText(String(slot.channel), x + cell / 2, y + row / 2 + 3.5);
}

/* A thin line through the rounds in which a client was not there. */
function timelineAbsent(pen, run, k, row, { first, cell }) {
  pen.fillStyle = colour("--mid");
  const thick = row > 10 ? 2 : 1;
  for (const client of absentAt(run, view.seed, first + k))
    pen.fillRect(LINE.left + k * cell, LINE.top + client * row + Math.floor((row - thick) / 2), cell, thick);
}

function timelineTip(event, canvas, run, { row, window }) {
  const place = canvas.getBoundingClientRect();
  const k = Math.floor((event.clientX - place.left - LINE.left) / window.cell);
  const client = Math.floor((event.clientY - place.top - LINE.top) / row);
  if (k < 0 || k >= window.size) return hideTip();
  const slot = slotsAt(run, view.seed, window.first + k).find((assigned) => assigned.client === client);
  const absent = client >= 0 && client < run.clients && !presentAt(run, view.seed, window.first + k, client);
  if (!slot && !absent) return hideTip();
  return showTip(event, [
    el("div", { class: "tip-head" }, `round ${roundAt(run, window.first + k) + 1}, client ${client}`),
    !slot ? "absent" : `channel ${slot.channel}, ${seconds(slot.total)}, ${lateness(slot, run)}`,
  ]);
}

/* Whether any client was late, for every embedded round of the selected seed; cached. */
const lateBySeed = new WeakMap();

function lateRounds(run) {
  if (!lateBySeed.has(run)) lateBySeed.set(run, new Map());
  const bySeed = lateBySeed.get(run);
  if (!bySeed.has(view.seed)) {
    const late = Array.from({ length: keptRounds(run) }, (_, at) =>
      slotsAt(run, view.seed, at).some((slot) => !slot.punctual),
    );
    bySeed.set(view.seed, late);
  }
  return bySeed.get(view.seed);
}

function drawStrip(run, width, window) {
  const canvas = sharpCanvas(width, LINE.strip);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Duration of every round; use the slider to select one");
  canvas.classList.add("strip");
  paintStrip(canvas.getContext("2d"), run, width, window);
  const choose = (event) => {
    const share = (event.clientX - canvas.getBoundingClientRect().left - LINE.left) / (width - LINE.left - 8);
    const count = keptRounds(run);
    chooseRound(Math.max(0, Math.min(count - 1, Math.floor(share * count))));
  };
  canvas.addEventListener("pointerdown", choose);
  canvas.addEventListener("pointermove", (event) => event.buttons && choose(event));
  return canvas;
}

/* The duration of every round as a bar; the window shown above is shaded. */
function paintStrip(pen, run, width, window) {
  const count = keptRounds(run);
  const plot = width - LINE.left - 8;
  const tall = LINE.strip - 22;
  const delays = Array.from({ length: count }, (_, at) => delayAt(run, view.seed, at) || 0);
  const high = delays.reduce((a, b) => Math.max(a, b), run.deadline_s ?? 0) || 1;
  const late = lateRounds(run);
  pen.fillStyle = colour("--shade");
  pen.fillRect(LINE.left + (window.first * plot) / count, 4, (window.size * plot) / count, tall + 4);
  delays.forEach((delay, at) => {
    const size = Math.max(1, (delay / high) * tall);
    pen.fillStyle = colour(late[at] ? "--late" : "--ok");
    pen.fillRect(
      LINE.left + (at * plot) / count,
      8 + tall - size,
      Math.max(0.6, plot / count - (plot / count > 3 ? 1 : 0)),
      size,
    );
  });
  pen.fillStyle = colour("--ink");
  pen.fillRect(LINE.left + ((view.at + 0.5) * plot) / count - 1, 2, 2, tall + 10);
  pen.fillStyle = colour("--ink-2");
  pen.font = "11.5px system-ui, sans-serif";
  pen.textAlign = "end";
  pen.fillText(seconds(high), LINE.left - 6, 16);
}

/* The selected round and those around it. */
function timelineTable(run, size) {
  const first = Math.max(0, Math.min(keptRounds(run) - size, view.at - Math.floor(size / 2)));
  const rows = [];
  for (let at = first; at < Math.min(first + size, keptRounds(run)); at++) {
    for (const slot of slotsAt(run, view.seed, at)) {
      rows.push([
        String(roundAt(run, at) + 1),
        String(slot.client),
        String(slot.channel),
        ...slot.parts.map(seconds),
        seconds(slot.total),
        lateness(slot, run),
      ]);
    }
  }
  return [["round", "client", "channel", "download", "compute", "upload", "delay", "outcome"], rows];
}

/* The assignments of all embedded rounds of the selected run and seed, or of one of them. */
function slotsCsv(run, only) {
  const rows = [];
  for (let at = 0; at < keptRounds(run); at++) {
    if (only !== undefined && at !== only) continue;
    for (const slot of slotsAt(run, view.seed, at)) {
      const { low, median, high } = slot.predicted ?? {};
      const first = [roundAt(run, at) + 1, slot.client, slot.channel, ...slot.parts, slot.total, slot.punctual, slot.energy];
      rows.push([...first, ...(run.detail.predicted ? [low, median, high] : [])]);
    }
  }
  const parts = ["download_s", "compute_s", "upload_s", "delay_s"];
  const predicted = run.detail.predicted ? ["predicted_low_s", "predicted_median_s", "predicted_high_s"] : [];
  return [["round", "client", "channel", ...parts, "punctual", "energy_j", ...predicted], rows];
}
