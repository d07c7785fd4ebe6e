"""The memory of past rounds, and the observations made from it: numbers from 0 to 1 for every client-channel pair.

The memory has the form of a policy's state, so a trained agent can run as a policy: `empty_memory` is its `init`,
`remember` its `update`, and `observation` the input of its `select`.
"""

import numpy as np
from numpy.typing import NDArray

from fedlane.records import Context, Feedback, FloatArray, Problem, State
from fedlane.scheduling.estimates import empty_statistics, mean, record

FEATURES = ("reward", "success", "count", "last", "queue", "quota", "available", "round")
"""The last axis of an observation; every feature is from 0 to 1.

Per pair, with delay d and deadline d_max: `reward`, the mean of max(1 - d / d_max, 0); `success`, the share of uploads
that met the deadline; `count` = n / (n + 10) for n uploads; `last` = min(d / d_max, 1) of the last upload. All are 0
before the first upload. Per client: `queue` = Q / (Q + 1); `quota`, the share of rounds in which it must be punctual;
`available`, 1 or 0. For all: `round` = t / rounds.
"""


def empty_memory(problem: Problem) -> State:
    """Return the memory before the first round."""
    shape = (problem.replicas, problem.clients, problem.channels)
    return {**empty_statistics(problem), "last": np.zeros(shape)}


def remember(memory: State, feedback: Feedback) -> State:
    """Return the memory after a round. The arrays of ``memory`` are modified."""
    pair = record(memory, feedback)
    replica, client, _ = pair
    share = feedback.delay_s[replica, client] / feedback.context.problem.deadline_s
    memory["last"][pair] = np.minimum(share, 1.0)
    return memory


def index_scores(seen: NDArray[np.float32], weights: NDArray[np.floating]) -> FloatArray:
    """Return scores that are a weighted sum of each pair's features, shifted so that the smallest is 0.

    Scores of 0 or more exclude no pair, so `matched` uses as many channels as it can. The shift does not change which
    matching has the largest sum.

    Args:
        seen: Observations (R, U, N, F).
        weights: Weight of each of the first F - 1 features (R, F - 1); the last one, the round, is the same for all.

    Returns:
        Scores (R, U, N).
    """
    scores = np.einsum("ruck,rk->ruc", seen[..., :-1], weights, dtype=np.float64)
    return np.asarray(scores - scores.min(axis=(1, 2), keepdims=True))


def observation(memory: State, context: Context, quota: FloatArray) -> NDArray[np.float32]:
    """Return the observation before a round.

    Args:
        memory: The memory of past rounds.
        context: What a policy sees before the round.
        quota: Share of rounds in which each client must be punctual (R, U), slack included.

    Returns:
        Features (R, U, N, F) in the order of `FEATURES`.
    """
    count, queue = memory["count"], context.queue
    features = np.empty((*count.shape, len(FEATURES)), np.float32)
    features[..., 0] = mean(memory["reward"], count)
    features[..., 1] = mean(memory["success"], count)
    features[..., 2] = count / (count + 10.0)
    features[..., 3] = memory["last"]
    for index, values in ((4, queue / (queue + 1.0)), (5, quota), (6, context.available)):
        features[..., index] = values[..., None]
    features[..., 7] = context.round / context.problem.rounds
    return features
