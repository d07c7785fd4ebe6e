"""Problems, contexts and feedback of single rounds, for tests of policies."""

import numpy as np

from fedlane.records import ClientLosses, Context, Delays, Feedback, Problem
from fedlane.rng import RoundStreams
from fedlane.rounds import Arrivals, Rounds
from fedlane.scheduling import Choice, lift

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
    delays = delays_of(assignment, np.asarray(delay_s, float))
    present = None if present is None else np.atleast_2d(np.asarray(present))
    known = {"losses": losses} if present is None else {"losses": losses, "present": present}
    context = Context.first(problem, round=round, **known)
    return Feedback(context, assignment, delays, delays.total_s <= DEADLINE_S).observed()


def delays_of(channel, total_s):
    """The parts of the delays (R, U), of which only those of clients with a channel exist."""
    total = np.where(channel >= 0, total_s, np.nan)
    return Delays(total / 4, total / 4, total / 2)


def network_delays(channel, log_network, compute_s):
    """The parts of delays whose network times have these logarithms (R, U); +inf for an upload that was lost."""
    given = channel >= 0
    network = np.where(given, np.exp(np.broadcast_to(log_network, channel.shape)), np.nan)
    return Delays(0.4 * network, np.where(given, compute_s, np.nan), 0.6 * network)


def of_pairs(values, channel):
    """The value (R, U) of each client's pair, given those of all pairs (R, U, N)."""
    return np.take_along_axis(values, np.maximum(channel, 0)[..., None], axis=2)[..., 0]


def rounds_of(policy, problem, seeds=(0,), state=None):
    """The rounds of a policy, from its first one or from a state that it has learned."""
    rounds = Rounds(lift(policy), problem, seeds)
    if state is not None:
        rounds.state = {name: array.copy() for name, array in state.items()}
    return rounds


def run(rounds, number, attempt, present=None, ready=None, **required):
    """Run rounds in a world of which ``attempt(t, channel)`` are the delays; return each round's channels (T, R, U).

    Every client is present and can take an order, unless ``present(t)`` or ``ready(t)`` say who is or can.
    """
    everybody, channels = np.ones(rounds.queue.shape, np.bool_), []
    for t in range(rounds.round, rounds.round + number):
        there = everybody if present is None else np.broadcast_to(present(t), everybody.shape)
        able = None if ready is None else np.broadcast_to(ready(t), everybody.shape)
        orders = rounds.decide(there, able, **{name: values(t) for name, values in required.items()})
        rounds.start(orders)
        rounds.settle(Arrivals(attempt(t, orders.channel), everybody, np.zeros(everybody.shape)))
        channels.append(orders.channel)
    return np.array(channels)


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
