"""The base of policies that choose clients only: their channels follow from a max-min matching on mean rewards."""

from abc import abstractmethod

import numpy as np

from fedlane.matching import max_min_matching
from fedlane.records import BoolArray, Context, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.estimates import check_statistics, empty_statistics, mean, record
from fedlane.scheduling.policy import BatchPolicy


class ClientChoice(BatchPolicy):
    """Chooses clients; the chosen ones are matched with channels so that the smallest estimated reward is largest.

    The state holds the statistics of every pair, which also serve as the estimates.
    """

    def init(self, problem: Problem) -> State:
        """Return empty statistics."""
        return empty_statistics(problem)

    @abstractmethod
    def chosen(self, state: State, context: Context, rng: RoundRng) -> BoolArray:
        """Return the clients to serve (R, U): at most N, all of them available."""

    def estimates(self, state: State, context: Context) -> FloatArray:
        """Return the value of every pair, by which channels are assigned (R, U, N)."""
        return mean_rewards(state)

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Match the chosen clients with channels."""
        chosen = self.chosen(state, context, rng)
        return max_min_matching(np.where(chosen[..., None], self.estimates(state, context), -np.inf))

    def update(self, state: State, feedback: Feedback) -> State:
        """Add the measured delays to the statistics."""
        record(state, feedback)
        return state

    def check_state(self, state: State, problem: Problem) -> State:
        """Check the statistics."""
        state = super().check_state(state, problem)
        check_statistics(state, problem)
        return state


def mean_rewards(state: State) -> FloatArray:
    """Return the mean reward of every pair (R, U, N); 1, the best that is possible, for a pair that was never tried."""
    return np.where(state["count"] > 0, mean(state["reward"], state["count"]), 1.0)


def mean_delays(state: State) -> FloatArray:
    """Return each client's mean delay over all channels, in units of the deadline (R, U); 0 if it was never tried.

    Late uploads count as the deadline.
    """
    count = state["count"].sum(axis=2)
    return np.where(count > 0, 1.0 - mean(state["reward"].sum(axis=2), count), 0.0)


def largest(index: FloatArray, eligible: BoolArray, count: IntArray | int, keys: FloatArray) -> BoolArray:
    """Return the eligible clients with the largest index (R, U); ties are broken by the largest key.

    Args:
        index: (R, U); may be infinite.
        eligible: (R, U).
        count: How many clients at most; a number, or (R,).
        keys: (R, U) random numbers.
    """
    order = np.lexsort((-keys, -index, ~eligible), axis=1)
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), axis=1)
    chosen: BoolArray = eligible & (rank < np.reshape(count, (-1, 1)))
    return chosen


def weighted_keys(weight: FloatArray, uniform: FloatArray) -> FloatArray:
    """Return keys (R, U) whose k largest are a sample of k clients without replacement, in proportion to the weights.

    This is the method of Efraimidis and Spirakis (2006): ln(u) / w. A weight of 0 is drawn last.
    """
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(uniform) / np.maximum(weight, 1e-12))
