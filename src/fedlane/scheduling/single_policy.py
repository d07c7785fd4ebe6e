"""Policies for one replica, and how they run on many."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedlane.delay_predictions import PredictedDelays
from fedlane.records import Context, Feedback, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.policy import Policy
from fedlane.scheduling.resizing import resized
from fedlane.scheduling.restoring import fitting_state
from fedlane.scheduling.traits import PolicyTraits
from fedlane.validate import InputError


class SinglePolicy(PolicyTraits):
    """Base class of policies written for one replica: the functions of `Policy` without the replica axis.

    Every function that takes a policy also accepts a `SinglePolicy`; `lift` turns it into a `Policy`. Attributes are
    those of `Policy`, except that clients are the first axis of `per_client` arrays. Of the context's optional fields,
    those of `losses` are (U,), `channel_state` is (U, N), and `distributions` keeps a leading axis of 1. The quotas and
    sizes of `problem` are (U,).

    Examples:
        >>> import numpy as np
        >>> from fedlane import SinglePolicy, check_policy, greedy_matching
        >>> class LongestWait(SinglePolicy):
        ...     name = "longest-wait"
        ...     per_client = frozenset({"waited"})
        ...
        ...     def init(self, problem):
        ...         return {"waited": np.zeros(problem.clients)}
        ...
        ...     def select(self, state, context, rng):
        ...         value = np.zeros((len(context.available), context.problem.channels))
        ...         value[~context.available] = -np.inf
        ...         return greedy_matching(value, np.argsort(-np.where(context.available, state["waited"], -1.0)))
        ...
        ...     def update(self, state, feedback):
        ...         return {"waited": np.where(feedback.punctual, 0.0, state["waited"] + 1)}
        >>> check_policy(LongestWait())
    """

    @abstractmethod
    def init(self, problem: Problem) -> State:
        """Return the state before the first round: named arrays without a replica axis."""

    @abstractmethod
    def select(self, state: State, context: Context, rng: np.random.Generator) -> IntArray:
        """Return this round's channel of each client, (U,); -1 for none, and always for an unavailable client."""

    def predictions(self, state: State, context: Context, assignment: IntArray) -> PredictedDelays:
        """Return what the policy expects of the assigned uploads, as `Policy.predictions` does; arrays are (U,)."""
        raise NotImplementedError(f"policy {self.name} states no predictions")

    def update(self, state: State, feedback: Feedback) -> State:
        """Return the state after the round; by default, the same state."""
        return state

    def resize(self, state: State, old: Problem, new: Problem) -> State:
        """Return the state for a problem with different quotas or clients, as `Policy.resize` does."""
        return resized(self.init, state, old, new, self.per_client, axis=0)

    def check_state(self, state: State, problem: Problem) -> State:
        """Check one replica's state that was read from a file, as `Policy.check_state` does."""
        return fitting_state(self.init(problem), state)


@dataclass(frozen=True)
class Lifted(Policy):
    """A `SinglePolicy` for many replicas: each replica has its own state and its own random stream."""

    single: SinglePolicy

    def __post_init__(self) -> None:
        inherited = (
            "name",
            "summary",
            "version",
            "requires",
            "per_client",
            "predicts",
            "knows",
            "ranges",
            "quota_slack",
        )
        for attribute in inherited:
            object.__setattr__(self, attribute, getattr(self.single, attribute))

    def init(self, problem: Problem) -> State:
        """Stack the initial states of the replicas."""
        return _stack([self.single.init(_problem(problem, r)) for r in range(problem.replicas)])

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Select in each replica independently."""
        chosen = [
            self.single.select(_replica(state, r), context.replica(r), generator)
            for r, generator in enumerate(rng.generators)
        ]
        return np.stack(chosen).astype(np.int64, copy=False)

    def predictions(self, state: State, context: Context, assignment: IntArray) -> PredictedDelays:
        """Stack the predictions of the replicas."""
        each = [
            self.single.predictions(_replica(state, r), context.replica(r), row) for r, row in enumerate(assignment)
        ]
        return PredictedDelays(
            *(np.stack(rows) for rows in zip(*(single.arrays().values() for single in each), strict=True))
        )

    def update(self, state: State, feedback: Feedback) -> State:
        """Update every replica with its own feedback."""
        replicas = range(len(feedback.channel))
        return _stack([self.single.update(_replica(state, r), feedback.replica(r)) for r in replicas])

    def resize(self, state: State, old: Problem, new: Problem) -> State:
        """Resize every replica's state."""
        replicas = range(new.replicas)
        return _stack([self.single.resize(_replica(state, r), _problem(old, r), _problem(new, r)) for r in replicas])

    def check_state(self, state: State, problem: Problem) -> State:
        """Check every replica's state."""
        for name, array in state.items():
            if array.ndim == 0 or len(array) != problem.replicas:
                raise InputError(f"state.{name} must have {problem.replicas} replicas, got shape {array.shape}")
        replicas = range(problem.replicas)
        return _stack([self.single.check_state(_replica(state, r), _problem(problem, r)) for r in replicas])


def lift(single: SinglePolicy) -> Policy:
    """Return a policy that runs ``single`` on many replicas."""
    return Lifted(single)


def _stack(states: list[State]) -> State:
    return {key: np.stack([np.asarray(state[key]) for state in states]) for key in states[0]}


def _replica(state: Mapping[str, np.ndarray], r: int) -> State:
    return {key: array[r] for key, array in state.items()}


def _problem(problem: Problem, r: int) -> Problem:
    sizes = None if problem.sizes is None else problem.sizes[r]
    return replace(problem, quotas=problem.quotas[r], sizes=sizes)
