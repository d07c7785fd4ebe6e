/* The scenario of each run, with differences from the first run marked. */

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
  const first = linesBySection((model.runs[0] ?? run).toml);
  const lines = linesBySection(run.toml);
  const firstKeys = new Set(first.map((line) => line.key));
  const changed = k ? lines.filter((line) => line.text && !firstKeys.has(line.key)).length : 0;
  const comparison =
    k === 0 ? "" : changed ? `${plural(changed, "line")} not in the first run` : "same as the first run";
  const rows = sections(lines).map((section) =>
    el(
      "span",
      { class: "section" },
      section.map((line) => tomlLine(line, k > 0 && !firstKeys.has(line.key))),
    ),
  );
  return el(
    "details",
    { class: "card toml", open },
    el(
      "summary",
      {},
      el("b", {}, run.name),
      el("span", { class: "detail" }, ` ${run.folder}${comparison ? ` · ${comparison}` : ""}`),
    ),
    el("pre", { tabindex: "0", role: "region", "aria-label": `Scenario of ${run.name}` }, el("code", {}, rows)),
  );
}

/* Lines grouped by section, so that a section is not split between columns. */
function sections(lines) {
  const groups = [[]];
  for (const line of lines.filter(({ text }) => text)) {
    if (line.text.startsWith("[")) groups.push([]);
    groups[groups.length - 1].push(line);
  }
  return groups;
}

/* Lines with the section that they belong to, because sections may have the same keys. */
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
