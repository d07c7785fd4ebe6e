"""Theorems 5 and 6: how close to the optimum the paper's algorithm is promised to come.

Both are evaluated for a run's own figures: who took part, how skewed the data are, how large the noise. They are stated
in the paper with slips (reading 22); what is computed here is said at each function.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedlane.records import BoolArray, FloatArray
from fedlane.theory.regret import Bound
from fedlane.validate import InputError


@dataclass(frozen=True)
class BoundInputs:
    """What the bounds need to know of a federation of U clients with M classes, in the paper's letters."""

    sizes: FloatArray
    """(U,): |D_i|."""
    label_shares: FloatArray
    """(U, M): p_im."""
    batch_size: FloatArray
    """(U,): b_i."""
    epsilon: FloatArray
    """(U,): infinite for no noise."""
    delta: FloatArray
    learning_rate: float
    clip_norm: float
    local_iterations: int
    smoothness: float
    """lambda_max: a bound on the Hessian's norm. eta lambda < 1 is assumed."""

    def __post_init__(self) -> None:
        if not 0 < self.clip_norm < math.inf:
            raise InputError(f"the theorems assume clipped gradients, got clip_norm {self.clip_norm:g}")
        if not 0 < self.learning_rate * self.smoothness < 1:
            product = self.learning_rate * self.smoothness
            raise InputError(f"the theorems assume 0 < eta lambda_max < 1, got {product:g}")

    @property
    def shares(self) -> FloatArray:
        """p_i = |D_i| / |D|."""
        return np.asarray(self.sizes / self.sizes.sum())

    @property
    def skew(self) -> FloatArray:
        """(U,): sum_m |p_im - q_m|."""
        whole = self.shares @ self.label_shares
        return np.asarray(np.abs(self.label_shares - whole).sum(axis=1))

    def noise(self) -> FloatArray:
        """(U,): 4 eta C q_i sqrt(2 tau ln(1 / delta_i)) / (sqrt(pi) b_i eps_i), the noise term of Theorem 1."""
        spread = np.sqrt(-2.0 * self.local_iterations * np.log(self.delta))
        return np.asarray(
            4 * self.learning_rate * self.clip_norm * spread / (math.sqrt(math.pi) * self.sizes * self.epsilon)
        )


Setting = BoundInputs  # the old name


def model_divergence(setting: BoundInputs) -> FloatArray:
    """Theta_i of Theorem 1 with all its constants, (U,), in the units of the weights:

    sum_{j < tau} (1 + eta lambda)^j (eta C skew_i + noise_i).
    """
    growth = sum((1 + setting.learning_rate * setting.smoothness) ** j for j in range(setting.local_iterations))
    return np.asarray(growth * (setting.learning_rate * setting.clip_norm * setting.skew + setting.noise()))


def drift(setting: BoundInputs, punctual: BoolArray) -> FloatArray:
    """Xi(tau) of every round, (T,), for who was punctual (T, U).

        eta C sum_i |p_i - p_i(t)| + (noise of the average + eta C sum_i p_i(t) skew_i) sum_{0<j<tau} (1 + eta lambda)^j

    The paper prints the norm of the sum of p_i - p_i(t), which is 0; lambda_max stands for every class's smoothness.
    A round without anybody has p_i(t) = 0.
    """
    step = setting.learning_rate * setting.clip_norm
    growth = sum((1 + setting.learning_rate * setting.smoothness) ** j for j in range(1, setting.local_iterations))
    weight = punctual * setting.sizes
    total = weight.sum(axis=1, keepdims=True)
    now = np.divide(weight, total, out=np.zeros_like(weight, dtype=np.float64), where=total > 0)
    noise = math.sqrt(float(np.sum((setting.shares * setting.noise()) ** 2)))
    return np.asarray(step * np.abs(setting.shares - now).sum(axis=1) + (noise + step * (now @ setting.skew)) * growth)


def _scatter(setting: BoundInputs, participation: float) -> float:
    """lambda P (1 - P) sum_ij |D_i|^2 |D_j|^2 (Theta_i^2 + Theta_j^2) / (|D|^2 D_min^2), P the participation."""
    squares, theta = setting.sizes**2, model_divergence(setting) ** 2
    pairs = 2 * float(squares.sum()) * float(squares @ theta)
    scale = float(setting.sizes.sum()) ** 2 * float(setting.sizes.min()) ** 2
    return setting.smoothness * participation * (1 - participation) * pairs / scale


def convex_bound(setting: BoundInputs, punctual: BoolArray, distance: float) -> Bound:
    """Theorem 5: the largest that F(w(T)) - F(w*) can be, for convex losses.

        1 / (T tau eta phi - (T rho Xi + max_t Xi_hat(t)) / eps_0^2)

    punctual (T, U): who took part. distance: the largest |w(t) - w*|; omega = 1 / distance^2 as in Wang 2019, from whom
    phi = omega (1 - eta lambda / 2) is, too; rho has got back the eta that the paper lost, so rho = phi. Xi is the mean
    over rounds, P the largest participation. Where the denominator is not positive the bound says nothing.
    """
    rounds, present = len(punctual), punctual.sum(axis=1)
    eta, tau = setting.learning_rate, setting.local_iterations
    phi = (1 - eta * setting.smoothness / 2) / distance**2
    xi = drift(setting, punctual)
    scatter = _scatter(setting, float(punctual.mean(axis=0).max()))
    with np.errstate(divide="ignore"):
        hat = np.where(
            present > 0,
            scatter / (2.0 * np.maximum(present, 1) ** 2) + setting.smoothness * xi,
            eta * tau * setting.clip_norm + xi,
        )
    inner = 4 * eta * phi * rounds**2 * tau * (phi * float(xi.mean()) + present)
    eps_0 = float(np.min((1 + np.sqrt(1 + inner)) / (2 * eta * phi * rounds * tau)))
    denominator = rounds * tau * eta * phi - (rounds * phi * float(xi.mean()) + float(hat.max())) / eps_0**2
    if denominator <= 0:
        return Bound(math.inf, f"skew, noise and absence outweigh progress: the denominator is {denominator:.3g}")
    return Bound(1 / denominator, None)


def nonconvex_bound(setting: BoundInputs, punctual: BoolArray, first_gap: float) -> Bound:
    """Theorem 6: the largest that the mean over rounds of sum_j |grad F|^2 can be (the paper prints the vector).

        (F(w(0)) - F(w*)) / (T eta k) + lambda P (1 - P) ... / (eta k |B|^2) + lambda Xi / (eta k)

    with k = 1 - eta lambda / 2.

    punctual (T, U); first_gap: F(w(0)) - F(w*). |B| is the smallest number of clients in a round, Xi the mean over
    rounds. Only the first term falls with T: the text's O(1 / T) leaves the floor out. It says nothing where it exceeds
    tau C^2, which clipped gradients never do.
    """
    rounds, present = len(punctual), int(punctual.sum(axis=1).min())
    if present == 0:
        return Bound(math.inf, "in some round nobody was punctual, and the bound divides by their number")
    scale = setting.learning_rate * (1 - setting.learning_rate * setting.smoothness / 2)
    scatter = _scatter(setting, float(punctual.mean(axis=0).max()))
    value = first_gap / (rounds * scale) + scatter / (scale * present**2)
    value += setting.smoothness * float(drift(setting, punctual).mean()) / scale
    trivial = setting.local_iterations * setting.clip_norm**2
    if value >= trivial:
        return Bound(value, f"clipped gradients never exceed tau C^2 = {trivial:.3g}, which is less")
    return Bound(value, None)
