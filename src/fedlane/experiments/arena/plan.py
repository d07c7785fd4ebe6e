"""The plan of the arena: every entrant in every world, on the same seeds, as batches of the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedlane.experiments.arena.arena_measures import MEASURE, MEASURE_OPTIMUM
from fedlane.experiments.arena.arena_worlds import ArenaWorld
from fedlane.experiments.arena.entrants import OPTIMUM, YARDSTICK, Entrant
from fedlane.experiments.engine.cells import RESULT_VERSION, Cell
from fedlane.experiments.engine.work_batches import WorkBatch, digest
from fedlane.scenario import Scenario
from fedlane.validate import InputError

FORMAT = 1
LARGE_PAIRS, LARGE_SEEDS = 20_000, 4
"""With more than `LARGE_PAIRS` pairs, a batch has at most `LARGE_SEEDS` seeds, so that workers share the work."""
OPTIMUM_SEEDS = 5
"""Seeds in a batch of the optimum, whose linear program takes seconds for each seed."""


@dataclass(frozen=True)
class ArenaCell:
    """An entrant in a world.

    Attributes:
        world: The world.
        entrant: The entrant.
        learning: Whether the model is trained.
        batches: Its batches of seeds; empty if the parameters are refused.
        error: Why they are refused, in one line; None if they are accepted.
    """

    world: ArenaWorld
    entrant: Entrant
    learning: bool
    batches: Sequence[WorkBatch]
    error: str | None = None

    @property
    def label(self) -> str:
        """The cell in one line."""
        return f"{self.world.name} {self.entrant.label}{'' if self.learning else ' (schedule only)'}"

    @property
    def weight(self) -> float:
        """Approximate time of a seed, in milliseconds on one core; used to order batches and to weight progress."""
        network, rounds = self.world.scenario.network, self.world.scenario.rounds
        training = 6.0 + 2.0 * network.channels if self.learning else 0.0
        return rounds * (0.3 + 1e-3 * network.clients * network.channels + training)


@dataclass(frozen=True)
class ArenaPlan:
    """Everything that defines an arena.

    Attributes:
        worlds: The worlds.
        entrants: The entrants, each label once.
        seeds: The seeds.
        learning: Whether all models are trained; if not, only entrants that require losses train.
        device: Class of the device that trains, ``cpu`` or ``cuda``. Entrants that require losses train on the CPU:
            their schedule waits for every round's losses, which does not suit a GPU.
        optimum: Whether the optimum is computed in worlds where it may apply.
    """

    worlds: tuple[ArenaWorld, ...]
    entrants: tuple[Entrant, ...]
    seeds: tuple[int, ...]
    learning: bool = True
    device: str = "cpu"
    optimum: bool = True

    @cached_property
    def cells(self) -> list[ArenaCell]:
        """Every entrant in every world, world by world, and the optimum last.

        Raises:
            InputError: Worlds, entrants or seeds are missing or named twice.
        """
        self._check()
        cells = [self._cell(world, entrant) for world in self.worlds for entrant in self.entrants]
        return cells + [self._optimum(world) for world in self.worlds if self.optimum and _may_have_optimum(world)]

    @property
    def batches(self) -> list[WorkBatch]:
        """The batches of all cells, the largest first, so that workers finish at about the same time."""
        sizes = [(cell.weight, batch) for cell in self.cells for batch in cell.batches]
        return [batch for _, batch in sorted(sizes, key=lambda item: -item[0])]

    def description(self) -> dict[str, Any]:
        """Return the plan as plain values, as it is stored in a folder."""
        return {
            "format": FORMAT,
            "result_version": RESULT_VERSION,
            "worlds": {world.name: world.scenario.model_dump(mode="json") for world in self.worlds},
            "entrants": [{"label": e.label, "policy": e.policy, "league": e.league} for e in self.entrants],
            "seeds": list(self.seeds),
            "learning": self.learning,
            "device": self.device,
        }

    def _check(self) -> None:
        if not self.worlds or not self.entrants or not self.seeds:
            raise InputError("the arena needs at least one world, one policy and one seed")
        for kind, names in (("--world", [w.name for w in self.worlds]), ("--policy", [e.label for e in self.entrants])):
            twice = next((name for k, name in enumerate(names) if name in names[:k]), None)
            if twice is not None:
                raise InputError(f"{kind} names {twice} twice")
        if len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0 or max(self.seeds) >= 2**63:
            raise InputError("seeds must be different, at least 0 and less than 2^63")

    def _cell(self, world: ArenaWorld, entrant: Entrant) -> ArenaCell:
        learning = self.learning or entrant.needs_losses
        device = "cpu" if entrant.needs_losses else self.device
        scenario = world.scenario if learning else _without_target(world.scenario)
        pairs = scenario.network.clients * scenario.network.channels
        size = LARGE_SEEDS if pairs > LARGE_PAIRS else len(self.seeds)
        batches: list[WorkBatch] = []
        try:
            for first in range(0, len(self.seeds), size):
                cell = Cell(scenario, entrant.policy, self.seeds[first : first + size], learning, device)
                batches += cell.batches(MEASURE)
        except InputError as error:
            return ArenaCell(world, entrant, learning, (), str(error))
        return ArenaCell(world, entrant, learning, batches)

    def _optimum(self, world: ArenaWorld) -> ArenaCell:
        scenario = _without_target(world.scenario)
        values: Mapping[str, Any] = {"scenario": scenario.model_dump(mode="json", exclude={"name", "policies"})}
        batches = []
        for first in range(0, len(self.seeds), OPTIMUM_SEEDS):
            seeds = list(self.seeds[first : first + OPTIMUM_SEEDS])
            key = digest({**values, "seeds": seeds, "function": MEASURE_OPTIMUM, "result_version": RESULT_VERSION})
            batches.append(WorkBatch(key, MEASURE_OPTIMUM, {**values, "seeds": seeds}))
        return ArenaCell(world, Entrant(OPTIMUM, OPTIMUM, YARDSTICK), False, batches)


def _without_target(scenario: Scenario) -> Scenario:
    """Return the scenario without a target accuracy, which changes nothing in a run that does not learn."""
    return scenario.with_values({"learning.target_accuracy": None})


def _may_have_optimum(world: ArenaWorld) -> bool:
    """Return whether the network is the paper's and static, with clients always present; `optimal_delays` decides."""
    network, availability = world.scenario.network, world.scenario.availability
    static = network.mobility == "static" and network.drift_s == 0
    return network.model == "paper" and static and availability.model == "always"
