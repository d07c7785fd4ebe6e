"""The number of samples of each class at each client (reading 17 in docs/reading-the-paper.md).

Counts depend only on the settings, the seed and the class totals, so quotas can be computed without the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedlane.records import FloatArray, IntArray
from fedlane.rng import generator
from fedlane.validate import InputError


@dataclass(frozen=True)
class Partition:
    """Division of a data set among clients. The degree ranges from 0 (all clients alike) to 1 (one class per client).

    dominant   a share ``degree`` of a client's samples is of class i mod M for client i, the rest is uniform;
    dirichlet  label shares are Dirichlet with concentration (1 - degree) / degree per class;
    shards     a client has round(M (1 - degree)) equal shards, at least one, of one class each;
    iid        label shares are those of the data set; the degree is ignored;
    natural    clients come with the data (see `natural_counts`); degree and imbalance are ignored.

    Client sizes are equal, or uniform in [1 - imbalance, 1 + imbalance] times the mean. The mean is
    ``samples_per_client``; None divides the whole data set.
    """

    kind: str
    degree: float
    imbalance: float
    samples_per_client: int | None = None


def label_counts(partition: Partition, class_totals: IntArray, clients: int, seed: int) -> IntArray:
    """Return the samples of class m at client i, (U, M); every client has at least one sample.

    A class with too few samples is shared in proportion. Clients that lack samples get samples of other classes. If
    there are more clients than samples, the data set counts as often as `copies` says: such counts describe a fleet
    whose schedule is simulated, and no data set can be divided according to them.
    """
    samples = partition.samples_per_client
    if samples is not None:
        _check_samples(samples, int(class_totals.sum()), clients)
    class_totals = class_totals * copies(class_totals, clients)
    total = int(class_totals.sum()) if samples is None else clients * samples
    rng = generator(seed, "partition")
    sizes = _sizes(clients, total, partition.imbalance, rng)
    wanted = _label_shares(partition, class_totals, clients, rng) * sizes[:, None]
    scale = np.minimum(1.0, class_totals / np.maximum(wanted.sum(axis=0), 1e-300))
    counts = np.floor(wanted * scale + 1e-9).astype(np.int64)
    need, left = sizes - counts.sum(axis=1), class_totals - counts.sum(axis=0)
    counts += (need[:, None] * (left / max(left.sum(), 1))).astype(np.int64)
    need, left = sizes - counts.sum(axis=1), class_totals - counts.sum(axis=0)
    # Rounding down left a few clients short: give them the remaining samples in random order.
    spare = rng.permutation(np.repeat(np.arange(len(left)), left))[: need.sum()]
    np.add.at(counts, (np.repeat(np.arange(clients), need), spare), 1)
    return counts


def natural_counts(natural: IntArray | None, clients: int, seed: int) -> IntArray:
    """Return the samples of class m at client i, (U, M), where the clients come with the data.

    Args:
        natural: (K, M) samples of each class at each of the data's clients; None if the data has no clients.
        clients: U, the number of clients of the network.
        seed: The replica's seed, which chooses the clients if the data has more of them.

    Raises:
        InputError: The data has no clients, or fewer than the network.
    """
    if natural is None:
        raise InputError('data.partition "natural" needs a data set with clients (client_train), and this one has none')
    if clients > len(natural):
        raise InputError(
            f"network.clients must be at most {len(natural)}, the number of clients in the data set, got {clients}"
        )
    return np.asarray(natural[chosen_clients(len(natural), clients, seed)], np.int64)


def chosen_clients(available: int, clients: int, seed: int) -> IntArray:
    """Return which of a data set's clients take part, in increasing order; all of them if the network has as many."""
    return np.sort(generator(seed, "natural-clients").choice(available, clients, replace=False))


