"""The runs whose results are pinned, in groups by subject. Uses the public interface of FedLane only."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from fedlane import Run, Scenario, policies, presets, simulate
from support.parts import DATA

FILES = Path(__file__).parent / "files"
ROUNDS, SEEDS = 100, (0, 1, 2)
FEW_ROUNDS, TWO_SEEDS = 40, (0, 1)
PAPER = ("lane", "mamab-om", "mamab-gmba", "random", "round-robin", "cs-ucb-q")
"""The default and the paper's policies."""
PRESETS = (
    *("paper-cifar10", "paper-cifar10-literal", "paper-fmnist", "paper-fmnist-literal", "private-fmnist"),
    "quickstart",
)
WORLDS = ("churn", "phones", "drifting", "commute-lte", "cell-3gpp", "campus-5g", "city-munich")
MEASURED = ("commute-lte",)
"""Presets whose measured traces are not part of the package."""
PUBLISHED = (
    *("proportional-fair", "age-of-update", "fedcs", "rbcs-f", "thompson", "mamab-sw", "glr-cucb"),
    *("clairvoyant",),
)
NEED_LOSSES = ("oort", "power-of-choice", "tifl")


@dataclass(frozen=True)
class Case:
    """A run: a preset with some values changed, under one policy."""

    name: str
    preset: str
    policy: str
    rounds: int = FEW_ROUNDS
    changes: dict[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = TWO_SEEDS
    learning: bool = False

    @property
    def scenario(self) -> Scenario:
        return Scenario.load(self.preset).with_values({"rounds": self.rounds, **self.changes})

    @property
    def missing(self) -> bool:
        """Whether the run needs measured traces that are not here."""
        return self.preset in MEASURED and not (DATA / "traces" / self.scenario.network.trace).exists()

    def run(self) -> Run:
        """Play the whole run, with the traces of the package if it has some of that name."""
        folder = str(DATA) if self.preset in MEASURED else ""
        with mock.patch.dict(os.environ, FEDLANE_DATA=folder):
            return simulate(self.scenario, self.policy, seeds=self.seeds, learning=self.learning)


def named(*cases: Case) -> dict[str, Case]:
    """The cases by name."""
    by_name = {case.name: case for case in cases}
    assert len(by_name) == len(cases), "two cases have one name"
    return by_name


def _rates(clients, channels, tables):
    """Rates in Mbit/s, spread between 0.5 and 20."""
    return [
        [
            [0.5 + (((table * clients + i) * channels + j) * 37 % 40) / 2.0 for j in range(channels)]
            for i in range(clients)
        ]
        for table in range(tables)
    ]


_FIXED = {"compute.seconds": 0.4, "network.payload_bits": 4e6, "network.deadline_s": 3.0}
_NONE = {"privacy.mechanism": "none"}
_MAMAB = ("mamab-om", "mamab-gmba")
_SOME = ("lane", "mamab-om")
_SLACK = tuple(f"{name}:V=10,quota_slack=0.125" for name in _MAMAB)
_MODEL = {"network.payload_bits": "model", "learning.model": "softmax", **_NONE}
VARIANTS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "success-weights": ("paper-fmnist", {}, tuple(f"{name}:V=10,queue_weight=success" for name in _MAMAB)),
    "slack": ("paper-fmnist", {}, (*_SLACK, "lane:quota_slack=0")),
    "parameters": (
        "paper-fmnist",
        {},
        (
            *("mamab-om:V=1,T0=5,exploration=1", "mamab-gmba:V=1,T0=5", "cs-ucb-q:beta=0.5"),
            *("lane:V=50,exploration=0.3", "lane:forgetting=0.02,alarm=4", "lane:idle_channels=true"),
        ),
    ),
    "scenario-parameters": ("paper-fmnist", {"policies.mamab-om.V": 3.0, "policies.lane.V": 1.0}, _SOME),
    "rayleigh": ("paper-fmnist", {"network.fading": "rayleigh"}, PAPER),
    "fewer-clients": ("paper-fmnist", {**_NONE, "network.clients": 3, "network.channels": 6}, PAPER),
    "one-channel": ("paper-fmnist", {"network.channels": 1}, PAPER),
    "one-client": ("paper-fmnist", {**_NONE, "network.clients": 1, "network.channels": 1}, (*_SOME, "random")),
    "many": ("paper-fmnist", {**_NONE, "network.clients": 40, "network.channels": 8}, ("lane", *_MAMAB)),
    "dirichlet": ("paper-fmnist", {"data.partition": "dirichlet", "data.noniid_degree": 0.5}, _SOME),
    "shards": ("paper-fmnist", {"data.partition": "shards"}, _SOME),
    "iid": ("paper-fmnist", {"data.partition": "iid"}, _SOME),
    "imbalance": ("quickstart", {"data.imbalance": 0.5, **_NONE}, ("lane", "round-robin")),
    "fixed-rates": ("paper-fmnist", {**_FIXED, "network.rates_mbps": _rates(10, 4, 1)[0]}, PAPER),
    "rates-in-turn": (
        "paper-fmnist",
        {**_FIXED, "network.rates_mbps": _rates(10, 4, 3), "network.floor_s": [0.1, 0.5]},
        _SOME,
    ),
    "budget-ends": ("quickstart", {"privacy.max_uploads": 20, "privacy.epsilon": 4.0}, PAPER),
    "budgets-differ": ("paper-fmnist", {"privacy.max_uploads": [8] * 5 + [30] * 5}, PAPER),
    "sqrt-d": ("paper-fmnist", {"privacy.theta_noise": "sqrt_d", "rounds": 30}, _SOME),
    "model-payload": (
        "quickstart",
        {**_MODEL, "network.bandwidth_up_hz": 1e6, "network.bandwidth_down_hz": 1e6},
        ("lane", "random"),
    ),
    "batch-per-client": ("paper-fmnist", {**_NONE, "learning.batch_size": list(range(10, 110, 10))}, ("lane",)),
    "same-interference": ("paper-fmnist", {"network.interference_db": [2.5, 2.5]}, _SOME),
    "short-deadline": ("paper-fmnist", {"network.deadline_s": 1.2}, _SOME),
}
_OFTEN_AWAY = {"availability.mean_on_s": 15.0, "availability.mean_off_s": 10.0}
_BATTERIES = {
    "battery": ("drifting", {"energy.battery_j": 12.0}),
    "churn and battery": ("churn", {**_OFTEN_AWAY, "energy.battery_j": 12.0}),
    "battery and budget": ("paper-fmnist", {"energy.battery_j": 3.0, "privacy.max_uploads": 8}),
    "phones": ("phones", {"energy.battery_j": 15.0}),
}
"""Batteries that end during the run."""
_GENIE = ("rayleigh", "fewer-clients", "one-channel", "budget-ends", "budgets-differ", "fixed-rates", "rates-in-turn")
_LOSSES = {"learning.model": "softmax", "learning.batch_size": 8, "learning.local_iterations": 2}

