/* A pen with the part of a canvas's interface that the figures use, which makes SVG elements instead of pixels. */

class SvgPen {
  constructor(width, height) {
    this.picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
    this.fillStyle = "#000000";
    this.globalAlpha = 1;
    this.font = "11.5px sans-serif";
    this.textAlign = "start";
    this.shift = 0; // added to y, to place one drawing below another
    this.paths = new Map();
    this.texts = [];
  }

  /* All rectangles of one colour are one path, which keeps large pictures small; figures paint from back to front. */
  fillRect(x, y, width, height) {
    const style = `${this.fillStyle} ${this.globalAlpha.toFixed(2)}`;
    if (!this.paths.has(style)) {
      const node = svg("path", { fill: this.fillStyle, opacity: this.globalAlpha.toFixed(2) });
      this.paths.set(style, { node, pieces: [] });
      this.picture.append(node);
    }
    const piece = `M${tenth(x)} ${tenth(y + this.shift)}h${tenth(width)}v${tenth(height)}h${tenth(-width)}z`;
    this.paths.get(style).pieces.push(piece);
  }

  fillText(text, x, y) {
    const [, weight, size] = /^(?:(\d+) )?([\d.]+)px/.exec(this.font);
    const anchor = { start: "start", end: "end", center: "middle" }[this.textAlign];
    const node = svg("text", { x: tenth(x), y: tenth(y + this.shift), "text-anchor": anchor }, text);
    node.style.fill = this.fillStyle; // as a style, because the page has a style for all texts
    node.style.fontSize = `${size}px`;
    if (weight) node.style.fontWeight = weight;
    this.texts.push(node);
  }

  finished() {
    for (const { node, pieces } of this.paths.values()) node.setAttribute("d", pieces.join(""));
    this.picture.append(...this.texts);
    return this.picture;
  }
}

function tenth(value) {
  return String(Math.round(10 * value) / 10);
}
