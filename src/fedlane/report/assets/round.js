/* One round as a table: the client of each channel, and the parts of its delay relative to the deadline. */

function roundTable() {
  const holder = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Clients of this round" });
  const heading = el("h3", { id: "round-title" }, "This round");
  const note = el("p", { class: "note" });
  const legend = el(
    "div",
    { class: "legend" },
    PHASES.map((phase) =>
      el(
        "span",
        { class: "entry" },
        svg(
          "svg",
          { width: 14, height: 12, "aria-hidden": "true" },
          svg("rect", { width: 12, height: 12, rx: 2, fill: phase.colour }),
        ),
        phase.name,
      ),
    ),
  );
  const predicted = el("div", { class: "legend predicted" }, predictionLegend());
  const queues = el("div", { class: "queues-now" });
  const save = saveButtons({
    title: "Delays of a round",
    name: () => `${roundAt(shownRun(), view.at) + 1} ${shownName()}`,
    legend: () => PHASES.map((phase) => ({ ...phase, shape: "square" })),
    draw: drawSlots,
    csv: () => slotsCsv(shownRun(), view.at),
  });
  const card = el(
    "section",
    { class: "card", "aria-labelledby": "round-title" },
    heading,
    note,
    legend,
    predicted,
    holder,
    save,
    queues,
  );

  function redraw() {
    const run = shownRun();
    if (!run) return;
    const slots = keptRounds(run) ? slotsAt(run, view.seed, view.at) : [];
    const round = roundAt(run, view.at);
    heading.textContent = `Round ${keptRounds(run) ? round + 1 : 0}`;
    note.textContent = keptRounds(run) ? roundFacts(run) : "No round has been completed yet.";
    holder.replaceChildren(slots.length ? slotTable(run, slots) : emptyPlot("No client was assigned."));
    save.hidden = !slots.length;
    predicted.hidden = !run.detail.predicted;
    queues.replaceChildren(...(keptRounds(run) && run.clients <= 30 ? queuesNow(run, round, card) : []));
  }

  on("data view round", redraw);
  return card;
}

function roundFacts(run) {
  const accuracy = accuracyAt(run, view.seed, view.at);
  const facts = [
    `took ${seconds(delayAt(run, view.seed, view.at))}`,
    `simulated time ${clockText(clockAt(run, view.seed, view.at))}`,
  ];
  const slots = slotsAt(run, view.seed, view.at);
  const energy = slots.reduce((sum, slot) => sum + slot.energy, 0);
  if (run.detail.energy_j) facts.push(`energy ${joules(energy)}`);
  if (Number.isFinite(accuracy)) facts.push(`accuracy ${percent(accuracy)}`);
  if (run.detail.predicted) facts.push(coveredFact(slots));
  return `${facts.filter(Boolean).join(", ")}.`.replace(/^t/, "T");
}

function slotTable(run, slots) {
  const maxRows = 40;
  const longest = Math.max(...slots.map((slot) => (Number.isFinite(slot.total) ? slot.total : 0)), 1e-9);
  const deadline = run.deadline_s ?? longest;
  const span = Math.max(deadline, Math.min(longest, 1.6 * deadline));
  const energy = Boolean(run.detail.energy_j);
  const head = el(
    "tr",
    {},
    ["client", "channel", "time", "delay", ...(energy ? ["energy"] : []), ""].map((text, k) =>
      el(
        "th",
        { scope: "col", class: k === 2 ? "bar" : k > 2 ? "number" : null },
        text || el("span", { class: "visually-hidden" }, "outcome"),
      ),
    ),
  );
  const rows = slots
    .slice(0, maxRows)
    .map((slot) =>
      el(
        "tr",
        { class: slot.punctual ? null : "late" },
        el("th", { scope: "row" }, String(slot.client)),
        el("td", {}, String(slot.channel)),
        el("td", { class: "bar" }, slotBar(run, slot, span)),
        el("td", {}, seconds(slot.total)),
        energy ? el("td", {}, joules(slot.energy)) : null,
        el("td", { class: "outcome" }, slot.punctual ? "on time" : "late"),
      ),
    );
  if (slots.length > maxRows) rows.push(el("tr", {}, el("td", { colspan: energy ? 6 : 5 }, `and ${slots.length - maxRows} more`)));
  return el("table", { class: "slots" }, el("thead", {}, head), el("tbody", {}, rows));
}

