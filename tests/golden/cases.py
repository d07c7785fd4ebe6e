"""The runs whose results are pinned, and how a result becomes a digest. Uses the public interface of FedLane only.

A schedule has two parts:

- choices: integers and booleans (assigned client and channel, punctual, available, uploads).
- numbers: float64 values (delays, queues, quotas, epsilons, positions).

NumPy computes exp, log and power with AVX-512 instructions where the processor has them, and the last bit then differs;
where two matchings are equally good, even a choice may. Digests are therefore stored per arithmetic, which `arithmetic`
identifies by the results of these functions. On a machine of another arithmetic a schedule is compared only where the
stored arithmetics agree about the choices: these exactly, and the sums of some columns with a relative tolerance
of 1e-9.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedlane import Run, Scenario, Simulation, policies, presets, simulate

HERE = Path(__file__).parent
FILES = HERE / "files"
DIGESTS = HERE / "digests.json"
ROUNDS = 100
SEEDS = (0, 1, 2)
POLICIES = ("lane", "mamab-om", "mamab-gmba", "random", "round-robin", "single-ucb", "genie")
"""All policies of the time of writing; a later one needs digests of its own only when it is added here."""
RENAMED = {"single-ucb": "ucb-index", "lane": "lane-2026"}
"""Policies that have another name since the time of writing: old name -> new name."""
LINES_SINCE = (
    'samples_per_client = "all"\n',
    *("bits_per_weight = 32.0\n", 'model = "paper"\n', 'cell = "umi"\n', "carrier_hz = 3500000000.0\n"),
    *('mobility = "static"\n', "speed_m_s = [0.5, 2.0]\n", "drift_s = 0.0\n", "uplink_share = 1.0\n"),
    '\n[availability]\nmodel = "always"\nmean_on_s = 600.0\nmean_off_s = 200.0\n',
    "\n[energy]\nkappa = 1e-28\ndevice_w = 3.0\nefficiency = 0.35\nidle_w = 0.0\n",
    *("momentum = 0.0\n", "proximal = 0.0\n", 'learning_rate_schedule = "constant"\n', 'aggregation = "size"\n'),
    *('server_optimizer = "sgd"\n', "server_momentum = 0.9\n", "server_decay = 0.99\n"),
    "server_adaptivity = 0.001\n",
    "loss_clip = 4.0\nloss_noise = 4.0\n",
)
"""Lines of a scenario file with the defaults of keys that were added since the time of writing."""
COLUMNS_SINCE = {
    "assignments": {"energy_j"},
    "clients": {"present_share", "shortfall", "energy_j"},
    "client_rounds": {"present"},
}
"""Columns that tables have since then."""
MEASURES_SINCE = {"energy_j", "present_share", "shortfall"}
"""Keys that summaries have since then."""
ARRAYS_SINCE = {"trace.punctual", "trace.energy_j", "present_rounds", "energy_j", "_version"}
"""Arrays that checkpoints and schedules have since then."""
SUMMED = ("assignments.delay_s", "rounds.delay_s", "client_rounds.queue", "client_rounds.epsilon", "clients.quota")
PRESETS = (
    *("paper-cifar10", "paper-cifar10-literal", "paper-fmnist", "paper-fmnist-literal", "private-fmnist"),
    "quickstart",
)


@dataclass(frozen=True)
class Case:
    """A run: a preset with some values changed, under one policy."""

    name: str
    preset: str
    policy: str
    rounds: int
    changes: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = SEEDS

    @property
    def scenario(self) -> Scenario:
        changes = {key.replace("policies.lane.", "policies.lane-2026."): value for key, value in self.changes.items()}
        return Scenario.load(self.preset).with_values({"rounds": self.rounds, **changes})

    def run(self, learning: bool = False) -> Run:
        """Play the whole run."""
        return simulate(self.scenario, renamed(self.policy), seeds=self.seeds, learning=learning)


def renamed(policy: str) -> str:
    """Return a policy of the time of writing under its present name, with its parameters."""
    name, colon, parameters = policy.partition(":")
    return RENAMED.get(name, name) + colon + parameters


def _rates(clients, channels, tables):
    """Rates in Mbit/s, spread between 0.5 and 20."""
    number = np.arange(tables * clients * channels).reshape(tables, clients, channels)
    return (0.5 + (number * 37 % 40) / 2.0).tolist()


_FIXED = {"compute.seconds": 0.4, "network.payload_bits": 4e6, "network.deadline_s": 3.0}
_NONE = {"privacy.mechanism": "none"}
_MAMAB = ("mamab-om", "mamab-gmba")
_SOME = ("lane", "mamab-om", "genie")
VARIANTS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "success-weights": ("paper-fmnist", {}, tuple(f"{name}:V=10,queue_weight=success" for name in _MAMAB)),
    "slack": (
        "paper-fmnist",
        {},
        (*(f"{name}:V=10,quota_slack=0.125" for name in _MAMAB), "lane:quota_slack=0", "genie:quota_slack=0.5"),
    ),
    "parameters": (
        "paper-fmnist",
        {},
        (
            "mamab-om:V=1,T0=5,exploration=1",
            "mamab-gmba:V=1,T0=5",
            "lane:V=50,exploration=0.3",
            "single-ucb:exploration=0.01",
        ),
    ),
    "scenario-parameters": ("paper-fmnist", {"policies.mamab-om.V": 3.0, "policies.lane.V": 1.0}, ("lane", "mamab-om")),
    "rayleigh": ("paper-fmnist", {"network.fading": "rayleigh"}, POLICIES),
    "fewer-clients": ("paper-fmnist", {**_NONE, "network.clients": 3, "network.channels": 6}, POLICIES),
    "one-channel": ("paper-fmnist", {"network.channels": 1}, POLICIES),
    "one-client": (
        "paper-fmnist",
        {**_NONE, "network.clients": 1, "network.channels": 1},
        ("lane", "mamab-om", "random"),
    ),
    "many": ("paper-fmnist", {**_NONE, "network.clients": 40, "network.channels": 8}, (*_SOME, "mamab-gmba")),
    "dirichlet": ("paper-fmnist", {"data.partition": "dirichlet", "data.noniid_degree": 0.5}, _SOME),
    "shards": ("paper-fmnist", {"data.partition": "shards"}, _SOME),
    "iid": ("paper-fmnist", {"data.partition": "iid"}, _SOME),
    "imbalance": ("quickstart", {"data.imbalance": 0.5, "privacy.mechanism": "none"}, ("lane", "round-robin")),
    "fixed-rates": ("paper-fmnist", {**_FIXED, "network.rates_mbps": _rates(10, 4, 1)[0]}, POLICIES),
    "rates-in-turn": (
        "paper-fmnist",
        {**_FIXED, "network.rates_mbps": _rates(10, 4, 3), "network.floor_s": [0.1, 0.5]},
        _SOME,
    ),
    "budget-ends": ("quickstart", {"privacy.max_uploads": 20, "privacy.epsilon": 4.0}, POLICIES),
    "budgets-differ": ("paper-fmnist", {"privacy.max_uploads": [8] * 5 + [30] * 5}, POLICIES),
    "sqrt-d": ("paper-fmnist", {"privacy.theta_noise": "sqrt_d", "rounds": 30}, ("lane", "mamab-om")),
    "model-payload": (
        "quickstart",
        {
            "network.payload_bits": "model",
            "learning.model": "softmax",
            "privacy.mechanism": "none",
            "network.bandwidth_up_hz": 1e6,
            "network.bandwidth_down_hz": 1e6,
        },
        ("lane", "random"),
    ),
    "batch-per-client": ("paper-fmnist", {**_NONE, "learning.batch_size": list(range(10, 110, 10))}, ("lane",)),
    "same-interference": ("paper-fmnist", {"network.interference_db": [2.5, 2.5]}, _SOME),
    "short-deadline": ("paper-fmnist", {"network.deadline_s": 1.2}, _SOME),
}
SCHEDULES = {
    case.name: case
    for case in (
        *(Case(f"{preset} {policy}", preset, policy, ROUNDS) for preset in PRESETS for policy in POLICIES),
        *(
            Case(f"{name} {policy}", preset, policy, ROUNDS, changes)
            for name, (preset, changes, chosen) in VARIANTS.items()
            for policy in chosen
        ),
    )
}


def _learning(name: str, mechanism: str, model: str, rounds: int = 9, **changes: Any) -> Case:
    values = {
        "privacy.mechanism": mechanism,
        "learning.model": model,
        "learning.evaluate_every": 3,
        "privacy.max_uploads": 50,
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    return Case(f"{name} {mechanism}", "quickstart", "lane", rounds, values, (0,) if model == "cnn" else (0, 1))


MECHANISMS = ("none", "paper", "rigorous")
_SMALL = {"learning__batch_size": 4, "learning__local_iterations": 1, "learning__evaluate_every": 2}
CURVES = {
    case.name: case
    for case in (
        *(_learning(model, mechanism, model) for model in ("mlp", "softmax") for mechanism in MECHANISMS),
        _learning("cnn", "paper", "cnn", 2, **_SMALL),
        *(_learning("module", mechanism, "tiny_net:TinyNet") for mechanism in MECHANISMS),
        _learning("dirichlet", "none", "softmax", data__partition="dirichlet", learning__batch_size=7),
    )
}
FINISHED = _learning("finished", "rigorous", "softmax", rounds=12)
HALF_WAY = _learning("half-way", "rigorous", "softmax", rounds=14, privacy__max_uploads=8, privacy__epsilon=2.0)
PLAYED = 7
"""Rounds of the half-way run when it was interrupted."""
SAVED_SCHEDULE = _learning("saved schedule", "paper", "mlp", rounds=20)


def sha256(*arrays: np.ndarray) -> str:
    """One digest of the bytes of several arrays, in order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def arithmetic() -> str:
    """Identify how NumPy computes the functions whose last bit depends on the processor."""
    x = np.linspace(0.01, 20.0, 4001)
    functions = (np.exp, np.log, np.log2, np.log10, np.log1p, np.sqrt, np.sin, np.cos, lambda v: 10.0 ** (v / 10))
    return sha256(*(function(x) for function in functions))[:12]


