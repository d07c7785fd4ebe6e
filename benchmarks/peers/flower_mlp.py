"""Flower's simulation on the paper's MLP task: 4 of 10 clients per round, 5 local steps of 64 samples, no clipping.

Run as `flower_mlp.py ROUNDS [stock|fast]` in a separate environment (flwr 1.41 with Ray, PyTorch). `stock` uses Flower
unchanged: a round takes 0.1 or 0.2 s, depending on the phases of its two 0.1 s polls, so run it several times. `fast`
shortens these polls. Prints seconds per round.
"""

import argparse
import functools
import logging
import os
import tempfile
import time
from types import SimpleNamespace

if __name__ == "__main__":  # before Flower and Ray load; Ray's workers, which import this file, inherit it
    HOME = tempfile.TemporaryDirectory(prefix="flower-", ignore_cleanup_errors=True)  # removed at exit
    os.environ.update(FLWR_HOME=HOME.name, FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")

import numpy as np
import ray
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce import vce_api
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

CLIENTS, COHORT, STEPS, BATCH, RATE = 10, 4, 5, 64, 0.1
SAMPLES = 6000  # per client
WARM_UP = 5  # rounds that are not timed: the workers start, import PyTorch and draw their data
POLL = 0.005  # seconds, in `fast`; 1 and 2 ms were no faster

client_app = ClientApp()


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))


@functools.cache
def worker() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    """The model and the data of every client, created once in each of Ray's processes."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.random((CLIENTS, SAMPLES, 784), dtype=np.float32))
    return mlp(), images, torch.from_numpy(rng.integers(10, size=(CLIENTS, SAMPLES)))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    model, images, labels = worker()
    client = int(context.node_config["partition-id"])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for batch in torch.randint(SAMPLES, (STEPS, BATCH)):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[client, batch]), labels[client, batch]).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": STEPS * BATCH})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


class ClockedFedAvg(FedAvg):
    """FedAvg that records the end of every round and raises an error if a client failed."""

    def __init__(self) -> None:
        super().__init__(COHORT / CLIENTS, 0.0, min_train_nodes=COHORT, min_available_nodes=CLIENTS)
        self.stamps: list[float] = []

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        if len(replies) != COHORT or any(reply.has_error() for reply in replies):
            raise RuntimeError(f"round {server_round}: a client failed")
        aggregated = super().aggregate_train(server_round, replies)
        self.stamps.append(time.perf_counter())
        return aggregated


def shorten_polls() -> None:
    """Lower the two fixed polls between a round's server and its clients, 0.1 s each in flwr 1.41, to `POLL`.

    - `InMemoryGrid.send_and_receive` sleeps `pull_interval` between its checks for replies: change its default.
    - `vce_api.add_messages_to_queue` waits on its stop event, for a fixed time, between its checks for messages to
      pass to the workers: give it an event with a shorter wait. The other queues block until they have an item.
    """
    InMemoryGrid.__init__.__defaults__ = (POLL,)
    stock = vce_api.add_messages_to_queue

    def add_messages_to_queue(state, queue, nodes_mapping, f_stop):
        stock(state, queue, nodes_mapping, SimpleNamespace(is_set=f_stop.is_set, wait=lambda _: f_stop.wait(POLL)))

    vce_api.add_messages_to_queue = add_messages_to_queue


def main() -> None:
    parser = argparse.ArgumentParser(description="Time Flower's simulation engine on the MLP task.")
    parser.add_argument("rounds", type=int)
    parser.add_argument("mode", nargs="?", choices=("stock", "fast"), default="stock")
    args = parser.parse_args()
    if args.rounds < WARM_UP + 2:
        parser.error(f"at least {WARM_UP + 2} rounds are needed")
    if args.mode == "fast":
        shorten_polls()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy = ClockedFedAvg()
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy.start(grid, ArrayRecord(mlp().state_dict()), num_rounds=args.rounds)

    backend = {"init_args": {"log_to_driver": False}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    try:
        run_simulation(server_app, client_app, num_supernodes=CLIENTS, backend_config=backend)
    finally:
        ray.shutdown()
    print(f"seconds_per_round {np.median(np.diff(strategy.stamps[WARM_UP:])):.6f}")


if __name__ == "__main__":
    import flower_mlp  # by name, so that Ray's workers import the client and keep its data between messages

    flower_mlp.main()
