"""Theorems 3 and 4: stability of queues, regret, and the paper's bound on it.

Numbered readings are explained in docs/reading-the-paper.md.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedlane.matching import max_min_matching
from fedlane.records import FloatArray, IntArray
from fedlane.validate import InputError, matrix


@dataclass(frozen=True)
class Gaps:
    """Gaps between the best matching and others; a matching's value is the smallest mean reward of its pairs.

    Attributes:
        best: mu*, the largest value of a matching: the largest possible smallest mean reward.
        smallest: Delta_min, mu* minus the second largest value of a matching; infinite if all have the value mu*. The
            paper's definition, over all matchings but one, gives 0 whenever two share their smallest pair (reading 15).
        largest: Delta_max, mu* minus the smallest value of a matching.
    """

    best: float
    smallest: float
    largest: float


def gaps(mean_rewards: ArrayLike) -> Gaps:
    """Return Delta_min and Delta_max of Theorem 4.

    Args:
        mean_rewards: Mean reward of every pair (U, N), finite.

    Raises:
        InputError: The rewards are not a finite matrix.

    Examples:
        >>> round(gaps([[0.9], [0.1]]).smallest, 6)
        0.8
    """
    mu = matrix("mean_rewards", mean_rewards, 2)
    if mu.ndim != 2 or not np.isfinite(mu).all():
        raise InputError(f"mean_rewards must be finite and of shape (clients, channels), got shape {mu.shape}")
    best = _value(mu, max_min_matching(mu))
    worse = np.unique(mu[mu < best])[::-1]
    below = next((float(value) for value in worse if _attainable(mu, float(value))), -math.inf)
    return Gaps(best=best, smallest=best - below, largest=best - float(mu.min()))


def _value(mu: FloatArray, channel: IntArray) -> float:
    """Return the value of a matching: the smallest mean reward of the assigned pairs."""
    client = np.flatnonzero(channel >= 0)
    return float(mu[client, channel[client]].min())


def _attainable(mu: FloatArray, value: float) -> bool:
    """Return whether some saturating matching has this value: one pair has it, and no other pair has less."""
    for client, channel in np.argwhere(mu == value):
        rest = np.delete(np.delete(mu, client, axis=0), channel, axis=1)
        if rest.size == 0 or min(mu.shape) == 1 or _value(rest, max_min_matching(rest)) >= value:
            return True
    return False


def pseudo_regret(mean_rewards: ArrayLike, assignment: IntArray) -> FloatArray:
    """Return the cumulative pseudo-regret: the sum over rounds of mu* - min over assigned pairs of mu_ij.

    Args:
        mean_rewards: Mean reward of every pair (U, N).
        assignment: Each client's channel in each round (T, U), -1 if unassigned.

    Returns:
        Regret after each round (T,). A round without assigned clients adds mu*.

    Examples:
        >>> pseudo_regret([[0.9], [0.4]], np.array([[0, -1], [-1, 0]])).tolist()
        [0.0, 0.5]
    """
    mu = matrix("mean_rewards", mean_rewards, 2)
    best = gaps(mu).best
    chosen = np.where(assignment >= 0, np.take_along_axis(mu, np.maximum(assignment, 0).T, axis=1).T, np.inf)
    smallest = chosen.min(axis=1)
    return np.cumsum(best - np.where(np.isfinite(smallest), smallest, 0.0))


@dataclass(frozen=True)
class Bound:
    """A bound of a theorem, and whether it is informative.

    Attributes:
        value: The bound; infinite if the theorem's condition fails.
        vacuous: Why the bound is not informative; None if it is informative.
    """

    value: float
    vacuous: str | None


def regret_bound(
    gaps: Gaps, *, clients: int, channels: int, V: float, rounds: int, largest_queue: float, precision: float = 0.0
) -> Bound:
    """Return the bound of Theorem 4, Delta_max (4 V^2 N (U + 2) ln T / (Delta_min - Q_max - eps)^2 + (2 U + 1) N).

    The theorem requires Delta_min > Q_max + eps. Q_max counts rounds and Delta_min rewards, so the condition fails with
    all but the smallest queues. The bound grows with V^2, although the paper's text says that regret falls with V
    (reading 15).

    Args:
        gaps: Delta_min and Delta_max.
        clients: Number of clients, U.
        channels: Number of channels, N.
        V: Weight of the reward against the queues.
        rounds: Number of rounds, T.
        largest_queue: Largest queue, Q_max.
        precision: eps of the theorem.

    Examples:
        >>> bound = regret_bound(gaps([[0.9], [0.1]]), clients=2, channels=1, V=1.0, rounds=1000, largest_queue=0.0)
        >>> bound.vacuous is None, round(bound.value)
        (True, 142)
    """
    room = gaps.smallest - largest_queue - precision
    if room <= 0:
        return Bound(
            math.inf, f"Delta_min {gaps.smallest:.3g} does not exceed the largest queue {largest_queue:.3g} plus eps"
        )
    value = gaps.largest * (
        4 * V**2 * channels * (clients + 2) * math.log(max(rounds, 1)) / room**2 + (2 * clients + 1) * channels
    )
    trivial = gaps.largest * rounds
    if value >= trivial:
        return Bound(value, f"no policy's regret exceeds Delta_max T = {trivial:.3g}, which is smaller")
    return Bound(value, None)


@dataclass(frozen=True)
class Stability:
    """Measured stability of a run's queues (Theorem 3).

    Attributes:
        mean_rate: Largest Q_i(T) / T of a client; tends to 0 if the queues are mean-rate stable.
        average: Largest time average of Q_i; stays bounded if the queues are strongly stable.
        growth: Largest increase of a client's mean queue from the third to the last quarter, per round.
    """

    mean_rate: float
    average: float
    growth: float


def queue_stability(queue: ArrayLike) -> Stability:
    """Return the measured stability of queues.

    Args:
        queue: Queue of each client after each round (T, U), T at least 4.

    Raises:
        InputError: There are fewer than 4 rounds.

    Examples:
        >>> queue_stability(np.ones((8, 2))).growth
        0.0
    """
    q = np.asarray(queue, np.float64)
    rounds = len(q)
    if rounds < 4:
        raise InputError(f"queue must have at least 4 rounds, got {rounds}")
    quarter = rounds // 4
    third, last = q[-2 * quarter : -quarter].mean(axis=0), q[-quarter:].mean(axis=0)
    return Stability(
        mean_rate=float(q[-1].max() / rounds),
        average=float(q.mean(axis=0).max()),
        growth=float((last - third).max() / quarter),
    )
