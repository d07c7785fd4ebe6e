"""Synthetic networks for `lane`'s latent places: delays that follow distances in a square, and delays that do not."""

import numpy as np

from fedlane.records import Context, Delays, Feedback, Problem
from fedlane.rng import RoundStreams

DEADLINE_S, COMPUTE_S = 4.0, 0.1


def problem_with(clients, channels, replicas=1, rounds=400):
    """A problem with a deadline of 4 s."""
    quota = min(0.9, 0.8 * channels / clients)
    return Problem(clients, channels, rounds, DEADLINE_S, np.full((replicas, clients), quota))


def geometric(rng, clients, channels, slope=4.0):
    """The mean log network time (U, N) of each pair, which grows with a distance in the unit square."""
    y, z = rng.uniform(size=(clients, 1, 2)), rng.uniform(size=(1, channels, 2))
    return -2.0 + slope * np.hypot(*(y - z).transpose(2, 0, 1)) + 0.2 * rng.standard_normal((clients, channels))


def factors(rng, clients, channels):
    """The mean log network time (U, N) of each pair, from three hidden properties of each client."""
    return rng.normal(size=(clients, 3)) @ rng.normal(0.0, 0.5, (3, channels)) + rng.normal(0.0, 0.5, channels)


def unrelated(rng, clients, channels):
    """The mean log network time (U, N) of each pair, which says nothing about any other pair."""
    return rng.normal(0.0, 0.8, (clients, channels))


def feedback_of(problem, round, assignment, location, draw):
    """What a policy learns from a round; ``draw`` (R, U) are standard normal numbers."""
    assigned = assignment >= 0
    mean = np.take_along_axis(location, np.maximum(assignment, 0)[..., None], axis=2)[..., 0]
    network = np.where(assigned, np.exp(mean + 0.3 * draw), np.nan)
    delays = Delays(0.4 * network, np.where(assigned, COMPUTE_S, np.nan), 0.6 * network)
    punctual = assigned & (delays.total_s <= problem.deadline_s)
    return Feedback(round, assignment, delays, punctual, problem).observed()


def after_first_looks(policy, problem, location, looks, seed=0):
    """The state after each client was looked at on ``looks`` channels, a new one each time; U must be a multiple of N.

    ``location`` is (R, U, N).
    """
    rng, state = np.random.default_rng(seed), policy.init(problem)
    clients, channels = problem.clients, problem.channels
    groups = [(range(k, k + channels), rng.permutation(channels)) for k in range(0, clients, channels)]
    for t, (shift, (group, offset)) in enumerate(
        (shift, each) for shift in rng.permutation(channels)[:looks] for each in groups
    ):
        assignment = np.full(problem.quotas.shape, -1)
        assignment[:, list(group)] = (offset + shift) % channels
        draw = rng.standard_normal(assignment.shape)
        state = policy.update(state, feedback_of(problem, t, assignment, location, draw))
    return state


def played(policy, problem, location, rounds, seeds, state=None):
    """Play rounds in which the policy selects; replica r's delays depend on seeds[r] only.

    Returns the assignments (T, R, U) and the last state.
    """
    state, streams, assignments = policy.init(problem) if state is None else state, RoundStreams(seeds, "policy"), []
    for t in rounds:
        context = Context(t, np.ones(problem.quotas.shape, bool), problem=problem)
        assignment = policy.select(state, context, streams.at(t))
        draw = np.array([np.random.default_rng([seed, t]).standard_normal(problem.clients) for seed in seeds])
        state = policy.update(state, feedback_of(problem, t, assignment, location, draw))
        assignments.append(assignment)
    return np.array(assignments), state
