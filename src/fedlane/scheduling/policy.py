"""Policies: three functions with explicit state.

    state = policy.init(problem)
    for each round:
        channels = policy.select(state, context, rng)        # each client's channel, -1 for none
        state = policy.update(state, feedback)               # what the base station observed

A `Policy` is written for one network, with arrays (U,) and (U, N). A `BatchPolicy` has the replica axis in front and
advances many networks together, which is faster; the built-in policies are batch policies. Shapes below are those of a
batch policy: R replicas, U clients, N channels.

State is plain arrays, so that any policy can be saved and resumed. What does not change while rounds are run (quotas,
deadline, number of channels) is not state: it is in `context.problem`. Nor are the queues and the previous matching,
which every run keeps: they are in the context too.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedlane.delay_predictions import PredictedDelays
from fedlane.files import fitting_array
from fedlane.records import BoolArray, Context, DelayDistributions, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.ranges import Tunable
from fedlane.validate import InputError, at_least, nearest

REQUIREMENTS = frozenset({"channel_state", "distributions", "losses", "sizes"})
"""Everything that a policy may declare in `requires`; a simulation supplies it."""
FEDERATED = frozenset({"losses", "sizes"})
"""What a real federation can supply of it."""
DISTRIBUTION_CELLS = 32
"""Cells into which the time up to the deadline is divided in the distributions that a policy may require."""
LEAGUES = ("delays", "losses", "channels")
"""What a policy may know: measured delays; losses too; the channels' state or distributions too."""


@dataclass(frozen=True)
class Choice:
    """What `select` may return instead of channels: the channels, and what the policy expects of these uploads.

    Runs record the predictions and compare them with what happened; they have no influence on any decision. A policy
    that states predictions does so from its first round on.

    Attributes:
        channel: Each client's channel, -1 for none.
        predicted: The predictions, NaN for clients without a channel.
    """

    channel: IntArray
    predicted: PredictedDelays


class _Described(ABC):
    """What every policy states about itself, with the defaults."""

    name: ClassVar[str]
    summary: ClassVar[str] = ""
    version: ClassVar[int] = 1
    requires: ClassVar[frozenset[str]] = frozenset()
    knows: ClassVar[str] = "delays"
    ranges: ClassVar[Mapping[str, Tunable]] = {}
    quota_slack: float = 0.0

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "requires" in vars(cls) and "knows" not in vars(cls):
            cls.knows = _knowledge(cls.requires)
        retired = [name for name in _RETIRED if name in vars(cls)]
        if retired:
            raise InputError(f"policy {vars(cls).get('name', cls.__name__)}: {retired[0]} {_RETIRED[retired[0]]}")

    def init(self, problem: Problem) -> State:
        """Return the state before the first round, as named arrays; by default none, for a policy that learns nothing.

        Args:
            problem: The problem to be scheduled, with quotas (R, U).
        """
        return {}

    def update(self, state: State, feedback: Feedback) -> State:
        """Return the state after the round; by default, the same state.

        Args:
            state: The state that `select` received; its arrays may be changed in place.
            feedback: The round's context, channels, measured delays and punctual clients, each (R, U).
        """
        return state

    def check_state(self, state: State, problem: Problem) -> State:
        """Check a state that was read from a file, before it is used.

        By default, the state must have the arrays of ``init(problem)``, with the same shapes and with types that fit.
        Override this method where the shape of an array changes while rounds are run, and wherever a wrong value would
        do harm: an index, a count, a number that must be finite.

        Args:
            state: The arrays of a checkpoint by name.
            problem: The problem that will be continued.

        Returns:
            The state to continue from, with the types of ``init(problem)``.

        Raises:
            InputError: `update` cannot have returned this state.
        """
        return fitting_state(self.init(problem), state)


_RETIRED = {
    "predictions": "is no method of a policy: select may return Choice(channel, predicted)",
    "select_and_predict": "is no method of a policy: select may return Choice(channel, predicted)",
    "predicts": "is no attribute of a policy: select may return Choice(channel, predicted)",
    "per_client": "is no attribute of a policy: which arrays grow with the clients follows from init",
}
"""Methods and attributes that policies had before the release, with what to write instead."""


