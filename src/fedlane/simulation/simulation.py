"""A run that is played round by round."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlane.files import READ_ERRORS, fitting_array
from fedlane.privacy import mechanism_of
from fedlane.privacy.run_ledger import RunLedger
from fedlane.records import ClientLosses, DelayDistributions, IntArray, RoundRecord, RunInfo
from fedlane.rounds import Orders, Outcome, Rounds
from fedlane.scenario import Scenario
from fedlane.scenario.run_settings import RunSettings
from fedlane.scheduling.policy import DISTRIBUTION_CELLS, BatchPolicy, Policy, check_requirements, check_schedule, lift
from fedlane.scheduling.registry import make_policy, resolved_parameters
from fedlane.simulation.checkpoint import Checkpoint, check_agreement
from fedlane.simulation.footprint import check_memory
from fedlane.simulation.provenance import RunOrigin
from fedlane.simulation.required_losses import run_caution, with_required_losses
from fedlane.simulation.results import Run
from fedlane.simulation.round_records import round_record
from fedlane.simulation.setup import Setup, learning_task, own_data_digest, prepare
from fedlane.simulation.spending import PrivacySpending
from fedlane.simulation.summary import summarise
from fedlane.simulation.tables import ClientTotals, run_tables
from fedlane.simulation.trace import Trace
from fedlane.simulation.trace_checks import check_segments
from fedlane.simulation.world import SimulatedWorld
from fedlane.simulation.world_tables import world_tables
from fedlane.trackers import Tracking
from fedlane.validate import InputError, at_least

if TYPE_CHECKING:  # only runs that learn load PyTorch
    from fedlane.learning.federation import FederationBatch
    from fedlane.learning.schedule import Schedule


class Simulation:
    """A run in progress: R replicas, U clients.

    Args:
        scenario: The scenario.
        policy: A policy's name, with or without parameters (``mamab-om:V=10``), or a policy object.
        seeds: One seed per replica, all different. A replica's results depend on its own seed only.
        learning: Whether to train the model.
        device: Where the model is trained: ``cpu`` or ``cuda``.
        bounded: Whether the trace of a long run or a large fleet is bounded (see `Trace`), so that memory does not
            grow with the rounds. Otherwise the trace holds every round.

    Attributes:
        info: The run's name, sizes and deadline.
        scenario: The scenario, including the policy's resolved parameters.
        label: The policy as the caller named it.
        policy: The policy object.
        setup: Everything that was prepared before the first round.
        quota: (R, U): quotas as the policy serves them, slack included.
        feasible_scale: (R,): the largest multiple of ``quota`` that any policy can serve; None on large networks.
        distributions: The true delay distributions if the policy requires them, otherwise None.
        caution: One line that a user should know about the policy on this network, or None.
        world: The simulated network and its clients.
        rounds: What changes from round to round: clock, queues, charges and the policy's state.
        trace: Record of every round so far.
        spending: Accounting of the uploads; None without a mechanism.
        ledger: Record of every charged upload; None without a mechanism.
        federation: The models in training; None without learning.
        settings: BatchPolicy, seeds, learning and device, as the run folder records them.
        origin: Command, date, versions, device and host, as the run folder records them.

    Raises:
        InputError: If the scenario, the policy or the seeds are invalid, or the run does not fit into memory.

    Examples:
        >>> from fedlane import Scenario, Simulation
        >>> simulation = Simulation(Scenario.load("quickstart"), "lane", seeds=[0, 1])
        >>> for _ in range(50):
        ...     outcome = simulation.step()
        >>> simulation.last_round().clock_s.shape
        (2,)
    """

    def __init__(
        self,
        scenario: Scenario,
        policy: str | BatchPolicy | Policy = "lane",
        seeds: Sequence[int] = (0,),
        *,
        learning: bool = False,
        device: str = "cpu",
        bounded: bool = False,
    ) -> None:
        self.label = policy if isinstance(policy, str) else policy.name
        policy = _made(policy, scenario)
        check_memory(scenario, policy, len(seeds), learning=learning, device=device, bounded=bounded)
        _check_seeds(seeds)
        check_requirements(policy, learning=learning)
        self.policy = policy
        self.scenario = scenario.with_values(
            {f"policies.{policy.name}.{key}": value for key, value in resolved_parameters(policy).items()}
        )
        self.setup = with_required_losses(policy, prepare(scenario, seeds))
        problem = self.setup.problem
        self.quota = policy.quotas(problem)
        self.feasible_scale = self.setup.feasible_scale(self.quota)
        self.distributions: DelayDistributions | None = None
        if "distributions" in policy.requires:
            self.distributions = self.setup.network.distributions(DISTRIBUTION_CELLS)
        self.caution = run_caution(policy, self.distributions, self.setup.mechanism)
        self.trace = _empty_trace(self.setup, bounded)
        mechanism = self.setup.mechanism
        private = mechanism_of(mechanism.name).has_ledger
        self.spending = PrivacySpending(mechanism) if private else None
        self.ledger = RunLedger(mechanism, scenario.data.dataset, seeds) if private else None
        self.world = SimulatedWorld(self.setup)
        self.rounds = Rounds(
            policy,
            problem,
            seeds,
            max_uploads=mechanism.max_uploads,
            wait_s=problem.deadline_s,
            charge=self._charge,
        )
        self.info = RunInfo(
            scenario=scenario.name,
            policy=self.label,
            seeds=self.setup.seeds,
            rounds=problem.rounds,
            channels=problem.channels,
            deadline_s=problem.deadline_s,
            mechanism=mechanism.name,
            epsilon_agreed=float(mechanism.epsilon.max()),
            delta_agreed=float(mechanism.delta.max()),
        )
        self._started = time.perf_counter()
        self.federation = learning_task(self.setup).federation(device) if learning else None
        self.settings = RunSettings.from_values(
            {"policy": self.label, "seeds": [int(s) for s in seeds], "learning": learning, "device": str(device)}
        )
        trained_on = self.settings.device if learning else None
        self.origin = RunOrigin(device=trained_on, data=own_data_digest(scenario.data.dataset))

    @property
    def round(self) -> int:
        """Number of rounds so far."""
        return self.rounds.round

    @property
    def finished(self) -> bool:
        """Whether all rounds have ended."""
        return self.rounds.finished

    @property
    def uploads(self) -> IntArray:
        """(R, U): uploads charged so far, late ones included."""
        return self.rounds.uploads

    @property
    def totals(self) -> ClientTotals:
        """Presence and energy of every client so far."""
        return ClientTotals(self.rounds.present_rounds, self.rounds.spent_j)

    def play(
        self,
        tracking: Tracking | None = None,
        on_round: Callable[[], object] | None = None,
        *,
        until: int | None = None,
    ) -> None:
        """Play the remaining rounds.

        Args:
            tracking: Trackers, already started, that receive the record of every round.
            on_round: Called after every round.
            until: Number of rounds after which to stop; by default all.
        """
        while not self.finished and (until is None or self.round < until):
            self.step()
            if tracking is not None and tracking.active:
                tracking.round(self.last_round())
            if on_round is not None:
                on_round()

    def step(self) -> Outcome:
        """Run one round in every replica."""
        rounds, world = self.rounds, self.world
        orders = rounds.decide(world.present(rounds), losses=self._losses, **self._required())
        rounds.start(orders)  # charged before anybody trains; late uploads are charged as well
        outcome = rounds.settle(world.attempt(rounds, orders))
        self.trace.append(outcome, self.setup.problem.deadline_s)
        if self.federation is not None:
            self._learn(self.federation, outcome.round)
        return outcome

    def _charge(self, round: int, orders: Orders) -> None:
        if self.ledger is not None:
            self.ledger.charge(round, orders.given)

    def _required(self) -> dict[str, Any]:
        """What the policy requires of this round beyond losses, which come with the training."""
        rounds, required = self.rounds, dict[str, Any]()
        if self.distributions is not None:
            required["distributions"] = self.distributions
        if "channel_state" in self.policy.requires:
            required["channel_state"] = self.world.network.channel_state(rounds.round, rounds.clock_s)
        return required

    def _learn(self, federation: "FederationBatch", t: int) -> None:
        """Train on the punctual clients of round ``t``, and evaluate the model if an evaluation is due."""
        row = t - self.trace.first
        federation.play(t, self.trace.client[:, row], self.trace.punctual[:, row])
        if self.finished or (t + 1) % self.scenario.learning.evaluate_every == 0:
            evaluation = federation.evaluate()
            self.trace.accuracy[:, t], self.trace.loss[:, t] = evaluation.accuracy, evaluation.loss

    @property
    def _losses(self) -> ClientLosses | None:
        """The losses that clients have reported; None if the policy does not require them."""
        reports = None if self.federation is None else self.federation.losses
        return None if reports is None else reports.latest

    def last_round(self) -> RoundRecord:
        """Make the record of the round just played, for trackers and displays."""
        mechanism = self.setup.mechanism
        rounds = self.rounds
        return round_record(self.trace, rounds.queue, rounds.clock_s, rounds.uploads, mechanism, self.spending)

    def result(self) -> Run:
        """The results of the rounds played so far."""
        summary = summarise(
            self.label,
            resolved_parameters(self.policy),
            self.trace.played(),
            self.setup,
            self.quota,
            self.feasible_scale,
            time.perf_counter() - self._started,
            self.totals,
        )
        if self.caution is not None:
            summary["caution"] = self.caution
        if self.setup.network.remark is not None:
            summary["remark"] = self.setup.network.remark
        in_world = world_tables(self.setup.network, self.trace.played().delay_s, self.setup.problem.rounds)
        summary["privacy"] = None if self.spending is None else self.spending.summary(self.uploads)
        return Run(
            scenario=self.scenario,
            tables=run_tables(self.trace, self.setup, self.quota, self.spending, self.totals, in_world),
            summary=summary,
            ledger="" if self.ledger is None else self.ledger.text(),
            model={} if self.federation is None else self.federation.tensors(),
            settings=self.settings,
            provenance=self.origin.provenance("simulation"),
        )

    def schedule(self) -> "Schedule":
        """The rounds played so far as a schedule, from which a model can be trained on another machine.

        Raises:
            InputError: If the policy requires losses: its schedule follows from the training that it had.
        """
        check_schedule(self.policy)
        from fedlane.learning.schedule import Schedule

        task = learning_task(self.setup)
        blocks = zip(*self.trace.client_blocks(), strict=True)
        client, punctual = (part[0] if len(part) == 1 else np.concatenate(part, axis=1) for part in blocks)
        return Schedule(task, client, punctual, self.trace.delay_s[:, : self.round])

    def keep_segments_in(self, folder: Path) -> None:
        """Move rounds that are not kept in memory to a run folder instead of a temporary one."""
        if self.trace.segments is not None:
            self.trace.segments.move_to(folder)

    def checkpoint(self) -> Checkpoint:
        """The state that a resumed run continues from."""
        arrays = self.rounds.arrays() | self.trace.saved()
        if self.federation is not None:
            arrays |= self.federation.to_arrays()
        return Checkpoint(self.label, self.setup.seeds, self.federation is not None, arrays, self.policy.version)

    @classmethod
    def resume(cls, folder: str | Path, device: str | None = None) -> "Simulation":
        """Resume the run of a folder at its last checkpoint, with the same results as an uninterrupted run.

        Args:
            folder: The run's folder.
            device: Where the model is trained, ``cpu`` or ``cuda``; None for the class of device that the run used.

        Raises:
            InputError: If the checkpoint is missing, damaged or does not fit the folder's scenario.
        """
        saved, path = Checkpoint.load(Path(folder)), Path(folder) / "scenario.toml"
        scenario, settings = Scenario.load(path), RunSettings.load(path) or RunSettings()
        simulation = cls(
            scenario,
            saved.label,
            saved.seeds,
            learning=saved.learning,
            device=device or settings.device,
            bounded=True,
        )
        version = simulation.policy.version
        if saved.version != version:
            raise InputError(
                f"{folder} cannot be resumed: it was played with version {saved.version} of policy "
                f"{simulation.policy.name}, and this is version {version}"
            )
        simulation.keep_segments_in(Path(folder))
        try:
            simulation._restore(saved)
        except READ_ERRORS as error:
            raise InputError(
                f"{folder} cannot be resumed: its checkpoint does not fit its scenario ({error})"
            ) from error
        simulation.origin.resume(Path(folder), simulation.round)
        return simulation

    def _restore(self, saved: Checkpoint) -> None:
        self.trace.restore(saved.arrays, self.setup.problem.deadline_s)
        check_segments(self.trace)
        self.rounds.restore(saved.arrays)
        check_agreement(self.trace, self.rounds, self.setup.mechanism)
        if self.ledger is not None:
            for t, assigned in enumerate(self.trace.assigned_rounds()):
                self.ledger.charge(t, assigned)
        if self.federation is not None:
            weights = fitting_array(saved.arrays, "weights", self.federation.weights.cpu().numpy())
            self.federation.restore(weights, saved.arrays)


def _check_seeds(seeds: Sequence[int]) -> None:
    """Refuse an empty list of seeds, repeated seeds, and seeds that are not in 0..2^63-1."""
    if len(seeds) == 0 or len(set(seeds)) != len(seeds):
        raise InputError(f"seeds must be at least one number, all different, got {list(seeds)}")
    at_least("seed", min(seeds), 0)
    if max(seeds) >= 2**63:
        raise InputError(f"seed must be less than 2^63, got {max(seeds)}")


def _empty_trace(setup: Setup, bounded: bool) -> Trace:
    """Return a trace without rounds, with room for what the run records."""
    problem = setup.problem
    new_trace = Trace.fitting if bounded else Trace.empty
    trace = new_trace(problem.replicas, problem.rounds, problem.clients, problem.channels).with_energy()
    return trace if setup.always_present else trace.with_presence()


def _made(policy: str | BatchPolicy | Policy, scenario: Scenario) -> BatchPolicy:
    """Return a policy that was given by its name or as an object."""
    if isinstance(policy, str):
        return make_policy(policy, scenario.policies)
    return lift(policy)
