"""TiFL: tiers of equally fast clients, one of which serves each round.

Chai et al., *TiFL: A Tier-based Federated Learning System* (2020, arXiv 2001.09249). Clients are profiled, then sorted
by mean delay into tiers. Each round draws a tier, which costs one of its credits, and serves N random clients of it.
Every I rounds, if the current tier's accuracy has not grown, probabilities are set anew: of the n tiers with credits,
the one with the k-th smallest accuracy has (n + 1 - k) / (n (n + 1) / 2).

Here accuracy is exp(-mean reported loss of the tier's clients), see docs/rivals.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import BoolArray, ClientLosses, Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.policy import check_within
from fedlane.scheduling.ranges import ParameterRange, Tunable
from fedlane.scheduling.rivals.client_choice import ClientChoice, largest, mean_delays
from fedlane.validate import at_least, positive


@dataclass(frozen=True)
class Tifl(ClientChoice):
    """Adaptive tier selection; ``credits`` is each tier's number of rounds, in units of T / number of tiers.

    The number of tiers is limited, so that each has at least as many clients as there are channels. The state also
    holds, for every tier, its probability, the credits it used, and its accuracy at the last comparison, each
    (R, tiers).
    """

    name: ClassVar[str] = "tifl"
    summary: ClassVar[str] = "tiers of equally fast clients, drawn by accuracy and credits (Chai et al. 2020)"
    requires: ClassVar[frozenset[str]] = frozenset({"losses"})
    ranges: ClassVar[Mapping[str, Tunable]] = {
        "tiers": ParameterRange(2, 10, integer=True),
        "interval": ParameterRange(5, 50, "log", integer=True),
        "credits": ParameterRange(1.0, 5.0, "log"),
        "profiling": ParameterRange(1, 10, "log", integer=True),
    }

    tiers: int = 5
    interval: int = 20
    credits: float = 1.0
    profiling: int = 5

    def __post_init__(self) -> None:
        for name in ("tiers", "interval", "profiling"):
            at_least(name, getattr(self, name), 1)
        positive("credits", self.credits)

    def init(self, problem: Problem) -> State:
        """Return empty statistics, and equal tiers with all their credits."""
        shape = (problem.replicas, self.tiers)
        return {
            **super().init(problem),
            "probability": np.full(shape, 1.0 / self.tiers),
            "used": np.zeros(shape, np.int64),
            "accuracy": np.zeros(shape),
        }

    def tiers_of(self, state: State) -> tuple[IntArray, IntArray]:
        """Return each client's tier (R, U), fast ones first, -1 while it is profiled; and the number of tiers (R,)."""
        profiled = state["count"].sum(axis=2) >= self.profiling
        number = profiled.sum(axis=1)
        tiers = np.clip(number // state["count"].shape[2], 1, self.tiers)
        order = np.argsort(np.where(profiled, mean_delays(state), np.inf), axis=1, kind="stable")
        rank = np.empty_like(order)
        np.put_along_axis(rank, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
        tier = rank * tiers[:, None] // np.maximum(number, 1)[:, None]
        return np.where(profiled, tier, -1), tiers

    def credit(self, problem: Problem, tiers: IntArray) -> IntArray:
        """Return the rounds that each tier may serve (R,)."""
        return np.ceil(self.credits * problem.rounds / tiers).astype(np.int64)

    def chosen(self, state: State, context: Context, rng: RoundRng) -> BoolArray:
        """Return clients that are still profiled, then random clients of the tier that was drawn."""
        problem, available = context.problem, context.available
        draws = rng.uniform(1 + problem.clients)
        keys = draws[:, 1:]
        tier, tiers = self.tiers_of(state)
        profiled = (tier < 0) & available
        member = (tier[..., None] == np.arange(self.tiers)) & available[..., None]
        present = member.any(axis=1)
        paid = present & (state["used"] < self.credit(problem, tiers)[:, None])
        paid = np.where(paid.any(axis=1, keepdims=True), paid, present)
        weight = np.where(paid, state["probability"], 0.0)
        weight = np.where(weight.sum(axis=1, keepdims=True) > 0, weight, paid)
        cumulative = np.cumsum(weight, axis=1)
        drawn = np.argmax(cumulative > draws[:, :1] * cumulative[:, -1:], axis=1)
        served = np.take_along_axis(member, drawn[:, None, None], axis=2)[..., 0]
        first = profiled.any(axis=1, keepdims=True)
        urgency = -state["count"].sum(axis=2).astype(np.float64)
        profiling = largest(urgency, profiled, problem.channels, keys)
        others = largest(keys, available & ~profiled, problem.channels - profiling.sum(axis=1), keys)
        return np.where(first, profiling | others, largest(keys, served, problem.channels, keys))

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the measured delays, charge the tier that served, and compare accuracies every ``interval`` rounds."""
        problem, assigned = feedback.context.problem, feedback.channel >= 0
        tier, tiers = self.tiers_of(state)
        current = np.where(assigned, tier, -1).max(axis=1)
        charged = assigned.any(axis=1) & ~np.any(assigned & (tier != current[:, None]), axis=1) & (current >= 0)
        replica = np.flatnonzero(charged)
        used = state["used"].copy()
        used[replica, current[replica]] += 1
        probability, accuracy = state["probability"], state["accuracy"]
        if (feedback.context.round + 1) % self.interval == 0:
            now = tier_accuracy(feedback.context.losses, tier, self.tiers)
            place = np.maximum(current, 0)[:, None]
            stagnates = np.take_along_axis(now, place, 1) <= np.take_along_axis(accuracy, place, 1)
            eligible = (used < self.credit(problem, tiers)[:, None]) & (np.arange(self.tiers) < tiers[:, None])
            changed = (charged & stagnates[:, 0])[:, None]
            probability = np.where(changed, changed_probabilities(now, eligible), probability)
            accuracy = now
        learned = super().update(state, feedback)
        return {**learned, "probability": probability, "used": used, "accuracy": accuracy}

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the statistics, the probabilities, the credits and the accuracies."""
        state = super().check_state(state, problem)
        check_within("probability", state["probability"], 0, 1)
        check_within("used", state["used"], 0, problem.rounds)
        check_within("accuracy", state["accuracy"], 0, 1)
        return state


def tier_accuracy(losses: ClientLosses | None, tier: IntArray, tiers: int) -> FloatArray:
    """Return exp(-mean reported loss) of every tier (R, tiers), at most 1; 0 for a tier without reports."""
    assert losses is not None, "a run supplies what a policy requires"
    known = (tier[..., None] == np.arange(tiers)) & ~np.isnan(losses.mean)[..., None]
    number = known.sum(axis=1)
    total = np.where(known, losses.mean[..., None], 0.0).sum(axis=1)
    return np.where(number > 0, np.exp(-np.maximum(total / np.maximum(number, 1), 0.0)), 0.0)


def changed_probabilities(accuracy: FloatArray, eligible: BoolArray) -> FloatArray:
    """Return new probabilities of the tiers (R, tiers): the smaller the accuracy, the larger; 0 without credits."""
    order = np.argsort(np.where(eligible, accuracy, np.inf), axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
    number = eligible.sum(axis=1, keepdims=True)
    return np.where(eligible, (number - rank) / np.maximum(number * (number + 1) / 2, 1), 0.0)
