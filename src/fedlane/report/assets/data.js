/* The embedded data, unpacked once, and access to it. */

const model = { sweep: null, runs: [], cities: [], differences: [], scenarioDifferences: [], targets: [], live: false, version: "", problem: "" };

/* The selected run, seed and round. */
const view = { run: 0, seed: 0, at: 0, playing: false, follow: false };

const BYTES = {
  f4: Float32Array,
  f8: Float64Array,
  u1: Uint8Array,
  u2: Uint16Array,
  bits: Uint8Array,
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
  } else if (packed.kind === "level") {
    array.values = Float64Array.from(raw, (code) => (code === 65535 ? NaN : code * packed.step));
  }
  return array;
}

/* Replace every packed array in a tree of plain objects by its values. */
function unpackAll(tree) {
  if (tree === null || typeof tree !== "object") return tree;
  if (Array.isArray(tree)) return tree;
  if ("kind" in tree && "data" in tree) return unpack(tree);
  const unpacked = Object.fromEntries(Object.entries(tree).map(([key, value]) => [key, unpackAll(value)]));
  if (unpacked.mean && unpacked.low === null) unpacked.low = unpacked.high = unpacked.mean; // no interval
  return unpacked;
}

function loadData(data) {
  model.live = data.live;
  model.version = data.version;
  model.problem = data.problem ?? "";
  model.policy = data.policy ?? "";
  model.differences = data.differences ?? [];
  model.scenarioDifferences = data.scenario_differences ?? [];
  model.targets = data.targets ?? [];
  model.targetsOmitted = data.targets_omitted ?? 0;
  model.clientEvery = data.client_every ?? 1;
  model.channelEvery = data.channel_every ?? 1;
  model.cities = (data.cities ?? []).map(unpackAll);
  model.sweep = data.sweep ? loadSweep(data.sweep) : null;
  model.runs = data.runs.map((run) => ({
    ...run,
    curves: unpackAll(run.curves),
    per_client: unpackAll(run.per_client),
    parts: unpackAll(run.parts),
    detail: unpackAll(run.detail),
    movement: unpackAll(run.movement ?? null),
  }));
}

function shownRun() {
  return model.runs[view.run];
}

/* The selected run and seed, in names of saved files. */
function shownName() {
  return `${shownRun().name} seed ${shownRun().seeds[view.seed]}`;
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
  const { client, channel, download_s, compute_s, upload_s, punctual, energy_j } = run.detail;
  const [, rounds, slots] = client.shape;
  const none = client.values instanceof Uint8Array ? 255 : 65535;
  const assigned = [];
  for (let slot = 0; slot < slots; slot++) {
    const k = (seed * rounds + at) * slots + slot;
    if (client.values[k] === none) continue;
    const parts = [download_s.values[k], compute_s.values[k], upload_s.values[k]];
    const onTime = punctual.values[k] === 1;
    const unknown = !onTime && parts.some(Number.isNaN); // the client left, or a transfer never ended
    const total = unknown ? NaN : parts.reduce((sum, part) => sum + (Number.isNaN(part) ? 0 : part), 0);
    assigned.push({
      client: client.values[k],
      channel: channel.values[k],
      parts,
      total,
      punctual: onTime,
      energy: energy_j ? energy_j.values[k] : NaN,
      predicted: predictionAt(run, k),
    });
  }
  return assigned;
}

/* Duration of an embedded round, simulated time after it, and the latest accuracy (NaN before the first test). */
function delayAt(run, seed, at) {
  return run.detail.delay_s.values[seed * keptRounds(run) + at];
}

function clockAt(run, seed, at) {
  return run.detail.clock_s.values[seed * keptRounds(run) + at];
}

function accuracyAt(run, seed, at) {
  return run.detail.accuracy ? run.detail.accuracy.values[seed * keptRounds(run) + at] : NaN;
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

/* Whether a client was there when an embedded round began. */
function presentAt(run, seed, at, client) {
  if (!run.detail.present) return true;
  return run.detail.present.values[(seed * keptRounds(run) + at) * run.clients + client] === 1;
}

/* The clients that were not there when an embedded round began. */
function absentAt(run, seed, at) {
  if (!run.detail.present || !keptRounds(run)) return [];
  return Array.from({ length: run.clients }, (_, client) => client).filter((k) => !presentAt(run, seed, at, k));
}

function lateness(slot, run) {
  if (slot.punctual) return "on time";
  if (!Number.isFinite(slot.total)) return "late, no reply";
  const over = slot.total - run.deadline_s;
  return run.deadline_s !== null && over > 0 ? `late by ${seconds(over)}` : "late";
}
