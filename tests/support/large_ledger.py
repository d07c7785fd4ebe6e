"""A client's ledger with many lines, written at once instead of one synced line at a time."""

import json

from fedlane.privacy.ledger_lines import ledger_line


def write_ledger(path, values, client="client 7"):
    """Write a ledger of the given lines after its first one, and its head; lines are numbered and chained here."""
    first = {"kind": "ledger", "client": client, "randomness": "operating system"}
    lines, digest = [], ""
    for number, line in enumerate([first, *values]):
        lines.append(ledger_line({"line": number, **line}, digest))
        digest = json.loads(lines[-1])["digest"]
    path.write_bytes(b"".join(lines))
    path.with_name(path.name + ".head").write_text(json.dumps({"lines": len(lines), "digest": digest}))


def uploads(dataset, count, first=1):
    """Lines of ``count`` uploads of a data set."""
    return [
        {"kind": "upload", "dataset": dataset, "upload": first + number, "round": number} for number in range(count)
    ]
