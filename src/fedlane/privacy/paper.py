"""What the paper's privacy figures are worth: its formula (6), tight composition, and what its noise really leaks."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import gammaln, log_ndtr, logsumexp, ndtr

from fedlane.privacy.gaussian import gaussian_epsilon, gaussian_noise
from fedlane.records import FloatArray

CELLS = 1 << 17
"""Cells of the discretised privacy loss when rounds are composed."""


def paper_noise(
    epsilon: ArrayLike, delta: ArrayLike, sizes: ArrayLike, batch_size: ArrayLike, local_iterations: int
) -> FloatArray:
    """The noise that Theorem 1 implies, in multiples of one record's largest move eta C / b in a step (reading 19).

    sigma_i = 4 eta C sqrt(tau ln(1 / delta_i)) / (|D_i| eps_i), so sigma_i b_i / (eta C) is returned.
    """
    spread = np.sqrt(-local_iterations * np.log(np.asarray(delta, np.float64)))
    return np.asarray(4.0 * np.asarray(batch_size) * spread / (np.asarray(sizes) * np.asarray(epsilon)))


def formula_6(epsilon: ArrayLike, delta: ArrayLike, uploads: ArrayLike) -> FloatArray:
    """The paper's composition over E uploads: sqrt(E ln(1 / delta) / ln(2 / delta)) epsilon. It is too small."""
    d = np.asarray(delta, np.float64)
    ratio = np.asarray(uploads) * np.log(1 / d) / np.log(2 / d)
    return np.asarray(np.sqrt(ratio) * np.asarray(epsilon))


def composed_gaussian(epsilon: float, delta: float, uploads: int) -> float:
    """The tight epsilon, at delta, of E Gaussian rounds that are each exactly (epsilon, delta)-DP."""
    return gaussian_epsilon(math.sqrt(uploads) / gaussian_noise(epsilon, delta), delta)


def leakage_lower_bound(
    noise: float, sample_rate: float, local_iterations: int, delta: float, uploads: int = 1
) -> float:
    """An epsilon below which the paper's mechanism is certainly not (epsilon, delta)-DP after some uploads.

    noise: of an upload, in multiples of eta C / b (`paper_noise`). One upload is exact for the pair of data sets that
    `PaperLeakage` describes; several are composed on a grid with all rounding downwards, so it stays a lower bound.
    """
    return PaperLeakage(noise, sample_rate, local_iterations).epsilon(delta, uploads)


leak = leakage_lower_bound  # the old name


