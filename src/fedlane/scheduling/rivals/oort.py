"""Oort: clients with large losses that are not too slow, in proportion to their utility.

Lai et al., *Oort: Efficient Federated Learning via Guided Participant Selection* (2021, arXiv 2010.06081). The utility
of client i is

    (min(u_i, clip) - min u) / (max u - min u) + sqrt(0.1 ln t / L_i),   u_i = |B_i| sqrt(mean squared loss),

where L_i is the round of its last upload; it is multiplied by (T / d_i)^alpha if its delay d_i exceeds the preferred
duration T. A share epsilon of the channels goes to clients without a reported loss, in proportion to their records.
The rest is drawn in proportion to utility from all clients above a cut-off, and from ten for each channel in any case.
A pacer raises T when the utilities stagnate. Equations and defaults are those of the authors' code (FedScale).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import BoolArray, ClientLosses, Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.policy import check_within
from fedlane.scheduling.ranges import ParameterRange, Tunable
from fedlane.scheduling.rivals.client_choice import ClientChoice, largest, mean_delays, weighted_keys
from fedlane.validate import InputError, at_least

_LARGEST_UTILITY = 1e5  # a model that diverges has no larger utility


@dataclass(frozen=True)
class Oort(ClientChoice):
    """Oort as in its authors' code; docs/rivals.md lists the differences.

    The state also holds the round of each client's last punctual upload (R, U), -1 for none; who was exploited and
    punctual in the last round, 0 or 1 (R, U); the preferred duration as a percentile of the clients' delays (R,); and
    the mean utility of exploited clients in the last 2 W rounds, W = ``pacer_step`` (R, 2 W).
    """

    name: ClassVar[str] = "oort"
    summary: ClassVar[str] = "large losses at acceptable delays, in proportion to utility (Lai et al. 2021)"
    requires: ClassVar[frozenset[str]] = frozenset({"losses", "sizes"})
    ranges: ClassVar[Mapping[str, Tunable]] = {
        "exploration": ParameterRange(0.1, 1.0),
        "exploration_min": ParameterRange(0.0, 0.5),
        "penalty": ParameterRange(0.0, 5.0),
        "percentile": ParameterRange(10.0, 100.0),
        "pacer_step": ParameterRange(5, 50, "log", integer=True),
        "cut_off": ParameterRange(0.0, 1.0),
    }

    exploration: float = 0.9
    exploration_decay: float = 0.98
    exploration_min: float = 0.3
    penalty: float = 2.0
    percentile: float = 30.0
    pacer_delta: float = 5.0
    pacer_step: int = 20
    clip: float = 0.9
    cut_off: float = 0.05
    sample_window: float = 5.0

    def __post_init__(self) -> None:
        for name in ("exploration", "exploration_decay", "exploration_min", "clip", "cut_off"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must be at least 0 and at most 1, got {getattr(self, name)}")
        for name in ("percentile", "pacer_delta"):
            if not 0 <= getattr(self, name) <= 100:
                raise InputError(f"{name} must be at least 0 and at most 100, got {getattr(self, name)}")
        for name, bound in (("penalty", 0), ("pacer_step", 1), ("sample_window", 1)):
            at_least(name, getattr(self, name), bound)

    def init(self, problem: Problem) -> State:
        """Return empty statistics, no uploads, and the first preferred duration."""
        return {
            **super().init(problem),
            "last": np.full(problem.quotas.shape, -1, np.int64),
            "exploited": np.zeros(problem.quotas.shape, np.int64),
            "pace": np.full(problem.replicas, self.percentile),
            "utility": np.zeros((problem.replicas, 2 * self.pacer_step)),
        }

    def chosen(self, state: State, context: Context, rng: RoundRng) -> BoolArray:
        """Return the clients to exploit and those to explore."""
        problem = context.problem
        losses, sizes = _known(context.losses, problem)
        draws = rng.uniform(2, problem.clients)
        explored, channels = ~np.isnan(losses.rms), problem.channels
        known, fresh = explored & context.available, ~explored & context.available
        epsilon = max(self.exploration * self.exploration_decay ** (context.round + 1), self.exploration_min)
        share = channels - np.minimum(int(channels * epsilon), fresh.sum(axis=1))
        slow = self.slowness(state)
        utility = self.score(state, losses, sizes, context.round + 1, known) * slow
        exploited = self.sampled(utility, known, share, draws[:, 0])
        count = np.minimum(fresh.sum(axis=1), channels - exploited.sum(axis=1))
        weight = sizes * slow
        pool = largest(weight, fresh, (self.sample_window * count).astype(np.int64), draws[:, 1])
        return exploited | largest(weighted_keys(weight, draws[:, 1]), pool, count, draws[:, 1])

    def score(
        self, state: State, losses: ClientLosses, sizes: FloatArray, round: int, eligible: BoolArray
    ) -> FloatArray:
        """Return the utility of every client before the penalty for slowness (R, U); ``round`` is counted from 1."""
        utility = np.where(eligible, statistical_utility(losses, sizes), np.nan)
        ordered = np.sort(utility, axis=1)  # NaN comes last
        number = eligible.sum(axis=1)
        place = np.clip(np.minimum((number * self.clip).astype(np.int64), number - 1), 0, None)
        bound = np.take_along_axis(ordered, place[:, None], axis=1)
        high = np.take_along_axis(ordered, np.maximum(number - 1, 0)[:, None], axis=1)
        low = 0.999 * ordered[:, :1]
        normal = (np.minimum(utility, bound) - low) / np.maximum(high - low, 1e-4)
        stale = np.sqrt(0.1 * np.log(round) / np.maximum(state["last"] + 1, 1))
        return np.where(eligible, normal + stale, 0.0)

    def slowness(self, state: State) -> FloatArray:
        """Return the factor (T / d_i)^alpha of every client slower than T, else 1 (R, U)."""
        delay, tried = mean_delays(state), state["count"].sum(axis=2) > 0
        ordered = np.sort(np.where(tried, delay, np.inf), axis=1)
        number = tried.sum(axis=1)
        place = np.clip(np.minimum((number * state["pace"] / 100.0).astype(np.int64), number - 1), 0, None)
        preferred = np.take_along_axis(ordered, place[:, None], axis=1)
        slow = tried & (delay > preferred) & (state["pace"] < 100.0)[:, None]
        ratio = np.where(slow, preferred, 1.0) / np.where(slow, delay, 1.0)
        return np.asarray(ratio**self.penalty)

    def sampled(self, score: FloatArray, eligible: BoolArray, share: IntArray, uniform: FloatArray) -> BoolArray:
        """Draw ``share`` clients in proportion to their score (R, U).

        They come from those above the cut-off and, in any case, from the first 10 ``share`` + 1.
        """
        number = eligible.sum(axis=1)
        count = np.minimum(share, number).astype(np.int64)
        ordered = -np.sort(-np.where(eligible, score, -np.inf), axis=1)
        place = np.clip(np.minimum(count, number - 1), 0, None)
        bound = self.cut_off * np.take_along_axis(ordered, place[:, None], axis=1)
        pool = eligible & (score >= np.where(np.isfinite(bound), bound, 0.0))
        pool |= largest(score, eligible, 10 * count + 1, uniform)
        return largest(weighted_keys(score, uniform), pool, count, uniform)

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the measured delays, and let the pacer compare the utilities of the last two windows.

        The reports of this round's uploads are known in the next round, so that the pacer sees a round later who was
        exploited and what they reported.
        """
        problem, step = feedback.context.problem, self.pacer_step
        losses, sizes = _known(feedback.context.losses, problem)
        value = np.where(state["exploited"] > 0, statistical_utility(losses, sizes), np.nan)
        known = ~np.isnan(value)
        mean = np.where(known, value, 0.0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
        utility, row = state["utility"].copy(), feedback.context.round % (2 * step)
        utility[:, row] = np.minimum(mean, _LARGEST_UTILITY)
        pace = state["pace"]
        if feedback.context.round + 1 >= 2 * step and (feedback.context.round + 1) % step == 0:
            halves = utility.reshape(-1, 2, step).sum(axis=2)
            pace = self.paced(pace, halves[:, int(row < step)], halves[:, int(row >= step)])
        changed = {
            "last": np.where(feedback.punctual, feedback.context.round, state["last"]),
            "exploited": (feedback.punctual & ~np.isnan(losses.rms)).astype(np.int64),
            "pace": pace,
            "utility": utility,
        }
        return {**super().update(state, feedback), **changed}

    def paced(self, pace: FloatArray, before: FloatArray, now: FloatArray) -> FloatArray:
        """Return the percentile after a comparison of two windows' utilities, each (R,): flat ones raise it."""
        change = np.abs(now - before)
        higher = np.minimum(100.0, pace + self.pacer_delta)
        lower = np.maximum(self.pacer_delta, pace - self.pacer_delta)
        return np.where(change <= 0.1 * before, higher, np.where(change >= 5.0 * before, lower, pace))

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the statistics, the rounds, the percentile and the utilities."""
        state = super().check_state(state, problem)
        check_within("last", state["last"], -1, problem.rounds - 1)
        check_within("exploited", state["exploited"], 0, 1)
        check_within("pace", state["pace"], 0, 100)
        check_within("utility", state["utility"], 0, _LARGEST_UTILITY)
        return state


def statistical_utility(losses: ClientLosses, sizes: FloatArray) -> FloatArray:
    """Return |B_i| sqrt(mean squared loss), with |B_i| relative to the mean client (R, U); NaN without a loss."""
    return np.asarray(losses.rms * sizes / sizes.mean(axis=1, keepdims=True))


def _known(losses: ClientLosses | None, problem: Problem) -> tuple[ClientLosses, FloatArray]:
    assert losses is not None, "a run supplies what a policy requires"
    assert problem.sizes is not None, "every run sets the sizes"
    return losses, problem.sizes
