"""Synthetic networks for `lane`'s latent places: delays that follow distances in a square, and delays that do not."""

import numpy as np

from fedlane.records import Context, Feedback, Problem
from support.policy_rounds import network_delays, of_pairs, rounds_of, run

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


def attempted(channel, location, draw):
    """The delays of a round; ``draw`` (R, U) are standard normal numbers."""
    return network_delays(channel, of_pairs(location, channel) + 0.3 * draw, COMPUTE_S)


def feedback_of(problem, round, assignment, location, draw):
    """What a policy learns from a round; ``draw`` (R, U) are standard normal numbers."""
    delays = attempted(assignment, location, draw)
    punctual = (assignment >= 0) & (delays.total_s <= problem.deadline_s)
    return Feedback(Context.first(problem, round=round), assignment, delays, punctual).observed()


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

    def attempt(t, channel):
        draw = np.array([np.random.default_rng([seed, t]).standard_normal(problem.clients) for seed in seeds])
        return attempted(channel, location, draw)

    going = rounds_of(policy, problem, seeds, state)
    going.round = rounds.start
    return run(going, len(rounds), attempt), going.state
