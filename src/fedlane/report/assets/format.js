/* Numbers formatted for readers. */

const RUN_COLOURS = [0, 2, 3, 4, 7, 5, 6].map((k) => `var(--c${k})`);
const RUN_DASHES = ["", "6 4", "2 3", "9 3 2 3"];
const MINUS = "\u2212";

function runColour(k) {
  return RUN_COLOURS[k % RUN_COLOURS.length];
}

/* Runs that share a colour differ in their dashes, and their dots are hollow. */
function runHollow(k) {
  return Math.floor(k / RUN_COLOURS.length) % 2 === 1;
}

function runDash(k) {
  return RUN_DASHES[Math.floor(k / RUN_COLOURS.length) % RUN_DASHES.length];
}

/* Twelve digits are kept before rounding, so that sums in different orders are rounded to the same text. */
function fixed(value, digits) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  const text = Number(value.toPrecision(12)).toLocaleString("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return /^-[0.]+$/.test(text) ? text.slice(1) : text.replace("-", MINUS);
}

/* About three significant digits. */
function plain(value) {
  const size = Math.abs(value);
  return fixed(value, size >= 100 || value === 0 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

/* Three significant digits of a number in any unit, such as a user's targets. */
function significant(value) {
  const size = Math.abs(value);
  if (!Number.isFinite(value) || value === 0 || (size >= 1 && size < 1e6)) return plain(value);
  if (size < 1e-4 || size >= 1e6) return value.toExponential(2).replace("-", MINUS).replace("e-", `e${MINUS}`).replace("e+", "e");
  return fixed(value, 2 - Math.floor(Math.log10(size)));
}

function seconds(value) {
  return Number.isFinite(value) ? `${plain(value)} s` : fixed(value, 0);
}

function joules(value) {
  return Number.isFinite(value) ? `${plain(value)} J` : "–";
}

function percent(value) {
  return Number.isFinite(value) ? `${fixed(100 * value, 1)}%` : "–";
}

function share(value) {
  return fixed(value, 3);
}

/* Simulated time, wherever it is shown. */
function clockText(value) {
  return Number.isFinite(value) ? `${fixed(value, value < 100 ? 1 : 0)} s` : "–";
}

/* A target accuracy as it was given: 70% or 72.5%. */
function targetText(target) {
  return `${Number((100 * target).toPrecision(12))}%`;
}

function interval(low, high, form) {
  const known = low !== null && high !== null && Number.isFinite(low) && Number.isFinite(high);
  const bare = (value) => form(value).replace(/ [sJ]$|%$/, ""); // the mean already shows the unit
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
