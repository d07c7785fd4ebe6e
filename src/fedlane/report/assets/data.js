/* The embedded data, unpacked once, and access to it. */

const model = { runs: [], live: false, version: "", problem: "" };

/* The selected run, seed and round. */
const view = { run: 0, seed: 0, at: 0, playing: false, follow: false };

const BYTES = {
  f4: Float32Array,
  u1: Uint8Array,
  u2: Uint16Array,
  bits: Uint8Array,
  log: Uint16Array,
  level: Uint16Array,
};

function unpack(packed) {
  if (!packed) return null;
  const text = atob(packed.data);
  const bytes = new Uint8Array(text.length);
  for (let k = 0; k < text.length; k++) bytes[k] = text.charCodeAt(k);
  const raw = new BYTES[packed.kind](bytes.buffer);
  const array = { shape: packed.shape, values: raw };
  if (packed.kind === "bits") {
    const size = packed.shape.reduce((a, b) => a * b, 1);
    array.values = Uint8Array.from({ length: size }, (_, k) => (raw[k >> 3] >> (7 - (k & 7))) & 1);
  } else if (packed.kind === "log" || packed.kind === "level") {
    array.values = new Float32Array(raw.length);
    for (let k = 0; k < raw.length; k++) array.values[k] = decoded(raw[k], packed);
  }
  return array;
}

function decoded(code, packed) {
  if (code === 65535) return NaN;
  if (packed.kind === "level") return code * packed.step;
  if (code === 65534) return Infinity;
  return code === 0 ? 0 : Math.exp(packed.low + (code - 1) * packed.step);
}

/* Replace every packed array in a tree of plain objects by its values. */
function unpackAll(tree) {
  if (tree === null || typeof tree !== "object") return tree;
  if (Array.isArray(tree)) return tree;
  if ("kind" in tree && "data" in tree) return unpack(tree);
  return Object.fromEntries(Object.entries(tree).map(([key, value]) => [key, unpackAll(value)]));
}

function loadData(data) {
  model.live = data.live;
  model.version = data.version;
  model.problem = data.problem ?? "";
  model.runs = data.runs.map((run) => ({
    ...run,
    curves: unpackAll(run.curves),
    per_client: unpackAll(run.per_client),
    parts: unpackAll(run.parts),
    detail: unpackAll(run.detail),
  }));
}

function shownRun() {
  return model.runs[view.run];
}

/* Number of embedded rounds, which are the positions of the slider. */
function keptRounds(run) {
  return run.detail.client.shape[1];
}

/* The round (from 0) at position `at` of the slider. */
function roundAt(run, at) {
  return at * run.detail.every;
}

/* The assignments of an embedded round of a seed. */
function slotsAt(run, seed, at) {
  const { client, channel, download_s, compute_s, upload_s, punctual } = run.detail;
  const [, rounds, slots] = client.shape;
  const none = client.values instanceof Uint8Array ? 255 : 65535;
  const assigned = [];
  for (let slot = 0; slot < slots; slot++) {
    const k = (seed * rounds + at) * slots + slot;
    if (client.values[k] === none) continue;
    const parts = [download_s.values[k], compute_s.values[k], upload_s.values[k]];
    const total = parts.reduce((sum, part) => sum + (Number.isNaN(part) ? 0 : part), 0);
    assigned.push({
      client: client.values[k],
      channel: channel.values[k],
      parts,
      total,
      punctual: punctual.values[k] === 1,
    });
  }
  return assigned;
}

function delayAt(run, seed, round) {
  return run.detail.delay_s.values[seed * run.rounds + round];
}

function clockAt(run, seed, round) {
  let sum = 0;
  for (let t = 0; t <= round; t++) sum += delayAt(run, seed, t) || 0;
  return sum;
}

/* Accuracy at the last test up to a round; NaN before the first test. */
function accuracyAt(run, seed, round) {
  if (!run.detail.accuracy) return NaN;
  for (let t = round; t >= 0; t--) {
    const value = run.detail.accuracy.values[seed * run.rounds + t];
    if (!Number.isNaN(value)) return value;
  }
  return NaN;
}

function queueAt(run, seed, round, client) {
  const [, columns, clients] = run.detail.queue.shape;
  const column = Math.min(Math.floor(round / run.detail.queue_every), columns - 1);
  return run.detail.queue.values[(seed * columns + column) * clients + client];
}

function availableAt(run, seed, at, client) {
  if (!run.detail.available) return true;
  return run.detail.available.values[(seed * keptRounds(run) + at) * run.clients + client] === 1;
}

function lateness(slot, run) {
  if (slot.punctual) return "on time";
  if (!Number.isFinite(slot.total)) return "late, no reply";
  const over = slot.total - run.deadline_s;
  return run.deadline_s !== null && over > 0 ? `late by ${seconds(over)}` : "late";
}
