"""`LaneStrategy`: a Flower strategy whose nodes and lanes are chosen by the very policies of simulation.

    LaneStrategy(FedAvg(fraction_evaluate=0.0), lanes=3, deadline_s=15, state_dir="state").start(
        grid, initial_arrays, num_rounds=40, evaluate_fn=evaluate
    )

Each round: look who is there; the policy gives lanes; the orders are written down, then sent; whatever has not come by
the deadline is dropped; what passes the guard is aggregated by the strategy that was wrapped; the policy learns from
what was measured; everything is saved. A second run on the same `state_dir` goes on at the next round.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedlane.flower.protocol import KEY, Order
from fedlane.flower.server.aggregation import Aggregation, to_model
from fedlane.flower.server.contacts import Contacts, Overdue, named, say
from fedlane.flower.server.grid import Arrival, exchange
from fedlane.flower.server.guard import Dropped, Guard
from fedlane.flower.server.roster import Roster
from fedlane.flower.server.scheduler import MeasuredDelay, Scheduler
from fedlane.flower.server.state import ServerState
from fedlane.flower.server.state_files import StateStore
from fedlane.scenario import Scenario
from fedlane.scheduling.policy import Policy, SinglePolicy, lift
from fedlane.scheduling.registry import make_policy
from fedlane.validate import InputError, at_least, positive

logger = logging.getLogger("fedlane.flower")

TTL_OVER_S = 1.0
"""An order lives so much longer than its deadline: a node that comes to it later finds nothing stale to work on."""

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


class LaneStrategy(Strategy):
    """Schedules nodes onto lanes; aggregation and evaluation are those of the strategy it wraps."""

    def __init__(
        self,
        inner: Strategy | None = None,
        *,
        lanes: int,
        deadline_s: float,
        state_dir: str | Path,
        policy: str | Policy | SinglePolicy = "lane",
        federation: str = "default",
        min_clients: int = 1,
        capacity: int = 64,
        quotas: Mapping[str, float] | None = None,
        max_update_norm: float | None = None,
        local_iterations: int | None = None,
        floor_s: float | None = None,
        evaluate_every: int = 1,
        seed: int = 0,
        trust_names: bool = False,
        scenario: Scenario | None = None,
        before_round: Callable[[int, Mapping[str, int]], None] | None = None,
    ) -> None:
        """inner: FedAvg without evaluation by nodes, if not given. state_dir: also the run folder.

        min_clients: so many are waited for before the first round. capacity: the most clients ever. quotas: each
        client's share of rounds by name; else from what clients say of their data. local_iterations: else each
        client's own. floor_s: Flower's own time in a round, measured elsewhere, for the record. trust_names: a name
        may move to a new node (without node authentication, a restarted node has a new id). scenario: what the
        operator knows of the network, for the record. before_round: called with the round and {client: lane} before
        anything is sent; the base station switches its side of the lanes there.
        """
        at_least("lanes", lanes, 1)
        positive("deadline_s", deadline_s)
        at_least("min_clients", min_clients, 1)
        at_least("evaluate_every", evaluate_every, 1)
        if local_iterations is not None:
            at_least("local_iterations", local_iterations, 1)
        for name, quota in (quotas or {}).items():
            if not 0 <= quota <= 1:
                raise InputError(f"quotas[{name!r}] must be at least 0 and at most 1, got {quota}")
        if scenario is not None and scenario.network.channels != lanes:
            raise InputError(f"scenario has {scenario.network.channels} channels, lanes is {lanes}")
        self.label = policy if isinstance(policy, str) else policy.name
        made = make_policy(policy, scenario.policies if scenario else None) if isinstance(policy, str) else policy
        self.policy = lift(made) if isinstance(made, SinglePolicy) else made
        self.inner = FedAvg(fraction_evaluate=0.0) if inner is None else inner
        self.lanes, self.deadline_s, self.federation, self.seed = lanes, float(deadline_s), federation, seed
        self.quotas, self.local_iterations, self.floor_s = quotas, local_iterations, floor_s
        self.evaluate_every, self.scenario, self.before_round = evaluate_every, scenario, before_round
        self.store = StateStore(state_dir)
        self.roster = Roster(capacity, trust_names=trust_names)
        self.aggregation = Aggregation(self.inner)
        self.guard = Guard(max_update_norm, self.aggregation.weight)
        self.contacts = Contacts(self.roster, self.guard, federation, min_clients)
        self.memory: ServerState | None = None
        self._orders: dict[int, Order] = {}
        self._available = np.zeros(0, np.bool_)
        self._failed: dict[int, int] = {}

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
        """Play rounds until `num_rounds` are played in all, those of earlier runs on this state_dir included.

        timeout: the longest to wait, in seconds, while nobody can be asked; the deadline of a round is `deadline_s`.
        """
        _show_log()
        with self.store.locked():
            memory = self._begin(initial_arrays, num_rounds)
            scheduler, result = memory.scheduler, Result(arrays=memory.arrays)
            if scheduler.round == 0 and evaluate_fn and (metrics := evaluate_fn(0, memory.arrays)) is not None:
                result.evaluate_metrics_serverapp[0] = metrics
            while scheduler.round < num_rounds:
                if not self.contacts.wait(grid, scheduler.round, timeout):
                    logger.warning("round %d: every client has spent its budget or refused: the end", scheduler.round)
                    if scheduler.round:
                        memory.record(self.label, self.scenario, self.floor_s, interrupted=True)
                    break
                began, server_round = time.monotonic(), scheduler.round + 1
                messages = list(self.configure_train(server_round, memory.arrays, train_config or ConfigRecord(), grid))
                replies = self._end_round(exchange(grid, messages, self.deadline_s) if messages else [])
                arrays, metrics = self.aggregate_train(server_round, replies)
                if arrays is not None:
                    memory.arrays = result.arrays = arrays
                if metrics is not None:
                    result.train_metrics_clientapp[server_round] = metrics
                if server_round % self.evaluate_every == 0 or server_round == num_rounds:
                    memory.save()  # an evaluation that fails must not cost the round's uploads
                    self._evaluate(server_round, grid, evaluate_config or ConfigRecord(), evaluate_fn, result)
                memory.elapsed_s += time.monotonic() - began
                memory.save()
                memory.record(self.label, self.scenario, self.floor_s)
            logger.info("%d rounds in %.1f s: fedlane report %s", scheduler.round, memory.elapsed_s, self.store.folder)
            return result

    def summary(self) -> None:
        """Log what is wrapped, and how."""
        kind = type(self.inner).__name__
        lanes = "1 lane" if self.lanes == 1 else f"{self.lanes} lanes"
        logger.info("%s over %s, deadline %g s, policy %s", kind, lanes, self.deadline_s, self.label)
        self.inner.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The round's orders, charged and written down: each client's own, with the model. Nobody else is asked."""
        memory = self._known()
        scheduler, round = memory.scheduler, memory.scheduler.round
        scheduler.set_quotas(self.roster.quotas(self.lanes, self.quotas))
        self._available = self.contacts.available()
        chosen = scheduler.select(self._available)
        lanes = {int(client): int(chosen[client]) for client in np.flatnonzero(chosen >= 0)}
        self._orders, self._failed = {}, {}
        names = named(self.roster, lanes)
        logger.info("round %d: %s", round, ", ".join(f"{n} on lane {lane}" for n, lane in names.items()))
        try:
            if self.before_round is not None:
                self.before_round(round, names)
        except Exception as error:  # the operator's own code; a base station that cannot switch is a lost round
            logger.error("round %d: before_round failed for %s: %s", round, names, error)
            self._failed = lanes
            return []
        content = self.aggregation.content(server_round, arrays, config)
        messages = []
        memory.save_clients()  # a client that is charged must be known after a crash
        self.store.charge(round, names)
        for client, lane in lanes.items():
            member = self.roster.members[client]
            order = Order(
                federation=self.federation,
                client=member.name,
                round=round,
                lane=lane,
                deadline_s=self.deadline_s,
                iterations=self.local_iterations or member.introduction.local_iterations,
                server_count=member.uploads,
            )
            self.roster.put(member.ordered())
            self._orders[member.node_id] = order
            messages.append(
                Message(
                    RecordDict({**content, KEY: order.record()}),
                    dst_node_id=member.node_id,
                    message_type=MessageType.TRAIN,
                    ttl=self.deadline_s + TTL_OVER_S,
                )
            )
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The wrapped strategy's aggregation; the replies are those that were in time and passed the guard."""
        made = self.aggregation.aggregate(server_round, list(replies), to_model(self._known().arrays))
        return made.arrays, made.metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's, to nodes that are free. Metrics of private data are not covered by any mechanism."""
        free = [member.node_id for member in self.roster.members if self.contacts.may_ask(member)]
        return self.aggregation.evaluation(server_round, arrays, config, free, self.deadline_s + TTL_OVER_S)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        return self.aggregation.evaluated(server_round, list(replies))

    def _end_round(self, arrivals: Sequence[Arrival]) -> list[Message]:
        """Judge what came, feed it back to the policy, and give the replies that may be aggregated."""
        memory = self._known()
        scheduler, model = memory.scheduler, to_model(memory.arrays)
        measured = {client: MeasuredDelay(lane, None) for client, lane in self._failed.items()}
        good = []
        for arrival in arrivals:
            order, member = self._orders[arrival.node_id], self.roster.of_node(arrival.node_id)
            assert member is not None
            measured[member.index] = MeasuredDelay(order.lane, None)
            try:
                if not arrival.post.settled:
                    self.contacts.overdue[arrival.node_id] = Overdue(arrival.post, order)
                if arrival.reply is None or arrival.delay_s is None:
                    raise Dropped(arrival.reason)
                report = self.guard.report(arrival.reply.content, order)
                member = self.roster.put(member.heard(report))
                self.guard.check(arrival.reply.content, report, model, member.introduction.size)
            except Dropped as reason:
                say(logging.WARNING, order.round, member, order.lane, f"dropped: {reason}")
                memory.dropped[member.name] = memory.dropped.get(member.name, 0) + 1
                continue
            measured[member.index] = MeasuredDelay(order.lane, arrival.delay_s, report.compute_s + report.switch_s)
            good.append(arrival.reply)
            say(logging.INFO, order.round, member, order.lane, f"punctual after {arrival.delay_s:.2f} s")
        scheduler.learn(measured, self._available)
        scheduler.epsilon[scheduler.round - 1] = [
            np.nan if member.epsilon is None else member.epsilon for member in self.roster.members
        ]
        return good

    def _evaluate(
        self, server_round: int, grid: Grid, config: ConfigRecord, evaluate_fn: Evaluate | None, result: Result
    ) -> None:
        """Evaluation by nodes, if the wrapped strategy asks for it, and by the server."""
        memory, known = self._known(), list[MetricRecord]()
        trace = memory.scheduler.trace
        if messages := list(self.configure_evaluate(server_round, memory.arrays, config, grid)):
            arrivals = exchange(grid, messages, self.deadline_s)
            for arrival in arrivals:
                if not arrival.post.settled:
                    self.contacts.overdue[arrival.node_id] = Overdue(arrival.post, None)
            metrics = self.aggregate_evaluate(server_round, [a.reply for a in arrivals if a.reply is not None])
            if metrics is not None:
                result.evaluate_metrics_clientapp[server_round] = metrics
                known.append(metrics)
        if evaluate_fn and (metrics := evaluate_fn(server_round, memory.arrays)) is not None:
            result.evaluate_metrics_serverapp[server_round] = metrics
            known.append(metrics)
        for metrics in known:  # the server's own come last and win
            for name, values in (("accuracy", trace.accuracy), ("loss", trace.loss)):
                if isinstance(value := metrics.get(name), float | int):
                    values[0, server_round - 1] = value
        if np.isfinite(accuracy := trace.accuracy[0, server_round - 1]):
            logger.info("round %d: accuracy %.4f", server_round - 1, accuracy)

    def _begin(self, initial_arrays: ArrayRecord, num_rounds: int) -> ServerState:
        """Start anew, or go on from state_dir."""
        at_least("num_rounds", num_rounds, 1)
        lanes, deadline_s = self.lanes, self.deadline_s
        settings = {"federation": self.federation, "lanes": lanes, "deadline_s": deadline_s, "policy": self.label}
        scheduler = Scheduler(self.policy, lanes=lanes, deadline_s=deadline_s, rounds=num_rounds, seed=self.seed)
        self.memory = ServerState(
            self.store, settings, self.roster, self.guard, self.aggregation, scheduler, initial_arrays
        )
        self.memory.resume()
        self.summary()
        return self.memory

    def _known(self) -> ServerState:
        if self.memory is None:
            raise InputError("LaneStrategy must be started: start(grid, initial_arrays, ...)")
        return self.memory


def _show_log() -> None:
    """In an app that sets up no logging of its own, ours goes where Flower's goes."""
    if not logger.hasHandlers():
        for handler in logging.getLogger("flwr").handlers:
            logger.addHandler(handler)
        logger.setLevel(logging.INFO)
