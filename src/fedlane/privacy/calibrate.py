"""Calibration: the noise that keeps clients within their privacy budgets.

Calibrations take seconds, so they are stored in the user's cache.
"""

import math
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
from scipy.optimize import brentq

from fedlane.cache import remembered
from fedlane.privacy.composition import LARGEST_NOISE as MAX_NOISE
from fedlane.privacy.composition import SMALLEST_NOISE, TINY_NOISE, account, check_steps, resolution
from fedlane.privacy.gaussian import gaussian_delta, gaussian_epsilon
from fedlane.records import FloatArray, IntArray
from fedlane.validate import InputError

__all__ = ["account", "calibrate", "calibrate_clients"]

LARGEST_NOISE = 1e4
SMOOTH_INTERVALS = 10
"""Smaller epsilons, in discretisation intervals, jump as a function of the noise."""
NEWTON_REACH, NEWTON_RAISES = 1.1, 20
"""Bounds on the refinement of a root: its relative change, and the number of times that it is rounded up."""


def calibrate(epsilon: float, delta: float, *, sample_rate: float, steps: int, histogram_noise: float = 0.0) -> float:
    """Return the smallest noise multiplier that keeps Poisson-sampled Gaussian steps within a budget.

    Args:
        epsilon: Budget for all steps and the histogram release, greater than 0.
        delta: Target delta, from 1e-12 to 0.5.
        sample_rate: Probability that a record is in a step's sample, greater than 0 and at most 1.
        steps: Number of steps that the budget covers.
        histogram_noise: Noise multiplier of one label-histogram release that the budget also covers; 0 for none.

    Returns:
        Standard deviation of a step's noise in multiples of the clip norm.

    Raises:
        InputError: An argument is out of bounds, or no supported noise multiplier meets the budget.

    Examples:
        >>> round(calibrate(8.0, 1e-5, sample_rate=64 / 6000, steps=1250), 2)
        0.61
    """
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise InputError(f"epsilon must be greater than 0, got {epsilon:g}")
    check_steps(sample_rate, steps, delta)
    if not histogram_noise >= 0:
        raise InputError(f"histogram_noise must be a number of at least 0, got {histogram_noise:g}")
    if histogram_noise > MAX_NOISE or 0 < histogram_noise < TINY_NOISE:
        raise InputError(f"histogram_noise must be 0 or from {TINY_NOISE:g} to {MAX_NOISE:g}, got {histogram_noise:g}")
    if histogram_noise and gaussian_epsilon(1 / histogram_noise, delta) >= epsilon:
        raise InputError(
            f"the label histogram alone spends epsilon {gaussian_epsilon(1 / histogram_noise, delta):.3f} of "
            f"{epsilon:g}: increase histogram_noise, got {histogram_noise:g}"
        )

    def spent(noise: float, interval: float) -> float:
        return account(noise, sample_rate, steps, delta, histogram_noise=histogram_noise, interval=interval)

    _check_sampling(epsilon, delta, sample_rate * steps, histogram_noise)
    coarse, fine = 5 * resolution(epsilon), resolution(epsilon)

    def valid(values: list[float]) -> bool:
        return len(values) == 1 and spent(values[0], coarse) <= epsilon * 1.002

    key = {
        "epsilon": epsilon,
        "delta": delta,
        "sample_rate": sample_rate,
        "steps": steps,
        "histogram_noise": histogram_noise,
        "way": 2,
        "dp-accounting": version("dp-accounting"),
    }
    # A cached value is verified before a client relies on it.
    return remembered("calibration", key, lambda: [_search(spent, epsilon, coarse, fine)], valid)[0]


def _check_sampling(epsilon: float, delta: float, inclusions: float, histogram_noise: float) -> None:
    """Raise an `InputError` if a record is sampled so rarely that even the least noise spends nothing.

    With probability 1 - ``inclusions`` at least, the record is in no sample, and then only the histogram depends on it.
    """
    if inclusions + (gaussian_delta(1 / histogram_noise, 0.0) if histogram_noise else 0.0) <= delta:
        raise InputError(
            f"epsilon {epsilon:g} needs no noise: a record is sampled with a probability of at most {inclusions:.3g}, "
            f"within delta {delta:g}"
        )