/* The round's delays as one chart, for saving: the page shows them in a table. */
function drawSlots(width) {
  const run = shownRun();
  const rows = slotsAt(run, view.seed, view.at).map((slot) => ({
    name: `client ${slot.client}, channel ${slot.channel}`,
    parts: slot.parts,
    note: slot.punctual ? "on time" : "late",
    slot,
  }));
  const mark = run.deadline_s ? { value: run.deadline_s, name: "deadline" } : null;
  return drawBars({ title: "Delays of a round", rows: () => rows, mark: () => mark }, width, new Set(), null);
}

/* The queue of each client after this round. */
function queuesNow(run, round, card) {
  const values = Array.from({ length: run.clients }, (_, client) => queueAt(run, view.seed, round, client));
  if (!values.some(Number.isFinite)) return [];
  const words = values.map((value, client) => `client ${client} ${fixed(value, 2)}`).join(", ");
  const save = saveButtons({
    title: "Queues after a round",
    name: () => `${round + 1} ${shownName()}`,
    summary: () => words,
    draw: (width) => drawQueues(run, values, width),
    csv: () => [["round", "client", "queue"], values.map((value, client) => [round + 1, client, value])],
  });
  return [
    el("h4", {}, `Queues after this round (longest of this seed in all rounds: ${fixed(heatLargest(run), 2)})`),
    drawQueues(run, values, Math.max(200, card.clientWidth - 40), words),
    save,
  ];
}

function drawQueues(run, values, width, words) {
  const [tall, step] = [56, width / run.clients];
  const high = Math.max(heatLargest(run), 1);
  const served = new Set(slotsAt(run, view.seed, view.at).flatMap((slot) => (slot.punctual ? [slot.client] : [])));
  const picture = svg("svg", {
    class: "columns",
    width,
    height: tall + 22,
    viewBox: `0 0 ${width} ${tall + 22}`,
    role: "img",
    "aria-label": `Queues: ${words}`,
  });
  values.forEach((value, client) => {
    const [size, wide] = [Math.max(1, (tall * (value || 0)) / high), Math.min(34, step - 4)];
    const middle = (client + 0.5) * step;
    const column = svg(
      "g",
      { class: served.has(client) ? "served" : null },
      svg("rect", { x: middle - wide / 2, y: tall - size, width: wide, height: size, rx: 2 }),
      svg("text", { x: middle, y: tall + 16, "text-anchor": "middle" }, String(client)),
    );
    column.addEventListener("pointermove", (event) => showTip(event, [`client ${client}: queue ${fixed(value, 2)}`]));
    column.addEventListener("pointerleave", hideTip);
    picture.append(column);
  });
  picture.append(svg("path", { class: "grid", d: `M0 ${tall + 0.5}H${width}` }));
  return picture;
}

/* The parts of a delay end to end, scaled to a span; a longer delay is cut off with an arrow. */
function slotBar(run, slot, span) {
  const texts = slot.parts.map((part, k) => `${PHASES[k].name} ${seconds(part)}`);
  if (slot.predicted) texts.push(predictionText(slot.predicted));
  const bar = svg("svg", {
    class: slot.predicted ? "slot-bar with-interval" : "slot-bar",
    viewBox: slot.predicted ? "0 0 100 17" : "0 0 100 10",
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": texts.join(", "),
  });
  let from = 0;
  slot.parts.forEach((part, k) => {
    if (!(part > 0)) return;
    const to = Math.min(span, from + part);
    bar.append(
      svg("rect", {
        x: (100 * from) / span,
        y: 1,
        width: Math.max(0, (100 * (to - from)) / span - 0.4),
        height: 8,
        fill: PHASES[k].colour,
      }),
    );
    from = to;
  });
  if (slot.total > span) bar.append(svg("path", { d: "M97 0L100 5L97 10Z", fill: "var(--late)" }));
  if (run.deadline_s !== null) {
    const at = Math.min(99.6, (100 * run.deadline_s) / span);
    bar.append(svg("path", { class: "deadline", d: `M${at} 0V10` }));
  }
  if (slot.predicted) bar.append(predictionMark(slot, (value) => Math.min(99.6, (100 * value) / span), 11.5, 5));
  bar.addEventListener("pointermove", (event) =>
    showTip(event, [
      el("div", { class: "tip-head" }, `client ${slot.client}, channel ${slot.channel}`),
      ...slot.parts.map((part, k) => tipRow(PHASES[k].colour, PHASES[k].name, seconds(part))),
      `${seconds(slot.total)}, ${lateness(slot, run)}`,
      ...(slot.predicted ? [predictionText(slot.predicted)] : []),
    ]),
  );
  bar.addEventListener("pointerleave", hideTip);
  return bar;
}
