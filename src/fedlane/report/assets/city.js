/* A city under the map: its buildings, and how well each cell is covered, as a picture of one pixel per cell. */

const COVERAGE = { faint: 0.05, strong: 0.75 }; // opacities of the smallest and the largest gain

function cityOf(run) {
  return run.city === null || run.city === undefined ? null : model.cities[run.city];
}

/* The left, lower, right and upper edge of a city in metres. */
function cityExtent({ origin_m, cell_m, building }) {
  const [rows, columns] = building.shape;
  return [origin_m[0], origin_m[1], origin_m[0] + columns * cell_m, origin_m[1] + rows * cell_m];
}

/* Red, green and blue of a colour of the style sheet. */
function channelsOf(name) {
  const pen = el("canvas", { width: 1, height: 1 }).getContext("2d");
  pen.fillStyle = colour(name);
  pen.fillRect(0, 0, 1, 1);
  return [...pen.getImageData(0, 0, 1, 1).data.slice(0, 3)];
}

function coverageOpacity(share) {
  return COVERAGE.faint + (COVERAGE.strong - COVERAGE.faint) * share;
}

/* The picture of a city as a data URL, cached by what it shows and in which colours. */
const cityPictures = new Map();

function cityPicture(city, coverage) {
  const key = [model.cities.indexOf(city), coverage, colour("--coverage"), colour("--building")].join();
  if (!cityPictures.has(key)) cityPictures.set(key, paintCity(city, coverage));
  return cityPictures.get(key);
}

function paintCity({ building, shade }, coverage) {
  const [rows, columns] = building.shape;
  const canvas = el("canvas", { width: columns, height: rows });
  const pen = canvas.getContext("2d");
  const pixels = pen.createImageData(columns, rows);
  const [house, cover] = [channelsOf("--building"), channelsOf("--coverage")];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const from = row * columns + column;
      const to = 4 * ((rows - 1 - row) * columns + column); // the first row of the data is the lowest
      const code = shade.values[from];
      const opacity = building.values[from] ? 1 : coverage && code !== 255 ? coverageOpacity(code / 254) : 0;
      pixels.data.set([...(building.values[from] ? house : cover), Math.round(255 * opacity)], to);
    }
  }
  pen.putImageData(pixels, 0, 0);
  return canvas.toDataURL();
}

/* The picture at its place on the map; `place` maps metres to pixels. */
function cityLayer(run, place, coverage) {
  const city = cityOf(run);
  if (!city) return null;
  const [left, low, right, high] = cityExtent(city);
  const [x, y] = place([left, high]);
  const [end, bottom] = place([right, low]);
  return svg("image", {
    class: "city",
    href: cityPicture(city, coverage),
    x,
    y,
    width: end - x,
    height: bottom - y,
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
}

/* The notice that a shipped map asks for, in the picture itself, which may be saved. */
function cityCredit(run, width, height) {
  const credit = cityOf(run)?.credit;
  if (!credit) return null;
  return svg("text", { class: "credit", x: width - 6, y: height - 6, "text-anchor": "end" }, credit);
}

/* One sentence on what the shades mean. */
function cityText(run) {
  const city = cityOf(run);
  if (!city) return "";
  const [low, high] = city.gain_db.map((gain) => `${fixed(gain, 0)} dB`);
  const shades = `the best path gain of any station, from ${low} or less (faint) to ${high} (strong)`;
  return ` Buildings are grey${city.credit ? ` (${city.credit})` : ""}${layers.coverage ? `; the shade of the streets is ${shades}` : ""}.`;
}

/* Entries of the map’s legend. */
function cityEntries(run) {
  const city = cityOf(run);
  if (!city) return [];
  const square = (fill, opacity, x) => svg("rect", { x, y: 1, width: 12, height: 12, fill, opacity });
  const mark = (width, ...shapes) => svg("svg", { width, height: 14, "aria-hidden": "true" }, shapes);
  const [low, high] = city.gain_db.map((gain) => fixed(gain, 0));
  const steps = [0, 0.25, 0.5, 0.75, 1].map((share, k) => square("var(--coverage)", coverageOpacity(share), 12 * k));
  return [
    el("span", { class: "entry" }, mark(12, square("var(--building)", 1, 0)), "building"),
    el("span", { class: "entry" }, mark(60, ...steps), `best gain, ${low} to ${high} dB`),
  ];
}
