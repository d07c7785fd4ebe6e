"""Records of the losses that clients report: how they are released, and what a policy receives. Errors of test losses.

Shapes: R replicas, U clients.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LARGEST_LOSS = 1e30
"""Test loss of a model of numbers that has diverged: larger losses, infinity and NaN are recorded as this one."""


def root_error(loss: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the root-mean-square errors of test losses, which are mean squared errors."""
    return np.asarray(np.sqrt(np.clip(loss, 0.0, LARGEST_LOSS)))


@dataclass(frozen=True)
class ClientLosses:
    """The losses that clients reported with their last punctual uploads; NaN for a client without one.

    The loss of a record is the one that is learned, under the global model that the client received: a cross-entropy,
    or the squared error of float targets. It is reported for the sample of the upload's first training step.

    Attributes:
        mean: Mean loss of a record (R, U). With noise it is unbiased, so it can be negative.
        rms: Root of the mean squared loss (R, U); 0 where noise makes the mean square negative.
        protected: Whether losses are clipped and noised within the clients' budgets; otherwise they are exact.
    """

    mean: NDArray[np.float64]
    rms: NDArray[np.float64]
    protected: bool


@dataclass(frozen=True)
class LossQuery:
    """How a client reports the losses of its first step's sample, as sums over the sample's records.

    A record with loss l contributes the vector (l, l^2 / L), with l clipped to L. Its norm is at most sqrt(2) L, which
    is therefore the L2 sensitivity of both sums together; N(0, (noise sqrt(2) L)^2) is added to each of them.

    Attributes:
        clip: Largest loss L of a record; infinite for exact sums, whose second entry is then the sum of squares.
        noise: Noise multiplier z_l; 0 for exact sums.
        first_step_noise: Noise of the first step's gradient (R, U), in multiples of the clip norm: more than that of
            the other steps, because the sums are released from the same sample.
    """

    clip: float
    noise: float
    first_step_noise: NDArray[np.float64]

    @property
    def protected(self) -> bool:
        """Whether the sums are noised."""
        return self.noise > 0

    @property
    def unit(self) -> float:
        """The loss by which a squared loss is divided: L, or 1 for exact sums."""
        return self.clip if math.isfinite(self.clip) else 1.0

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of each sum."""
        return self.noise * math.sqrt(2.0) * self.unit
