"""`ServerState`: everything that a federation's server keeps from round to round and from run to run."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedlane.files import READ_ERRORS
from fedlane.flower.server.aggregation import Aggregation
from fedlane.flower.server.guard import Guard, why_refused
from fedlane.flower.server.roster import Member, Roster
from fedlane.flower.server.run_folder import describe, make_run
from fedlane.flower.server.scheduler import Scheduler
from fedlane.flower.server.settings import GuardSettings
from fedlane.flower.server.state_files import CHECKPOINT, JOURNAL, Saved, StateStore
from fedlane.flower.server.strategy_arrays import to_arrays, to_model
from fedlane.flower.server.update_bounds import finite
from fedlane.rounds import Orders
from fedlane.scenario import Scenario
from fedlane.simulation.provenance import RunOrigin
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
        self.aggregation = Aggregation(inner, guard.max_weight)
        self.guard = Guard(guard.max_update_norm, self.aggregation.weight, guard.max_weight)
        self.identity = identity
        self.arrays = ArrayRecord()
        self.elapsed_s = 0.0
        self.dropped: dict[str, int] = {}
        """Number of replies that were not used, by client."""
        self.origin = RunOrigin()
        self._scheduler: Scheduler | None = None
        self._saved: list[Member] = []

    def charge(self, round: int, orders: Orders) -> None:
        """Force a round's orders to disk before anything is sent: a crash must not hide an upload."""
        self.save_clients()  # after a crash, a charged client must be in the roster
        ordered = [self.roster.members[client] for client in np.flatnonzero(orders.given[0])]
        self.store.charge(round, {member.name: int(orders.channel[0, member.index]) for member in ordered})
        for member in ordered:
            self.roster.put(member.ordered())

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler of the run; raises `InputError` before `start`."""
        if self._scheduler is None:
            raise InputError("LaneStrategy must be started: start(grid, initial_arrays, ...)")
        return self._scheduler

    def start(self, scheduler: Scheduler, initial_arrays: ArrayRecord) -> bool:
        """Begin a run, or continue from the store. Orders that a crash cut off count as sent, their rounds as played.

        Returns:
            Whether there were such rounds.
        """
        self._scheduler, self.arrays, self._saved = scheduler, initial_arrays, []
        saved = self.store.load()
        if saved is None:
            self._check_model("initial_arrays")
        else:
            self._restore(saved)
            self._continue_provenance(scheduler.round)
            logger.info("round %d: continuing from %s", scheduler.round, self.store.folder)
        charged = self.store.charged()
        for member in list(self.roster.members):
            for _ in range(charged.get(member.name, 0) - member.sent):
                self.roster.put(self.roster.members[member.index].ordered())
        played = scheduler.round
        if saved is not None:
            self._count_cut_off_rounds()
        self.roster.pardon()
        return scheduler.round > played

    def _continue_provenance(self, round: int) -> None:
        """Keep the earlier sessions of the run folder; a damaged file is replaced and does not stop the federation."""
        try:
            self.origin.resume(self.store.folder, round)
        except InputError as error:
            logger.warning("round %d: the provenance of earlier sessions is lost: %s", round, error)

    def _count_cut_off_rounds(self) -> None:
        """Add the rounds of the journal that the checkpoint lacks, with all their orders late.

        Without this, a server that crashes again and again in one round would charge its clients again and again. A
        crash between the journal's line and its messages costs at most one upload of each ordered client.
        """
        scheduler, by_round = self.scheduler, dict(self.store.journal())
        clients = {member.name: member.index for member in self.roster.members}
        last = max(by_round, default=-1)
        if last >= scheduler.problem.rounds:
            raise InputError(f"num_rounds must be at least the {last + 1} rounds begun, got {scheduler.problem.rounds}")
        for round in range(scheduler.round, last + 1):
            orders = {clients[name]: lane for name, lane in by_round.get(round, {}).items() if name in clients}
            self._check_orders(round, orders)
            scheduler.replay(orders)
            scheduler.record_epsilon([member.epsilon for member in self.roster.members])
            logger.warning("round %d: a crash cut it off; its %d orders count as late", round, len(orders))

    def _check_orders(self, round: int, orders: Mapping[int, int]) -> None:
        """Raise `InputError` unless the orders {client: lane} of a round in the journal can have been sent."""
        problem, lanes = self.scheduler.problem, list(orders.values())
        fits = all(client < problem.clients and 0 <= lane < problem.channels for client, lane in orders.items())
        if not fits or len(set(lanes)) < len(lanes):
            raise InputError(f"{self.store.folder / JOURNAL} is damaged: round {round} has impossible orders")

    def _restore(self, saved: Saved) -> None:
        """Take everything from a checkpoint, which a stranger may have written: nothing in it is used unchecked."""
        try:
            self._read(saved)
        except InputError:
            raise
        except READ_ERRORS as error:
            path = self.store.folder / CHECKPOINT
            raise InputError(f"{path} is damaged: {type(error).__name__}: {error}") from error
        self._check_model(f"the model in state_dir {self.store.folder}")

    def _read(self, saved: Saved) -> None:
        folder = self.store.folder
        for name, value in self.identity.items():
            if saved.values.get(name) != value:
                raise InputError(f"state_dir {folder} has {name} {saved.values.get(name)!r}, not {value!r}")
        model = saved.part("model")
        if _layout(model) != _layout(to_model(self.arrays)):
            raise InputError(f"state_dir {folder} holds a model that differs from initial_arrays")
        self.roster.restore(saved.values["roster"])
        self.scheduler.restore(saved.part("scheduler"), self.roster.sizes())
        self.aggregation.restore(saved.part("inner"))
        self.guard.restore(saved.values)
        self.elapsed_s = finite({"elapsed_s": saved.values["elapsed_s"]})["elapsed_s"]
        self.dropped = {client: int(count) for client, count in finite(saved.values["dropped"]).items()}
        self.arrays = to_arrays(model)

    def _check_model(self, source: str) -> None:
        if reason := why_refused(to_model(self.arrays), self.guard.max_weight):
            raise InputError(f"{source} {reason}, which clients refuse: begin with another model and state_dir")

    def drop(self, client: str) -> None:
        """Count an unused reply of a client."""
        self.dropped[client] = self.dropped.get(client, 0) + 1

    def save_clients(self) -> None:
        """Write the checkpoint if the roster has changed since the last one."""
        if self.roster.members != self._saved:
            self.save()

    def save(self) -> None:
        """Write the checkpoint."""
        values = {
            **self.identity,
            "roster": self.roster.values(),
            **self.guard.values(),
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
            run = replace(run, provenance=self.origin.provenance("flower"))
            RunFolder(self.store.folder).write(run, interrupted=interrupted)
        except Exception as error:  # the checkpoint is separate, so the federation can continue
            logger.error("round %d: the run folder could not be written: %s", self.scheduler.round - 1, error)


def _layout(model: Mapping[str, Any]) -> dict[str, Any]:
    return {name: (array.shape, array.dtype) for name, array in model.items()}