GROUPS: dict[str, dict[str, Case]] = {
    "paper": named(
        *(Case(f"{preset} {policy}", preset, policy, ROUNDS, {}, SEEDS) for preset in PRESETS for policy in PAPER)
    ),
    "variants": named(
        *(
            Case(f"{name} {policy}", preset, policy, ROUNDS, changes, SEEDS)
            for name, (preset, changes, chosen) in VARIANTS.items()
            for policy in chosen
        )
    ),
    "worlds": named(
        *(
            Case(f"{world} {policy}", world, policy, changes=_OFTEN_AWAY if world == "churn" else {})
            for world in WORLDS
            for policy in ("lane", "mamab-om", "round-robin")
        ),
        Case("drifting for long lane", "drifting", "lane", 200, {"network.drift_s": 20.0}),
        *(Case(f"cell-1000 {policy}", "cell-1000", policy, 10, seeds=(0,)) for policy in ("lane", "mamab-om")),
        Case("long tables round-robin", "quickstart", "round-robin", 300, _NONE, tuple(range(220))),
    ),
    "batteries": named(
        *(
            Case(f"{name} {policy}", preset, policy, changes=changes)
            for name, (preset, changes) in _BATTERIES.items()
            for policy in ("lane", "mamab-om", "round-robin")
        )
    ),
    "published": named(
        *(
            Case(f"{world} {policy}", world, policy, changes=_OFTEN_AWAY if world == "churn" else {})
            for policy in PUBLISHED
            for world in ("paper-fmnist", "churn")
        )
    ),
    "losses": named(
        *(
            Case(
                f"{mechanism} {policy}",
                "quickstart",
                policy,
                20,
                {**_LOSSES, "privacy.mechanism": mechanism},
                learning=True,
            )
            for policy in NEED_LOSSES
            for mechanism in ("none", "rigorous")
        )
    ),
    "genie": named(
        *(Case(f"{preset} genie", preset, "genie", FEW_ROUNDS, {}, TWO_SEEDS) for preset in PRESETS),
        *(Case(f"{name} genie", *VARIANTS[name][:1], "genie", ROUNDS, VARIANTS[name][1]) for name in _GENIE),
        Case("slack genie", "paper-fmnist", "genie:quota_slack=0.5"),
        Case("churn genie", "churn", "genie", changes=_OFTEN_AWAY),
    ),
}
"""Runs by group and name. ``genie`` has a group of its own because its rule is to change."""


