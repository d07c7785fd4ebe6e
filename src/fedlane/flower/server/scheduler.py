"""The policy in a real federation: the very objects of simulation, fed with what was measured, over clients that come.

The policy's problem has the clients that have joined so far. When somebody joins it grows: every array of the policy's
state is laid into that of a new `init`, in which the newcomers have their fresh entries, and what `init` derives from
quotas is taken new. All that was learned stays. This holds for state whose axes are replicas, clients and lanes, as in
every built-in policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.records import BoolArray, Context, Delays, Feedback, FloatArray, IntArray, Problem
from fedlane.rng import RoundStreams
from fedlane.scheduling.checks import check_assignment
from fedlane.scheduling.policy import Policy
from fedlane.scheduling.queues import updated_queues
from fedlane.simulation.trace import Trace
from fedlane.validate import InputError

PAST = 1e-3
"""A client that failed or never answered is fed back as late by so much: all that is known is that it was late."""


@dataclass(frozen=True)
class MeasuredDelay:
    """What a round showed of one client: from sending to having its whole reply, on the server's clock."""

    lane: int
    total_s: float | None
    """None where no good update came by the deadline."""
    compute_s: float = 0.0
    """On the client's clock; switching lanes included."""


class Scheduler:
    """A policy, its state, and the trace of the rounds it served."""

    def __init__(self, policy: Policy, *, lanes: int, deadline_s: float, rounds: int, seed: int) -> None:
        if policy.requires:
            raise InputError(f"policy {policy.name} requires {', '.join(sorted(policy.requires))}: not in a federation")
        self.policy = policy
        self.problem = Problem(0, lanes, rounds, deadline_s, np.zeros((1, 0)))
        self.state: dict[str, Any] = {}
        self.trace = Trace.empty(1, rounds, 0, lanes)
        self.queue = np.zeros((1, 0))
        self.epsilon = np.zeros((rounds, 0))
        """(T, U): what each client had spent at most after each round; NaN without a mechanism."""
        self.seed, self._streams = seed, RoundStreams([seed], "policy")

    @property
    def round(self) -> int:
        """Rounds played so far."""
        return self.trace.rounds

    @property
    def quota(self) -> FloatArray:
        """(1, U): as the policy serves them, slack included."""
        return self.policy.quotas(self.problem)

    def set_quotas(self, quotas: FloatArray) -> None:
        """New quotas (1, U), of as many clients as before or more; the policy keeps what it learned."""
        if np.array_equal(quotas, self.problem.quotas):
            return
        old, clients = self.problem, quotas.shape[1]
        problem = Problem(clients, old.channels, old.rounds, old.deadline_s, quotas)
        fresh = self.policy.init(problem)
        if self.state:
            before = self.policy.init(old)
            fresh = {
                key: array if _derived(before[key], array) else laid_into(array, self.state[key])
                for key, array in fresh.items()
            }
        self.problem, self.state = problem, dict(fresh)
        grown = Trace.empty(1, old.rounds, clients, old.channels)
        grown.available[:] = False  # who was not there was not available
        mine = self.trace.arrays()
        self.trace = Trace(
            **{key: laid_into(array, mine[key]) for key, array in grown.arrays().items()}, rounds=self.round
        )
        self.queue = laid_into(np.zeros((1, clients)), self.queue)
        self.epsilon = laid_into(np.full((old.rounds, clients), np.nan), self.epsilon)

    def select(self, available: BoolArray) -> IntArray:
        """(U,): each client's lane in the round to come, -1 for none; available (U,)."""
        context = Context(round=self.round, available=available[None])
        assignment = self.policy.select(self.state, context, self._streams.at(self.round))
        check_assignment(
            assignment, context.available, self.problem.channels, f"policy {self.policy.name}, round {self.round}"
        )
        return np.asarray(assignment[0])

    def learn(self, measured: Mapping[int, MeasuredDelay], available: BoolArray) -> Feedback:
        """Feed back what was measured of each assigned client and end the round.

        The network's time, what is neither compute nor switching, is split evenly into download and upload: two clocks
        that are not synchronised cannot tell them apart.
        """
        shape, deadline_s = (1, self.problem.clients), self.problem.deadline_s
        assignment = np.full(shape, -1, np.int64)
        compute, network = np.full(shape, np.nan), np.full(shape, np.nan)
        for client, one in measured.items():
            total_s = one.total_s if one.total_s is not None else deadline_s + PAST
            assignment[0, client] = one.lane
            compute[0, client] = min(one.compute_s, total_s)
            network[0, client] = total_s - compute[0, client]
        delays = Delays(network / 2, compute, network / 2)
        punctual = np.zeros(shape, np.bool_)
        on_time = [client for client, one in measured.items() if one.total_s is not None]
        punctual[0, on_time] = delays.total_s[0, on_time] <= deadline_s
        feedback = Feedback(self.round, assignment, delays, punctual)
        self.state = dict(self.policy.update(self.state, feedback))
        self.queue = updated_queues(self.queue, self.quota, punctual)
        self.trace.append(feedback, self.queue, available[None], deadline_s)
        return feedback

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """All that a checkpoint needs, by name."""
        return {
            **{f"state.{key}": np.asarray(value) for key, value in self.state.items()},
            **self.trace.saved(),
            "quotas": self.problem.quotas,
            "queue": self.queue,
            "epsilon": self.epsilon[: self.round],
        }

    def restore(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Go on where `arrays` was taken; the horizon may be longer now. Another policy's are an `InputError`."""
        self.set_quotas(arrays["quotas"])
        played = len(arrays["epsilon"])
        if {f"state.{key}" for key in self.state} != {key for key in arrays if key.startswith("state.")}:
            raise InputError(f"the saved state is not one of policy {self.policy.name}")
        if played > self.problem.rounds:
            raise InputError(
                f"num_rounds must be at least the {played} rounds played so far, got {self.problem.rounds}"
            )
        self.state = {key: arrays[f"state.{key}"].copy() for key in self.state}
        self.queue = arrays["queue"].copy()
        self.epsilon[:played] = arrays["epsilon"]
        self.trace.restore(arrays, self.problem.deadline_s)


def laid_into(fresh: NDArray[Any], learned: NDArray[Any]) -> NDArray[Any]:
    """``learned`` in the corner of ``fresh``, which is made as large as both need."""
    if fresh.ndim != learned.ndim:
        return fresh
    shape = tuple(max(pair) for pair in zip(fresh.shape, learned.shape, strict=True))
    result = np.zeros(shape, fresh.dtype)
    result[tuple(slice(size) for size in fresh.shape)] = fresh
    result[tuple(slice(size) for size in learned.shape)] = learned
    return result


def _derived(before: NDArray[Any], after: NDArray[Any]) -> bool:
    """Whether two fresh states differ where they overlap: such an entry follows from the quotas or the clients."""
    if before.ndim != after.ndim:
        return True
    common = tuple(slice(min(pair)) for pair in zip(before.shape, after.shape, strict=True))
    return not np.array_equal(before[common], after[common])
