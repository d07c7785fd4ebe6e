"""The policy `lane`: it weighs queues against the expected delay of the slowest client, and predicts every pair.

In each round it selects the matching that maximises

    sum_i (Q_i p_ij + B_ij)  -  V N E[max of the assigned delays] / d_max,

which is the drift-plus-penalty rule with two additions: the paper's queues are weighted by the probability p_ij that
the assignment serves them (reading 12 in docs/reading-the-paper.md), and B_ij is the value of looking at a pair.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedlane.delay_predictions import PROBABILITIES, PredictedDelays
from fedlane.records import BoolArray, Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.lane import (
    delay_rows,
    first_looks,
    forgetting,
    location,
    looking,
    observations,
    places,
    search,
    spread,
)
from fedlane.scheduling.lane.beliefs import Beliefs, beliefs, predicted
from fedlane.scheduling.policy import BatchPolicy, Choice, check_trade_off, check_within, fitting_state
from fedlane.scheduling.ranges import QUOTA_SLACK, ParameterRange, Tunable
from fedlane.scheduling.slots import check_slots, with_slots
from fedlane.validate import InputError, at_least

_SHORTLIST = 6
"""Number of clients per channel that the search considers in large networks."""
_ALWAYS_CONSIDERED = 200
"""Smallest number of clients that the search considers; with fewer clients, it considers all of them."""


@dataclass(frozen=True)
class Lane(BatchPolicy):
    """Drift plus penalty on the expected delay of the slowest client, with predictions for every pair."""

    name: ClassVar[str] = "lane"
    summary: ClassVar[str] = "FedLane's policy: queues against the expected delay of the slowest client (default)"
    version: ClassVar[int] = 3

    ranges: ClassVar[Mapping[str, Tunable]] = {
        "V": ParameterRange(1.0, 50.0, "log"),
        "exploration": ParameterRange(0.1, 10.0, "log"),
        "quota_slack": QUOTA_SLACK,
        "forgetting": ParameterRange(0.0, 0.05),
    }

    V: float = 7.0
    exploration: float = 0.6
    quota_slack: float = 0.125
    forgetting: float = 0.0
    alarm: float = 8.0
    idle_channels: bool = False

    def __post_init__(self) -> None:
        check_trade_off(self.V, self.exploration, self.quota_slack)
        if not 0 <= self.forgetting < 1:
            raise InputError(f"forgetting must be at least 0 and less than 1, got {self.forgetting}")
        at_least("alarm", self.alarm, 0)

    def init(self, problem: Problem) -> State:
        """Return empty observations, and the model before the first round."""
        replicas, clients = problem.quotas.shape
        empty = observations.empty_observations(problem)
        return {
            **empty,
            **spread.fit_line(empty).arrays(),
            # Only tried pairs have a history: slot maps a pair to its row of cells.
            "slot": np.full((replicas, clients, problem.channels), -1, np.int32),
            "slots": np.zeros(replicas, np.int64),
            "history": np.zeros((replicas, min(64, clients * problem.channels), delay_rows.CELLS + 1), np.float32),
            **location.empty_location(problem),
            **places.empty_places(problem),
            **first_looks.uncalibrated(problem),
            **forgetting.no_surprise(problem),
        }

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray | Choice:
        """Predict the delays of all pairs and search for the matching with the largest objective.

        The predictions are quantiles of the distributions with which the matching was found.
        """
        assignment, row = self._select(state, context)
        arrays = np.full((3, *assignment.shape), np.nan)
        given = assignment >= 0
        arrays[:, given] = context.problem.deadline_s * delay_rows.quantiles(row[given], PROBABILITIES)
        return Choice(assignment, PredictedDelays(*arrays))

    def _select(self, state: State, context: Context) -> tuple[IntArray, FloatArray]:
        """Return the matching, and the predictive distribution of each of its pairs (R, U, CELLS + 1)."""
        problem = context.problem
        belief = beliefs(state)
        uploads = self.quotas(problem) * looking.horizon(context.round, problem.rounds)
        value = looking.looking(
            (belief.mean, belief.variance),
            belief.spread,
            state["information"] >= observations.TRIED,
            observations.compute_moments(state)[0],
            uploads,
            problem.deadline_s,
        )
        value *= self.exploration * self.V
        chosen = _shortlist(state, value, context)
        if chosen is None:
            return _matching(self, state, belief, value, context)
        assignment = np.full(context.available.shape, -1, np.int64)
        row = np.zeros((*assignment.shape, delay_rows.CELLS + 1))
        for r, clients in enumerate(chosen):  # match the clients on the shortlist, one replica at a time
            part = {key: state[key][r : r + 1] for key in ("slots", "history")}
            part |= {key: state[key][r : r + 1, clients] for key in ("count", "slot", "compute", "computed")}
            some = Beliefs(*(array[r : r + 1, clients] for array in (belief.mean, belief.variance, belief.spread)))
            of_some = {key: getattr(context, key)[r : r + 1, clients] for key in ("available", "queue", "previous")}
            found = _matching(self, part, some, value[r : r + 1, clients], replace(context, **of_some))
            assignment[r, clients], row[r, clients] = found[0][0], found[1][0]
        return assignment, row

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the measured delays to the observations, and fit the model again."""
        problem = feedback.context.problem
        deadline_s = problem.deadline_s
        replica, client = np.nonzero(feedback.channel >= 0)
        pair = replica, client, feedback.channel[replica, client]
        expected = predicted(state, pair, deadline_s)
        before, informed = state["count"][pair], state["information"][pair]
        seen = observations.observe(state, feedback, pair, expected, deadline_s)
        state = with_slots(state, pair)
        row = replica, state["slot"][pair]
        share = seen.weight / (before + seen.weight)
        delay = np.where(feedback.punctual[replica, client], feedback.delays.total_s[replica, client], np.inf)
        own = delay_rows.own_distribution(delay / deadline_s)
        state["history"][row] += share[:, None] * (own - state["history"][row])
        state = self._forget(state, pair, before, feedback.punctual[replica, client], seen, expected)
        first = informed < observations.TRIED
        score = places.scored(state, pair, seen, feedback.punctual[replica, client], expected.spread, first)
        return {
            **state,
            **_fitted({**state, "place_score": score}, deadline_s),
            "doubt": first_looks.after_looks(state["doubt"], replica, seen, first),
        }

    def _forget(
        self,
        state: State,
        pair: observations.Pair,
        before: FloatArray,
        punctual: BoolArray,
        seen: observations.Observed,
        expected: observations.Prediction,
    ) -> State:
        """Return the state after a round of steady forgetting, without observations that a change made worthless."""
        known = before >= forgetting.WELL_KNOWN
        ratio = np.where(
            punctual, forgetting.surprise(seen.value, expected), forgetting.late_surprise(seen.cut, expected)
        )
        again = pair[0][known], pair[1][known], pair[2][known]
        state = forgetting.forget_changed(state, again, ratio[known], self.alarm or np.inf)
        return {**state, **{name: forgetting.discounted(state[name], self.forgetting) for name in forgetting.COUNTS}}

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the histories, and that all numbers are finite and in range."""
        first = dict(self.init(problem))
        if "history" in state and state["history"].ndim == 3:  # the number of rows grows as rounds are played
            first["history"] = np.zeros((problem.replicas, state["history"].shape[1], delay_rows.CELLS + 1), np.float32)
        state = fitting_state(first, state)
        for name in forgetting.COUNTS:
            check_within(name, state[name], 0, problem.rounds * 1.01)
        check_slots(state)
        check_within("history", state["history"], -1e-4, 1.0001)
        check_within("computed", state["computed"], 0, problem.rounds)
        seen = state["compute"] != -1  # -1 stands for a compute time that has not been measured yet
        check_within("compute", np.where(seen, state["compute"], 0.0), 0, 1e3 * problem.deadline_s)
        check_within("doubt", state["doubt"], first_looks.SMALLEST, first_looks.LARGEST)
        for name in ("variance", "surprise", "client_surprise"):
            check_within(name, state[name], 0, 1e5)
        check_within("residual", state["residual"], location.SMALLEST_RESIDUAL, 1e5)
        places.check_places(state)
        for name in ("mean", "factor", "factor_cov", "loading", "loading_cov", "centre", *spread.LINE):
            check_within(name, state[name], -1e3, 1e3)
        for name in ("factor_cov", "loading_cov"):  # a covariance matrix has no negative eigenvalues
            symmetric = (state[name] + state[name].swapaxes(-1, -2)) / 2
            check_within(f"{name} (eigenvalues)", np.linalg.eigvalsh(symmetric), -1e-6, 1e5)
        return state


def _fitted(state: State, deadline_s: float) -> State:
    """Return the models of spread, factors and places after the round's sweeps."""
    line = spread.fit_line(state)
    information, mean = state["information"], state["mean"]
    variance = spread.shrunk(line.variance(mean), information, state["variance"])
    factors = location.fitted({n: state[n] for n in location.NAMES}, information, mean, variance, deadline_s)
    return {**line.arrays(), **factors, **places.fitted({**state, **factors}, information, mean, variance)}


