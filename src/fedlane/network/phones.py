"""Phones: how long a training step takes on each, from FLASH's measurements (src/fedlane/data/FLASH-NOTICE.md).

FLASH measured 20,000 training steps of dense layers on each of three phones. A step's time is fitted by
fixed + per_weight x weights + per_work x multiply-adds, where a sample costs one multiply-add per weight of a dense
layer; the fit explains 92 to 97% of the variance of the logarithm. The measured times scatter around the fit, and so do
the times here. Other phones are placed between the three by their score in the AI Benchmark, as FLASH assigns them to
the nearest: the logarithm of the time is linear in the logarithm of the score between the scores that FLASH takes for
the three, and constant beyond them.
"""

import functools
import importlib.resources
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedlane.network.energy import EnergyModel, powered_energy_j
from fedlane.records import FloatArray, IntArray
from fedlane.rng import dealt
from fedlane.validate import at_least, positive


@functools.cache
def _table() -> dict[str, Any]:
    text = importlib.resources.files("fedlane").joinpath("data", "flash-phones.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def phone_names() -> tuple[str, ...]:
    """Return the names of the 333 phones, in the order of the ranking."""
    return tuple(name for name, _ in _table()["phones"])


def phone_scores() -> FloatArray:
    """Return the AI Benchmark scores of the phones, (333,)."""
    return np.array([score for _, score in _table()["phones"]], np.float64)


@dataclass(frozen=True)
class TrainingWork:
    """The work of a client's round.

    Attributes:
        weights: Number of the model's weights.
        multiply_adds: Multiply-adds of one sample's forward pass; the number of weights for a model of dense layers.
        batch: Samples of a step.
        steps: Steps of a round, tau.
    """

    weights: float
    multiply_adds: float
    batch: float
    steps: int

    def __post_init__(self) -> None:
        for name in ("weights", "multiply_adds", "batch"):
            positive(f"the work's {name}", getattr(self, name))
        at_least("the work's steps", self.steps, 1)


def step_s(scores: FloatArray, work: TrainingWork, uniform: FloatArray) -> FloatArray:
    """Return the duration of one training step.

    Args:
        scores: AI Benchmark scores of the phones, any shape.
        work: The step's work.
        uniform: Numbers in [0, 1], the same shape: the quantile of the time among steps of the same work; 0.5 is the
            median.

    Returns:
        Seconds, the same shape.
    """
    terms = np.array([1.0, work.weights, work.multiply_adds * work.batch])
    anchors, times = [], []
    for phone in sorted(_table()["measured"], key=lambda phone: phone["score"]):
        ratios = np.array(phone["ratios"])
        typical_s = float(terms @ np.array(phone["coefficients"]))
        anchors.append(np.log(phone["score"]))
        times.append(np.log(typical_s * np.interp(uniform, np.linspace(0.0, 1.0, len(ratios)), ratios)))
    log_score = np.clip(np.log(scores), anchors[0], anchors[-1])
    log_s = times[-1]
    for k in reversed(range(len(anchors) - 1)):
        share = (log_score - anchors[k]) / (anchors[k + 1] - anchors[k])
        log_s = np.where(log_score <= anchors[k + 1], times[k] + share * (times[k + 1] - times[k]), log_s)
    return np.exp(log_s)


class Phones:
    """A phone for every client: each seed deals the 333 phones at random, each once before any is repeated.

    Args:
        seeds: R seeds, one per replica.
        clients: Number of clients, U.
        work: The work of a client's round, the same for all.

    Attributes:
        phone: (R, U) number of each client's phone, see `phone_names`.

    Examples:
        >>> phones = Phones([0, 7], clients=10, work=TrainingWork(1e6, 1e6, batch=32, steps=5))
        >>> phones.time_s(np.full((2, 10), 0.5)).shape
        (2, 10)
    """

    def __init__(self, seeds: Sequence[int], clients: int, work: TrainingWork) -> None:
        scores = phone_scores()
        self.phone: IntArray = np.stack([dealt(seed, "phones", clients, len(scores)) for seed in seeds])
        self._scores = scores[self.phone]
        self._work = work

    def time_s(self, uniform: FloatArray, replica: int | None = None) -> FloatArray:
        """Return the duration of each client's local training in a round, in seconds.

        Args:
            uniform: Numbers in [0, 1), (R, U), or (..., U) for one replica, which select the time among those measured;
                a round's steps are slow or fast together.
            replica: Index of that replica; None for all.

        Returns:
            Seconds, in the shape of ``uniform``.
        """
        scores = self._scores if replica is None else np.broadcast_to(self._scores[replica], uniform.shape)
        return self._work.steps * step_s(scores, self._work, uniform)

    def energy_j(self, model: EnergyModel, compute_s: FloatArray) -> FloatArray:
        """Return the energy of local training (R, U) in joules: the device's power times ``compute_s`` (R, U)."""
        return powered_energy_j(model.device_w, compute_s)
