"""Aggregation, equation (1): the average of the punctual clients' models, weighted by data size or without bias.

A round without punctual clients leaves the model unchanged.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlane.records import BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Uploads:
    """The punctual uploads of a round, one row each, ordered by replica."""

    replica: IntArray
    """(G,)"""
    client: IntArray
    """(G,)"""
    share: FloatArray
    """(G,): p_i = |D_i| / sum over the replica's punctual clients (or another weight instead of |D_i|)."""
    rank: IntArray
    """(G,): position among the uploads of the same replica."""

    @classmethod
    def of(cls, client: IntArray, punctual: BoolArray, weights: FloatArray | IntArray) -> "Uploads":
        """Return the uploads of the punctual clients; client and punctual are (R, N), weights (R, U).

        The weights are |D_i|, or another positive number, see `ServerStep.upload_weights`.
        """
        replica, channel = np.nonzero(punctual)
        clients = client[replica, channel].astype(np.int64)
        size = weights[replica, clients]
        total = np.bincount(replica, size, minlength=len(client))
        first = np.searchsorted(replica, replica)
        return cls(replica, clients, size / total[replica], np.arange(len(replica)) - first)

    def part(self, first: int, last: int) -> "Uploads":
        """Return the uploads of replicas first <= r < last, with replicas renumbered from 0."""
        rows = slice(*np.searchsorted(self.replica, [first, last]))
        return Uploads(self.replica[rows] - first, self.client[rows], self.share[rows], self.rank[rows])


def aggregate_(current: Tensor, models: Tensor, uploads: Uploads) -> None:
    """Set current (R, d) to w(t), the sum over punctual i of p_i w_i, from models (G, d).

    Uploads of the same rank belong to different replicas, so adding rank by rank is reproducible to the bit.
    """
    share = torch.from_numpy(uploads.share.astype(np.float32)).to(models.device)
    ranks = int(uploads.rank.max(initial=-1)) + 1
    if len(models) == ranks * len(current):  # every replica has the same number of uploads
        torch.bmm(share.view(-1, 1, ranks), models.view(-1, ranks, models.shape[1]), out=current[:, None])
        return
    models *= share[:, None]
    for rank in range(ranks):
        rows = np.flatnonzero(uploads.rank == rank)
        replica = torch.from_numpy(uploads.replica[rows]).to(models.device)
        added = models[torch.from_numpy(rows).to(models.device)]
        if rank == 0:
            current[replica] = added
        else:
            current.index_add_(0, replica, added)
