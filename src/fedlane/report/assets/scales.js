/* Scales from numbers to pixels, and round numbers for axes. */

function scale([from, to], [start, end]) {
  const span = to - from || 1;
  const place = (value) => start + ((value - from) / span) * (end - start);
  place.within = (value) => place(Math.max(from, Math.min(to, value)));
  place.invert = (at) => from + ((at - start) / (end - start || 1)) * span;
  return place;
}

/* About `count` round numbers between two bounds. */
function ticks(from, to, count) {
  const span = to - from;
  if (!(span > 0)) return [from];
  const power = 10 ** Math.floor(Math.log10(span / count));
  const step = power * [1, 2, 5, 10].find((factor) => span / (power * factor) <= count);
  const marks = [];
  for (let k = Math.ceil(from / step - 1e-9); k * step <= to + step * 1e-9; k++) marks.push(k * step + 0); // never -0
  return marks;
}

/* Round bounds around all values, limited by a floor and a ceiling. */
function bounds(values, { zero = false, floor = -Infinity, ceiling = Infinity } = {}) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    low = Math.min(low, Math.max(value, floor));
    high = Math.max(high, Math.min(value, ceiling));
  }
  if (!(high >= low)) return [0, 1];
  if (zero) low = Math.min(low, 0);
  if (high === low) high = low + (Math.abs(low) || 1);
  const marks = ticks(low, high, 5);
  const step = marks.length > 1 ? marks[1] - marks[0] : high - low;
  low = zero ? low : Math.floor(low / step) * step;
  return [Math.max(low, floor), Math.min(Math.max(Math.ceil(high / step - 1e-9) * step, high), ceiling)];
}

function tickText(value, marks) {
  const step = marks.length > 1 ? marks[1] - marks[0] : Math.abs(value) || 1;
  if (Math.abs(value) >= 10000) return `${plain(value / 1000).replace(/\.0+$/, "")}k`;
  if (step < 1e-6) return value === 0 ? "0" : significant(value);
  return fixed(value, Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9))));
}