def copies(class_totals: IntArray, clients: int) -> int:
    """Return how often the data set must be repeated so that every client can have a sample; usually 1."""
    return -(-clients // int(class_totals.sum()))


def check_learnable(class_totals: IntArray, clients: int) -> None:
    """Raise `InputError` if there are more clients than training samples, so that no model can be trained."""
    if copies(class_totals, clients) > 1:
        raise InputError(
            f"network.clients must be at most {class_totals.sum()}, the number of training samples, got {clients}; "
            "without learning (--no-learning) there may be more"
        )


def _check_samples(samples: int, available: int, clients: int) -> None:
    """Raise `InputError` if the data set has too few samples for ``samples`` at each client."""
    if clients * samples > available:
        raise InputError(
            f"data.samples_per_client must be at most {available // clients}, because {clients} clients share "
            f"{available} training samples, got {samples}"
        )


def assign_samples(counts: IntArray, labels: IntArray, seed: int) -> IntArray:
    """Assign the samples of a data set to clients at random.

    Args:
        counts: (U, M) samples of each class at each client, see `label_counts`.
        labels: (n,) classes of the data set.
        seed: The replica's seed.

    Returns:
        Sample indices, first the counts[0].sum() samples of client 0, and so on; each client's in random order.
    """
    rng = generator(seed, "samples")
    owner = np.full(len(labels), len(counts))
    for label, per_client in enumerate(counts.T):
        members = rng.permutation(np.flatnonzero(labels == label))
        owner[members[: per_client.sum()]] = np.repeat(np.arange(len(counts)), per_client)
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    return order[: counts.sum()]


def sample_order(counts: IntArray, labels: IntArray, clients: IntArray | None, seed: int) -> IntArray:
    """Return sample indices grouped by client, as `assign_samples` does, also where clients come with the data.

    Args:
        counts: (U, M) samples of each class at each client.
        labels: (n,) classes of the data set.
        clients: (n,) client of each sample if the partition is natural; None to assign samples at random.
        seed: The replica's seed.

    Raises:
        ValueError: The counts are not those of the data's clients.
    """
    if clients is None:
        return assign_samples(counts, labels, seed)
    sizes = np.bincount(clients)
    chosen = chosen_clients(len(sizes), len(counts), seed)
    if np.any(sizes[chosen] != counts.sum(axis=1)):
        raise ValueError("label_counts are not those of the data set's clients")
    grouped = np.split(np.argsort(clients, kind="stable"), np.cumsum(sizes)[:-1])
    return np.concatenate([grouped[client] for client in chosen])


def stacked_orders(orders: Sequence[IntArray]) -> NDArray[np.int32]:
    """Return the orders of all replicas as one array; natural clients of two replicas may have different totals."""
    stacked = np.zeros((len(orders), max(map(len, orders))), np.int32)
    for row, order in zip(stacked, orders, strict=True):
        row[: len(order)] = order
    return stacked


def _sizes(clients: int, total: int, imbalance: float, rng: np.random.Generator) -> IntArray:
    """Return client sizes that sum to ``total``, each at least 1."""
    weights = rng.uniform(1 - imbalance, 1 + imbalance, clients) if imbalance else np.ones(clients)
    exact = 1 + weights / weights.sum() * (total - clients)
    sizes = np.floor(exact).astype(np.int64)
    remainder = np.argsort(sizes - exact, kind="stable")[: total - int(sizes.sum())]
    sizes[remainder] += 1
    return sizes


def _label_shares(partition: Partition, totals: IntArray, clients: int, rng: np.random.Generator) -> FloatArray:
    """Return the label distribution that each client should have, (U, M)."""
    classes, degree = len(totals), partition.degree
    overall = np.broadcast_to(totals / totals.sum(), (clients, classes))
    if partition.kind == "iid" or degree == 0:
        return overall
    if partition.kind == "dominant":
        shares = np.full((clients, classes), (1 - degree) / classes)
        shares[np.arange(clients), np.arange(clients) % classes] += degree
        return shares
    if partition.kind == "dirichlet":
        if degree == 1:
            return np.eye(classes)[rng.integers(classes, size=clients)]
        # Gamma(a) = Gamma(a + 1) U^(1 / a), in logarithms because small concentrations underflow.
        concentration = (1 - degree) / degree
        log_gamma = np.log(rng.standard_gamma(concentration + 1, (clients, classes)))
        log_gamma += np.log(rng.uniform(size=(clients, classes))) / concentration
        gamma = np.exp(log_gamma - log_gamma.max(axis=1, keepdims=True))
        return np.asarray(gamma / gamma.sum(axis=1, keepdims=True))
    if partition.kind == "shards":
        shards = max(1, round(classes * (1 - degree)))
        deck = rng.permutation(np.arange(clients * shards) % classes).reshape(clients, shards)
        shares = np.zeros((clients, classes))
        np.add.at(shares, (np.repeat(np.arange(clients), shards), deck.ravel()), 1 / shards)
        return shares
    raise InputError(f"data.partition must be dominant, dirichlet, shards, iid or natural, got '{partition.kind}'")
