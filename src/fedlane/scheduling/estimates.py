"""What the base station has learned about each client-channel pair: counts, sample means and their optimism bonus.

Statistics are arrays of a policy's state: ``count``, ``reward`` (a sum) and ``success`` (a sum), each (R, U, N).
"""

import numpy as np

from fedlane.records import Feedback, FloatArray, IntArray, Problem, State
from fedlane.scheduling.policy import check_within

STATISTICS = frozenset({"count", "reward", "success"})


def empty_statistics(problem: Problem) -> dict[str, np.ndarray]:
    """Return the statistics before the first round."""
    shape = (problem.replicas, problem.clients, problem.channels)
    return {
        "count": np.zeros(shape, np.int32),
        "reward": np.zeros(shape),
        "success": np.zeros(shape, np.int32),
    }


def check_statistics(state: State, problem: Problem) -> None:
    """Raise `InputError` unless the statistics are sums over at most all rounds; (R, U) or (R, U, N) each."""
    count = state["count"]
    check_within("count", count, 0, problem.rounds)
    for name in sorted(STATISTICS & set(state) - {"count"}):
        check_within(name, state[name], 0, count)


def record(state: State, feedback: Feedback) -> tuple[IntArray, IntArray, IntArray]:
    """Add a round to the statistics, in place; return the assigned (replica, client, channel)."""
    replica, client = np.nonzero(feedback.channel >= 0)
    pair = replica, client, feedback.channel[replica, client]
    state["count"][pair] += 1
    state["reward"][pair] += feedback.reward[replica, client]
    state["success"][pair] += feedback.punctual[replica, client]
    return pair


def bonus(count: IntArray, exploration: float) -> FloatArray:
    """Return the bonus of (11) divided by V: x sqrt((U + 2) ln n_i / n_ij), n_i = sum_j n_ij; +inf at n_ij = 0.

    The logarithm is of max(n_i, 1) (reading 10). The paper has x = 1, with which the bonus exceeds the whole range of
    the reward for hundreds of rounds (reading 11 in docs/reading-the-paper.md).
    """
    clients = count.shape[1]
    of_client = np.log(np.maximum(count.sum(axis=2), 1)) * (clients + 2)
    result = np.full(count.shape, np.inf)
    np.divide(of_client[..., None], count, out=result, where=count > 0)
    np.sqrt(result, out=result)
    if exploration != 1.0:
        np.multiply(result, exploration, out=result, where=count > 0)
    return result


def mean(total: FloatArray | IntArray, count: IntArray) -> FloatArray:
    """Return the sample mean of each pair; 0 where the pair was never tried. Discounted counts may be less than 1."""
    result: FloatArray = total / np.where(count > 0, count, 1)
    return result


def optimistic_mean(total: FloatArray | IntArray, count: IntArray, optimism: FloatArray) -> FloatArray:
    """Return the sample mean of each pair plus its bonus, at most 1; 1 where the pair was never tried."""
    result = mean(total, count)
    result += optimism
    return np.minimum(result, 1.0, out=result)
