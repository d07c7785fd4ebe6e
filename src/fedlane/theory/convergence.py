"""Theorems 5 and 6: bounds on the distance of the paper's algorithm from the optimum.

Both are evaluated for a given run: its participation, label skew and noise. The paper states them with errors
(reading 22); each function documents what it computes. Numbered readings are explained in docs/reading-the-paper.md.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedlane.records import BoolArray, FloatArray
from fedlane.theory.regret import Bound
from fedlane.validate import InputError


@dataclass(frozen=True)
class BoundInputs:
    """Inputs of the bounds for U clients and M classes, in the paper's notation.

    Attributes:
        sizes: Records of each client, |D_i| (U,).
        label_shares: Each client's label distribution p_im (U, M).
        batch_size: Records in a step's sample, b_i (U,).
        epsilon: Epsilon of an upload (U,); infinite for no noise.
        delta: Delta of an upload (U,).
        learning_rate: Step size of local training, eta.
        clip_norm: Largest norm of a record's gradient, C.
        local_iterations: Steps of an upload, tau.
        smoothness: lambda_max, an upper bound on the norm of the Hessian. The bounds require eta lambda_max < 1.

    Raises:
        InputError: Gradients are not clipped, or eta lambda_max is not between 0 and 1.

    Examples:
        >>> inputs = BoundInputs(sizes=np.array([100.0, 100.0]), label_shares=np.eye(2), batch_size=np.full(2, 10.0),
        ...                      epsilon=np.full(2, np.inf), delta=np.full(2, 1e-3), learning_rate=0.1,
        ...                      clip_norm=1.0, local_iterations=1, smoothness=4.0)
        >>> model_divergence(inputs).tolist()
        [0.1, 0.1]
    """

    sizes: FloatArray
    label_shares: FloatArray
    batch_size: FloatArray
    epsilon: FloatArray
    delta: FloatArray
    learning_rate: float
    clip_norm: float
    local_iterations: int
    smoothness: float

    def __post_init__(self) -> None:
        if not 0 < self.clip_norm < math.inf:
            raise InputError(f"clip_norm must be greater than 0 and finite, got {self.clip_norm:g}")
        if not 0 < self.learning_rate * self.smoothness < 1:
            product = self.learning_rate * self.smoothness
            raise InputError(f"the theorems require 0 < eta lambda_max < 1, got {product:g}")

    @property
    def shares(self) -> FloatArray:
        """Share of each client in all records, p_i = |D_i| / |D| (U,)."""
        return np.asarray(self.sizes / self.sizes.sum())

    @property
    def skew(self) -> FloatArray:
        """Label skew of each client, sum_m |p_im - q_m| (U,)."""
        overall = self.shares @ self.label_shares
        return np.asarray(np.abs(self.label_shares - overall).sum(axis=1))

    def noise(self) -> FloatArray:
        """Return Theorem 1's noise term 4 eta C q_i sqrt(2 tau ln(1 / delta_i)) / (sqrt(pi) b_i eps_i), (U,)."""
        spread = np.sqrt(-2.0 * self.local_iterations * np.log(self.delta))
        return np.asarray(
            4 * self.learning_rate * self.clip_norm * spread / (math.sqrt(math.pi) * self.sizes * self.epsilon)
        )


Setting = BoundInputs  # former name


def model_divergence(inputs: BoundInputs) -> FloatArray:
    """Return Theta_i of Theorem 1 with all its constants, sum_{j < tau} (1 + eta lambda)^j (eta C skew_i + noise_i).

    Args:
        inputs: Inputs of the bounds.

    Returns:
        Divergences (U,), in the unit of the weights.
    """
    growth = sum((1 + inputs.learning_rate * inputs.smoothness) ** j for j in range(inputs.local_iterations))
    return np.asarray(growth * (inputs.learning_rate * inputs.clip_norm * inputs.skew + inputs.noise()))


def drift(inputs: BoundInputs, punctual: BoolArray) -> FloatArray:
    """Return Xi(tau) of every round, the drift from centralised training:

        eta C sum_i |p_i - p_i(t)| + (noise of the average + eta C sum_i p_i(t) skew_i) sum_{0<j<tau} (1 + eta lambda)^j

    The paper prints the norm of the sum of p_i - p_i(t), which is 0. lambda_max replaces the smoothness of each class.

    Args:
        inputs: Inputs of the bounds.
        punctual: Whether each client was punctual in each round (T, U). In a round where none was, p_i(t) = 0.

    Returns:
        Drifts (T,), in the unit of the weights.
    """
    step = inputs.learning_rate * inputs.clip_norm
    growth = sum((1 + inputs.learning_rate * inputs.smoothness) ** j for j in range(1, inputs.local_iterations))
    weight = punctual * inputs.sizes
    total = weight.sum(axis=1, keepdims=True)
    now = np.divide(weight, total, out=np.zeros_like(weight, dtype=np.float64), where=total > 0)
    noise = math.sqrt(float(np.sum((inputs.shares * inputs.noise()) ** 2)))
    return np.asarray(step * np.abs(inputs.shares - now).sum(axis=1) + (noise + step * (now @ inputs.skew)) * growth)


