/* The map: clients, access points and the links of a round. Without positions, clients are drawn in a ring. */

/* Pixel positions: {clients: [[x, y]], channels: [[x, y]], known, metres: pixels per metre}. */
function mapPlaces(run, seed, width, height) {
  const clients = pairs(run.detail.client_xy_m, seed);
  const channels = pairs(run.detail.channel_xy_m, seed);
  const all = [...clients, ...channels];
  if (!all.length || !all.flat().every(Number.isFinite))
    return ringPlaces(clients.length, channels.length, width, height);
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

/* Clients on an outer ring, channels on an inner one. */
function ringPlaces(clients, channels, width, height) {
  const reach = Math.min(width, height) / 2 - 24;
  const ring = (count, radius, shift) =>
    Array.from({ length: count }, (_, k) => {
      const angle = (2 * Math.PI * (k + shift)) / count - Math.PI / 2;
      return [width / 2 + radius * Math.cos(angle), height / 2 + radius * Math.sin(angle)];
    });
  return {
    clients: ring(clients, reach, 0),
    channels: ring(channels, channels > 1 ? reach * 0.42 : 0, 0.5),
    known: false,
    metres: 0,
  };
}

function roundMap() {
  const holder = el("div", { class: "plot map" });
  const note = el("p", { class: "note" });
  const card = el(
    "section",
    { class: "card", "aria-labelledby": "map-title" },
    el("h3", { id: "map-title" }, "Map"),
    note,
    holder,
    mapLegend(),
  );
  let width = 0;

  function redraw() {
    const run = shownRun();
    if (!width || !run) return;
    const height = Math.round(Math.min(width, 430));
    const places = mapPlaces(run, view.seed, width, height);
    note.textContent = places.known
      ? "Positions of the clients (circles) and of the access points, one per channel (squares)."
      : "Positions are not known for this run: clients are drawn in a ring around the channels.";
    holder.replaceChildren(drawMap(run, places, width, height));
  }

  onWidth(holder, (now) => {
    width = now;
    redraw();
  });
  on("data view round", redraw);
  return card;
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
  const size = run.clients <= 30 ? 11 : run.clients <= 100 ? 7 : 4;
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
      mapNode("channel", channel, at, Math.max(size - 1, 5), {
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
