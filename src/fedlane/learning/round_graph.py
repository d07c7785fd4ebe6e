"""A learning round of all replicas as one CUDA graph."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from fedlane.learning import fused
from fedlane.learning.aggregate import Uploads
from fedlane.learning.counter_rng import normals
from fedlane.records import BoolArray, IntArray

if TYPE_CHECKING:
    from fedlane.learning.federation import FederationBatch


class RoundGraph:
    """A captured round: one replay instead of hundreds of small kernel launches."""

    def __init__(self, federation: "FederationBatch", channels: int) -> None:
        self.federation, self.channels = federation, channels
        replicas, device = len(federation._weights), federation.device
        self._round = torch.zeros((), dtype=torch.int64, device=device)
        self._client = torch.zeros(replicas * channels, dtype=torch.int64, device=device)
        self._share = torch.zeros(replicas, 1, channels, device=device)
        self._any_punctual = torch.zeros(replicas, 1, dtype=torch.bool, device=device)
        self._deviation = torch.zeros(replicas, 1, device=device)
        self._replica = torch.arange(replicas, device=device).repeat_interleave(channels)
        self._noisy = bool(federation.mechanism.upload_noise.any())
        initial, memory = federation._weights.clone(), federation.server.snapshot()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # an uncaptured first pass lets libraries initialise
            self._play_captured()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._play_captured()
        federation._weights.copy_(initial)
        federation.server.rewind(memory)
        federation.sampling.overflow.zero_()

    def _play_captured(self) -> None:
        """Play the round described by the input tensors; the graph captures this function."""
        federation = self.federation
        previous = None if federation.optimization.averages else federation._weights.clone()
        self._average_captured()
        if previous is not None:
            federation.server.apply_(federation._weights, previous, self._any_punctual, self._round, slice(None))

    def _average_captured(self) -> None:
        """Train the clients and replace the global models by the averages."""
        federation = self.federation
        weights = federation._weights
        models = federation.trained(self._round, self._replica, self._client)
        if fused.usable(weights):
            from fedlane.learning.fused.noise import average_

            average_(
                weights, models, self._share, federation.noise_key, self._round, self._deviation, noisy=self._noisy
            )
            return
        models = models.view(len(weights), self.channels, -1)
        models = torch.where(self._share.transpose(1, 2) > 0, models, 0.0)  # 0 times a late model's NaN would be NaN
        average = torch.bmm(self._share, models)[:, 0]
        if self._noisy:
            average += normals(federation.noise_key, self._round, federation.model.size).mul_(self._deviation)
        weights.copy_(torch.where(self._any_punctual, average, weights))

    def play(self, round: int, client: IntArray, punctual: BoolArray, uploads: Uploads) -> None:
        """Fill in the round's inputs and replay the graph."""
        share = np.zeros(client.shape, np.float32)
        share[punctual] = uploads.share  # both are ordered by replica, then channel
        self._round.fill_(round)
        self._client.copy_(torch.from_numpy(np.maximum(client, 0).astype(np.int64).ravel()))
        self._share.copy_(torch.from_numpy(share[:, None]))
        self._any_punctual.copy_(torch.from_numpy(punctual.any(axis=1, keepdims=True)))
        self._deviation.copy_(torch.from_numpy(self.federation.noise_of_average(uploads)[:, None]))
        self._graph.replay()