class PaperLeakage:
    """The paper's upload on a pair of data sets: one record's gradient is C v, all others' are -C v.

    The record is in k ~ Binomial(tau, q) of an upload's steps. There it takes another's place, since b is fixed, and so
    moves the upload by 2 eta C / b: a mixture of N(k mu, 1) against N(0, 1), mu = 2 / noise. The privacy loss grows
    with the output, so everything is one-dimensional.
    """

    def __init__(self, noise: float, sample_rate: float, local_iterations: int, displacement: float = 2.0) -> None:
        k = np.arange(local_iterations + 1)
        choose = gammaln(local_iterations + 1) - gammaln(k + 1) - gammaln(local_iterations - k + 1)
        self._certain = sample_rate >= 1
        rate = min(sample_rate, 1 - 1e-12)
        self._log_p = choose + k * np.log(rate) + (local_iterations - k) * np.log1p(-rate)
        self._mu, self._rate, self._steps = displacement / noise, sample_rate, local_iterations
        self._shift = k * self._mu
        self._curve: tuple[FloatArray, FloatArray] | None = None

    def epsilon(self, delta: float, uploads: int = 1) -> float:
        """The lower bound at delta. Composing on a grid loses a little, so fewer uploads are looked at, too."""
        if uploads == 0:
            return 0.0
        if self._certain:  # always in the sample: Gaussian rounds
            return gaussian_epsilon(math.sqrt(uploads) * self._steps * self._mu, delta)
        best = self._one(delta)
        for count in {uploads, uploads // 2} - {0, 1}:
            best = max(best, *(self._composed(delta, count, reach) for reach in self._reaches(count)))
        return best

    def _loss(self, x: FloatArray) -> FloatArray:
        """ln of the density ratio at x."""
        return np.asarray(logsumexp(self._log_p + np.multiply.outer(x, self._shift) - self._shift**2 / 2, axis=-1))

    def _above(self, x: FloatArray) -> FloatArray:
        """P(X > x) under the mixture."""
        return np.asarray(np.exp(self._log_p) @ ndtr(np.subtract.outer(self._shift, x)))

    def _delta_at(self, x: float) -> float:
        """delta(epsilon) at the epsilon whose threshold is x."""
        epsilon = float(self._loss(np.array(x)))
        return float(self._above(np.array(x))) - math.exp(min(epsilon + log_ndtr(-x), 0.0))

    def _one(self, delta: float) -> float:
        """One upload: the threshold whose delta is the one asked for, exactly."""
        low, high = -40.0, self._shift[-1] + 40.0
        if self._delta_at(low) <= delta:
            return 0.0
        x = float(brentq(lambda x: self._delta_at(x) - delta, low, high, xtol=1e-12, rtol=1e-14))
        return max(float(self._loss(np.array(x))), 0.0)

    def _composed(self, delta: float, uploads: int, reach: float) -> float:
        """Several uploads: the summed loss, up to ``reach`` above its least, by Fourier transform."""
        cell, mass = self._cells(reach, CELLS if uploads <= 256 else 4 * CELLS)
        total = np.fft.irfft(np.fft.rfft(mass) ** uploads, len(mass))
        total[total < 1e-12] = 0.0  # rounding of the transform: leaving mass out only lowers the result,
        losses = uploads * float(self._log_p[0]) + cell * np.arange(len(mass))  # as does mass that ran round the end

        def delta_at(epsilon: float) -> float:
            return float(np.sum(total * -np.expm1(np.minimum(epsilon - losses, 0.0))))

        if delta_at(0.0) <= delta:
            return 0.0
        return float(brentq(lambda epsilon: delta_at(epsilon) - delta, 0.0, float(losses[-1]) + 1.0))

    def _reaches(self, uploads: int) -> tuple[float, float]:
        """How far the summed loss may reach: by counting inclusions (few, large ones), and by its variance (many)."""
        mean = uploads * self._steps * self._rate
        inclusions = min(uploads * self._steps, mean + 6 * math.sqrt(mean) + 10)  # more hardly ever happen
        counted = inclusions * (min(self._steps, 3) * self._mu**2 / 2 + 6 * self._mu) + 5
        loss, above = self._grid()
        mass = -np.diff(above)
        middle = (loss[1:] + loss[:-1]) / 2 - float(self._log_p[0])
        first = float(mass @ middle)
        spread = math.sqrt(max(float(mass @ middle**2) - first**2, 0.0))
        return counted, uploads * first + 12 * math.sqrt(uploads) * spread + 1e-6

    def _grid(self) -> tuple[FloatArray, FloatArray]:
        """The loss, and the mixture's mass above it, at many outputs."""
        if self._curve is None:
            x = np.linspace(-40.0, self._shift[-1] + 12.0, 200_000)
            self._curve = self._loss(x), self._above(x)
        return self._curve

    def _cells(self, reach: float, count: int) -> tuple[float, FloatArray]:
        """The loss of one upload in cells from its least value, ln p_0: their width, and the mixture's mass in each.

        A cell stands for its lower edge.
        """
        loss, above = self._grid()
        cell = reach / count
        edges = float(self._log_p[0]) + cell * np.arange(1, count)
        place = np.searchsorted(loss, edges, side="left")  # the first point whose loss reaches the edge
        reached = np.where(place < len(loss), above[np.minimum(place, len(loss) - 1)], 0.0)
        return cell, -np.diff(np.concatenate([[1.0], reached, [0.0]]))