def _search(spent: Callable[[float, float], float], epsilon: float, coarse: float, fine: float) -> float:
    """Return the smallest noise multiplier for ``epsilon``; ``spent`` takes a multiplier and an interval."""
    low = high = 1.0
    while spent(high, coarse) > epsilon:
        low, high = high, 2 * high
        if high > LARGEST_NOISE:
            raise InputError(f"epsilon {epsilon:g} needs a noise multiplier above {LARGEST_NOISE:g}")
    while low == high or spent(low, coarse) <= epsilon:
        low, high = low / 2, low
        if low < SMALLEST_NOISE:
            raise InputError(f"epsilon {epsilon:g} is too large: noise multipliers below {2 * low:g} give no privacy")
    noise = float(brentq(lambda z: spent(z, coarse) - epsilon, low, high, xtol=1e-6))
    slope = (spent(noise * 1.001, coarse) - spent(noise, coarse)) / (noise * 0.001)
    smooth = epsilon >= SMOOTH_INTERVALS * fine
    refined = _refined(lambda z: spent(z, fine), epsilon, noise, slope) if smooth else None
    return _bisected(lambda z: spent(z, fine), epsilon, low, high) if refined is None else refined


def _refined(spent: Callable[[float], float], epsilon: float, noise: float, slope: float) -> float | None:
    """Return the root near ``noise``, which is slightly too large; None if epsilon is not smooth enough there.

    Two Newton steps, and then rounding up to be safe.
    """
    if not slope < 0:
        return None
    start = noise
    for _ in range(2):
        noise += (epsilon - spent(noise)) / slope
        if not start / NEWTON_REACH < noise < start * NEWTON_REACH:
            return None
    for _ in range(NEWTON_RAISES):
        if spent(noise) <= epsilon:
            return noise
        noise *= 1 + 1e-5
    return None


def _bisected(spent: Callable[[float], float], epsilon: float, low: float, high: float) -> float:
    """Return a noise multiplier that meets ``epsilon``, and of which a 1e-4 smaller one does not."""
    while spent(high) > epsilon:
        low, high = high, 1.1 * high
        if high > LARGEST_NOISE:
            raise InputError(f"epsilon {epsilon:g} needs a noise multiplier above {LARGEST_NOISE:g}")
    while spent(low) <= epsilon:
        low, high = low / 2, low
        if low < SMALLEST_NOISE:
            raise InputError(f"epsilon {epsilon:g} is too large: noise multipliers below {2 * low:g} give no privacy")
    while high > low * (1 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return high


def calibrate_clients(
    rates: FloatArray,
    epsilon: FloatArray,
    delta: FloatArray,
    steps: IntArray,
    histogram_noise: float,
    least_noise: float,
) -> FloatArray:
    """Return every client's noise multiplier (R, U), calibrating each kind of client once.

    Args:
        rates: Sample rates (R, U).
        epsilon: Budgets (U,).
        delta: Target deltas (U,).
        steps: Steps that each budget covers (U,).
        histogram_noise: Noise multiplier of the label-histogram release; 0 for none.
        least_noise: Smallest noise multiplier that is accepted.

    Raises:
        InputError: A client needs less noise than ``least_noise``.
    """
    calibrated: dict[tuple[float, float, float, int], float] = {}
    noise = np.empty(rates.shape)
    for (replica, client), rate in np.ndenumerate(rates):
        kind = float(rate), float(epsilon[client]), float(delta[client]), int(steps[client])
        if kind not in calibrated:
            calibrated[kind] = _calibrate_kind(*kind, histogram_noise, least_noise)
        noise[replica, client] = calibrated[kind]
    return noise


def _calibrate_kind(
    rate: float, epsilon: float, delta: float, steps: int, histogram_noise: float, least_noise: float
) -> float:
    noise = calibrate(epsilon, delta, sample_rate=rate, steps=steps, histogram_noise=histogram_noise)
    if noise < least_noise:
        raise InputError(
            f"privacy.epsilon {epsilon:g} over {steps} steps needs a noise multiplier of only {noise:.3f}, less than "
            f"privacy.least_noise {least_noise:g}: choose a smaller epsilon or lower privacy.least_noise"
        )
    return noise
