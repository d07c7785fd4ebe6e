"""Specs of privacy mechanisms, and the release of label histograms."""

import numpy as np

from fedlane.privacy.mechanisms import mechanism_of
from fedlane.records import FloatArray, IntArray, MechanismSpec


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
    """Return the spec of a mechanism for R replicas of U clients.

    The noise of "rigorous" is calibrated, which takes seconds for every new kind of client and is then cached.

    Args:
        name: "none", "paper" or "rigorous".
        epsilon: Agreed epsilons (U,), per round (paper) or over all uploads (rigorous).
        delta: Agreed deltas (U,).
        sizes: Records of each client (R, U).
        clip_norm: Largest norm C of a record's gradient.
        batch_size: Records in a step's sample (U,); at most a client's records are used.
        local_iterations: Steps of an upload, tau.
        max_uploads: Uploads that each budget covers (U,).
        histogram_noise: Noise of the label-histogram release, in records; 0 for none.
        least_noise: Smallest noise multiplier of a step that is accepted.

    Raises:
        InputError: The name is unknown, or a budget cannot be met with at least ``least_noise``.

    Examples:
        >>> spec = make_mechanism("paper", np.array([25.0]), np.array([1e-3]), np.array([[6000]]), clip_norm=1.0,
        ...                       batch_size=np.array([64]), local_iterations=5, max_uploads=np.array([500]))
        >>> spec.upload_noise.shape
        (1, 1)
    """
    draft = draft_mechanism(
        name,
        epsilon,
        delta,
        sizes,
        clip_norm=clip_norm,
        batch_size=batch_size,
        local_iterations=local_iterations,
        max_uploads=max_uploads,
        histogram_noise=histogram_noise,
    )
    return mechanism_of(name).completed(draft, sizes, least_noise)


def draft_mechanism(
    name: str,
    epsilon: FloatArray,
    delta: FloatArray,
    sizes: IntArray,
    *,
    clip_norm: float,
    batch_size: IntArray,
    local_iterations: int,
    max_uploads: IntArray,
    histogram_noise: float,
) -> MechanismSpec:
    """Return the spec of a mechanism without its noise; the arguments are those of `make_mechanism`."""
    batches = np.minimum(batch_size, sizes)
    return MechanismSpec(
        name=name,
        sampling=mechanism_of(name).sampling,
        clip_norm=clip_norm,
        local_iterations=local_iterations,
        asked_batch=batch_size,
        batch_size=batches,
        sample_rate=batches / sizes,
        step_noise=np.zeros(sizes.shape),
        upload_noise=np.zeros(sizes.shape),
        epsilon=epsilon,
        delta=delta,
        max_uploads=max_uploads,
        histogram_noise=histogram_noise,
    )


def released_histogram(counts: IntArray, noise: float, normals: FloatArray) -> FloatArray:
    """Return the label shares that the server sees: noised counts, with negative ones set to 0, normalised.

    A record adds 1 to one count and a null record adds nothing, so under zero-out adjacency this is a Gaussian release
    with noise multiplier ``noise``. Clipping at 0 and normalising are post-processing and cost no privacy.

    Args:
        counts: Label counts (..., M).
        noise: Standard deviation of the noise, in records.
        normals: Standard normal numbers of the same shape as ``counts``.

    Returns:
        Label shares (..., M) that sum to 1; equal shares if no noised count is positive.
    """
    noisy = np.maximum(counts + noise * normals, 0.0)
    total = noisy.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total > 0, noisy / np.where(total > 0, total, 1.0), 1.0 / counts.shape[-1]))
