"""How many samples of each class each client holds (reading 17).

Counts follow from (settings, seed) and the class totals alone, so quotas are the same with and without the data.
"""

from dataclasses import dataclass

import numpy as np

from fedlane.records import FloatArray, IntArray
from fedlane.rng import generator
from fedlane.validate import InputError


@dataclass(frozen=True)
class Partition:
    """How a data set is spread. The degree runs from 0 (every client like the whole) to 1 (one class each).

    dominant   that share of a client's samples is of its dominant class (client i: i mod M), the rest uniform;
    dirichlet  label shares are Dirichlet with concentration (1 - degree) / degree per class;
    shards     a client holds round(M (1 - degree)) equal shards, at least one, each of one class;
    iid        label shares as in the whole, whatever the degree.

    Sizes are equal, or uniform in [1 - imbalance, 1 + imbalance] times the mean.
    """

    kind: str
    degree: float
    imbalance: float


def label_counts(partition: Partition, class_totals: IntArray, clients: int, seed: int) -> IntArray:
    """(U, M): samples of class m at client i. Every client has at least one; classes never exceed their totals.

    A class that runs short is shared in proportion, and its clients are filled up from what is left.
    """
    total = int(class_totals.sum())
    if clients > total:
        raise InputError(f"network.clients must be at most {total}, the samples of the data set, got {clients}")
    rng = generator(seed, "partition")
    sizes = _sizes(clients, total, partition.imbalance, rng)
    wanted = _label_shares(partition, class_totals, clients, rng) * sizes[:, None]
    scale = np.minimum(1.0, class_totals / np.maximum(wanted.sum(axis=0), 1e-300))
    counts = np.floor(wanted * scale + 1e-9).astype(np.int64)
    need, left = sizes - counts.sum(axis=1), class_totals - counts.sum(axis=0)
    counts += (need[:, None] * (left / max(left.sum(), 1))).astype(np.int64)
    need, left = sizes - counts.sum(axis=1), class_totals - counts.sum(axis=0)
    # The last few, lost to rounding down: hand out what is left in random order.
    spare = rng.permutation(np.repeat(np.arange(len(left)), left))[: need.sum()]
    np.add.at(counts, (np.repeat(np.arange(clients), need), spare), 1)
    return counts


def assign_samples(counts: IntArray, labels: IntArray, seed: int) -> IntArray:
    """Sample indices, client after client: client i's are the next counts[i].sum(), in random order.

    counts (U, M) as from `label_counts`, labels (n,) of the data set. Which sample of a class goes where is random.
    """
    rng = generator(seed, "samples")
    owner = np.full(len(labels), len(counts))
    for label, per_client in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(labels == label))
        owner[members[: per_client.sum()]] = np.repeat(np.arange(len(counts)), per_client)
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    return order[: counts.sum()]


def _sizes(clients: int, total: int, imbalance: float, rng: np.random.Generator) -> IntArray:
    """Client sizes that sum to ``total``, each at least 1."""
    weights = rng.uniform(1 - imbalance, 1 + imbalance, clients) if imbalance else np.ones(clients)
    exact = 1 + weights / weights.sum() * (total - clients)
    sizes = np.floor(exact).astype(np.int64)
    remainder = np.argsort(sizes - exact, kind="stable")[: total - int(sizes.sum())]
    sizes[remainder] += 1
    return sizes


def _label_shares(partition: Partition, totals: IntArray, clients: int, rng: np.random.Generator) -> FloatArray:
    """(U, M): the label distribution each client should have, rows summing to 1."""
    classes, degree = len(totals), partition.degree
    whole = np.broadcast_to(totals / totals.sum(), (clients, classes))
    if partition.kind == "iid" or degree == 0:
        return whole
    if partition.kind == "dominant":
        shares = np.full((clients, classes), (1 - degree) / classes)
        shares[np.arange(clients), np.arange(clients) % classes] += degree
        return shares
    if partition.kind == "dirichlet":
        if degree == 1:
            return np.eye(classes)[rng.integers(classes, size=clients)]
        # Gamma(a) = Gamma(a + 1) U^(1 / a), in logarithms: a small concentration underflows otherwise.
        concentration = (1 - degree) / degree
        log_gamma = np.log(rng.standard_gamma(concentration + 1, (clients, classes)))
        log_gamma += np.log(rng.uniform(size=(clients, classes))) / concentration
        gamma = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
        return np.asarray(gamma / gamma.sum(axis=1, keepdims=True))
    if partition.kind == "shards":
        held = max(1, round(classes * (1 - degree)))
        deck = rng.permutation(np.arange(clients * held) % classes).reshape(clients, held)
        shares = np.zeros((clients, classes))
        np.add.at(shares, (np.repeat(np.arange(clients), held), deck.ravel()), 1 / held)
        return shares
    raise InputError(f"data.partition must be dominant, dirichlet, shards or iid, got '{partition.kind}'")