def _scatter(inputs: BoundInputs, participation: float) -> float:
    """Return lambda P (1 - P) sum_ij |D_i|^2 |D_j|^2 (Theta_i^2 + Theta_j^2) / (|D|^2 D_min^2), P = participation."""
    squares, theta = inputs.sizes**2, model_divergence(inputs) ** 2
    pairs = 2 * float(squares.sum()) * float(squares @ theta)
    scale = float(inputs.sizes.sum()) ** 2 * float(inputs.sizes.min()) ** 2
    return inputs.smoothness * participation * (1 - participation) * pairs / scale


def convex_bound(inputs: BoundInputs, punctual: BoolArray, distance: float) -> Bound:
    """Return Theorem 5's upper bound on F(w(T)) - F(w*) for convex losses:

        1 / (T tau eta phi - (T rho Xi + max_t Xi_hat(t)) / eps_0^2)

    As in Wang 2019, omega = 1 / distance^2 and phi = omega (1 - eta lambda / 2). The eta that the paper omits in rho is
    restored, so rho = phi. Xi is the mean over rounds, P the largest participation. The bound is infinite if the
    denominator is not positive.

    Args:
        inputs: Inputs of the bounds.
        punctual: Whether each client was punctual in each round (T, U).
        distance: Largest |w(t) - w*|, in the unit of the weights.
    """
    rounds, present = len(punctual), punctual.sum(axis=1)
    eta, tau = inputs.learning_rate, inputs.local_iterations
    phi = (1 - eta * inputs.smoothness / 2) / distance**2
    xi = drift(inputs, punctual)
    scatter = _scatter(inputs, float(punctual.mean(axis=0).max()))
    with np.errstate(divide="ignore"):
        hat = np.where(
            present > 0,
            scatter / (2.0 * np.maximum(present, 1) ** 2) + inputs.smoothness * xi,
            eta * tau * inputs.clip_norm + xi,
        )
    inner = 4 * eta * phi * rounds**2 * tau * (phi * float(xi.mean()) + present)
    eps_0 = float(np.min((1 + np.sqrt(1 + inner)) / (2 * eta * phi * rounds * tau)))
    denominator = rounds * tau * eta * phi - (rounds * phi * float(xi.mean()) + float(hat.max())) / eps_0**2
    if denominator <= 0:
        return Bound(math.inf, f"skew, noise and absence outweigh progress: the denominator is {denominator:.3g}")
    return Bound(1 / denominator, None)


def nonconvex_bound(inputs: BoundInputs, punctual: BoolArray, first_gap: float) -> Bound:
    """Return Theorem 6's upper bound on the mean over rounds of sum_j |grad F|^2 (the paper prints the vector):

        (F(w(0)) - F(w*)) / (T eta k) + lambda P (1 - P) ... / (eta k |B|^2) + lambda Xi / (eta k)

    with k = 1 - eta lambda / 2. |B| is the smallest number of clients in a round, Xi the mean over rounds. Only the
    first term falls with T; the O(1 / T) in the paper's text ignores the others. The bound is vacuous if it exceeds
    tau C^2, which clipped gradients cannot exceed.

    Args:
        inputs: Inputs of the bounds.
        punctual: Whether each client was punctual in each round (T, U).
        first_gap: F(w(0)) - F(w*).
    """
    rounds, present = len(punctual), int(punctual.sum(axis=1).min())
    if present == 0:
        return Bound(math.inf, "no client was punctual in some round, and the bound divides by their number")
    scale = inputs.learning_rate * (1 - inputs.learning_rate * inputs.smoothness / 2)
    scatter = _scatter(inputs, float(punctual.mean(axis=0).max()))
    value = first_gap / (rounds * scale) + scatter / (scale * present**2)
    value += inputs.smoothness * float(drift(inputs, punctual).mean()) / scale
    trivial = inputs.local_iterations * inputs.clip_norm**2
    if value >= trivial:
        return Bound(value, f"clipped gradients never exceed tau C^2 = {trivial:.3g}, which is smaller")
    return Bound(value, None)
