"""How late a server notices that a reply has arrived, and how late a round ends, with Flower's own nodes.

    .venv/bin/python benchmarks/arrivals.py [--rounds 4]

Three of Flower's own SuperNodes return 1 MB each. Between each of them and the SuperLink a relay notes when the
SuperLink has confirmed the last byte; the nodes' processes start while others are timed. In two more rounds all nodes
work beyond the deadline. Needs the repository's `tests/support`. Takes about a minute on a quiet machine.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

NODES, LATE_ROUNDS, DEADLINE_S = 3, 2, 3.0


def main() -> int:
    """Run the federation and print both delays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        played, stored_s = play(Path(folder), rounds)
    stamped = [arrival for one in played[:rounds] for arrival in one["arrivals"] if "node" in arrival]
    late = np.array([arrival["arrived"] - confirmed_s(stored_s[arrival["node"]], arrival) for arrival in stamped])
    over = [one["ended"] - one["began"] - one["deadline"] for one in played[rounds:]]
    print(f"replies stamped: {len(stamped)} of {NODES * rounds}")
    figures = ", ".join(f"{1e3 * np.quantile(late, share):.0f} ms ({share:.0%})" for share in (0.5, 0.95, 1.0))
    print(f"from the last confirmed byte to the stamp: {figures}")
    print(f"rounds that ended after their deadline: {', '.join(f'{1e3 * seconds:.1f} ms' for seconds in over)}")
    return 0


def confirmed_s(stored_s: list[float], arrival: dict[str, Any]) -> float:
    """Return when the SuperLink had confirmed the last object of a reply."""
    return max(at for at in stored_s if at <= arrival["arrived"])


def play(folder: Path, rounds: int) -> tuple[list[dict[str, Any]], list[list[float]]]:
    """Return what the server recorded of each round, and when each node's objects were confirmed."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from support.superlink import Federation, Relay  # type: ignore[import-not-found]

    with Federation(folder) as federation:
        relays = [Relay(federation.port) for _ in range(NODES)]
        for number, relay in enumerate(relays):
            federation.start_node(number, through=relay.port, stock=True)
        config = {"nodes": NODES, "rounds": rounds, "late-rounds": LATE_ROUNDS, "deadline": DEADLINE_S}
        run = federation.run("echo", {**config, "out": str(folder / "out.json")})
        run.wait(800)
        for relay in relays:
            relay.close()
        if not (folder / "out.json").exists():
            raise SystemExit(run.log())
        return json.loads((folder / "out.json").read_text()), [relay.stored_s for relay in relays]


if __name__ == "__main__":
    sys.exit(main())
