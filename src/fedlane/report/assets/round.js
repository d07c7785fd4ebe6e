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
  const queues = el("div", { class: "queues-now" });
  const card = el(
    "section",
    { class: "card", "aria-labelledby": "round-title" },
    heading,
    note,
    legend,
    holder,
    queues,
  );

  function redraw() {
    const run = shownRun();
    if (!run) return;
    const slots = keptRounds(run) ? slotsAt(run, view.seed, view.at) : [];
    const round = roundAt(run, view.at);
    heading.textContent = `Round ${keptRounds(run) ? round + 1 : 0}`;
    note.textContent = keptRounds(run) ? roundFacts(run, round) : "No round has been completed yet.";
    holder.replaceChildren(slots.length ? slotTable(run, slots) : emptyPlot("No client was assigned."));
    queues.replaceChildren(...(keptRounds(run) && run.clients <= 30 ? queuesNow(run, round, slots) : []));
  }

  on("data view round", redraw);
  return card;
}

function roundFacts(run, round) {
  const accuracy = accuracyAt(run, view.seed, round);
  const facts = [
    `took ${seconds(delayAt(run, view.seed, round))}`,
    `simulated time ${duration(clockAt(run, view.seed, round))}`,
  ];
  if (Number.isFinite(accuracy)) facts.push(`accuracy ${percent(accuracy)}`);
  return `${facts.join(", ")}.`.replace(/^t/, "T");
}

function slotTable(run, slots) {
  const maxRows = 40;
  const longest = Math.max(...slots.map((slot) => (Number.isFinite(slot.total) ? slot.total : 0)), 1e-9);
  const deadline = run.deadline_s ?? longest;
  const span = Math.max(deadline, Math.min(longest, 1.6 * deadline));
  const head = el(
    "tr",
    {},
    ["client", "channel", "time", "delay", ""].map((text, k) =>
      el("th", { scope: "col", class: k === 2 ? "bar" : null }, text || el("span", { class: "visually-hidden" }, "outcome")),
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
        el("td", { class: "outcome" }, slot.punctual ? "on time" : "late"),
      ),
    );
  if (slots.length > maxRows) rows.push(el("tr", {}, el("td", { colspan: 5 }, `and ${slots.length - maxRows} more`)));
  return el("table", { class: "slots" }, el("thead", {}, head), el("tbody", {}, rows));
}

/* The queue of each client after this round. */
function queuesNow(run, round, slots) {
  const values = Array.from({ length: run.clients }, (_, client) => queueAt(run, view.seed, round, client));
  if (!values.some(Number.isFinite)) return [];
  const high = Math.max(heatLargest(run), 1);
  const served = new Set(slots.filter((slot) => slot.punctual).map((slot) => slot.client));
  const columns = values.map((value, client) => {
    const bar = el("i");
    bar.style.height = `${Math.max(1, (56 * (value || 0)) / high)}px`;
    const column = el("span", { class: served.has(client) ? "served" : null }, bar, el("b", {}, String(client)));
    column.addEventListener("pointermove", (event) => showTip(event, [`client ${client}: queue ${fixed(value, 2)}`]));
    column.addEventListener("pointerleave", hideTip);
    return column;
  });
  const words = values.map((value, client) => `client ${client} ${fixed(value, 1)}`).join(", ");
  return [
    el("h4", {}, `Queues after this round (largest of all rounds: ${fixed(heatLargest(run), 1)})`),
    el("div", { class: "columns", role: "img", "aria-label": `Queues: ${words}` }, columns),
  ];
}

/* The parts of a delay end to end, scaled to a span; a longer delay is cut off with an arrow. */
function slotBar(run, slot, span) {
  const bar = svg("svg", {
    class: "slot-bar",
    viewBox: "0 0 100 10",
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": slot.parts.map((part, k) => `${PHASES[k].name} ${seconds(part)}`).join(", "),
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
  bar.addEventListener("pointermove", (event) =>
    showTip(event, [
      el("div", { class: "tip-head" }, `client ${slot.client}, channel ${slot.channel}`),
      ...slot.parts.map((part, k) => tipRow(PHASES[k].colour, PHASES[k].name, seconds(part))),
      `${seconds(slot.total)}, ${lateness(slot, run)}`,
    ]),
  );
  bar.addEventListener("pointerleave", hideTip);
  return bar;
}
