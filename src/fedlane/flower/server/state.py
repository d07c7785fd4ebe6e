"""All that a federation remembers from round to round and from run to run, saved and found again."""

import logging
from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord

from fedlane.flower.server.aggregation import Aggregation, to_arrays, to_model
from fedlane.flower.server.guard import Guard
from fedlane.flower.server.roster import Member, Roster
from fedlane.flower.server.run_folder import describe, make_run
from fedlane.flower.server.scheduler import Scheduler
from fedlane.flower.server.state_files import Saved, StateStore
from fedlane.scenario import Scenario
from fedlane.simulation.results import RunFolder
from fedlane.validate import InputError

logger = logging.getLogger("fedlane.flower")


class ServerState:
    """Scheduler, model, clients, norms and the aggregation's own arrays; `settings` must not change between runs."""

    def __init__(
        self,
        store: StateStore,
        settings: Mapping[str, Any],
        roster: Roster,
        guard: Guard,
        aggregation: Aggregation,
        scheduler: Scheduler,
        initial_arrays: ArrayRecord,
    ) -> None:
        self.store, self.settings = store, settings
        self.roster, self.guard, self.aggregation, self.scheduler = roster, guard, aggregation, scheduler
        self.arrays = initial_arrays
        self.elapsed_s = 0.0
        self.dropped: dict[str, int] = {}
        """Replies that did not count, by client."""
        self._saved: list[Member] = []

    def resume(self) -> None:
        """Go on from the store, if it holds anything; orders that a crash cut off count as sent."""
        saved = self.store.load()
        if saved is not None:
            self._restore(saved)
            logger.info("round %d: going on from %s", self.scheduler.round, self.store.folder)
        charged = self.store.charged()
        for member in list(self.roster.members):
            for _ in range(charged.get(member.name, 0) - member.sent):
                self.roster.put(self.roster.members[member.index].ordered())
        self.roster.pardon()

    def _restore(self, saved: Saved) -> None:
        folder = self.store.folder
        for name, mine in self.settings.items():
            if saved.values.get(name) != mine:
                raise InputError(f"state_dir {folder} is of {name} {saved.values.get(name)!r}, not {mine!r}")
        model, mine = saved.part("model"), to_model(self.arrays)
        if {name: (a.shape, a.dtype) for name, a in model.items()} != {n: (a.shape, a.dtype) for n, a in mine.items()}:
            raise InputError(f"state_dir {folder} holds another model than initial_arrays")
        self.scheduler.restore(saved.part("scheduler"))
        self.roster.restore(saved.values["roster"])
        self.aggregation.restore(saved.part("inner"))
        self.guard.norms, self.guard.seen = dict(saved.values["norms"]), int(saved.values["updates_seen"])
        self.elapsed_s, self.dropped = float(saved.values["elapsed_s"]), dict(saved.values["dropped"])
        self.arrays = to_arrays(model)

    def save_clients(self) -> None:
        """Write the checkpoint if anything became known of the clients since the last one."""
        if self.roster.members != self._saved:
            self.save()

    def save(self) -> None:
        """Write the checkpoint."""
        values = {
            **self.settings,
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

    def record(
        self, label: str, scenario: Scenario | None, floor_s: float | None, *, interrupted: bool = False
    ) -> None:
        """Write the run folder; one that cannot be written ends no federation."""
        members, model = self.roster.members[: self.scheduler.problem.clients], to_model(self.arrays)
        name = str(self.settings["federation"])
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
        except Exception as error:  # the federation's own state is saved apart
            logger.error("round %d: the run folder is not up to date: %s", self.scheduler.round - 1, error)