def schedule_record(run: Run, replica: int) -> dict[str, Any]:
    """The digests of one replica's schedule."""

    def columns(table, names, kind):
        rows = table.filter(np.asarray(table["replica"]) == replica)
        # A null epsilon (no mechanism) becomes NaN.
        return {name: rows[name].to_numpy(zero_copy_only=False).astype(kind) for name in names}

    choices = [
        *columns(run.assignments, ("round", "client", "channel"), np.int64).values(),
        *columns(run.assignments, ("punctual",), np.bool_).values(),
        *columns(run.client_rounds, ("available",), np.bool_).values(),
        *columns(run.clients, ("uploads",), np.int64).values(),
    ]
    parts = {
        "assignments": columns(run.assignments, ("download_s", "compute_s", "upload_s", "delay_s"), np.float64),
        "rounds": columns(run.rounds, ("delay_s", "clock_s"), np.float64),
        "client_rounds": columns(run.client_rounds, ("queue", "epsilon"), np.float64),
        "clients": columns(
            run.clients, ("x_m", "y_m", "quota", "participation", "selection", "queue", "epsilon"), np.float64
        ),
        "channels": columns(run.channels, ("x_m", "y_m"), np.float64),
    }
    numbers = {f"{table}.{name}": array for table, part in parts.items() for name, array in part.items()}
    return {
        "choices": {arithmetic(): sha256(*choices)},
        "numbers": {arithmetic(): sha256(*numbers.values())},
        "sums": {name: float(np.nansum(numbers[name])) for name in SUMMED},
    }


