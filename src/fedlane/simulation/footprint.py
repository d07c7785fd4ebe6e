"""Estimates of the memory that a run needs, and of the memory that is available, before anything is allocated."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlane.learning.architectures import parameter_count
from fedlane.learning.datasets import dataset_info
from fedlane.network.radio import block_rounds
from fedlane.records import Problem
from fedlane.scenario import Scenario
from fedlane.scheduling.policy import BatchPolicy
from fedlane.simulation.tables import PART_ROWS
from fedlane.simulation.trace_shape import TraceShape
from fedlane.simulation.world import changes_with_time
from fedlane.validate import InputError

TRACE_BYTES_PER_CHANNEL, TRACE_BYTES_PER_CLIENT, TRACE_BYTES_PER_ROUND = 37, 6, 24
"""Bytes of the trace per seed and round: for every channel, for every client, and besides."""
BOUNDED_BYTES_PER_CLIENT, BOUNDED_BYTES_PER_ROUND = 10, 350
"""The same in a bounded trace, for every client and kept round, and for every round with its row of ``rounds``."""
TABLE_BYTES_PER_CHANNEL, TABLE_BYTES_PER_CLIENT = 150, 250
"""Bytes, per seed and round, that the tables take while they are made and written: for every channel and for every
client. Both are measured (tests/simulation/test_footprint.py)."""
NETWORK_ARRAYS = 4
"""Arrays (R, U, N) of doubles that the radio network keeps, unless it is large."""
STATE_COPIES = 4
"""A policy's state, and three times its size while a round is decided: measured are 61 bytes per pair for `mamab-om`,
whose state has 16, and 75 for `lane-2026`, whose state has 20 (docs/scale.md)."""
STATE_COPIES_OF = {"lane": 11}
"""Policies that need more: measured are 200 bytes per pair for `lane` with 10,000 x 1,000 pairs, whose state has 20."""
LARGEST_STATE_PER_PAIR = 24
"""Bytes per pair that must be available before a state is made to learn its size; FedLane's policies need up to 20."""
PREDICTION_BYTES = 12
"""Bytes of the predictions for a channel and round, in the trace and again in the table."""
SETUP_BYTES_PER_CLIENT = 600
"""Bytes per seed and client of the preparation: partition, quotas, mechanism and compute times."""
GROWTH_CLIENTS, GROWTH_CHANNELS = 16, 8
"""Smallest network on which the growth of a policy's state is measured."""


@dataclass(frozen=True)
class Footprint:
    """The memory that a run needs, by purpose, in bytes.

    Attributes:
        seeds: Number of seeds.
        per_seed: For each seed, by what it grows with: "rounds", "clients and channels" or "the model".
        fixed: For all seeds together: the data set, and the work of a training step.
    """

    seeds: int
    per_seed: dict[str, float]
    fixed: dict[str, float]

    @property
    def total(self) -> float:
        """All of it."""
        return self.seeds * sum(self.per_seed.values()) + sum(self.fixed.values())

    def largest_seeds(self, available: float) -> int:
        """Return the largest number of seeds that fits into ``available`` bytes; 0 if none does."""
        each = sum(self.per_seed.values())
        return max(0, int((available - sum(self.fixed.values())) / max(each, 1.0)))

    def largest_part(self) -> str:
        """Return what the memory of a single seed grows with most."""
        parts = {**self.per_seed, **self.fixed}
        return max(parts, key=lambda name: parts[name])


def run_footprint(
    scenario: Scenario, policy: BatchPolicy, seeds: int, *, learning: bool, device: str = "cpu", bounded: bool = False
) -> Footprint:
    """Estimate the memory of a run without allocating it.

    Args:
        scenario: The scenario.
        policy: The policy; its state is counted at its initial size for one seed.
        seeds: Number of seeds.
        learning: Whether the model is trained.
        device: "cpu" or "cuda". Training on a GPU takes the GPU's memory, which is not counted.
        bounded: Whether the trace may be bounded, see `fedlane.simulation.trace.Trace`.
    """
    clients, channels, rounds = scenario.network.clients, scenario.network.channels, scenario.rounds
    drawn = min(2 * block_rounds(clients, channels), rounds)  # the old block is kept until the next one is drawn
    pairs = 0 if keeps_no_pairs(scenario, policy) else clients * channels
    draws = 8 * drawn * (pairs * (3 if scenario.network.fading == "rayleigh" else 2) + clients)
    space = 8.0 * NETWORK_ARRAYS * pairs + draws + SETUP_BYTES_PER_CLIENT * clients
    growing, fixed = _trace_bytes(scenario, seeds, bounded)
    per_seed = {"rounds": growing, "clients and channels": space}
    if learning:
        per_seed["the model"], for_learning = _learning_bytes(scenario, seeds, device)
        fixed |= for_learning
    rough = Footprint(seeds, per_seed, fixed).total + LARGEST_STATE_PER_PAIR * clients * channels
    fits = (available := available_bytes()) is None or rough < available
    state = _state_bytes(policy, scenario, clients, channels) if fits else _grown_state_bytes(policy, scenario)
    per_seed["clients and channels"] += state
    return Footprint(seeds, per_seed, fixed)


