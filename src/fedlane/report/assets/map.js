/* The map: clients, access points and the links of a round. A run without positions gets a diagram of its links. */

/* Pixel positions: {clients: [[x, y]], channels: [[x, y]], known, metres: pixels per metre}. */
function mapPlaces(run, seed, width, height) {
  if (!run.detail.client_xy_m) return rowPlaces(run.clients, run.channels, width, height);
  const clients = pairs(run.detail.client_xy_m, seed);
  const channels = pairs(run.detail.channel_xy_m, seed);
  const all = [...clients, ...channels];
  const pad = 26;
  const [left, right] = [Math.min(...all.map((p) => p[0])), Math.max(...all.map((p) => p[0]))];
  const [low, high] = [Math.min(...all.map((p) => p[1])), Math.max(...all.map((p) => p[1]))];
  const metres = Math.min((width - 2 * pad) / (right - left || 1), (height - 2 * pad) / (high - low || 1));
  const x0 = (width - (right - left) * metres) / 2;
  const y0 = (height - (high - low) * metres) / 2;
  const place = ([x, y]) => [x0 + (x - left) * metres, height - y0 - (y - low) * metres];
  return { clients: clients.map(place), channels: channels.map(place), known: true, metres };
}

function pairs({ shape, values }, seed) {
  const [, count] = shape;
  return Array.from({ length: count }, (_, k) => [values[2 * (seed * count + k)], values[2 * (seed * count + k) + 1]]);
}

/* Clients in a row above, channels in a row below, by index: a diagram that does not look like a map. */
function rowPlaces(clients, channels, width, height) {
  const row = (count, y) => Array.from({ length: count }, (_, k) => [16 + ((width - 32) * (k + 0.5)) / count, y]);
  return { clients: row(clients, 30), channels: row(channels, height - 30), known: false, metres: 0 };
}

function mapHeight(run, width) {
  return run.detail.client_xy_m ? Math.round(Math.min(width, 430)) : 220;
}

function roundMap() {
  const holder = el("div", { class: "plot map" });
  const note = el("p", { class: "note" });
  const heading = el("h3", { id: "map-title" });
  const draw = (width) => {
    const [run, height] = [shownRun(), mapHeight(shownRun(), width)];
    return drawMap(run, mapPlaces(run, view.seed, width, height), width, height);
  };
  const save = saveButtons({
    title: "Links of a round",
    name: () => `${roundAt(shownRun(), view.at) + 1} ${shownName()}`,
    summary: () => mapText(shownRun(), slotsAt(shownRun(), view.seed, view.at)),
    legend: () => [
      { name: "on time", colour: "var(--ok)" },
      { name: "late", colour: "var(--late)", dash: "6 5" },
    ],
    draw,
    csv: () => mapCsv(shownRun()),
  });
  const card = el("section", { class: "card", "aria-labelledby": "map-title" }, heading, note, holder, mapLegend(), save);
  let width = 0;

  function redraw() {
    const run = shownRun();
    if (!width || !run) return;
    const known = Boolean(run.detail.client_xy_m);
    heading.textContent = known ? "Map" : "Links";
    note.textContent = known
      ? "Positions of the clients (circles) and of the access points, one per channel (squares)."
      : "This run has no positions: clients (circles) above, channels (squares) below, by index.";
    holder.replaceChildren(draw(width));
    save.hidden = !keptRounds(run);
  }

  onWidth(holder, (now) => {
    width = now;
    redraw();
  });
  on("data view round", redraw);
  return card;
}

/* Clients and channels with their positions, if they have any, and what they did in the round. */
function mapCsv(run) {
  const slots = slotsAt(run, view.seed, view.at);
  const place = (xy, k) => (xy ? pairs(xy, view.seed)[k] : [null, null]);
  const rows = (what, count, xy) =>
    Array.from({ length: count }, (_, k) => {
      const slot = slots.find((assigned) => assigned[what] === k);
      return [what, k, ...place(xy, k), slot?.client, slot?.channel, slot?.total, slot?.punctual];
    });
  return [
    ["kind", "index", "x_m", "y_m", "client", "channel", "delay_s", "punctual"],
    [
      ...rows("client", run.clients, run.detail.client_xy_m),
      ...rows("channel", run.channels, run.detail.channel_xy_m),
    ],
  ];
}