def schedule_records(case: Case) -> dict[str, Any]:
    """The digests of every seed of a run without learning."""
    run = case.run()
    return {str(seed): schedule_record(run, replica) for replica, seed in enumerate(case.seeds)}


def curve_record(run: Run) -> dict[str, Any]:
    """The learning curves of a run, all replicas in turn, and the digest of the final weights."""
    accuracy, loss = (run.rounds[name].to_numpy() for name in ("accuracy", "loss"))
    tested = ~np.isnan(accuracy)
    return {
        "row": np.flatnonzero(tested).tolist(),
        "accuracy": accuracy[tested].tolist(),
        "loss": loss[tested].tolist(),
        "weights": sha256(*(run.model[name] for name in sorted(run.model))),
        "tensors": {name: list(run.model[name].shape) for name in sorted(run.model)},
    }


def run_record(run: Run) -> dict[str, Any]:
    """Schedule, curves and table layout of a run that learns."""
    seeds = run.summary["seeds"]
    return {
        "schedule": {str(seed): schedule_record(run, replica) for replica, seed in enumerate(seeds)},
        "curves": curve_record(run),
        "ledger": {arithmetic(): hashlib.sha256(run.ledger.encode()).hexdigest()},
        "layout": {
            name: {
                column.name: str(column.type)
                for column in table.schema
                if column.name not in COLUMNS_SINCE.get(name, ())
            }
            for name, table in run.tables.items()
        },
    }


def played(case: Case, rounds: int) -> Simulation:
    """A learning run after some rounds."""
    simulation = Simulation(case.scenario, renamed(case.policy), case.seeds, learning=True)
    for _ in range(rounds):
        simulation.step()
    return simulation


def stored() -> dict[str, Any]:
    """The content of digests.json."""
    return json.loads(DIGESTS.read_text())


def missing() -> set[str]:
    """Policies and presets of the time of writing that are gone."""
    return {*map(renamed, POLICIES), *PRESETS} - {*policies(), *presets()}