def _matching(
    policy: Lane, state: State, belief: Beliefs, value: FloatArray, context: Context
) -> tuple[IntArray, FloatArray]:
    """Return the matching that the search finds, and its pairs' rows, given the beliefs and the value of looking."""
    mean, variance = observations.compute_moments(state)
    total = belief.variance + belief.spread
    shift, log_mean, deviation = delay_rows.sum_moments(belief.mean, total, mean[..., None], variance[..., None])
    predictions = delay_rows.predictive_rows(
        log_mean, deviation, shift[..., 0], state["count"], state["slot"], state["history"], context.problem.deadline_s
    )
    punctual = predictions[..., delay_rows.CELLS]
    weight = context.queue[..., None] * observations.optimistic(punctual, state["count"])
    weight += value
    found = search.search_batch(
        weight, predictions, context.available, context.previous, float(policy.V), policy.idle_channels
    )
    channel = np.maximum(found, 0)[..., None, None]
    return found, np.take_along_axis(predictions, channel, axis=2)[..., 0, :]


def _shortlist(state: State, value: FloatArray, context: Context) -> IntArray | None:
    """Return the clients that the search considers, (R, M) in ascending order; None for all of them."""
    problem = context.problem
    number = max(_SHORTLIST * problem.channels, _ALWAYS_CONSIDERED)
    if number >= problem.clients:
        return None
    tried = state["information"] >= observations.TRIED
    best = np.where(tried, state["mean"], np.inf).min(axis=2)
    # A client that is about to miss its quota comes before a fast one; a client that was never seen counts as fast.
    speed = np.where(tried.any(axis=2), 1.0 - np.minimum(np.exp(best) / problem.deadline_s, 1.0), 1.0)
    score = context.queue + value.max(axis=2) + speed
    score[~context.available] = -np.inf
    order = np.argsort(-score, axis=1, kind="stable")[:, :number]
    return np.sort(order, axis=1)
