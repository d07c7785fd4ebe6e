"""One round, written to be read as pseudocode. Readings are explained in docs/reading-the-paper.md."""

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
    clock_s: FloatArray,
    streams: RoundStreams,
    available: BoolArray,
    distributions: DelayDistributions | None,
    problem: Problem,
) -> tuple[State, Feedback]:
    """Play one round in every replica: the policy selects, the network determines the delays, the policy learns.

    Args:
        round: Index of the round, starting at 0.
        policy: The policy.
        state: The policy's state before the round.
        network: The network, which determines the delays.
        clock_s: (R,): simulated time at which the round begins, in seconds.
        streams: The policy's random streams, one per replica.
        available: (R, U): which clients may be assigned.
        distributions: The true delay distributions if the policy requires them, otherwise None.
        problem: What the policy knows before the first round.

    Returns:
        The policy's state after the round, and what happened in it; the policy learns less, see `Feedback.observed`.

    Raises:
        PolicyError: If the policy returns an invalid assignment.
    """
    context = Context(
        round=round,
        available=available,
        channel_state=network.channel_state(round, clock_s) if "channel_state" in policy.requires else None,
        distributions=distributions,
        problem=problem,
    )
    assignment = policy.select(state, context, streams.at(round))
    check_assignment(assignment, available, network.channels, f"policy {policy.name}, round {round}")
    delays = network.delays(round, clock_s, assignment)
    punctual = delays.total_s <= network.deadline_s  # False for an unassigned client, whose delay is NaN
    feedback = Feedback(round=round, assignment=assignment, delays=delays, punctual=punctual, problem=problem)
    return policy.update(state, feedback.observed()), feedback


def round_delay_s(feedback: Feedback, deadline_s: float) -> FloatArray:
    """Delay of a round: d(t) = max over the assigned clients of min(d_ij, d_max).

    Args:
        feedback: The feedback of the round.
        deadline_s: Deadline d_max in seconds.

    Returns:
        (R,): the delay in seconds; 0 where no client was assigned (reading 6).
    """
    capped = np.fmin(feedback.delays.total_s, deadline_s)
    return np.where(feedback.assignment >= 0, capped, 0.0).max(axis=1)
