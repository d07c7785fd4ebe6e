/* A served page polls its server for newer data as long as it is open, because an ended run may be resumed. */

const POLL_MS = 1500;

const link = { tag: null, lost: false, refused: false };

function following() {
  return model.live && !link.refused;
}

async function poll() {
  try {
    const headers = link.tag ? { "If-None-Match": link.tag } : {};
    const answer = await fetch("data", { headers, cache: "no-store", credentials: "same-origin" });
    if (answer.status === 200) {
      link.tag = answer.headers.get("ETag");
      const data = await answer.json();
      link.lost = false;
      update(data);
    } else if (answer.status === 401 || answer.status === 403) {
      link.refused = true;
    } else {
      link.lost = answer.status !== 304;
    }
  } catch {
    link.lost = true;
  }
  showState();
  if (following()) setTimeout(poll, document.hidden ? 4 * POLL_MS : POLL_MS);
}

function stateText() {
  if (link.refused) return "the server requires its token again: open the address that it printed";
  if (link.lost) return "the server does not respond; retrying";
  if (model.problem) return model.problem;
  if (!model.runs.length) return "waiting for the first rounds";
  const running = model.runs.filter((run) => run.state === "running");
  if (!running.length)
    return model.runs.every((run) => run.state === "finished")
      ? "finished"
      : listed([...new Set(model.runs.map((run) => run.state))]);
  const progress = running.map(
    (run) => (model.runs.length > 1 ? `${run.name} at ` : "") + `round ${run.rounds} of ${run.planned}`,
  );
  const written = new Date(1000 * Math.max(...running.map((run) => run.written_s))).toLocaleTimeString();
  return `running: ${listed(progress)}, last written at ${written}`;
}

function stateKind() {
  if (link.lost || link.refused || model.problem) return "lost";
  return model.runs.length && model.runs.every((run) => run.state !== "running") ? "done" : "going";
}
