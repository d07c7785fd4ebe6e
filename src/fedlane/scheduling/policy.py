"""Policies: three functions with explicit state that advance many replicas together.

    state = policy.init(problem)
    for each round:
        assignment = policy.select(state, context, rng)      # (R, U): each client's channel, -1 for none
        state = policy.update(state, feedback)               # what the base station observed

`update` may reuse the arrays of the state it receives, so callers keep only the state that it returns. What does not
change while rounds are played (quotas, deadline, number of channels) is not state: it is in `context.problem` and
`feedback.context.problem`.
"""

import importlib
from abc import abstractmethod
from typing import Any

from fedlane.delay_predictions import PredictedDelays
from fedlane.records import Context, DelayDistributions, Feedback, FloatArray, IntArray, Problem, State
from fedlane.rng import RoundRng
from fedlane.scheduling.resizing import resized
from fedlane.scheduling.restoring import fitting_state
from fedlane.scheduling.traits import PolicyTraits
from fedlane.validate import InputError, at_least


class Policy(PolicyTraits):
    """Base class of all policies. The fields of a policy's dataclass are its parameters.

    Attributes:
        name: The name by which `make_policy` and the command line find the policy.
        summary: One line for `fedlane list policies`.
        version: Version of the policy's results, from 1. Raise it when the policy chooses differently with the same
            parameters: stored results and checkpoints of other versions are then not used.
        requires: What `select` needs in its context: any of `"channel_state"`, `"distributions"`, `"losses"`, and
            `"sizes"`, which every problem has.
        quota_slack: The fraction by which this policy lowers every quota.
        per_client: Names of the state arrays whose second axis is the clients, or None. `resize` uses it.
        predicts: Whether the policy has `predictions`, which a run then records.
        knows: What the policy knows, which is its league in the arena: `"delays"`, `"losses"` or `"channels"`. It
            follows from `requires` unless a class states it.
        ranges: The values of each parameter that `fedlane arena tune` may try; others keep their defaults.

    Examples:
        >>> import numpy as np
        >>> from fedlane import Policy, simulate
        >>> class InOrder(Policy):
        ...     name = "in-order"
        ...     per_client = frozenset()
        ...
        ...     def init(self, problem):
        ...         return {}
        ...
        ...     def select(self, state, context, rng):
        ...         rank = np.cumsum(context.available, axis=1) - 1
        ...         return np.where(context.available & (rank < context.problem.channels), rank, -1)
        >>> run = simulate("quickstart", InOrder(), rounds=5, learning=False)
        >>> run.summary["policy"]
        'in-order'
    """

    @abstractmethod
    def init(self, problem: Problem) -> State:
        """Return the state before the first round.

        Args:
            problem: The problem to be played, with quotas (R, U).

        Returns:
            Named arrays, each with a leading axis of R replicas.
        """

    @abstractmethod
    def select(self, state: State, context: Context, rng: RoundRng) -> IntArray:
        """Choose this round's clients and their channels, without changing the state or the context.

        Args:
            state: The state after the previous round.
            context: The round, the available clients (R, U), the problem, and what the policy requires.
            rng: The round's random numbers, one stream per replica.

        Returns:
            (R, U): each client's channel; -1 for none, and always for an unavailable client.
        """

    def predictions(self, state: State, context: Context, assignment: IntArray) -> PredictedDelays:
        """Return what the policy expects of the uploads that `select` has just assigned, without changing the state.

        It is called if `predicts` is set, after `select` and before `update`. Runs record the predictions and compare
        them with what happened; they have no influence on any decision.

        Args:
            state: The state that `select` received.
            context: The context that `select` received.
            assignment: What `select` returned (R, U).
        """
        raise NotImplementedError(f"policy {self.name} states no predictions")

    def select_and_predict(
        self, state: State, context: Context, rng: RoundRng
    ) -> tuple[IntArray, PredictedDelays | None]:
        """Return what `select` returns, and the `predictions` for it, None if the policy states none.

        Override this method where a selection computes the predictions anyway.
        """
        assignment = self.select(state, context, rng)
        return assignment, self.predictions(state, context, assignment) if self.predicts else None

    def update(self, state: State, feedback: Feedback) -> State:
        """Return the state after the round; by default, the same state.

        Args:
            state: The state that `select` received; its arrays may be changed in place.
            feedback: The round's assignment, measured delays and punctual clients, each (R, U).
        """
        return state

    def resize(self, state: State, old: Problem, new: Problem) -> State:
        """Return the state for a problem with different quotas or a different number of clients.

        Clients keep their index: new ones are appended, and a smaller problem drops the last ones. Remaining clients
        keep what was learned about them; new clients start as in ``init(new)``. Arrays that `per_client` does not name
        are kept. A policy that declares no `per_client` is resized by a comparison of ``init(old)`` and ``init(new)``:
        an array whose initial values differ is taken from ``init(new)``, and any other keeps its entries at their
        index. Override this method where neither is right.

        Args:
            state: The state under `old`; it is not used afterwards.
            old: The problem so far.
            new: The problem from now on, with as many channels and replicas as before.

        Raises:
            InputError: The numbers of channels differ.
        """
        return resized(self.init, state, old, new, self.per_client, axis=1)

    def check_state(self, state: State, problem: Problem) -> State:
        """Check a state that was read from a file, before it is used.

        By default, the state must have the arrays of ``init(problem)``, with the same shapes and with types that fit.
        Override this method where the shape of an array changes while rounds are played, and wherever a wrong value
        would do harm: an index, a count, a number that must be finite.

        Args:
            state: The arrays of a checkpoint by name.
            problem: The problem that will be continued.

        Returns:
            The state to continue from, with the types of ``init(problem)``.

        Raises:
            InputError: `update` cannot have returned this state.
        """
        return fitting_state(self.init(problem), state)

    def caution(self, distributions: DelayDistributions) -> str | None:
        """Return one line that a user should know about this policy on this network, or None.

        Args:
            distributions: The true delay distributions, as a policy that requires them receives them.
        """
        return None

    def quotas(self, problem: Problem) -> FloatArray:
        """Return the quotas that this policy serves, (R, U): ``(1 - quota_slack) * problem.quotas``."""
        return (1.0 - self.quota_slack) * problem.quotas


def check_trade_off(V: float, exploration: float, quota_slack: float) -> None:
    """Raise `InputError` unless the parameters of a queue-based policy are within their bounds."""
    at_least("V", V, 0)
    at_least("exploration", exploration, 0)
    if not 0 <= quota_slack < 1:
        raise InputError(f"quota_slack must be at least 0 and less than 1, got {quota_slack}")


def __getattr__(name: str) -> Any:
    """Find the names that were once defined here, for programs that import them from this module."""
    if name not in {"Lifted", "SinglePolicy", "lift"}:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module("fedlane.scheduling.single_policy"), name)
