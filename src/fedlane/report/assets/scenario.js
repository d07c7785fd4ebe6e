/* The whole scenario of each run, and where it differs from the first. */

function scenarios() {
  const holder = el("div");
  on("data", () => {
    const open = new Set([...holder.querySelectorAll("details")].flatMap((node, k) => (node.open ? [k] : [])));
    const fresh = !holder.childElementCount;
    holder.replaceChildren(...model.runs.map((run, k) => scenarioCard(run, k, fresh ? k === 0 : open.has(k))));
  });
  return holder;
}

function scenarioCard(run, k, open) {
  const first = linesBySection(model.runs[0].toml);
  const lines = linesBySection(run.toml);
  const known = new Set(first.map((line) => line.key));
  const changed = k ? lines.filter((line) => line.text && !known.has(line.key)).length : 0;
  const beside = k === 0 ? "" : changed ? `${plural(changed, "line")} not in the first` : "the same as the first";
  const rows = sections(lines).map((section) =>
    el(
      "span",
      { class: "section" },
      section.map((line) => tomlLine(line, k > 0 && !known.has(line.key))),
    ),
  );
  return el(
    "details",
    { class: "card toml", open },
    el(
      "summary",
      {},
      el("b", {}, run.name),
      el("span", { class: "beside" }, ` ${run.folder}${beside ? ` · ${beside}` : ""}`),
    ),
    el("pre", { tabindex: "0", role: "region", "aria-label": `Scenario of ${run.name}` }, el("code", {}, rows)),
  );
}

/* Sections stay whole where lines stand in columns. */
function sections(lines) {
  const found = [[]];
  for (const line of lines.filter(({ text }) => text)) {
    if (line.text.startsWith("[")) found.push([]);
    found[found.length - 1].push(line);
  }
  return found;
}

/* Lines with the section that they stand in, which tells equal keys apart. */
function linesBySection(text) {
  let section = "";
  return text
    .trim()
    .split("\n")
    .map((line) => {
      if (line.startsWith("[")) section = line;
      return { text: line, key: `${section}\n${line}` };
    });
}

function tomlLine({ text }, changed) {
  const cut = text.indexOf("=");
  const parts = text.startsWith("[")
    ? [el("b", {}, text)]
    : cut > 0
      ? [el("span", { class: "key" }, text.slice(0, cut)), text.slice(cut)]
      : [text];
  return el("span", { class: changed ? "row changed" : "row" }, parts, "\n");
}
