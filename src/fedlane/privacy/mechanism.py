"""Mechanism specs: what every client does to its data before anything leaves it, in one record."""

import math

import numpy as np

from fedlane.privacy.calibrate import calibrate
from fedlane.privacy.paper import paper_noise
from fedlane.records import FloatArray, IntArray, MechanismSpec
from fedlane.validate import InputError

SAME_RATES = 4
"""A federation with more different clients has its sample rates rounded up, so that few need calibrating."""
RATE_STEP = 1.05


def make_mechanism(
    name: str,
    epsilon: FloatArray,
    delta: FloatArray,
    sizes: IntArray,
    *,
    clip_norm: float,
    batch_size: IntArray,
    local_iterations: int,
    max_uploads: IntArray,
    histogram_noise: float = 0.0,
    least_noise: float = 0.5,
) -> MechanismSpec:
    """The spec of a mechanism for clients with epsilon, delta, batch_size and max_uploads (U,), and sizes (R, U).

    `rigorous` is calibrated here: seconds for every new kind of client, then remembered. Less noise than
    ``least_noise`` is refused.
    """
    batches = np.minimum(batch_size, sizes)
    rates = batches / sizes
    nothing = np.zeros(sizes.shape)
    clip: float | None = clip_norm
    step_noise, upload_noise, sampling = nothing, nothing, "fixed"
    if name == "none":
        clip, epsilon, delta, histogram_noise = None, np.full(len(epsilon), np.inf), np.ones(len(delta)), 0.0
        max_uploads = np.full(len(epsilon), np.iinfo(np.int64).max)  # there is no budget to exhaust
    elif name == "paper":
        histogram_noise = 0.0  # the paper uses the label counts as they are
        upload_noise = paper_noise(epsilon, delta, sizes, batches, local_iterations)
    elif name == "rigorous":
        sampling = "poisson"
        rates = np.stack([_few_rates(row, epsilon, delta, max_uploads) for row in rates])
        step_noise = _calibrated(rates, epsilon, delta, max_uploads * local_iterations, histogram_noise, least_noise)
    else:
        raise InputError(f"privacy.mechanism must be none, paper or rigorous, got '{name}'")
    return MechanismSpec(
        name=name,
        sampling=sampling,
        clip_norm=clip,
        local_iterations=local_iterations,
        asked_batch=batch_size,
        batch_size=batches,
        sample_rate=rates,
        step_noise=step_noise,
        upload_noise=upload_noise,
        epsilon=epsilon,
        delta=delta,
        max_uploads=max_uploads,
        histogram_noise=histogram_noise,
    )


def _few_rates(rates: FloatArray, *others: FloatArray | IntArray) -> FloatArray:
    """One replica's sample rates (U,), rounded up to powers of 1.05 where its clients are of many kinds.

    Execution and accounting both use the rounded rate. It depends on the replica's own clients alone.
    """
    kinds = np.unique(np.stack([rates, *others]), axis=1)
    if kinds.shape[1] <= SAME_RATES or len(np.unique(rates)) == 1:
        return rates
    return np.minimum(1.0, RATE_STEP ** np.ceil(np.log(rates) / math.log(RATE_STEP) - 1e-9))


def _calibrated(
    rates: FloatArray, epsilon: FloatArray, delta: FloatArray, steps: IntArray, histogram_noise: float, least: float
) -> FloatArray:
    """(R, U): every client's noise multiplier, each kind of client calibrated once."""
    found: dict[tuple[float, float, float, int], float] = {}
    result = np.empty(rates.shape)
    for (replica, client), rate in np.ndenumerate(rates):
        kind = float(rate), float(epsilon[client]), float(delta[client]), int(steps[client])
        if kind not in found:
            found[kind] = _one(*kind, histogram_noise, least)
        result[replica, client] = found[kind]
    return result


def _one(rate: float, epsilon: float, delta: float, steps: int, histogram_noise: float, least: float) -> float:
    noise = calibrate(epsilon, delta, sample_rate=rate, steps=steps, histogram_noise=histogram_noise)
    if noise < least:
        raise InputError(
            f"privacy.epsilon {epsilon:g} over {steps} steps needs a noise multiplier of only {noise:.3f}, less than "
            f"privacy.least_noise {least:g}: ask for a smaller epsilon, or lower that bound if you mean it"
        )
    return noise


def released_histogram(counts: IntArray, noise: float, normals: FloatArray) -> FloatArray:
    """Label shares (..., M) as the server sees them: counts plus noise, cut at 0, normalised.

    A record adds 1 to one count, so noise of standard deviation ``noise`` is a Gaussian release of that multiplier.
    normals: standard normal numbers like counts. Cutting and normalising cost no privacy. All cut: equal shares.
    """
    noisy = np.maximum(counts + noise * normals, 0.0)
    total = noisy.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total > 0, noisy / np.where(total > 0, total, 1.0), 1.0 / counts.shape[-1]))