class Policy(_Described):
    """Base class of policies written for one network. The fields of a policy's dataclass are its parameters.

    Attributes:
        name: The name by which `make_policy` and the command line find the policy.
        summary: One line for `fedlane list policies`.
        version: Version of the policy's results, from 1. Raise it when the policy chooses differently with the same
            parameters: stored results and checkpoints of other versions are then not used.
        requires: What `select` needs in its context: any of `"channel_state"`, `"distributions"`, `"losses"`, and
            `"sizes"`, which every problem has.
        quota_slack: The fraction by which this policy lowers every quota.
        knows: What the policy knows, which is its league in the arena: `"delays"`, `"losses"` or `"channels"`. It
            follows from `requires` unless a class states it.
        ranges: The values of each parameter that `fedlane arena tune` may try; others keep their defaults.

    Examples:
        >>> import numpy as np
        >>> from fedlane import Policy, check_policy, greedy_matching
        >>> class LongestQueue(Policy):
        ...     name = "longest-queue"
        ...
        ...     def select(self, state, context, rng):
        ...         value = np.zeros((len(context.available), context.problem.channels))
        ...         value[~context.available] = -np.inf
        ...         return greedy_matching(value, np.argsort(-np.where(context.available, context.queue, -1.0)))
        >>> check_policy(LongestQueue())
    """

    @abstractmethod
    def select(self, state: State, context: Context, rng: np.random.Generator) -> IntArray | Choice:
        """Return this round's channel of each client, (U,); -1 for none, and always for an unavailable client.

        Neither the state nor the context may be changed. Of the context's optional fields, those of `losses` are (U,),
        `channel_state` is (U, N), and `distributions` keeps a leading axis of 1.
        """


class BatchPolicy(_Described):
    """Base class of policies that advance many replicas together; attributes are those of `Policy`.

    Examples:
        >>> import numpy as np
        >>> from fedlane import BatchPolicy, simulate
        >>> class InOrder(BatchPolicy):
        ...     name = "in-order"
        ...
        ...     def select(self, state, context, rng):
        ...         rank = np.cumsum(context.available, axis=1) - 1
        ...         return np.where(context.available & (rank < context.problem.channels), rank, -1)
        >>> run = simulate("quickstart", InOrder(), rounds=5, learning=False)
        >>> run.summary["policy"]
        'in-order'
    """

    @abstractmethod
    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray | Choice:
        """Choose this round's clients and their channels, without changing the state or the context.

        Args:
            state: The state after the previous round.
            context: The round, the problem, the available clients (R, U), the queues, and what the policy requires.
            rng: The round's random numbers, one stream per replica.

        Returns:
            (R, U): each client's channel; -1 for none, and always for an unavailable client.
        """

    def caution(self, distributions: DelayDistributions) -> str | None:
        """Return one line that a user should know about this policy on this network, or None.

        Args:
            distributions: The true delay distributions, as a policy that requires them receives them.
        """
        return None

    def quotas(self, problem: Problem) -> FloatArray:
        """Return the quotas that this policy serves, (R, U): ``(1 - quota_slack) * problem.quotas``."""
        return (1.0 - self.quota_slack) * problem.quotas

    def resize(self, state: State, old: Problem, new: Problem) -> State:
        """Return the state for a problem with other quotas, or with more clients, which come last.

        What was learned is kept. Which arrays grow follows from ``init(old)`` and ``init(new)``: an array whose initial
        values differ on what both have follows from the problem, and is taken from ``init(new)``; any other keeps its
        entries at their index.

        Args:
            state: The state under `old`; it is not used afterwards.
            old: The problem so far.
            new: The problem from now on, with as many channels and replicas as before.

        Raises:
            InputError: The numbers of channels differ.
        """
        if new.channels != old.channels:
            raise InputError(f"the number of channels cannot change, got {old.channels} and {new.channels}")
        before, fresh = self.init(old), self.init(new)
        return {key: _resized(before[key], array, state[key]) for key, array in fresh.items()}


