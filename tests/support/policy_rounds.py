"""Problems, contexts and feedback of single rounds, for tests of policies."""

import numpy as np

from fedlane.records import ClientLosses, Context, Delays, Feedback, Problem
from fedlane.rng import RoundStreams
from fedlane.scheduling import Choice

DEADLINE_S = 4.0


def problem_with(clients, channels, replicas=1, quota=0.4, rounds=100, sizes=100.0):
    """A problem with a deadline of 4 s; quota and sizes are one number or one per client."""
    shape = (replicas, clients)
    quotas, records = np.broadcast_to(quota, shape).astype(float), np.broadcast_to(sizes, shape).astype(float)
    return Problem(clients, channels, rounds, DEADLINE_S, quotas, records)


def losses_of(mean, rms=None):
    """Exact losses of one replica; NaN for a client without a report."""
    mean = np.atleast_2d(np.asarray(mean, float))
    return ClientLosses(mean, mean if rms is None else np.atleast_2d(np.asarray(rms, float)), protected=False)


def context_of(problem, round=0, available=True, **known):
    """A context in which the clients of ``available`` may be selected."""
    return Context.first(
        problem, round=round, available=np.broadcast_to(available, problem.quotas.shape).copy(), **known
    )


def feedback_of(problem, assignment, delay_s, round=0, losses=None, present=None):
    """What a policy learns from a round in which each client would take ``delay_s``."""
    assignment = np.atleast_2d(np.asarray(assignment))
    total = np.where(assignment >= 0, np.asarray(delay_s, float), np.nan)
    delays = Delays(total / 4, total / 4, total / 2)
    present = None if present is None else np.atleast_2d(np.asarray(present))
    known = {"losses": losses} if present is None else {"losses": losses, "present": present}
    context = Context.first(problem, round=round, **known)
    return Feedback(context, assignment, delays, total <= DEADLINE_S).observed()


def state_with(policy, problem, delay, count=1, **arrays):
    """A state in which every pair was used ``count`` times, with the mean delay (U, N) in units of the deadline."""
    state = dict(policy.init(problem))
    state["count"][:] = count
    state["reward"][:] = count * (1.0 - np.asarray(delay, float))
    state["success"][:] = count * (np.asarray(delay, float) < 1.0)
    return {**state, **{key: np.asarray(array, state[key].dtype) for key, array in arrays.items()}}


def selected(policy, state, context, seeds=(0,)):
    """The channels of a round (R, U)."""
    chosen = policy.select(state, context, RoundStreams(seeds, "policy").at(context.round))
    return chosen.channel if isinstance(chosen, Choice) else chosen


def served(assignment):
    """The clients of the first replica that have a channel."""
    return np.flatnonzero(assignment[0] >= 0).tolist()