def _learning(
    name: str, mechanism: str, model: str, rounds: int = 9, policy: str = "round-robin", **changes: Any
) -> Case:
    """A run that learns; `round-robin` makes the same choices on every machine."""
    values = {
        "privacy.mechanism": mechanism,
        "learning.model": model,
        "learning.evaluate_every": 3,
        "privacy.max_uploads": 50,
        **({"learning.learning_rate": 0.05} if mechanism == "none" else {}),  # a larger one makes rounding grow
        **{key.replace("__", "."): value for key, value in changes.items()},
    }
    seeds = (0,) if model == "cnn" else TWO_SEEDS
    return Case(f"{name} {mechanism}", "quickstart", policy, rounds, values, seeds, learning=True)


MECHANISMS = ("none", "paper", "rigorous")
_SMALL = {"learning__batch_size": 4, "learning__local_iterations": 1, "learning__evaluate_every": 2}
CURVES = named(
    *(_learning(model, mechanism, model) for model in ("mlp", "softmax") for mechanism in MECHANISMS),
    _learning("cnn", "paper", "cnn", 2, **_SMALL),
    *(_learning("module", mechanism, "tiny_net:TinyNet") for mechanism in MECHANISMS),
    _learning("dirichlet", "none", "softmax", data__partition="dirichlet", learning__batch_size=7),
)
FINISHED = _learning("finished", "rigorous", "softmax", rounds=12, policy="lane")
HALF_WAY = Case(
    "half-way",
    "churn",
    "lane",
    24,
    {
        **_OFTEN_AWAY,
        "energy.battery_j": 8.0,
        "learning.model": "softmax",
        "learning.evaluate_every": 3,
        "privacy.max_uploads": 8,
        "privacy.epsilon": 2.0,
    },
    learning=True,
)
"""A run with churn, predictions, batteries and budgets that end, which is interrupted and resumed."""
PLAYED = 11
"""Rounds of the half-way run when it was interrupted."""
SAVED_SCHEDULE = _learning("saved schedule", "paper", "mlp", rounds=20, policy="lane")


def missing() -> set[str]:
    """Policies and presets of these runs that are gone."""
    return {*PAPER, *PUBLISHED, *NEED_LOSSES, "genie", *PRESETS, *WORLDS} - {*policies(), *presets()}