@dataclass(frozen=True)
class _OnMany(BatchPolicy):
    """A `Policy` for many replicas: each replica has its own state and its own random stream."""

    single: Policy

    def __post_init__(self) -> None:
        for attribute in ("name", "summary", "version", "requires", "knows", "ranges", "quota_slack"):
            object.__setattr__(self, attribute, getattr(self.single, attribute))

    def init(self, problem: Problem) -> State:
        """Stack the initial states of the replicas."""
        return _stack([self.single.init(problem.replica(r)) for r in range(problem.replicas)])

    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray | Choice:
        """Select in each replica independently."""
        chosen = [
            self.single.select(_replica(state, r), context.replica(r), generator)
            for r, generator in enumerate(rng.generators)
        ]
        channels = [choice.channel if isinstance(choice, Choice) else choice for choice in chosen]
        channel = np.stack([np.asarray(row) for row in channels])
        predicted = [choice.predicted for choice in chosen if isinstance(choice, Choice)]
        if len(predicted) < len(chosen):
            return channel
        rows = zip(*(one.arrays().values() for one in predicted), strict=True)
        return Choice(channel, PredictedDelays(*(np.stack(arrays) for arrays in rows)))

    def update(self, state: State, feedback: Feedback) -> State:
        """Update every replica with its own feedback."""
        replicas = range(len(feedback.channel))
        return _stack([self.single.update(_replica(state, r), feedback.replica(r)) for r in replicas])

    def check_state(self, state: State, problem: Problem) -> State:
        """Check every replica's state."""
        for name, array in state.items():
            if array.ndim == 0 or len(array) != problem.replicas:
                raise InputError(f"state.{name} must have {problem.replicas} replicas, got shape {array.shape}")
        replicas = range(problem.replicas)
        return _stack([self.single.check_state(_replica(state, r), problem.replica(r)) for r in replicas])


def lift(policy: BatchPolicy | Policy) -> BatchPolicy:
    """Return a policy that runs ``policy`` on many replicas; a batch policy is returned as it is.

    Raises:
        InputError: It is neither.
    """
    if isinstance(policy, BatchPolicy):
        return policy
    if isinstance(policy, Policy):
        return _OnMany(policy)
    raise InputError(f"a policy must be derived from Policy or BatchPolicy, got {type(policy).__name__}")


def _stack(states: Sequence[State]) -> State:
    return {key: np.stack([np.asarray(state[key]) for state in states]) for key in states[0]}


def _replica(state: State, r: int) -> State:
    return {key: array[r] for key, array in state.items()}


# What a policy requires, and who can supply it.


def _knowledge(requires: object) -> str:
    """Return what a policy knows that requires these things: one of `LEAGUES`."""
    names = requires if isinstance(requires, frozenset | set) else frozenset()
    if names & {"channel_state", "distributions"}:
        return "channels"
    return "losses" if "losses" in names else "delays"


def requires_losses(policy: BatchPolicy | Policy) -> bool:
    """Return whether a policy schedules by the losses that clients report, so that training influences the schedule."""
    return "losses" in policy.requires


def check_requirements(policy: BatchPolicy | Policy, *, learning: bool = True) -> None:
    """Raise `InputError` if a policy requires something that no run supplies, or no run without learning."""
    declared: object = policy.requires
    if not isinstance(declared, frozenset | set):
        raise InputError(f"policy {policy.name}: requires must be a set of names, got {declared!r}")
    for name in sorted(declared - REQUIREMENTS):
        known = nearest(name, REQUIREMENTS) or f": choose from {', '.join(sorted(REQUIREMENTS))}"
        raise InputError(f"policy {policy.name} requires '{name}', which no run supplies{known}")
    check_losses(policy, learning=learning)


def check_losses(policy: BatchPolicy | Policy, *, learning: bool) -> None:
    """Raise `InputError` if a policy requires losses in a run that does not train."""
    if requires_losses(policy) and not learning:
        raise InputError(
            f"policy {policy.name} requires losses, which clients report when they train: run it with learning "
            "(without --no-learning, or with learning=True)"
        )


def check_federated(policy: BatchPolicy, *, losses: bool = False) -> None:
    """Raise `InputError` if a policy requires something that a real federation does not have.

    Args:
        policy: The policy.
        losses: Whether the operator states that clients report their losses.
    """
    if requires_losses(policy) and not losses:
        raise InputError(
            f"policy {policy.name} requires losses, which real clients do not report by default: set losses=True in "
            "LaneStrategy and report_losses=True in every LaneClient"
        )
    lacking = sorted(policy.requires - FEDERATED)
    if lacking:
        raise InputError(f"policy {policy.name} requires {', '.join(lacking)}, which a federation does not have")