function mapLegend() {
  const link = (name, kind) =>
    el(
      "span",
      { class: "entry" },
      svg(
        "svg",
        { width: 24, height: 12, "aria-hidden": "true" },
        svg("path", { d: "M1 6H23", class: `link ${kind}` }),
      ),
      name,
    );
  return el("div", { class: "legend" }, link("on time", "punctual"), link("late", "late"));
}

function drawMap(run, places, width, height) {
  const slots = keptRounds(run) ? slotsAt(run, view.seed, view.at) : [];
  const busy = new Map(slots.map((slot) => [slot.client, slot]));
  const used = new Map(slots.map((slot) => [slot.channel, slot]));
  const size = nodeSize(run, places, width);
  const picture = svg("svg", {
    width,
    height,
    viewBox: `0 0 ${width} ${height}`,
    role: "img",
    id: "map",
    "aria-label": mapText(run, slots),
  });
  if (places.known) picture.append(scaleBar(places.metres, height));
  for (const slot of slots) {
    const [from, to] = [places.clients[slot.client], places.channels[slot.channel]];
    if (!from || !to) continue;
    picture.append(
      svg("path", {
        class: `link ${slot.punctual ? "punctual" : "late"}`,
        d: `M${from.join(" ")}L${to.join(" ")}`,
        "data-client": slot.client,
        "data-channel": slot.channel,
      }),
    );
  }
  places.channels.forEach((at, channel) =>
    picture.append(
      mapNode("channel", channel, at, places.known ? Math.max(size - 1, 5) : size, {
        kind: used.has(channel) ? "busy" : "idle",
        tip: [
          used.has(channel) ? `channel ${channel}: client ${used.get(channel).client}` : `channel ${channel}: not used`,
        ],
      }),
    ),
  );
  places.clients.forEach((at, client) =>
    picture.append(
      mapNode("client", client, at, size, {
        kind: busy.has(client)
          ? busy.get(client).punctual
            ? "busy"
            : "busy late"
          : availableAt(run, view.seed, view.at, client)
            ? "idle"
            : "spent",
        tip: clientTip(run, client, busy.get(client)),
      }),
    ),
  );
  return picture;
}

/* Radius of a client's circle: smaller on crowded maps, and in a row never wider than its place. */
function nodeSize(run, places, width) {
  const size = run.clients <= 30 ? 11 : run.clients <= 100 ? 7 : 4;
  return places.known ? size : Math.max(1.5, Math.min(size, (0.45 * (width - 32)) / Math.max(run.clients, run.channels)));
}

function mapNode(what, index, [x, y], size, { kind, tip }) {
  const shape =
    what === "client"
      ? svg("circle", { r: size })
      : svg("rect", { x: -size, y: -size, width: 2 * size, height: 2 * size, rx: 3 });
  const label = size >= 9 ? svg("text", { y: 4, "text-anchor": "middle" }, String(index)) : null;
  const node = svg(
    "g",
    { class: `node ${what} ${kind}`, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` },
    shape,
    label,
  );
  node.addEventListener("pointermove", (event) => showTip(event, tip));
  node.addEventListener("pointerleave", hideTip);
  return node;
}

function clientTip(run, client, slot) {
  const lines = [el("div", { class: "tip-head" }, `client ${client}`)];
  if (slot) lines.push(`channel ${slot.channel}, ${seconds(slot.total)}, ${lateness(slot, run)}`);
  else
    lines.push(
      availableAt(run, view.seed, view.at, client)
        ? "not assigned"
        : "not available: budget exhausted, or disconnected",
    );
  const queue = queueAt(run, view.seed, roundAt(run, view.at), client);
  if (Number.isFinite(queue)) lines.push(`queue ${fixed(queue, 2)}`);
  return lines;
}

/* Description of the map for screen readers. */
function mapText(run, slots) {
  const words = slots.map((slot) => `client ${slot.client} on channel ${slot.channel}, ${lateness(slot, run)}`);
  return `Round ${roundAt(run, view.at) + 1}: ${words.join("; ") || "no client was assigned"}.`;
}

function scaleBar(metres, height) {
  const long = [2000, 1000, 500, 200, 100, 50, 20, 10, 5, 2, 1].find((length) => length * metres <= 90) ?? 1;
  const pixels = long * metres;
  return svg(
    "g",
    { class: "scale-bar", "aria-hidden": "true" },
    svg("path", { d: `M6 ${height - 12}v4h${pixels}v-4` }),
    svg("text", { x: 12 + pixels, y: height - 6 }, long >= 1000 ? `${long / 1000} km` : `${long} m`),
  );
}
