/* Queues of all clients over all rounds of the selected run and seed; a stronger colour is a longer queue. */

const HEAT = { left: 40, top: 6, below: 38 };

function queueHeatmap() {
  const figure = figureCard({
    title: "Queue of every client",
    wide: true,
    when: "data theme view",
    summary: () => heatSummary(shownRun()),
    table: () => heatTable(shownRun()),
    draw: (width, hidden, note) => drawHeat(shownRun(), width, note),
    vector: (width) => vectorHeat(shownRun(), width),
    csv: () => heatCsv(shownRun()),
    name: shownName,
  });
  on("round", () => figure.querySelector(".now")?.dispatchEvent(new Event("move")));
  return figure;
}

function heatColumn(run, column) {
  const [, columns, clients] = run.detail.queue.shape;
  const from = (view.seed * columns + column) * clients;
  return run.detail.queue.values.subarray(from, from + clients);
}

/* The longest queue of the selected seed in all rounds, also in those that are not embedded. */
function heatLargest(run) {
  return run.detail.queue_largest[view.seed] ?? 0;
}

function heatSummary(run) {
  const every = run.detail.queue_every;
  const thinned = every > 1 ? ` One in every ${every} rounds is shown.` : "";
  return (
    `${run.name}, seed ${run.seeds[view.seed]}: number of rounds by which each client is behind its quota; ` +
    `the strongest colour is ${fixed(heatLargest(run), 1)}.${thinned}`
  );
}

function heatLayout(run, width) {
  const [, columns, clients] = run.detail.queue.shape;
  const row = Math.max(3, Math.min(18, Math.floor(260 / clients)));
  return { width, height: HEAT.top + row * clients + HEAT.below, plot: width - HEAT.left - 8, row, columns, clients };
}

function drawHeat(run, width, note) {
  const layout = heatLayout(run, width);
  if (!layout.columns || !layout.clients) return emptyPlot("No queues have been recorded yet.");
  const canvas = sharpCanvas(width, layout.height);
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Queue of every client over rounds");
  canvas.setAttribute("aria-describedby", note);
  paintHeat(canvas.getContext("2d"), run, layout);
  canvas.addEventListener("pointermove", (event) => heatTip(event, canvas, run, layout));
  canvas.addEventListener("pointerleave", hideTip);
  return el("div", { class: "over" }, canvas, heatMark(run, layout));
}

function vectorHeat(run, width) {
  const layout = heatLayout(run, width);
  const pen = new SvgPen(width, layout.height);
  paintHeat(pen, run, layout);
  return pen.finished();
}

function paintHeat(pen, run, layout) {
  const { columns, plot, row } = layout;
  const largest = heatLargest(run) || 1;
  pen.fillStyle = colour("--c0");
  for (let column = 0; column < columns; column++) {
    const from = Math.round((column * plot) / columns);
    const to = Math.max(from + 1, Math.round(((column + 1) * plot) / columns));
    heatColumn(run, column).forEach((value, client) => {
      if (!(value > 0)) return;
      pen.globalAlpha = Math.min(1, 0.06 + 0.94 * (value / largest));
      pen.fillRect(HEAT.left + from, HEAT.top + client * row, to - from, row - (row > 6 ? 1 : 0));
    });
  }
  pen.globalAlpha = 1;
  heatAxes(pen, run, layout);
}

/* A line at the selected round, which moves without redrawing the figure. */
function heatMark(run, { plot, row, clients }) {
  const mark = el("i", { class: "now" });
  mark.style.top = `${HEAT.top}px`;
  mark.style.height = `${row * clients}px`;
  const place = () => {
    mark.style.left = `${HEAT.left + (plot * (roundAt(run, view.at) + 0.5)) / run.rounds}px`;
  };
  mark.addEventListener("move", place);
  place();
  return mark;
}

function heatAxes(pen, run, { width, height, plot, row, clients }) {
  const sx = scale([0.5, run.rounds + 0.5], [HEAT.left, HEAT.left + plot]);
  pen.fillStyle = colour("--ink-2");
  pen.font = "11.5px system-ui, sans-serif";
  pen.textAlign = "end";
  const every = Math.ceil(14 / row);
  for (let client = 0; client < clients; client += every)
    pen.fillText(String(client), HEAT.left - 8, HEAT.top + client * row + row / 2 + 4);
  pen.textAlign = "center";
  for (const round of ticks(1, run.rounds, Math.max(2, Math.floor(width / 110))))
    pen.fillText(fixed(round, 0), Math.min(sx(round), width - 14), height - HEAT.below + 17);
  pen.textAlign = "end";
  pen.fillText("round", width - 8, height - 4);
  pen.textAlign = "start";
  pen.fillText("client", 0, height - HEAT.below + 17);
}

function heatTip(event, canvas, run, { plot, row }) {
  const place = canvas.getBoundingClientRect();
  const [, columns, clients] = run.detail.queue.shape;
  const column = Math.floor(((event.clientX - place.left - HEAT.left) / plot) * columns);
  const client = Math.floor((event.clientY - place.top - HEAT.top) / row);
  if (column < 0 || column >= columns || client < 0 || client >= clients) return hideTip();
  const value = heatColumn(run, column)[client];
  return showTip(event, [`round ${column * run.detail.queue_every + 1}, client ${client}: ${fixed(value, 2)}`]);
}

function heatTable(run) {
  const [, columns, clients] = run.detail.queue.shape;
  const step = Math.max(1, Math.ceil(columns / 12));
  const shown = Array.from({ length: columns }, (_, k) => k).filter((k) => (columns - 1 - k) % step === 0);
  const head = ["client", ...shown.map((column) => `round ${column * run.detail.queue_every + 1}`)];
  const rows = Array.from({ length: clients }, (_, client) => [
    String(client),
    ...shown.map((column) => fixed(heatColumn(run, column)[client], 2)),
  ]);
  return [head, rows];
}

function heatCsv(run) {
  const [, columns] = run.detail.queue.shape;
  const rows = [];
  for (let column = 0; column < columns; column++)
    heatColumn(run, column).forEach((value, client) => rows.push([column * run.detail.queue_every + 1, client, value]));
  return [["round", "client", "queue"], rows];
}

/* A canvas at the resolution of the screen. */
function sharpCanvas(width, height) {
  const ratio = Math.min(devicePixelRatio || 1, 3);
  const canvas = el("canvas", { width: Math.round(width * ratio), height: Math.round(height * ratio) });
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.getContext("2d").scale(ratio, ratio);
  return canvas;
}