def check_schedule(policy: BatchPolicy) -> None:
    """Raise `InputError` if a policy's schedule cannot be saved, to train from it on another machine."""
    if requires_losses(policy):
        raise InputError(
            f"policy {policy.name} requires losses, so its schedule cannot be trained from later: run it with learning "
            "on the other machine (fedlane run --device)"
        )


def check_trade_off(V: float, exploration: float, quota_slack: float) -> None:
    """Raise `InputError` unless the parameters of a queue-based policy are within their bounds."""
    at_least("V", V, 0)
    at_least("exploration", exploration, 0)
    if not 0 <= quota_slack < 1:
        raise InputError(f"quota_slack must be at least 0 and less than 1, got {quota_slack}")


# Virtual queues, and states of other sizes or from a file.


def updated_queues(
    queue: FloatArray, quota: FloatArray, punctual: BoolArray, present: BoolArray | None = None
) -> FloatArray:
    """Return Q_i(t) = [Q_i(t-1) + beta_i x present_i(t-1) - 1_i(t-1)]^+: only a client that is there is owed a turn.

    Args:
        queue: The previous queues (R, U).
        quota: Quotas beta_i (R, U).
        punctual: Which clients were punctual (R, U).
        present: Which clients were present (R, U); None if all were.
    """
    owed = quota if present is None else quota * present
    return np.maximum(queue + owed - punctual, 0.0)


def with_clients(fresh: NDArray[Any], learned: NDArray[Any], axis: int) -> NDArray[Any]:
    """Return ``fresh`` with the entries of the clients that ``learned`` has; ``axis`` is the clients' axis in both."""
    return np.concatenate([learned, np.split(fresh, [learned.shape[axis]], axis)[1]], axis)


def _resized(before: NDArray[Any], fresh: NDArray[Any], learned: NDArray[Any]) -> NDArray[Any]:
    """Resize an array of a state by comparing its initial values ``before`` and ``fresh``."""
    if not before.ndim == fresh.ndim == learned.ndim:
        return fresh
    common = _corner(tuple(map(min, before.shape, fresh.shape)))
    if not np.array_equal(before[common], fresh[common]):
        return fresh
    # An array may have grown while rounds were run, beyond what init makes.
    result = np.zeros(np.maximum(fresh.shape, learned.shape), fresh.dtype)
    for array in (fresh, learned):
        overlap = _corner(tuple(map(min, array.shape, result.shape)))
        result[overlap] = array[overlap]
    return result


def _corner(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(size) for size in shape)


def fitting_state(initial: State, state: State) -> dict[str, NDArray[Any]]:
    """Return the arrays that ``initial`` names, each of which must have its shape and a type that fits it.

    Args:
        initial: The state before the first round, as `init` returns it.
        state: The state from a file; arrays that ``initial`` does not name are left out.

    Raises:
        InputError: An array is missing, or has a different shape or type.
    """
    missing = [name for name in initial if name not in state]
    if missing:
        raise InputError(f"state.{missing[0]} is missing")
    named = {f"state.{name}": array for name, array in state.items()}
    return {name: fitting_array(named, f"state.{name}", first) for name, first in initial.items()}


def check_within(name: str, array: NDArray[Any], low: NDArray[Any] | float, high: NDArray[Any] | float) -> None:
    """Raise `InputError` unless every entry of ``state[name]`` lies in [low, high], which NaN does not.

    Compiled code uses some entries of a state as indices and does not check them, so that a forged checkpoint could
    read and write memory outside the arrays. `check_state` therefore checks every state before it is used.
    """
    wrong = ~((array >= low) & (array <= high))
    if wrong.any():
        bound_low, bound_high = (np.broadcast_to(bound, array.shape)[wrong][0] for bound in (low, high))
        raise InputError(f"state.{name} must lie in {bound_low:g}..{bound_high:g}, got {array[wrong][0]:g}")
