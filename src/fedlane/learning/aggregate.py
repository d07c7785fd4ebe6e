"""Aggregation (1): the punctual clients' models by data size; a round without any keeps the model."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlane.records import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Uploads:
    """A round's punctual uploads of all replicas, one row each, replica after replica."""

    replica: IntArray
    """(G,)"""
    client: IntArray
    """(G,)"""
    share: FloatArray
    """(G,): p_i = |D_i| / sum over the replica's punctual clients."""
    rank: IntArray
    """(G,): place among the replica's own uploads."""

    @classmethod
    def of(cls, client: IntArray, punctual: BoolArray, sizes: FloatArray) -> "Uploads":
        """From who used each channel (R, N), who of them was punctual (R, N), and |D_i| (R, U)."""
        replica, channel = np.nonzero(punctual)
        clients = client[replica, channel].astype(np.int64)
        size = sizes[replica, clients]
        total = np.bincount(replica, size, minlength=len(client))
        first = np.searchsorted(replica, replica)
        return cls(replica, clients, size / total[replica], np.arange(len(replica)) - first)

    def part(self, first: int, last: int) -> "Uploads":
        """The uploads of replicas first <= r < last, renumbered from 0."""
        rows = slice(*np.searchsorted(self.replica, [first, last]))
        return Uploads(self.replica[rows] - first, self.client[rows], self.share[rows], self.rank[rows])


def aggregate_(current: Tensor, models: Tensor, uploads: Uploads) -> None:
    """w(t) = sum over punctual i of p_i w_i, in place on current (R, d), from models (G, d).

    Uploads of one rank belong to different replicas, so adding rank by rank gives the same bits every time.
    """
    share = torch.from_numpy(uploads.share.astype(np.float32)).to(models.device)
    most = int(uploads.rank.max(initial=-1)) + 1
    if len(models) == most * len(current):  # every replica has as many
        torch.bmm(share.view(-1, 1, most), models.view(-1, most, models.shape[1]), out=current[:, None])
        return
    models *= share[:, None]
    for rank in range(most):
        rows = np.flatnonzero(uploads.rank == rank)
        into = torch.from_numpy(uploads.replica[rows]).to(models.device)
        some = models[torch.from_numpy(rows).to(models.device)]
        if rank == 0:
            current[into] = some
        else:
            current.index_add_(0, into, some)
