"""Privacy spent by the clients of a simulated run, computed from their upload counts."""

from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.privacy import epsilon_curve
from fedlane.privacy.accountant import one_upload
from fedlane.privacy.paper import composed_gaussian, formula_6
from fedlane.privacy.run_ledger import terms_of
from fedlane.records import FloatArray, IntArray, MechanismSpec

MAX_KINDS = 4
"""With more kinds of clients in a replica, the paper's mechanism is rounded to a grid."""
GRID = 1.05
"""Ratio between neighbouring grid values."""
RANDOMNESS = "seeded streams of a simulation (not the operating system's generator)"


def _fewer_kinds(spec: MechanismSpec) -> MechanismSpec:
    """Round the paper's mechanism to a grid in replicas with many kinds of clients: noise up, sample rates down.

    The rounded mechanism leaks no more than the true one, so a lower bound on its leakage remains a lower bound.
    """
    noise, rate = spec.upload_noise.copy(), spec.sample_rate.copy()
    for r in range(len(noise)):
        if len(np.unique(noise[r])) > MAX_KINDS:
            noise[r] = GRID ** np.ceil(np.log(noise[r]) / np.log(GRID) - 1e-9)
            rate[r] = GRID ** np.floor(np.log(rate[r]) / np.log(GRID) + 1e-9)
    return replace(spec, upload_noise=noise, sample_rate=np.minimum(rate, spec.sample_rate))


class PrivacySpending:
    """Epsilon of every client in every replica by its number of uploads, for the mechanisms `paper` and `rigorous`.

    Args:
        spec: The mechanism.
    """

    def __init__(self, spec: MechanismSpec) -> None:
        self.spec = spec
        self.terms, self.kind = terms_of(_fewer_kinds(spec) if spec.name == "paper" else spec)

    @cached_property
    def _curves(self) -> FloatArray:
        """(kinds, uploads + 1): epsilon by number of uploads; computed at the first use, which is slow."""
        padded = np.zeros((len(self.terms), int(self.spec.max_uploads.max()) + 1))
        for row, terms in zip(padded, self.terms, strict=True):
            curve = epsilon_curve(terms, terms.max_uploads)
            row[: len(curve)], row[len(curve) :] = curve, curve[-1]
        return padded

    @cached_property
    def _single_upload(self) -> FloatArray:
        """(R, U): epsilon of a single upload."""
        return np.array([one_upload(terms) for terms in self.terms])[self.kind]

    def epsilon(self, uploads: IntArray) -> FloatArray:
        """Epsilon spent by ``uploads`` (R, ..., U): an upper bound (rigorous) or a lower bound on the leakage (paper)."""
        return np.asarray(self._curves[_as_wide(self.kind, uploads), uploads])

    def epsilon_paper(self, uploads: IntArray) -> FloatArray:
        """Epsilon spent by ``uploads`` (R, ..., U) according to the paper's formula (6)."""
        return formula_6(_as_wide(self._single_upload, uploads), self.spec.delta, uploads)

    def summary(self, uploads: IntArray) -> dict[str, Any]:
        """The ``privacy`` entry of a run's summary, for upload counts (R, U)."""
        spec = self.spec
        epsilon = self.epsilon(uploads)
        noise = spec.step_noise if spec.name == "rigorous" else spec.upload_noise
        worst = np.unravel_index(int(np.argmax(epsilon)), epsilon.shape)
        summary: dict[str, Any] = {
            "mechanism": spec.name,
            "epsilon_agreed": {"smallest": float(spec.epsilon.min()), "largest": float(spec.epsilon.max())},
            "per": "round" if spec.name == "paper" else "run",
            "delta": {"smallest": float(spec.delta.min()), "largest": float(spec.delta.max())},
            "noise_multiplier": {"smallest": float(noise.min()), "largest": float(noise.max())},
            "epsilon": {"smallest": float(epsilon.min()), "largest": float(epsilon.max())},
            "epsilon_paper": float(self.epsilon_paper(uploads).max()),
            "uploads": {"smallest": int(uploads.min()), "largest": int(uploads.max())},
            "exhausted": int(np.sum(uploads >= spec.max_uploads)),
            "randomness": RANDOMNESS,
        }
        if spec.name == "paper":
            terms, count = self.terms[self.kind[worst]], int(uploads[worst])
            summary["epsilon_composed"] = composed_gaussian(terms.epsilon, terms.delta, count) if count else 0.0
        return summary


def _as_wide(values: NDArray[Any], uploads: IntArray) -> NDArray[Any]:
    """Reshape ``values`` (R, U) so that they broadcast against ``uploads`` (R, ..., U)."""
    return values.reshape(len(values), *(1,) * (uploads.ndim - 2), values.shape[1])
