"""Round times of a real federation with Flower's SuperNodes and with FedLane's, on the loopback interface.

    .venv/bin/python benchmarks/nodes.py [--rounds 6]

Three nodes take part in every round, with a model of 1 MB. Two apps are timed: one that does almost nothing, and the
example app, which trains privately with PyTorch. Links are not shaped, so a round consists of Flower's overhead and
computation only. Takes about 6 minutes.
"""

import argparse
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

from fedlane.flower.testbed.processes import FlowerCluster
from fedlane.simulation import Run

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower-app"
NODES, HIDDEN = 3, 320
PROJECT = """
[project]
name = "idle"
version = "1.0.0"
description = "Does almost nothing"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "fedlane"
[tool.flwr.app.components]
serverapp = "idle.server:app"
clientapp = "idle.client:app"
[tool.flwr.app.config]
rounds = 1
state-dir = ""
"""
CLIENT = """
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from fedlane.flower import LaneMod

lanes = LaneMod(size=100)
app = ClientApp(mods=[lanes])
app.query()(lanes.introduce)

@app.train()
def train(message, context):
    weights = message.content["arrays"]["w"].numpy()
    weights = weights + 1e-3 * np.random.default_rng().standard_normal(weights.shape).astype(np.float32)
    content = {"arrays": ArrayRecord({"w": Array(weights)}), "metrics": MetricRecord({"num-examples": 100})}
    return Message(RecordDict(content), reply_to=message)
"""
SERVER = """
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from fedlane.flower import LaneStrategy

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    first = np.random.default_rng(0).standard_normal(250_000).astype(np.float32)
    strategy = LaneStrategy(lanes=3, deadline_s=60.0, state_dir=config["state-dir"], min_clients=3)
    strategy.start(grid, ArrayRecord({"w": Array(first)}), num_rounds=config["rounds"])
"""


def main() -> int:
    """Run all combinations of apps and nodes, and print their round times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    rounds = parser.parse_args().rounds
    print(f"{'app':10} {'nodes':28} {'median round':>12} {'smallest':>9} {'largest':>8}  relative to Flower's")
    with tempfile.TemporaryDirectory() as folder:
        idle = write_idle_app(Path(folder) / "idle-app")
        for name, app, preload in (("idle", idle, []), ("private", EXAMPLE, ["fedlane.flower.node.preload"])):
            kinds: dict[str, tuple[bool, list[str]]] = {"Flower's own": (True, []), "fedlane-supernode": (False, [])}
            if preload:
                kinds["fedlane-supernode, preloaded"] = (False, preload)
            reference = 0.0
            for kind, (stock, modules) in kinds.items():
                delays = play(Path(folder) / f"{name}-{len(modules)}-{stock}", app, rounds, stock, modules)
                middle = statistics.median(delays)
                reference = reference or middle
                spread = f"{min(delays):7.2f} s {max(delays):6.2f} s"
                print(f"{name:10} {kind:28} {middle:10.2f} s {spread}  {middle / reference:.2f}", flush=True)
    return 0


def play(folder: Path, app: Path, rounds: int, stock: bool, preload: list[str]) -> list[float]:
    """Delays of all rounds except the first, in which the nodes fetch the app."""
    folder.mkdir()
    with FlowerCluster(folder, port=free_port()) as federation:
        superlink = federation.start_superlink()
        keys = [federation.new_node(f"node-{number}") for number in range(NODES)]
        federation.register(*keys)
        nodes = [
            federation.start_supernode(
                f"node-{number}",
                key,
                port=free_port(),
                config={"partition-id": number, "fedlane-ledger": str(folder / f"{number}.ledger")},
                preload=preload,
                stock=stock,
            )
            for number, key in enumerate(keys)
        ]
        federation.wait_for_nodes(nodes)
        time.sleep(5.0)  # until the modules are preloaded
        config = {"rounds": rounds + 1, "state-dir": str(folder / "state")}
        if app == EXAMPLE:
            config |= {"clients": NODES, "lanes": NODES, "hidden": HIDDEN, "deadline-s": 60.0}
        federation.submit(app, config)
        status = folder / "state" / "status.json"  # asking Flower itself would take a second of processor time
        superlink.wait_for(
            lambda: status.exists() and "finished" in status.read_text(), 60.0 * rounds, "end of the run"
        )
        delays = [float(delay) for delay in Run.load(folder / "state").rounds["delay_s"].to_numpy()]
        return delays[1:]


def write_idle_app(folder: Path) -> Path:
    """Write a Flower app that does almost nothing."""
    (folder / "idle").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", ""), ("client", CLIENT), ("server", SERVER)):
        (folder / "idle" / f"{name}.py").write_text(text)
    return folder


def free_port() -> int:
    """A free port on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
