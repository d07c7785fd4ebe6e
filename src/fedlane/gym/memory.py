"""What an agent sees: the base station's memory as numbers from 0 to 1 for every client-channel pair.

The memory is a policy's state, so that an agent trained here runs as a policy anywhere: `empty_memory` is its
`init`, `remember` its `update`, and `observation` what its `select` looks at.
"""

import numpy as np
from numpy.typing import NDArray

from fedlane.records import BoolArray, Feedback, FloatArray, Problem, State
from fedlane.scheduling.estimates import empty_statistics, mean, record
from fedlane.scheduling.queues import updated_queues

FEATURES = ("reward", "success", "count", "last", "queue", "quota", "available", "round")
"""The last axis of an observation, each from 0 to 1.

Of the pair: `reward`, its mean of max(1 - d / d_max, 0), and `success`, its share of tries in time, both 0 if never
tried; `count` = n / (n + 10) for n tries; `last` = min(d / d_max, 1) of its last delay d, 0 if never tried.
Of the client: `queue` = Q / (Q + 1); `quota`, the share of rounds that it must reach; `available`, 1 or 0.
Of all: `round` = t / rounds.
"""


def empty_memory(problem: Problem, quota: FloatArray) -> State:
    """Nothing seen yet; ``quota`` (R, U) as it is to be served."""
    return {
        **empty_statistics(problem),
        "last": np.zeros((problem.replicas, problem.clients, problem.channels)),
        "queue": np.zeros(quota.shape),
        "quota": quota,
        "deadline_s": np.full(problem.replicas, problem.deadline_s),
        "rounds": np.full(problem.replicas, problem.rounds),
    }


def remember(memory: State, feedback: Feedback) -> State:
    """The memory after a round; its arrays are used again."""
    pair = record(memory, feedback, memory["deadline_s"])
    replica, client, _ = pair
    share = feedback.delays.total_s[replica, client] / memory["deadline_s"][replica]
    memory["last"][pair] = np.minimum(share, 1.0)
    return {**memory, "queue": updated_queues(memory["queue"], memory["quota"], feedback.punctual)}


def observation(memory: State, round: int, available: BoolArray) -> NDArray[np.float32]:
    """(R, U, N, F) for round ``round`` with the `available` clients (R, U)."""
    count, queue = memory["count"], memory["queue"]
    seen = np.empty((*count.shape, len(FEATURES)), np.float32)
    seen[..., 0] = mean(memory["reward"], count)
    seen[..., 1] = mean(memory["success"], count)
    seen[..., 2] = count / (count + 10.0)
    seen[..., 3] = memory["last"]
    for feature, of_client in ((4, queue / (queue + 1.0)), (5, memory["quota"]), (6, available)):
        seen[..., feature] = of_client[..., None]
    seen[..., 7] = (round / memory["rounds"])[:, None, None]
    return seen
