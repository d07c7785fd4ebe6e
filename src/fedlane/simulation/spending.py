"""Privacy spent by the clients of a simulated run, computed from their upload counts."""

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.privacy import epsilon_curve, mechanism_of
from fedlane.privacy.paper import formula_6
from fedlane.privacy.run_ledger import terms_of
from fedlane.records import FloatArray, IntArray, LossQuery, MechanismSpec

RANDOMNESS = "seeded streams of a simulation (not the operating system's generator)"


class PrivacySpending:
    """Epsilon of every client in every replica by its number of uploads, for the mechanisms `paper` and `rigorous`.

    Args:
        spec: The mechanism.
    """

    def __init__(self, spec: MechanismSpec) -> None:
        self.spec = spec
        self.mechanism = mechanism_of(spec.name)
        self.terms, self.kind = terms_of(self.mechanism.accounted(spec))

    @cached_property
    def _curves(self) -> FloatArray:
        """(kinds, uploads + 1): epsilon by number of uploads; computed at first use, because it is slow."""
        padded = np.zeros((len(self.terms), int(self.spec.max_uploads.max()) + 1))
        for row, terms in zip(padded, self.terms, strict=True):
            curve = epsilon_curve(terms, terms.max_uploads)
            row[: len(curve)], row[len(curve) :] = curve, curve[-1]
        return padded

    @cached_property
    def _single_upload(self) -> FloatArray:
        """(R, U): epsilon of a single upload."""
        return np.array([self.mechanism.epsilon_per_upload(terms) for terms in self.terms])[self.kind]

    def epsilon(self, uploads: IntArray, replicas: slice = slice(None)) -> FloatArray:
        """Epsilon spent by ``uploads`` (R, ..., U): an upper bound (rigorous) or a lower bound on leakage (paper).

        Args:
            uploads: Numbers of uploads.
            replicas: The replicas that ``uploads`` has; by default all.
        """
        return np.asarray(self._curves[_as_wide(self.kind[replicas], uploads), uploads])

    def epsilon_paper(self, uploads: IntArray, replicas: slice = slice(None)) -> FloatArray:
        """Epsilon spent by ``uploads`` (R, ..., U) of some replicas according to the paper's formula (6)."""
        return formula_6(_as_wide(self._single_upload[replicas], uploads), self.spec.delta, uploads)

    def epsilon_shown(self, uploads: IntArray) -> FloatArray:
        """The epsilon that displays show: formula (6) if the accounted epsilon is only a lower bound on leakage."""
        return self.epsilon_paper(uploads) if self.mechanism.is_lower_bound else self.epsilon(uploads)

    def summary(self, uploads: IntArray) -> dict[str, Any]:
        """The ``privacy`` entry of a run's summary, for upload counts (R, U)."""
        spec = self.spec
        epsilon = self.epsilon(uploads)
        noise = self.mechanism.noise(spec.step_noise, spec.upload_noise)
        worst = np.unravel_index(int(np.argmax(epsilon)), epsilon.shape)
        summary: dict[str, Any] = {
            "mechanism": spec.name,
            "epsilon_agreed": {"smallest": float(spec.epsilon.min()), "largest": float(spec.epsilon.max())},
            "per": self.mechanism.budget_period,
            "delta": {"smallest": float(spec.delta.min()), "largest": float(spec.delta.max())},
            "noise_multiplier": {"smallest": float(noise.min()), "largest": float(noise.max())},
            "epsilon": {"smallest": float(epsilon.min()), "largest": float(epsilon.max())},
            "uploads": {"smallest": int(uploads.min()), "largest": int(uploads.max())},
            "exhausted": int(np.sum(uploads >= spec.max_uploads)),
            "randomness": RANDOMNESS,
        }
        if self.mechanism.is_lower_bound:
            terms = self.terms[self.kind[worst]]
            summary["epsilon_paper"] = float(self.epsilon_paper(uploads).max())
            summary["epsilon_composed"] = self.mechanism.epsilon_composed(terms, int(uploads[worst]))
        if spec.loss_query is not None:
            summary["losses"] = _released_losses(spec.loss_query)
        return summary


def _released_losses(query: LossQuery) -> dict[str, Any]:
    """How losses were reported, as plain values; without clipping and noise if they were exact."""
    if not query.protected:
        return {"protected": False}
    noise = {"smallest": float(query.first_step_noise.min()), "largest": float(query.first_step_noise.max())}
    return {"protected": True, "clip": query.clip, "noise_multiplier": query.noise, "first_step_noise": noise}


def _as_wide(values: NDArray[Any], uploads: IntArray) -> NDArray[Any]:
    """Reshape ``values`` (R, U) so that they broadcast against ``uploads`` (R, ..., U)."""
    return values.reshape(len(values), *(1,) * (uploads.ndim - 2), values.shape[1])
