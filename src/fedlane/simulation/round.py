"""One round, readable as pseudocode."""

import numpy as np

from fedlane.network import Network
from fedlane.records import BoolArray, Context, DelayDistributions, Feedback, FloatArray, Problem, State
from fedlane.rng import RoundStreams
from fedlane.scheduling.checks import check_assignment
from fedlane.scheduling.policy import Policy


def play_round(
    round: int,
    policy: Policy,
    state: State,
    network: Network,
    streams: RoundStreams,
    available: BoolArray,
    distributions: DelayDistributions | None,
    problem: Problem,
) -> tuple[State, Feedback]:
    """The policy selects, the network answers, the policy learns."""
    context = Context(
        round=round,
        available=available,
        channel_state=network.channel_state(round) if "channel_state" in policy.requires else None,
        distributions=distributions,
        problem=problem,
    )
    assignment = policy.select(state, context, streams.at(round))
    check_assignment(assignment, available, network.channels, f"policy {policy.name}, round {round}")
    delays = network.delays(round, assignment)
    punctual = delays.total_s <= network.deadline_s  # NaN, an unassigned client, is not punctual
    feedback = Feedback(round=round, assignment=assignment, delays=delays, punctual=punctual, problem=problem)
    return policy.update(state, feedback), feedback


def round_delay_s(feedback: Feedback, deadline_s: float) -> FloatArray:
    """d(t) = max over the assigned clients of min(d_ij, d_max), (R,); 0 when nobody was assigned (reading 6)."""
    capped = np.fmin(feedback.delays.total_s, deadline_s)
    return np.where(feedback.assignment >= 0, capped, 0.0).max(axis=1)
