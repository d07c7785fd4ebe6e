/* The map: clients, access points and the links of a round. A run without positions gets a diagram of its links. */

const MAX_NODES = 1500; // of a larger fleet, some of the clients that are not assigned are left out

/* What the reader has chosen to see. */
const layers = { whole: false, coverage: true };

/*
 * Pixel positions: {clients: [[x, y]], channels: [[x, y]], known, metres: pixels per metre, place: from metres to
 * pixels}.
 */
function mapPlaces(run, seed, width, height) {
  if (!run.detail.client_xy_m) return rowPlaces(run.clients, run.channels, width, height);
  const clients = clientPlaces(run, seed, view.at);
  const channels = pairs(run.detail.channel_xy_m, seed);
  const [left, low, right, high] = mapExtent(run, [...clients, ...channels]);
  const [pad, bar] = cityOf(run) ? [2, 22] : [26, 0]; // in a city the scale bar is below the map
  const metres = Math.min((width - 2 * pad) / (right - left || 1), (height - bar - 2 * pad) / (high - low || 1));
  const x0 = (width - (right - left) * metres) / 2;
  const y0 = bar + (height - bar - (high - low) * metres) / 2;
  const place = ([x, y]) => [x0 + (x - left) * metres, height - y0 - (y - low) * metres];
  return { clients: clients.map(place), channels: sideBySide(channels.map(place)), known: true, metres, place };
}

/* Pixel positions of channels: those of one station are next to each other instead of on top of each other. */
function sideBySide(places) {
  const stations = new Map();
  places.forEach(([x, y], k) => {
    const key = `${x.toFixed(1)} ${y.toFixed(1)}`;
    stations.set(key, [...(stations.get(key) ?? []), k]);
  });
  const shifted = [...places];
  for (const group of stations.values())
    group.forEach((k, number) => {
      shifted[k] = [places[k][0] + 22 * (number - (group.length - 1) / 2), places[k][1]];
    });
  return shifted;
}

/* The left, lower, right and upper edge of the map in metres: where clients may walk, or around all that is shown. */
function mapExtent(run, places) {
  if (cityOf(run)) return cityExtent(cityOf(run));
  if (run.movement) return run.movement.extent_m;
  const edge = (pick, axis) => places.reduce((value, place) => pick(value, place[axis]), places[0][axis]);
  return [edge(Math.min, 0), edge(Math.min, 1), edge(Math.max, 0), edge(Math.max, 1)];
}

function pairs({ shape, values }, seed) {
  const [, count] = shape;
  return Array.from({ length: count }, (_, k) => [values[2 * (seed * count + k)], values[2 * (seed * count + k) + 1]]);
}

/* Clients in a row above, channels in a row below, by index: a diagram that does not look like a map. */
function rowPlaces(clients, channels, width, height) {
  const row = (count, y) => Array.from({ length: count }, (_, k) => [16 + ((width - 32) * (k + 0.5)) / count, y]);
  return { clients: row(clients, 30), channels: row(channels, height - 30), known: false, metres: 0, place: null };
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
      ...(shownRun().detail.present ? [{ name: "absent", colour: "var(--mid)", shape: "dot", hollow: true }] : []),
      ...(hasMovement(shownRun(), view.seed) ? [{ name: "where a client was", colour: "var(--c3)" }] : []),
      ...(cityOf(shownRun()) ? [{ name: "building", colour: "var(--building)", shape: "square" }] : []),
    ],
    draw,
    csv: () => mapCsv(shownRun()),
  });
  const legend = el("div", { class: "legend" });
  const card = el("section", { class: "card", "aria-labelledby": "map-title" }, heading, note, holder, legend, save);
  let width = 0;

  function redraw() {
    const run = shownRun();
    if (!width || !run) return;
    const known = Boolean(run.detail.client_xy_m);
    heading.textContent = known ? "Map" : "Links";
    note.textContent = known
      ? mapNote(run)
      : "This run has no positions: clients (circles) above, channels (squares) below, by index.";
    holder.replaceChildren(draw(width));
    fillLegend(legend, run, redraw);
    save.hidden = !keptRounds(run);
  }

  onWidth(holder, (now) => {
    width = now;
    redraw();
  });
  on("data view round theme", redraw);
  return card;
}

/* Clients and channels with their positions, if they have any, and what they did in the round. */
function mapCsv(run) {
  const slots = slotsAt(run, view.seed, view.at);
  const known = Boolean(run.detail.client_xy_m);
  const rows = (what, count, places) =>
    Array.from({ length: count }, (_, k) => {
      const slot = slots.find((assigned) => assigned[what] === k);
      const there = what === "client" ? presentAt(run, view.seed, view.at, k) : null;
      const place = places ? places[k] : [null, null];
      return [what, k, ...place, slot?.client, slot?.channel, slot?.total, slot?.punctual, there];
    });
  return [
    ["kind", "index", "x_m", "y_m", "client", "channel", "delay_s", "punctual", "present"],
    [
      ...rows("client", run.clients, known && clientPlaces(run, view.seed, view.at)),
      ...rows("channel", run.channels, known && pairs(run.detail.channel_xy_m, view.seed)),
    ],
  ];
}

function mapNote(run) {
  const moving = hasMovement(run, view.seed) && keptRounds(run);
  const when = moving
    ? ` Clients are where they were when the round began, at ${clockText(startAt(run, view.seed, view.at))} of simulated time.`
    : "";
  const step = nodeStep(run);
  const omitted = step > 1 ? ` Of the clients that are not assigned, one in every ${step} is drawn.` : "";
  const what = "Positions of the clients (circles) and of the access points, one per channel (squares).";
  return `${what}${when}${cityText(run)}${omitted}`;
}

