"""The paper's privacy formulas, their tight counterparts, and a lower bound on the leakage of the paper's noise.

Numbered readings are explained in docs/reading-the-paper.md.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import gammaln, log_ndtr, logsumexp, ndtr

from fedlane.privacy.gaussian import gaussian_epsilon, gaussian_noise
from fedlane.records import FloatArray, IntArray
from fedlane.validate import InputError

LARGEST_MATRIX = 40_000_000
"""Entries of a matrix of outputs and inclusions that is computed at once."""
MAX_ITERATIONS = 10_000
"""Largest number of steps of an upload whose leakage is computed; more take minutes."""
CELLS = 1 << 17
"""Cells of the discretised privacy loss when uploads are composed."""


def paper_noise(
    epsilon: ArrayLike, delta: ArrayLike, sizes: ArrayLike, batch_size: ArrayLike, local_iterations: int
) -> FloatArray:
    """Return the noise of an upload that Theorem 1 implies (reading 19).

    The theorem's standard deviation is sigma_i = 4 eta C sqrt(tau ln(1 / delta_i)) / (|D_i| eps_i). It is returned in
    multiples of eta C / b_i, the largest distance that one record can move the weights in a step.

    Args:
        epsilon: Claimed epsilon of one upload; a number, or one per client.
        delta: Claimed delta.
        sizes: Records of each client, |D_i|.
        batch_size: Records in a step's sample, b_i.
        local_iterations: Steps of an upload, tau.

    Returns:
        sigma_i b_i / (eta C), of the arguments' common shape.
    """
    spread = np.sqrt(-local_iterations * np.log(np.asarray(delta, np.float64)))
    return np.asarray(4.0 * np.asarray(batch_size) * spread / (np.asarray(sizes) * np.asarray(epsilon)))


def formula_6(epsilon: ArrayLike, delta: ArrayLike, uploads: ArrayLike) -> FloatArray:
    """Return the paper's formula (6) for E uploads, sqrt(E ln(1 / delta) / ln(2 / delta)) epsilon.

    The formula underestimates the epsilon that the uploads spend (reading 20).

    Args:
        epsilon: Epsilon of one upload.
        delta: Delta of one upload.
        uploads: Number of uploads, E.

    Returns:
        Epsilons of the arguments' common shape.
    """
    d = np.asarray(delta, np.float64)
    ratio = np.asarray(uploads) * np.log(1 / d) / np.log(2 / d)
    return np.asarray(np.sqrt(ratio) * np.asarray(epsilon))


def composed_gaussian(epsilon: float, delta: float, uploads: int) -> float:
    """Return the tight epsilon at ``delta`` of Gaussian rounds that are each exactly (epsilon, delta)-DP."""
    return gaussian_epsilon(math.sqrt(uploads) / gaussian_noise(epsilon, delta), delta)


def classical_noise(epsilon: float, delta: float) -> float:
    """Return the noise that formula (6) belongs to, sigma = sqrt(2 ln(2 / delta)) / epsilon, for a sensitivity of 1."""
    return math.sqrt(2.0 * math.log(2.0 / delta)) / epsilon


def composed_classical(epsilon: float, delta: float, uploads: int) -> float:
    """Return the tight epsilon at ``delta`` of Gaussian rounds with the noise of `classical_noise`.

    The noise exceeds what a round needs to be (epsilon, delta)-DP, so the result is below `composed_gaussian`.
    """
    return gaussian_epsilon(math.sqrt(uploads) / classical_noise(epsilon, delta), delta)


def lost_term(epsilon: float, delta: float, uploads: int) -> float:
    """Return the term that formula (6) lacks, rho = E epsilon^2 / (4 ln(2 / delta)).

    E Gaussian rounds with the noise of `classical_noise` are rho-zCDP, and therefore (rho + 2 sqrt(rho ln(1 / delta)),
    delta)-DP. The second summand is formula (6).
    """
    return uploads / (2.0 * classical_noise(epsilon, delta) ** 2)


def leakage_lower_bound(
    noise: float, sample_rate: float, local_iterations: int, delta: float, uploads: int = 1
) -> float:
    """Return a lower bound on the epsilon of the paper's mechanism (reading 20).

    For one upload the bound is exact for the pair of data sets that `PaperLeakage` describes. Several uploads are
    composed on a grid, rounding down, so that the result stays a lower bound.

    Args:
        noise: Noise of an upload in multiples of eta C / b (see `paper_noise`).
        sample_rate: Probability that a record is in a step's sample.
        local_iterations: Steps of an upload.
        delta: Target delta.
        uploads: Number of uploads.

    Returns:
        An epsilon below which the uploads are certainly not (epsilon, delta)-DP.
    """
    return PaperLeakage(noise, sample_rate, local_iterations).epsilon(delta, uploads)


leak = leakage_lower_bound  # former name


class PaperLeakage:
    """Privacy loss of the paper's upload on a pair of data sets: one record's gradient is C v, all others' are -C v.

    In the other data set, all gradients are -C v: a replace-one pair. With a displacement of 1 it is a zero-out pair.
    The record is in k ~ Binomial(tau, q) of an upload's steps. As b is fixed, it replaces another record in each of
    them and moves the upload by 2 eta C / b. An attacker must distinguish a mixture of N(k mu, 1) from N(0, 1), where
    mu = 2 / noise. The privacy loss increases with the output, so the problem is one-dimensional.

    Args:
        noise: Noise of an upload in multiples of eta C / b.
        sample_rate: q, the probability that a record is in a step's sample.
        local_iterations: tau, the steps of an upload.
        displacement: Distance that the record moves a step, in multiples of eta C / b.
    """

    def __init__(self, noise: float, sample_rate: float, local_iterations: int, displacement: float = 2.0) -> None:
        if local_iterations > MAX_ITERATIONS:
            raise InputError(f"leakage is computed for at most {MAX_ITERATIONS:,} steps, got {local_iterations:,}")
        k = np.arange(local_iterations + 1)
        choose = gammaln(local_iterations + 1) - gammaln(k + 1) - gammaln(local_iterations - k + 1)
        self._certain = sample_rate >= 1
        rate = min(sample_rate, 1 - 1e-12)
        self._log_p = choose + k * np.log(rate) + (local_iterations - k) * np.log1p(-rate)
        self._mu, self._rate, self._steps = displacement / noise, sample_rate, local_iterations
        self._shift = k * self._mu
        self._curve: tuple[FloatArray, FloatArray] | None = None

    def epsilon(self, delta: float, uploads: int = 1) -> float:
        """Return a lower bound on epsilon at ``delta``.

        Composition on a grid loses accuracy with the number of uploads, so half as many are also tried.
        """
        if uploads == 0:
            return 0.0
        if self._certain:  # the record is in every sample: Gaussian rounds
            return gaussian_epsilon(math.sqrt(uploads) * self._steps * self._mu, delta)
        bound = self._single(delta)
        for count in {uploads, uploads // 2} - {0, 1}:
            bound = max(bound, *(self._composed(delta, count, reach) for reach in self._reaches(count)))
        return bound

    def epsilons(self, delta: float, counts: IntArray) -> FloatArray:
        """Return lower bounds at increasing upload counts; more uploads never leak less."""
        if len(counts) <= 2:
            return np.array([self.epsilon(delta, int(count)) for count in counts])
        # Composition takes a tenth of a second. Compute about 40 counts; the others use the next smaller one's bound.
        few = np.unique(np.concatenate([counts[counts <= 4], np.geomspace(4, max(counts[-1], 5), 40).astype(np.int64)]))
        few = few[few <= counts[-1]]
        bounds = np.maximum.accumulate([self.epsilon(delta, int(count)) for count in few])
        return np.asarray(bounds[np.searchsorted(few, counts, side="right") - 1])

    def _loss(self, x: FloatArray) -> FloatArray:
        """Return the privacy loss at output x: the logarithm of the density ratio."""
        return np.asarray(logsumexp(self._log_p + np.multiply.outer(x, self._shift) - self._shift**2 / 2, axis=-1))

    def _above(self, x: FloatArray) -> FloatArray:
        """Return P(X > x) under the mixture."""
        return np.asarray(np.exp(self._log_p) @ ndtr(np.subtract.outer(self._shift, x)))

    def _delta_at(self, x: float) -> float:
        """Return delta(epsilon) at the epsilon that equals the loss at x."""
        epsilon = float(self._loss(np.array(x)))
        return float(self._above(np.array(x))) - math.exp(min(epsilon + log_ndtr(-x), 0.0))

    def _single(self, delta: float) -> float:
        """Return the exact epsilon of one upload: the loss at the threshold whose delta is ``delta``."""
        low, high = -40.0, self._shift[-1] + 40.0
        if self._delta_at(low) <= delta:
            return 0.0
        x = float(brentq(lambda x: self._delta_at(x) - delta, low, high, xtol=1e-12, rtol=1e-14))
        return max(float(self._loss(np.array(x))), 0.0)

    def _composed(self, delta: float, uploads: int, reach: float) -> float:
        """Return epsilon of several uploads, from the sum of their losses up to ``reach`` above its minimum."""
        cell, mass = self._cells(reach, CELLS if uploads <= 256 else 4 * CELLS)
        total = np.fft.irfft(np.fft.rfft(mass) ** uploads, len(mass))
        # Drop rounding errors of the transform. Less mass only lowers the result, as does mass that wraps around.
        total[total < 1e-12] = 0.0
        losses = uploads * float(self._log_p[0]) + cell * np.arange(len(mass))

        def delta_at(epsilon: float) -> float:
            return float(np.sum(total * -np.expm1(np.minimum(epsilon - losses, 0.0))))

        if delta_at(0.0) <= delta:
            return 0.0
        return float(brentq(lambda epsilon: delta_at(epsilon) - delta, 0.0, float(losses[-1]) + 1.0))

    def _reaches(self, uploads: int) -> tuple[float, float]:
        """Return two estimates of the summed loss's range: from the number of inclusions, and from its variance."""
        mean = uploads * self._steps * self._rate
        inclusions = min(uploads * self._steps, mean + 6 * math.sqrt(mean) + 10)  # more are very unlikely
        counted = inclusions * (min(self._steps, 3) * self._mu**2 / 2 + 6 * self._mu) + 5
        loss, above = self._grid()
        mass = -np.diff(above)
        middle = (loss[1:] + loss[:-1]) / 2 - float(self._log_p[0])
        first = float(mass @ middle)
        spread = math.sqrt(max(float(mass @ middle**2) - first**2, 0.0))
        return counted, uploads * first + 12 * math.sqrt(uploads) * spread + 1e-6

    def _grid(self) -> tuple[FloatArray, FloatArray]:
        """Return the loss at many outputs, and the mixture's mass above each of them."""
        if self._curve is None:
            x = np.linspace(-40.0, self._shift[-1] + 12.0, 200_000)
            parts = np.array_split(x, 1 + x.size * self._shift.size // LARGEST_MATRIX)
            self._curve = np.concatenate([*map(self._loss, parts)]), np.concatenate([*map(self._above, parts)])
        return self._curve

    def _cells(self, reach: float, count: int) -> tuple[float, FloatArray]:
        """Discretise the loss of one upload into ``count`` cells from its minimum, ln p_0, rounding down.

        Returns the width of a cell and the mixture's mass in each cell.
        """
        loss, above = self._grid()
        cell = reach / count
        edges = float(self._log_p[0]) + cell * np.arange(1, count)
        place = np.searchsorted(loss, edges, side="left")  # the first point whose loss reaches the edge
        reached = np.where(place < len(loss), above[np.minimum(place, len(loss) - 1)], 0.0)
        return cell, -np.diff(np.concatenate([[1.0], reached, [0.0]]))