def keeps_no_pairs(scenario: Scenario, policy: BatchPolicy) -> bool:
    """Whether the network keeps nothing for each client-channel pair: it is large, and the policy does not read it."""
    network = scenario.network
    constant = network.model == "paper" and not changes_with_time(scenario)
    large = block_rounds(network.clients, network.channels) == 1
    return constant and large and not policy.requires & {"channel_state", "distributions"}


def _trace_bytes(scenario: Scenario, seeds: int, bounded: bool) -> tuple[float, dict[str, float]]:
    """Return the memory of the trace and of the tables per seed, and the fixed memory of a bounded trace."""
    clients, channels, rounds = scenario.network.clients, scenario.network.channels, scenario.rounds
    shape = TraceShape.of(seeds, rounds, clients, channels)
    held, tabled = (size + PREDICTION_BYTES for size in (TRACE_BYTES_PER_CHANNEL, TABLE_BYTES_PER_CHANNEL))
    if bounded and shape.bounded:
        kept = -(-rounds // shape.every)
        growing = kept * clients * BOUNDED_BYTES_PER_CLIENT + rounds * BOUNDED_BYTES_PER_ROUND
        segment = seeds * channels * shape.window * (2 * held + tabled)
        part = max(PART_ROWS, clients) * TABLE_BYTES_PER_CLIENT
        return float(growing), {"rounds": float(segment + part)}
    per_round = channels * (held + tabled)
    per_round += clients * (TRACE_BYTES_PER_CLIENT + TABLE_BYTES_PER_CLIENT) + TRACE_BYTES_PER_ROUND
    return float(rounds * per_round), {}


def _state_bytes(policy: BatchPolicy, scenario: Scenario, clients: int, channels: int) -> float:
    """Return the memory of a policy for one seed, from the size of its first state."""
    problem = Problem(
        clients=clients,
        channels=channels,
        rounds=scenario.rounds,
        deadline_s=scenario.network.deadline_s,
        quotas=np.zeros((1, clients)),
        sizes=np.ones((1, clients)),  # the number of records does not change the size of a state
    )
    copies = STATE_COPIES_OF.get(policy.name, STATE_COPIES)
    return float(copies) * sum(array.nbytes for array in policy.init(problem).values())


def _grown_state_bytes(policy: BatchPolicy, scenario: Scenario) -> float:
    """Return the memory of a policy whose state must not be allocated, from its growth on small networks."""
    u, n = scenario.network.clients / GROWTH_CLIENTS - 1, scenario.network.channels / GROWTH_CHANNELS - 1
    small, more_clients, more_channels, both = (
        _state_bytes(policy, scenario, clients * GROWTH_CLIENTS, channels * GROWTH_CHANNELS)
        for clients, channels in ((1, 1), (2, 1), (1, 2), (2, 2))
    )
    pairs = both - more_clients - more_channels + small
    return max(0.0, small + u * (more_clients - small) + n * (more_channels - small) + u * n * pairs)


def _learning_bytes(scenario: Scenario, seeds: int, device: str) -> tuple[float, dict[str, float]]:
    """Return the memory of the models per seed, and the fixed memory: one chunk of training, and the data set."""
    data, name = dataset_info(scenario.data.dataset), scenario.learning.model
    records, pixels = int(data.class_totals.sum()), int(np.prod(data.input_shape))
    weights = 0 if ":" in name else parameter_count(name, data.input_shape, data.outputs, data.tokens)
    memory = {"sgd": 0, "momentum": 2, "adam": 6, "yogi": 6}[scenario.learning.server_optimizer]  # and the next one
    models = 4.0 * ((4 + memory) * weights + records)  # weights, noise, a copy for the result; the records' order
    values = data.value_bytes * (2 if data.digest else 1)  # a user's data set also stays in memory as it was read
    fixed = {"data.dataset": records * (pixels * (values if device == "cpu" else values + 4) + 4.0 * data.outputs + 12)}
    if device != "cpu" or ":" in name:  # a GPU's memory is not counted, and a user's model is not loaded
        return models, fixed
    from fedlane.learning.federation import CPU_MEMORY_BYTES
    from fedlane.learning.models import dataset_model

    clients = scenario.network.clients
    samples = scenario.data.samples_per_client
    mean_size = records / clients if samples == "all" else samples
    largest = (1.0 + scenario.data.imbalance) * mean_size  # about the records of the largest client
    if scenario.data.partition == "natural" and data.natural is not None:
        largest = float(data.natural.sum(axis=1).max())
    batch = min(float(np.max(scenario.learning.batch_size)), largest)
    copies = 3 if scenario.learning.momentum == scenario.learning.proximal == 0 else 5  # and velocity, global model
    per_client = batch * dataset_model(name, data).bytes_per_sample() + 4.0 * copies * weights
    one_seed = min(scenario.network.channels, clients) * per_client
    fixed["learning.batch_size"] = max(one_seed, min(CPU_MEMORY_BYTES, seeds * one_seed))
    return models, fixed


def available_bytes() -> float | None:
    """Return the memory that is available here, within the limit of a container; None if it is unknown."""
    known = [amount for amount in (_system_bytes(), _container_bytes()) if amount is not None]
    return min(known, default=None)


def _system_bytes() -> float | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, AttributeError):
        return None


