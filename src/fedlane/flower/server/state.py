"""`ServerState`: everything that a federation's server keeps from round to round and from run to run."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedlane.flower.server.aggregation import Aggregation, to_arrays, to_model
from fedlane.flower.server.guard import Guard
from fedlane.flower.server.roster import Member, Roster
from fedlane.flower.server.run_folder import describe, make_run
from fedlane.flower.server.scheduler import Scheduler
from fedlane.flower.server.settings import GuardSettings
from fedlane.flower.server.state_files import Saved, StateStore
from fedlane.scenario import Scenario
from fedlane.simulation.results import RunFolder
from fedlane.validate import InputError

logger = logging.getLogger("fedlane.flower")


class ServerState:
    """Scheduler, model, roster, guard and aggregation, and the folder in which they are stored."""

    def __init__(
        self, state_dir: str | Path, inner: Strategy, guard: GuardSettings, identity: Mapping[str, Any]
    ) -> None:
        """``identity`` holds the settings that must be the same in every run on this folder."""
        self.store = StateStore(state_dir)
        self.roster = Roster(guard.capacity, trust_names=guard.trust_names)
        self.aggregation = Aggregation(inner)
        self.guard = Guard(guard.max_update_norm, self.aggregation.weight)
        self.identity = identity
        self.arrays = ArrayRecord()
        self.elapsed_s = 0.0
        self.dropped: dict[str, int] = {}
        """Number of replies that were not used, by client."""
        self._scheduler: Scheduler | None = None
        self._saved: list[Member] = []

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the run; raises `InputError` before `start`."""
        if self._scheduler is None:
            raise InputError("LaneStrategy must be started: start(grid, initial_arrays, ...)")
        return self._scheduler

    def start(self, scheduler: Scheduler, initial_arrays: ArrayRecord) -> None:
        """Begin a run, or continue from the store. Orders interrupted by a crash count as sent."""
        self._scheduler, self.arrays, self._saved = scheduler, initial_arrays, []
        saved = self.store.load()
        if saved is not None:
            self._restore(saved)
            logger.info("round %d: continuing from %s", scheduler.round, self.store.folder)
        charged = self.store.charged()
        for member in list(self.roster.members):
            for _ in range(charged.get(member.name, 0) - member.sent):
                self.roster.put(self.roster.members[member.index].ordered())
        self.roster.pardon()

    def _restore(self, saved: Saved) -> None:
        folder = self.store.folder
        for name, value in self.identity.items():
            if saved.values.get(name) != value:
                raise InputError(f"state_dir {folder} has {name} {saved.values.get(name)!r}, not {value!r}")
        model = saved.part("model")
        if _layout(model) != _layout(to_model(self.arrays)):
            raise InputError(f"state_dir {folder} holds a model that differs from initial_arrays")
        self.scheduler.restore(saved.part("scheduler"))
        self.roster.restore(saved.values["roster"])
        self.aggregation.restore(saved.part("inner"))
        self.guard.norms, self.guard.seen = dict(saved.values["norms"]), int(saved.values["updates_seen"])
        self.elapsed_s, self.dropped = float(saved.values["elapsed_s"]), dict(saved.values["dropped"])
        self.arrays = to_arrays(model)

    def drop(self, member: Member) -> None:
        """Count an unused reply of a client."""
        self.dropped[member.name] = self.dropped.get(member.name, 0) + 1

    def save_clients(self) -> None:
        """Write the checkpoint if the roster has changed since the last one."""
        if self.roster.members != self._saved:
            self.save()

    def save(self) -> None:
        """Write the checkpoint."""
        values = {
            **self.identity,
            "roster": self.roster.values(),
            "norms": self.guard.norms,
            "updates_seen": self.guard.seen,
            "elapsed_s": self.elapsed_s,
            "dropped": self.dropped,
        }
        arrays = {f"scheduler.{name}": array for name, array in self.scheduler.arrays().items()}
        arrays |= {f"model.{name}": array for name, array in to_model(self.arrays).items()}
        arrays |= {f"inner.{name}": array for name, array in self.aggregation.memory().items()}
        self.store.save(Saved(values, arrays))
        self._saved = list(self.roster.members)

    def write_run_folder(self, scenario: Scenario | None, floor_s: float | None, *, interrupted: bool = False) -> None:
        """Write the tables and the summary; a failure is logged and does not end the federation."""
        members, model = self.roster.members[: self.scheduler.problem.clients], to_model(self.arrays)
        name, label = str(self.identity["federation"]), str(self.identity["policy"])
        flower = {
            "federation": name,
            "floor_s": floor_s,
            "wall_s": self.elapsed_s,
            "clients": [member.name for member in members],
            "joined_round": [member.joined_round for member in members],
            "dropped": self.dropped,
        }
        try:
            described = describe(scenario, name, self.scheduler, members, model)
            run = make_run(described, label, self.scheduler, members, model, flower, self.elapsed_s)
            RunFolder(self.store.folder).write(run, interrupted=interrupted)
        except Exception as error:  # the checkpoint is separate, so the federation can continue
            logger.error("round %d: the run folder could not be written: %s", self.scheduler.round - 1, error)


def _layout(model: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (array.shape, array.dtype) for name, array in model.items()}
