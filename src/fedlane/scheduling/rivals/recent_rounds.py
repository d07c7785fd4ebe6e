"""A record of the last W rounds: which client used each channel, its reward, and whether it was punctual.

The arrays of a policy's state are ``recent_client`` (-1 for none), ``recent_reward`` and ``recent_success``, each
(R, W, N). Round t is in row t mod W.
"""

import numpy as np

from fedlane.records import Feedback, IntArray, Problem, State
from fedlane.scheduling.policy import check_within


def empty_recent(problem: Problem, window: int) -> dict[str, np.ndarray]:
    """Return the record before the first round."""
    shape = (problem.replicas, window, problem.channels)
    return {
        "recent_client": np.full(shape, -1, np.int64),
        "recent_reward": np.zeros(shape),
        "recent_success": np.zeros(shape, np.int64),
    }


def append_recent(state: State, feedback: Feedback) -> None:
    """Write a round into the record, in place."""
    row = feedback.context.round % state["recent_client"].shape[1]
    replica, client = np.nonzero(feedback.channel >= 0)
    place = replica, row, feedback.channel[replica, client]
    for name, nothing in (("recent_client", -1), ("recent_reward", 0), ("recent_success", 0)):
        state[name][:, row] = nothing
    state["recent_client"][place] = client
    state["recent_reward"][place] = feedback.reward[replica, client]
    state["recent_success"][place] = feedback.punctual[replica, client]


def recent_statistics(state: State, clients: int) -> dict[str, np.ndarray]:
    """Return count, reward and success of every pair over the recorded rounds, each (R, U, N)."""
    client = state["recent_client"]
    replicas, _, channels = client.shape
    replica, row, channel = np.nonzero(client >= 0)
    pair: IntArray = (replica * clients + client[replica, row, channel]) * channels + channel
    shape, size = (replicas, clients, channels), replicas * clients * channels

    def total(weights: np.ndarray | None) -> np.ndarray:
        return np.bincount(pair, weights, minlength=size).reshape(shape)

    return {
        "count": total(None),
        "reward": total(state["recent_reward"][replica, row, channel]),
        "success": total(state["recent_success"][replica, row, channel]),
    }


def check_recent(state: State, problem: Problem) -> None:
    """Raise `InputError` unless the record holds clients of the problem and rewards from 0 to 1."""
    check_within("recent_client", state["recent_client"], -1, problem.clients - 1)
    check_within("recent_reward", state["recent_reward"], 0, 1)
    check_within("recent_success", state["recent_success"], 0, 1)