def _container_bytes(root: Path = Path("/sys/fs/cgroup"), groups: Path = Path("/proc/self/cgroup")) -> float | None:
    """Return what a control group leaves to this process, versions 2 and 1; None without a limit.

    A limit may be set on any group above the process. Pages that only cache files count as available.
    """
    try:
        lines = [line.split(":", 2) for line in groups.read_text().splitlines()]
    except OSError:
        return None
    left: list[float] = []
    for _, controllers, path in (line for line in lines if len(line) == 3):
        if controllers == "":
            left += _limits(root, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            files = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            left += _limits(root / "memory", path, *files)
    return min(left, default=None)


def _limits(root: Path, path: str, limit: str, usage: str, cached: str) -> list[float]:
    """Return the memory that is left in a control group and in each of the groups above it, where it is limited."""
    left, group = [], root / path.strip("/")
    for folder in (group, *group.parents):
        if folder == root.parent:
            break
        try:
            most = float((folder / limit).read_text())  # "max" is not a number: no limit
            used = float((folder / usage).read_text())
            lines = (folder / "memory.stat").read_text().splitlines()
        except (OSError, ValueError):
            continue
        reclaimable = next((float(line.split()[1]) for line in lines if line.startswith(f"{cached} ")), 0.0)
        left.append(max(0.0, most - used + reclaimable))
    return left


def check_memory(
    scenario: Scenario,
    policy: BatchPolicy,
    seeds: int,
    *,
    learning: bool,
    device: str = "cpu",
    bounded: bool = False,
    available: Callable[[], float | None] | None = None,
) -> Footprint:
    """Refuse a run that cannot fit into memory, before anything is allocated.

    Args:
        scenario: The scenario.
        policy: The policy.
        seeds: Number of seeds.
        learning: Whether the model is trained.
        device: "cpu" or "cuda".
        bounded: Whether the trace may be bounded.
        available: Returns the available memory in bytes, or None if it is unknown; by default `available_bytes`.

    Raises:
        InputError: The run needs more memory than is available. The message names what to reduce.
    """
    footprint = run_footprint(scenario, policy, seeds, learning=learning, device=device, bounded=bounded)
    room = (available or available_bytes)()
    if room is None or footprint.total <= room:
        return footprint
    most = footprint.largest_seeds(room)
    remedy = f"at most about {most:,} seed{'s' * (most != 1)} fit" if most else f"reduce {_remedies(footprint)}"
    size = f"{seeds:,} seed{'s' * (seeds != 1)}, {scenario.rounds:,} rounds, {scenario.network.clients:,} clients, "
    raise InputError(
        f"this run needs about {gigabytes(footprint.total)} of memory ({size}{scenario.network.channels:,} channels), "
        f"but {gigabytes(room)} is available: {remedy}"
    )


def _remedies(footprint: Footprint) -> str:
    """Return what to reduce where not even one seed fits."""
    return {"clients and channels": "network.clients or network.channels", "the model": "learning.model"}.get(
        footprint.largest_part(), footprint.largest_part()
    )


def gigabytes(amount: float) -> str:
    """Return a number of bytes as text, in GB or MB."""
    return f"{amount / 1e9:,.1f} GB" if amount >= 1e9 else f"{amount / 1e6:,.0f} MB"
