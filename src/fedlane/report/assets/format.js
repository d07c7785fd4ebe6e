/* Numbers formatted for readers. */

const RUN_COLOURS = [0, 2, 3, 4, 7, 5, 6].map((k) => `var(--c${k})`);
const RUN_DASHES = ["", "6 4", "2 3", "9 3 2 3"];
const MINUS = "\u2212";

function runColour(k) {
  return RUN_COLOURS[k % RUN_COLOURS.length];
}

function runDash(k) {
  return RUN_DASHES[Math.floor(k / RUN_COLOURS.length) % RUN_DASHES.length];
}

function fixed(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  const text = value.toLocaleString("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return text.replace("-", MINUS);
}

/* About three significant digits. */
function plain(value) {
  const size = Math.abs(value);
  return fixed(value, size >= 100 || value === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

function seconds(value) {
  return Number.isFinite(value) ? `${plain(value)} s` : fixed(value, 0);
}

function percent(value) {
  return Number.isFinite(value) ? `${fixed(100 * value, 1)}%` : "–";
}

function share(value) {
  return fixed(value, 3);
}

/* Simulated time: seconds, or hours and minutes. */
function duration(value) {
  if (!Number.isFinite(value)) return "–";
  if (value < 600) return seconds(value);
  const minutes = Math.round(value / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

function interval(low, high, form) {
  const known = low !== null && high !== null && Number.isFinite(low) && Number.isFinite(high);
  const bare = (value) => form(value).replace(/ s$|%$/, ""); // the mean already shows the unit
  return known && low !== high ? `[${bare(low)}, ${bare(high)}]` : "";
}

function withInterval(measure, form) {
  if (measure.mean === null || Number.isNaN(measure.mean)) return "–";
  return `${form(measure.mean)} ${interval(measure.low, measure.high, form)}`.trim();
}

function plural(count, one, many = `${one}s`) {
  return `${fixed(count, 0)} ${count === 1 ? one : many}`;
}

function listed(words) {
  return words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words[words.length - 1]}`;
}

function seedsText(seeds) {
  if (seeds.length === 1) return `seed ${seeds[0]}`;
  const numbers = seeds.map(Number);
  const consecutive = numbers.every((seed, k) => seed === numbers[0] + k);
  return consecutive ? `seeds ${seeds[0]} to ${seeds[seeds.length - 1]}` : `${seeds.length} seeds`;
}
