"""What a policy is: three functions with explicit state, over many replicas at once.

    state = policy.init(problem)
    for each round:
        assignment = policy.select(state, context, rng)      # (R, U): each client's channel, -1 for none
        state = policy.update(state, feedback)               # what the base station saw

`update` may reuse the arrays of the state it is given: callers keep only what it returns.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedlane.records import (
    BoolArray,
    Context,
    DelayDistributions,
    Delays,
    Feedback,
    FloatArray,
    IntArray,
    Problem,
    State,
)
from fedlane.rng import RoundRng
from fedlane.validate import InputError, at_least

REQUIREMENTS = frozenset({"losses", "channel_state", "distributions"})
"""What a policy may declare in `requires`; a run that cannot supply it refuses to start."""


class Policy(ABC):
    """Base of all policies. A policy's parameters are its dataclass fields."""

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    requires: ClassVar[frozenset[str]] = frozenset()
    quota_slack: float = 0.0
    """The share by which this policy lowers every quota: it serves (1 - slack) beta."""

    @abstractmethod
    def init(self, problem: Problem) -> State:
        """The state before the first round."""

    @abstractmethod
    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """This round's channel of each client, (R, U); -1 for none, never for an unavailable client."""

    def update(self, state: State, feedback: Feedback) -> State:
        """The state after the round. A policy that learns nothing keeps it."""
        return state

    def quotas(self, problem: Problem) -> FloatArray:
        """(R, U): the quotas this policy serves, slack included."""
        return (1.0 - self.quota_slack) * problem.quotas


def check_trade_off(V: float, exploration: float, quota_slack: float) -> None:
    """Refuse parameters of a queue-based policy that make no sense."""
    at_least("V", V, 0)
    at_least("exploration", exploration, 0)
    if not 0 <= quota_slack < 1:
        raise InputError(f"quota_slack must be at least 0 and less than 1, got {quota_slack}")


class SinglePolicy(ABC):
    """A policy written for one replica: the same three functions without the replica axis. Lift it with `lift`.

    `select` sees (U,) arrays and a `numpy.random.Generator`; `losses` (U,), `channel_state` (U, N), `distributions`
    keep a leading axis of 1.
    """

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    requires: ClassVar[frozenset[str]] = frozenset()
    quota_slack: float = 0.0

    @abstractmethod
    def init(self, problem: Problem) -> State: ...

    @abstractmethod
    def select(self, state: State, context: Context, rng: np.random.Generator) -> IntArray: ...

    def update(self, state: State, feedback: Feedback) -> State:
        return state


@dataclass(frozen=True)
class Lifted(Policy):
    """A `SinglePolicy` for many replicas: each replica keeps its own state and its own stream."""

    single: SinglePolicy

    def __post_init__(self) -> None:
        for attribute in ("name", "summary", "requires", "quota_slack"):
            object.__setattr__(self, attribute, getattr(self.single, attribute))

    def init(self, problem: Problem) -> State:
        ones = [self.single.init(replace(problem, quotas=quotas)) for quotas in problem.quotas]
        return _stack(ones)

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        chosen = [
            self.single.select(_replica(state, r), _context(context, r), generator)
            for r, generator in enumerate(rng.generators)
        ]
        return np.stack(chosen).astype(np.int64, copy=False)

    def update(self, state: State, feedback: Feedback) -> State:
        replicas = range(len(feedback.assignment))
        return _stack([self.single.update(_replica(state, r), _feedback(feedback, r)) for r in replicas])


def lift(single: SinglePolicy) -> Policy:
    """Make a policy written for one replica run on many."""
    return Lifted(single)


def _stack(states: list[State]) -> State:
    return {key: np.stack([np.asarray(state[key]) for state in states]) for key in states[0]}


def _replica(state: Mapping[str, np.ndarray], r: int) -> State:
    return {key: array[r] for key, array in state.items()}


def _context(context: Context, r: int) -> Context:
    def one(array: FloatArray | None) -> FloatArray | None:
        return None if array is None else array[r]

    truth = context.distributions
    return Context(
        round=context.round,
        available=_bool_row(context.available, r),
        losses=one(context.losses),
        channel_state=one(context.channel_state),
        distributions=truth
        and DelayDistributions(truth.cdf[r : r + 1], truth.success[r : r + 1], truth.standard_error),
    )


def _bool_row(array: BoolArray, r: int) -> BoolArray:
    return np.asarray(array[r])


def _feedback(feedback: Feedback, r: int) -> Feedback:
    delays = feedback.delays
    return Feedback(
        round=feedback.round,
        assignment=np.asarray(feedback.assignment[r]),
        delays=Delays(delays.download_s[r], delays.compute_s[r], delays.upload_s[r]),
        punctual=_bool_row(feedback.punctual, r),
    )
