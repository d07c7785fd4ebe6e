"""Quotas from what clients claim about themselves, so that fewer than half of them do not decide the quotas."""

from collections.abc import Sequence

import numpy as np

from fedlane.flower.protocol import Introduction
from fedlane.flower.server.metrics import MAX_CLAIM, capped
from fedlane.records import FloatArray
from fedlane.theory import quotas, theta


def claimed_quotas(introductions: Sequence[Introduction], lanes: int) -> FloatArray:
    """Return the quotas of equation (8), (U,), from the released label counts; negative noisy counts become 0.

    Everything in an introduction is a claim, so fewer than half of the clients must not decide the quotas: a size
    counts at most 3 times the median size, and a divergence at least a third of the median divergence, so that no
    quota is more than 3 times that of the median client.

    A client that releases no counts gets at least the median divergence. With the average labels and no noise its
    divergence would be 0.
    """
    labels = max(1, *(len(client.label_counts) for client in introductions))
    counts = np.zeros((len(introductions), labels))
    for row, client in zip(counts, introductions, strict=True):
        row[: len(client.label_counts)] = np.maximum(client.label_counts, 0.0)
    sizes = np.array(capped([client.size for client in introductions]))
    total = counts.sum(axis=1, keepdims=True)
    released = total[:, 0] > 0
    shares = np.full(counts.shape, 1.0 / labels)
    shares[released] = counts[released] / total[released]
    if released.any():
        shares[~released] = np.average(shares[released], axis=0, weights=sizes[released])
    divergence = theta(
        shares,
        sizes,
        1.0,  # epsilon and delta are not used, since the noise is given
        0.5,
        local_iterations=1,
        batch_size=1,
        noise=np.array([client.upload_noise for client in introductions]),
    )
    if released.any():
        divergence[~released] = np.maximum(divergence[~released], np.median(divergence[released]))
    middle = np.sort(divergence)[len(divergence) // 2]  # the larger one of two
    return quotas(np.maximum(divergence, middle / MAX_CLAIM), lanes)
