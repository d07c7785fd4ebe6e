"""What the base station has learned of each pair: counts, sample means, and the perturbed estimate (equation (11)).

Statistics are arrays of a policy's state: ``count``, ``reward`` (sums) and ``success`` (sums), each (R, U, N).
"""

import numpy as np

from fedlane.records import Feedback, FloatArray, IntArray, Problem, State


def empty_statistics(problem: Problem) -> dict[str, np.ndarray]:
    """No pair tried yet."""
    shape = (problem.replicas, problem.clients, problem.channels)
    return {
        "count": np.zeros(shape, np.int32),
        "reward": np.zeros(shape),
        "success": np.zeros(shape, np.int32),
    }


def rewards(feedback: Feedback, deadline_s: FloatArray) -> FloatArray:
    """r = max{1 - d / d_max, 0} of every client, (R, U); NaN where unassigned. deadline_s (R,)."""
    return np.maximum(1.0 - feedback.delays.total_s / deadline_s[:, None], 0.0)


def record(state: State, feedback: Feedback, deadline_s: FloatArray) -> tuple[IntArray, IntArray, IntArray]:
    """Add a round to the statistics, in place; returns the assigned (replica, client, channel)."""
    replica, client = np.nonzero(feedback.assignment >= 0)
    pair = replica, client, feedback.assignment[replica, client]
    state["count"][pair] += 1
    state["reward"][pair] += rewards(feedback, deadline_s)[replica, client]
    state["success"][pair] += feedback.punctual[replica, client]
    return pair


def bonus(count: IntArray, exploration: float) -> FloatArray:
    """The optimism of equation (11) over V: x sqrt((U + 2) ln n_i / n_ij), n_i = sum_j n_ij; +inf where n_ij = 0.

    log(n) uses max(n, 1) (reading 10); x = 1 is the paper's, but exceeds the reward's whole range for hundreds of
    rounds (reading 11).
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
    """Sample mean of each pair; 0 where it was never tried."""
    result: FloatArray = total / np.maximum(count, 1)
    return result
