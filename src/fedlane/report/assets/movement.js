/* Where clients are that move: their positions at the starts of some rounds, and straight lines between these. */

const MAX_TRAILS = 60; // of a larger fleet, only the clients of the round have trails

/* The simulated time when an embedded round of a seed began. */
function startAt(run, seed, at) {
  return clockAt(run, seed, at) - delayAt(run, seed, at);
}

/* The last stored frame of a seed that is not after a time. */
function frameBefore(movement, seed, clock) {
  const [, frames] = movement.clock_s.shape;
  let [low, high] = [0, frames - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (movement.clock_s.values[seed * frames + middle] <= clock) low = middle;
    else high = middle - 1;
  }
  return low;
}

function framePlace({ xy_m, origin_m }, seed, frame, client) {
  const [, frames, clients] = xy_m.shape;
  const k = 2 * ((seed * frames + frame) * clients + client);
  return [origin_m[0] + xy_m.values[k], origin_m[1] + xy_m.values[k + 1]];
}

/* A client's place in metres at a time; NaN if this seed's positions are not stored. */
function placeAt(movement, seed, clock, client) {
  const [, frames] = movement.clock_s.shape;
  const before = frameBefore(movement, seed, clock);
  const after = Math.min(before + 1, frames - 1);
  const [from, to] = [before, after].map((frame) => movement.clock_s.values[seed * frames + frame]);
  const share = to > from ? Math.max(0, Math.min(1, (clock - from) / (to - from))) : 0;
  const [start, end] = [before, after].map((frame) => framePlace(movement, seed, frame, client));
  return start.map((value, axis) => value + share * (end[axis] - value));
}

/* Whether the positions of a seed are stored. */
function hasMovement(run, seed) {
  return Boolean(run.movement) && Number.isFinite(framePlace(run.movement, seed, 0, 0)[0]);
}

/* The places of all clients in metres when an embedded round began. */
function clientPlaces(run, seed, at) {
  if (!hasMovement(run, seed) || !keptRounds(run)) return pairs(run.detail.client_xy_m, seed);
  const clock = startAt(run, seed, at);
  return Array.from({ length: run.clients }, (_, client) => placeAt(run.movement, seed, clock, client));
}

/* The number of rounds that a trail goes back: a quarter of the run, or the whole run so far. */
function trailRounds(run, whole) {
  return whole ? Infinity : Math.max(20, run.planned / 4);
}

/* Where a client was before the round began, in metres, ending with its place; the oldest place comes first. */
function trailPlaces(run, seed, at, client, whole) {
  const { movement } = run;
  const clock = startAt(run, seed, at);
  const now = frameBefore(movement, seed, clock);
  const since = roundAt(run, at) - trailRounds(run, whole);
  let first = now;
  while (first > 0 && (movement.round[first - 1] >= since || first === now)) first--;
  const places = Array.from({ length: now - first + 1 }, (_, k) => framePlace(movement, seed, first + k, client));
  return [...places, placeAt(movement, seed, clock, client)];
}

/* The trails of the clients as faint lines; `place` maps metres to pixels. */
function trailLayer(run, seed, at, place, { whole, busy }) {
  const layer = svg("g", { class: "trails", "aria-hidden": "true" });
  if (!hasMovement(run, seed) || !keptRounds(run)) return layer;
  for (let client = 0; client < run.clients; client++) {
    if (run.clients > MAX_TRAILS && !busy.has(client)) continue;
    const points = trailPlaces(run, seed, at, client, whole).map((xy) => place(xy).map(tenth).join(" "));
    layer.append(
      svg("path", {
        class: `trail${presentAt(run, seed, at, client) ? "" : " absent"}`,
        d: `M${points.join("L")}`,
        "data-client": client,
      }),
    );
  }
  return layer;
}
