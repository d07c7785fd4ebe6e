"""`LaneStrategy`: a Flower strategy whose nodes and lanes are chosen by the same policies as in simulation.

Each round: the policy gives lanes to connected clients; the orders are written to disk, then sent; replies that arrive
after the deadline are dropped; updates that pass the guard are aggregated by the wrapped strategy; the policy learns
from the measured delays; everything is saved. A second run on the same `state_dir` continues with the next round.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Unpack

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedlane.flower.protocol import KEY, Order
from fedlane.flower.server.contacts import Contacts, Overdue
from fedlane.flower.server.grid import exchange
from fedlane.flower.server.roster import Member
from fedlane.flower.server.round_in_flight import RoundInFlight
from fedlane.flower.server.scheduler import Scheduler
from fedlane.flower.server.settings import GuardSettings, ScheduleSettings, SettingsByKeyword, grouped
from fedlane.flower.server.state import ServerState
from fedlane.flower.server.strategy_arrays import to_model
from fedlane.scenario import Scenario
from fedlane.scheduling.policy import lift
from fedlane.scheduling.registry import make_policy
from fedlane.validate import InputError, at_least

logger = logging.getLogger("fedlane.flower")

TTL_AFTER_DEADLINE_S = 1.0
"""An order expires this long after its deadline, so that a node never works on a stale one."""

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class LaneStrategy(Strategy):
    """Schedules nodes onto lanes; aggregation and evaluation are those of the strategy it wraps.

    Settings are given as keyword arguments, in groups, or both; a keyword argument overrides the field of its group.

    Examples:
        ```python
        from fedlane.flower import GuardSettings, LaneStrategy, ScheduleSettings
        from flwr.serverapp.strategy import FedAvg

        strategy = LaneStrategy(FedAvg(fraction_evaluate=0.0), lanes=3, deadline_s=15, state_dir="state")

        same = LaneStrategy(
            FedAvg(fraction_evaluate=0.0),
            state_dir="state",
            schedule=ScheduleSettings(lanes=3, deadline_s=15),
            guard=GuardSettings(capacity=64),
        )
        ```
    """

    def __init__(
        self,
        inner: Strategy | None = None,
        *,
        state_dir: str | Path,
        schedule: ScheduleSettings | None = None,
        guard: GuardSettings | None = None,
        federation: str = "default",
        floor_s: float | None = None,
        scenario: Scenario | None = None,
        before_round: Callable[[int, Mapping[str, int]], None] | None = None,
        **settings: Unpack[SettingsByKeyword],
    ) -> None:
        """Check the settings and open the state folder.

        Args:
            inner: The strategy to wrap; by default FedAvg without evaluation by nodes.
            state_dir: Folder of the federation's state, which is also its run folder.
            schedule: How rounds are scheduled.
            guard: Which nodes and updates are accepted.
            federation: Name of the federation, which clients and their ledgers may check.
            floor_s: Flower's own share of a round in seconds, measured elsewhere; it is only recorded.
            scenario: What the operator knows about the network; it is only recorded.
            before_round: Called with the round and {client: lane} before anything is sent. The base station switches
                its side of the lanes here.
            **settings: Any field of `ScheduleSettings` or `GuardSettings` by its name: `lanes`, `deadline_s`,
                `policy`, `quotas`, `min_clients`, `local_iterations`, `evaluate_every`, `seed`, `losses`; `capacity`,
                `trust_names`, `max_update_norm`, `max_weight`.

        Raises:
            InputError: A setting is out of bounds.
            TypeError: `lanes` or `deadline_s` is missing, or a keyword is unknown.
        """
        self.schedule, guard = grouped(schedule, guard, settings)
        lanes, policy = self.schedule.lanes, self.schedule.policy
        if scenario is not None and scenario.network.channels != lanes:
            raise InputError(f"scenario has {scenario.network.channels} channels, but lanes is {lanes}")
        self.label = policy if isinstance(policy, str) else policy.name
        if isinstance(policy, str):
            policy = make_policy(policy, scenario.policies if scenario else None)
        self.policy = lift(policy)
        self.inner = FedAvg(fraction_evaluate=0.0) if inner is None else inner
        self.federation, self.floor_s, self.scenario, self.before_round = federation, floor_s, scenario, before_round
        self.deadline_s = float(self.schedule.deadline_s)
        identity = {"federation": federation, "lanes": lanes, "deadline_s": self.deadline_s, "policy": self.label}
        identity["policy_version"] = self.policy.version
        self.state = ServerState(state_dir, self.inner, guard, identity)
        self.contacts = Contacts(self.state.roster, self.state.guard, federation, self.schedule.min_clients)
        self._round = RoundInFlight()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Play rounds until `num_rounds` have been played, including those of earlier runs on this state folder.

        Args:
            grid: Flower's grid, as a ServerApp receives it.
            initial_arrays: The model before the first round.
            num_rounds: Number of rounds in total.
            timeout: Longest wait, in seconds, while no client is available. A round's own limit is `deadline_s`.
            train_config: Passed to the wrapped strategy for training.
            evaluate_config: Passed to the wrapped strategy for evaluation.
            evaluate_fn: Evaluates the model on the server; called with the number of rounds played and the model.

        Returns:
            The final model, and the metrics of this run's rounds.

        Raises:
            InputError: No client became available within `timeout`, or the state folder does not fit the settings.
        """
        _show_log()
        state, result = self.state, Result()
        with state.store.locked():
            scheduler = self._begin(initial_arrays, num_rounds)
            result.arrays = state.arrays
            if scheduler.round == 0 and evaluate_fn and (metrics := evaluate_fn(0, state.arrays)) is not None:
                result.evaluate_metrics_serverapp[0] = metrics
            while scheduler.round < num_rounds:
                if not self.contacts.wait(grid, scheduler.round, timeout):
                    logger.warning("round %d: every client has spent its budget or refused; stopping", scheduler.round)
                    if scheduler.round:
                        state.write_run_folder(self.scenario, self.floor_s, interrupted=True)
                    break
                began, server_round = time.monotonic(), scheduler.round + 1
                self._train(server_round, grid, train_config or ConfigRecord(), result)
                if server_round % self.schedule.evaluate_every == 0 or server_round == num_rounds:
                    state.save()  # a failed evaluation must not lose the round's uploads
                    self._evaluate(server_round, grid, evaluate_config or ConfigRecord(), evaluate_fn, result)
                state.elapsed_s += time.monotonic() - began
                state.save()
                state.write_run_folder(self.scenario, self.floor_s)
            logger.info("%d rounds in %.1f s: fedlane report %s", scheduler.round, state.elapsed_s, state.store.folder)
            return result

    def summary(self) -> None:
        """Log the wrapped strategy and the schedule's settings."""
        kind = type(self.inner).__name__
        lanes = "1 lane" if self.schedule.lanes == 1 else f"{self.schedule.lanes} lanes"
        logger.info("%s over %s, deadline %g s, policy %s", kind, lanes, self.deadline_s, self.label)
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Choose the round's clients, write their orders to disk, and return the messages.

        Args:
            server_round: Flower's round number, from 1.
            arrays: The model to send.
            config: Passed to the wrapped strategy.
            grid: Not used: the policy chooses the nodes.
        """
        state, scheduler = self.state, self.state.scheduler
        roster = state.roster
        scheduler.set_quotas(roster.quotas(self.schedule.lanes, self.schedule.quotas), roster.sizes())
        orders = scheduler.decide(self.contacts.present(), self.contacts.available())
        channel = orders.channel[0]
        lanes = {int(client): int(channel[client]) for client in np.flatnonzero(channel >= 0)}
        names = {state.roster.members[client].name: lane for client, lane in lanes.items()}
        logger.info(
            "round %d: %s", scheduler.round, ", ".join(f"{name} on lane {lane}" for name, lane in names.items())
        )
        try:
            if self.before_round is not None:
                self.before_round(scheduler.round, names)
        except Exception as error:  # from the operator's code; without the switch, this round is lost
            logger.error("round %d: before_round failed for %s: %s", scheduler.round, names, error)
            self._round = RoundInFlight(unsent=orders)
            return []
        content = state.aggregation.content(server_round, arrays, config)
        scheduler.rounds.start(orders)  # journalled and forced to disk
        members = [state.roster.members[client] for client in lanes]
        by_node = {member.node_id: self._order(member, names[member.name]) for member in members}
        self._round = RoundInFlight(by_node)
        return [
            Message(
                RecordDict({**content, KEY: order.record()}),
                dst_node_id=node_id,
                message_type=MessageType.TRAIN,
                ttl=self.deadline_s + TTL_AFTER_DEADLINE_S,
            )
            for node_id, order in by_node.items()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate replies that were punctual and passed the guard, with the wrapped strategy.

        Args:
            server_round: Flower's round number, from 1.
            replies: The accepted replies.

        Returns:
            The new model and the aggregated metrics; None for each that is absent.
        """
        aggregated = self.state.aggregation.aggregate(server_round, list(replies), to_model(self.state.arrays))
        for client in aggregated.left_out:
            self.state.drop(client)
        return aggregated.arrays, aggregated.metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the wrapped strategy's requests for evaluation, to idle nodes only.

        No privacy mechanism covers metrics that a node measures on private data.

        Args:
            server_round: Flower's round number, from 1.
            arrays: The model to evaluate.
            config: Passed to the wrapped strategy.
            grid: Not used: the wrapped strategy samples from the idle nodes.
        """
        idle = [member.node_id for member in self.state.roster.members if self.contacts.may_ask(member)]
        ttl_s = self.deadline_s + TTL_AFTER_DEADLINE_S
        return self.state.aggregation.evaluation(server_round, arrays, config, idle, ttl_s)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Average the nodes' metrics with the wrapped strategy; None without any."""
        return self.state.aggregation.evaluated(server_round, list(replies))

    def _begin(self, initial_arrays: ArrayRecord, num_rounds: int) -> Scheduler:
        at_least("num_rounds", num_rounds, 1)
        schedule = self.schedule
        scheduler = Scheduler(
            self.policy,
            lanes=schedule.lanes,
            deadline_s=self.deadline_s,
            rounds=num_rounds,
            seed=schedule.seed,
            losses=schedule.losses,
            charge=self.state.charge,
        )
        if self.state.start(scheduler, initial_arrays):
            self.state.save()
            self.state.write_run_folder(self.scenario, self.floor_s)
        self.summary()
        return scheduler

    def _order(self, member: Member, lane: int) -> Order:
        return Order(
            federation=self.federation,
            client=member.name,
            round=self.state.scheduler.round,
            lane=lane,
            deadline_s=self.deadline_s,
            iterations=self.schedule.local_iterations or member.introduction.local_iterations,
            server_count=member.uploads,
        )

    def _train(self, server_round: int, grid: Grid, config: ConfigRecord, result: Result) -> None:
        """Play one round, without its evaluation."""
        messages = list(self.configure_train(server_round, self.state.arrays, config, grid))
        arrivals = exchange(grid, messages, self.deadline_s) if messages else []
        replies = self._round.end(arrivals, self.state, self.contacts)
        arrays, metrics = self.aggregate_train(server_round, replies)
        if arrays is not None:
            self.state.arrays = result.arrays = arrays
        if metrics is not None:
            result.train_metrics_clientapp[server_round] = metrics

    def _evaluate(
        self, server_round: int, grid: Grid, config: ConfigRecord, evaluate_fn: Evaluate | None, result: Result
    ) -> None:
        """Evaluate the model on nodes, if the wrapped strategy asks for it, and on the server."""
        arrays, scheduler = self.state.arrays, self.state.scheduler
        measured: list[MetricRecord] = []
        if messages := list(self.configure_evaluate(server_round, arrays, config, grid)):
            arrivals = exchange(grid, messages, self.deadline_s)
            for arrival in arrivals:
                if not arrival.post.settled:
                    self.contacts.overdue[arrival.node_id] = Overdue(arrival.post, None)
            metrics = self.aggregate_evaluate(server_round, [a.reply for a in arrivals if a.reply is not None])
            if metrics is not None:
                result.evaluate_metrics_clientapp[server_round] = metrics
                measured.append(metrics)
        if evaluate_fn and (metrics := evaluate_fn(server_round, arrays)) is not None:
            result.evaluate_metrics_serverapp[server_round] = metrics
            measured.append(metrics)
        for metrics in measured:  # the server's metrics come last and take precedence
            scheduler.record_metrics(server_round - 1, metrics)
        if np.isfinite(accuracy := scheduler.trace.accuracy[0, server_round - 1]):
            logger.info("round %d: accuracy %.4f", server_round - 1, accuracy)


def _show_log() -> None:
    """Send our log lines to Flower's handlers in an app that sets up no logging."""
    if not logger.hasHandlers():
        for handler in logging.getLogger("flwr").handlers:
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
