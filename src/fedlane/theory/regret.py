"""Theorems 3 and 4: whether queues are stable, how much reward was missed, and what the paper promises of both."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fedlane.matching import max_min_matching
from fedlane.records import FloatArray, IntArray
from fedlane.validate import InputError, matrix


@dataclass(frozen=True)
class Gaps:
    """How much worse than the best a matching can be, by the smallest mean reward of its pairs."""

    best: float
    """mu*: the largest that the smallest mean reward of a matching can be."""
    smallest: float
    """Delta_min: mu* minus the next value that a matching can have; infinite where all have mu*.

    As printed, over all matchings but one, it is 0 whenever two share their smallest pair (reading 15).
    """
    largest: float
    """Delta_max: mu* minus the worst matching's value."""


def gaps(mean_rewards: ArrayLike) -> Gaps:
    """Delta_min and Delta_max of Theorem 4 for mean rewards (U, N)."""
    mu = matrix("mean_rewards", mean_rewards, 2)
    if mu.ndim != 2 or not np.isfinite(mu).all():
        raise InputError(f"mean_rewards must be finite and of shape (clients, channels), got shape {mu.shape}")
    best = _value(mu, max_min_matching(mu))
    worse = np.unique(mu[mu < best])[::-1]
    below = next((float(value) for value in worse if _attainable(mu, float(value))), -math.inf)
    return Gaps(best=best, smallest=best - below, largest=best - float(mu.min()))


def _value(mu: FloatArray, channel: IntArray) -> float:
    """The smallest mean reward of the assigned pairs."""
    client = np.flatnonzero(channel >= 0)
    return float(mu[client, channel[client]].min())


def _attainable(mu: FloatArray, value: float) -> bool:
    """Whether a saturating matching has just this smallest mean reward: one of its pairs, and the rest no worse."""
    for client, channel in np.argwhere(mu == value):
        rest = np.delete(np.delete(mu, client, axis=0), channel, axis=1)
        if rest.size == 0 or min(mu.shape) == 1 or _value(rest, max_min_matching(rest)) >= value:
            return True
    return False


def pseudo_regret(mean_rewards: ArrayLike, assignment: IntArray) -> FloatArray:
    """sum over rounds of mu* - min over the assigned of mu_ij, (T,), cumulative.

    mean_rewards (U, N), assignment (T, U): each client's channel, -1 for none. A round without any assigned client
    misses all of mu*.
    """
    mu = matrix("mean_rewards", mean_rewards, 2)
    best = gaps(mu).best
    chosen = np.where(assignment >= 0, np.take_along_axis(mu, np.maximum(assignment, 0).T, axis=1).T, np.inf)
    smallest = chosen.min(axis=1)
    return np.cumsum(best - np.where(np.isfinite(smallest), smallest, 0.0))


@dataclass(frozen=True)
class Bound:
    """A bound, or why it says nothing."""

    value: float
    """Infinite where the theorem's condition fails."""
    vacuous: str | None
    """None where the bound says something; else why not."""


def regret_bound(
    found: Gaps, *, clients: int, channels: int, V: float, rounds: int, largest_queue: float, precision: float = 0.0
) -> Bound:
    """Theorem 4: Delta_max (4 V^2 N (U + 2) ln T / (Delta_min - Q_max - eps)^2 + (2 U + 1) N).

    It needs Delta_min > Q_max + eps, where Q_max counts rounds and Delta_min rewards: with any queue to speak of the
    condition fails. It grows with V^2, where the paper's text says that regret falls with V (reading 15).
    """
    room = found.smallest - largest_queue - precision
    if room <= 0:
        return Bound(
            math.inf, f"Delta_min {found.smallest:.3g} does not exceed the largest queue {largest_queue:.3g} plus eps"
        )
    value = found.largest * (
        4 * V**2 * channels * (clients + 2) * math.log(max(rounds, 1)) / room**2 + (2 * clients + 1) * channels
    )
    trivial = found.largest * rounds
    if value >= trivial:
        return Bound(value, f"no policy's regret exceeds Delta_max T = {trivial:.3g}, which is less")
    return Bound(value, None)


@dataclass(frozen=True)
class Stability:
    """What a run's queues (T, U) show of Theorem 3."""

    mean_rate: float
    """max_i Q_i(T) / T: tends to 0 where queues are mean-rate stable."""
    average: float
    """max_i of the mean of Q_i over time: stays bounded where they are strongly stable."""
    growth: float
    """max_i of how much the mean of Q_i rose from the third to the last quarter, a round."""


def queue_stability(queue: ArrayLike) -> Stability:
    """Measured stability of queues (T, U), T at least 4."""
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
