"""One round, written to be read as pseudocode. Readings are explained in docs/reading-the-paper.md."""

from dataclasses import dataclass

import numpy as np

from fedlane.delay_predictions import PredictedDelays
from fedlane.records import (
    BoolArray,
    ClientLosses,
    Context,
    DelayDistributions,
    Feedback,
    FloatArray,
    Problem,
    State,
)
from fedlane.rng import RoundStreams
from fedlane.scheduling.checks import check_assignment, check_predictions
from fedlane.scheduling.policy import Policy
from fedlane.simulation.attendance import Attendance


@dataclass(frozen=True)
class RoundClients:
    """The clients at a round's start.

    Attributes:
        present: (R, U): who is there.
        available: (R, U): who may be assigned: present, and with privacy budget left.
    """

    present: BoolArray
    available: BoolArray


@dataclass(frozen=True)
class Supplies:
    """What a policy requires beyond what every policy receives; None for what it does not require.

    Attributes:
        distributions: The true delay distributions.
        losses: The losses that clients reported with their last uploads.
    """

    distributions: DelayDistributions | None = None
    losses: ClientLosses | None = None


@dataclass(frozen=True)
class PlayedRound:
    """A round after it was played.

    Attributes:
        state: The policy's state after the round.
        feedback: What happened, of which the policy learns less (`Feedback.observed`).
        energy_j: (R, U): energy that each client spent, in joules.
        predicted: What the policy expected of the uploads; None if it states no predictions.
    """

    state: State
    feedback: Feedback
    energy_j: FloatArray
    predicted: PredictedDelays | None


def play_round(
    round: int,
    policy: Policy,
    state: State,
    attendance: Attendance,
    clock_s: FloatArray,
    streams: RoundStreams,
    eligible: RoundClients,
    supplies: Supplies,
    problem: Problem,
) -> PlayedRound:
    """Play one round in every replica: the policy selects, the network determines the delays, the policy learns.

    Args:
        round: Index of the round, starting at 0.
        policy: The policy.
        state: The policy's state before the round.
        attendance: Who is there, and what assigned clients do: the network determines the delays.
        clock_s: (R,): simulated time at which the round begins, in seconds.
        streams: The policy's random streams, one per replica.
        eligible: Which clients are there, and which of them may be assigned.
        supplies: What else the policy requires.
        problem: What the policy knows before the first round.

    Raises:
        PolicyError: If the policy returns an invalid assignment or invalid predictions.
    """
    network = attendance.network
    context = Context(
        round=round,
        available=eligible.available,
        channel_state=network.channel_state(round, clock_s) if "channel_state" in policy.requires else None,
        distributions=supplies.distributions,
        losses=supplies.losses,
        problem=problem,
    )
    assignment, predicted = policy.select_and_predict(state, context, streams.at(round))
    where = f"policy {policy.name}, round {round}"
    check_assignment(assignment, eligible.available, network.channels, where)
    check_predictions(predicted, assignment, where)
    attempts = attendance.attempt(round, clock_s, assignment)
    feedback = Feedback(
        round, assignment, attempts.delays, attempts.punctual, problem, eligible.present, supplies.losses
    )
    return PlayedRound(policy.update(state, feedback.observed()), feedback, attempts.energy_j, predicted)


def round_delay_s(feedback: Feedback, deadline_s: float) -> FloatArray:
    """Delay of a round: d(t) = max over the assigned clients of min(d_ij, d_max).

    Args:
        feedback: The feedback of the round.
        deadline_s: Deadline d_max in seconds.

    Returns:
        (R,): the delay in seconds. Where no client was assigned it is 0 (reading 6), or the deadline if clients are
        absent: the server waits for them, because a clock that stands still would never bring them back.
    """
    capped = np.fmin(feedback.delays.total_s, deadline_s)  # the deadline for a client that left, whose delay is NaN
    delay_s: FloatArray = np.where(feedback.assignment >= 0, capped, 0.0).max(axis=1, initial=0.0)
    if feedback.present is None:
        return delay_s
    waiting = ~(feedback.assignment >= 0).any(axis=1) & ~feedback.present.all(axis=1)
    return np.where(waiting, deadline_s, delay_s)