/* The legend, with a button for the trails; a button that has the focus keeps it, because it is not made again. */
function fillLegend(legend, run, redraw) {
  const kept = [Boolean(run.detail.present), isSpentShown(run), hasMovement(run, view.seed), run.city].join();
  if (legend.dataset.kept === kept) return;
  legend.dataset.kept = kept;
  const mark = (name, shape, width = 24) =>
    el("span", { class: "entry" }, svg("svg", { width, height: 14, "aria-hidden": "true" }, shape), name);
  const link = (name, kind) => mark(name, svg("path", { d: "M1 7H23", class: `link ${kind}` }));
  const node = (name, kind) =>
    mark(name, svg("g", { class: `node client ${kind}`, transform: "translate(7 7)" }, svg("circle", { r: kind === "absent" ? 4 : 5.5 })), 14);
  legend.replaceChildren(
    link("on time", "punctual"),
    link("late", "late"),
    ...(run.detail.present ? [node("absent", "absent")] : []),
    ...(isSpentShown(run) ? [node("not available", "spent")] : []),
    ...(hasMovement(run, view.seed)
      ? [mark("where a client was", svg("path", { d: "M1 7H23", class: "trail" }))]
      : []),
    ...cityEntries(run),
    ...(hasMovement(run, view.seed) ? [layerButton("whole", "whole paths", redraw)] : []),
    ...(cityOf(run) ? [layerButton("coverage", "coverage", redraw)] : []),
  );
}

/* Whether a client that was there could not be assigned in some embedded round. */
function isSpentShown(run) {
  const { available, present } = run.detail;
  return Boolean(available) && available.values.some((free, k) => !free && (!present || present.values[k]));
}

/* A button that shows or hides something on the map. */
function layerButton(name, text, redraw) {
  const button = el("button", { type: "button", class: "layer", "aria-pressed": String(layers[name]) }, text);
  button.addEventListener("click", () => {
    layers[name] = !layers[name];
    button.setAttribute("aria-pressed", String(layers[name]));
    redraw();
  });
  return button;
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
  if (places.known) {
    picture.append(...[cityLayer(run, places.place, layers.coverage)].filter(Boolean));
    picture.append(trailLayer(run, view.seed, view.at, places.place, { whole: layers.whole, busy }));
    picture.append(scaleBar(places.metres, height));
    picture.append(...[cityCredit(run, width, height)].filter(Boolean));
  }
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
        tip: () => [
          used.has(channel) ? `channel ${channel}: client ${used.get(channel).client}` : `channel ${channel}: not used`,
        ],
      }),
    ),
  );
  const step = nodeStep(run);
  places.clients.forEach((at, client) => {
    if (client % step && !busy.has(client)) return;
    const kind = clientKind(run, client, busy.get(client));
    const radius = kind === "absent" ? 0.75 * size : size;
    picture.append(mapNode("client", client, at, radius, { kind, tip: () => clientTip(run, client, busy.get(client)) }));
  });
  return picture;
}

/* What a client did in the round, as the class of its circle. */
function clientKind(run, client, slot) {
  if (slot) return slot.punctual ? "busy" : "busy late";
  if (!presentAt(run, view.seed, view.at, client)) return "absent";
  return availableAt(run, view.seed, view.at, client) ? "idle" : "spent";
}

/* Of the clients that are not assigned, every how many are drawn. */
function nodeStep(run) {
  return Math.ceil(run.clients / MAX_NODES);
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
  const label = size >= 8 ? svg("text", { y: 4, "text-anchor": "middle" }, String(index)) : null;
  const node = svg(
    "g",
    { class: `node ${what} ${kind}`, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` },
    shape,
    label,
  );
  node.addEventListener("pointermove", (event) => showTip(event, tip()));
  node.addEventListener("pointerleave", hideTip);
  return node;
}

const IDLE_TEXTS = {
  idle: "not assigned",
  absent: "absent",
  spent: "not available: budget exhausted, or disconnected",
};

/* The share of its battery that a client has left after the round; null if it has none, or it is not known. */
function batteryLeft(run, client) {
  if (run.battery_j === null || !run.detail.energy_j || run.detail.every > 1) return null;
  let spent = 0;
  for (let at = 0; at <= view.at; at++)
    for (const slot of slotsAt(run, view.seed, at)) if (slot.client === client) spent += slot.energy;
  return Math.max(0, 1 - spent / run.battery_j);
}

function clientTip(run, client, slot) {
  const lines = [el("div", { class: "tip-head" }, `client ${client}`)];
  if (slot) lines.push(`channel ${slot.channel}, ${seconds(slot.total)}, ${lateness(slot, run)}`);
  else lines.push(IDLE_TEXTS[clientKind(run, client)]);
  const left = batteryLeft(run, client);
  if (left !== null) lines.push(left > 0 ? `battery: ${percent(left)} left after the round` : "battery empty");
  const queue = queueAt(run, view.seed, roundAt(run, view.at), client);
  if (Number.isFinite(queue)) lines.push(`queue ${fixed(queue, 2)}`);
  return lines;
}

/* Description of the map for screen readers. */
function mapText(run, slots) {
  const words = slots.map((slot) => `client ${slot.client} on channel ${slot.channel}, ${lateness(slot, run)}`);
  const absent = absentAt(run, view.seed, view.at);
  const away = absent.length ? ` Absent: ${plural(absent.length, "client")}.` : "";
  return `Round ${roundAt(run, view.at) + 1}: ${words.join("; ") || "no client was assigned"}.${away}`;
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
