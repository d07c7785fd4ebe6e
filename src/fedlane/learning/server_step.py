"""The server's step: from a round's average to the next global model, and the weights of the average.

The optimisers are those of Reddi et al. (Adaptive Federated Optimization, 2021) with the constants of Flower's FedAvgM,
FedAdam (whose learning rate has Adam's bias correction) and FedYogi. They see only the average of the uploads, so they
are post-processing under every privacy mechanism. Running statistics are averaged and not optimised.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlane.files import fitting_array
from fedlane.learning.optimization import Optimization
from fedlane.records import BoolArray, FloatArray, IntArray
from fedlane.validate import InputError

Arrays = dict[str, NDArray[Any]]


class ServerStep:
    """The server's optimiser and its memory, for all replicas.

    Args:
        optimization: The settings.
        weights: (R, d) global models; their device is used.
        trained: Number of weights that are optimised: the first ones.
        clients: Number of clients, U.
    """

    def __init__(self, optimization: Optimization, weights: Tensor, trained: int, clients: int) -> None:
        self.optimization, self._trained = optimization, trained
        kind = optimization.server_optimizer
        names = {"sgd": (), "momentum": ("momentum",), "adam": ("momentum", "square"), "yogi": ("momentum", "square")}
        self._memory = {name: torch.zeros_like(weights[:, :trained]) for name in names[kind]}
        self._punctual_rounds: IntArray | None = None
        if optimization.aggregation == "unbiased":
            self._punctual_rounds = np.zeros((len(weights), clients), np.int64)

    def upload_weights(self, client: IntArray, punctual: BoolArray, sizes: IntArray) -> FloatArray | IntArray:
        """Count a round's punctual clients and return the relative weight of each client's upload, (R, U).

        "size": |D_i|. "unbiased": |D_i| divided by the client's share of punctual rounds so far, this one included. All
        clients of a replica have seen the same number of rounds, so dividing by the count is enough.

        Args:
            client: (R, N) client on each channel.
            punctual: (R, N) whether that client met the deadline.
            sizes: (R, U) training samples.
        """
        if self._punctual_rounds is None:
            return sizes
        replica, channel = np.nonzero(punctual)
        self._punctual_rounds[replica, client[replica, channel]] += 1  # a client has at most one channel
        weights: FloatArray = sizes / np.maximum(self._punctual_rounds, 1)
        return weights

    def apply_(self, weights: Tensor, previous: Tensor, updated: Tensor, round: Tensor, rows: slice) -> None:
        """Replace averages by the models after the server's step, in place.

        Args:
            weights: (r, d) averages of the uploads.
            previous: (r, d) models before the round.
            updated: (r, 1) whether a replica has an upload; the others keep model and memory.
            round: The round's number, from 0.
            rows: The r replicas among all of them.
        """
        average, start = weights[:, : self._trained], previous[:, : self._trained]
        memory = {name: array[rows] for name, array in self._memory.items()}
        fresh, step = self._step(average - start, memory, round)
        average.copy_(torch.where(updated, start + step, start))
        for name, array in memory.items():
            array.copy_(torch.where(updated, fresh[name], array))

    def _step(self, update: Tensor, memory: Mapping[str, Tensor], round: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return the next memory and the step for an update (r, trained)."""
        settings = self.optimization
        rate, momentum, decay = settings.server_learning_rate, settings.server_momentum, settings.server_decay
        if settings.server_optimizer == "sgd":
            return {}, rate * update
        if settings.server_optimizer == "momentum":
            velocity = momentum * memory["momentum"] + update
            return {"momentum": velocity}, rate * velocity
        mean, square = momentum * memory["momentum"] + (1 - momentum) * update, update.square()
        if settings.server_optimizer == "yogi":
            spread = memory["square"] - (1 - decay) * square * torch.sign(memory["square"] - square)
            correction = torch.ones((), device=update.device)
        else:
            spread = decay * memory["square"] + (1 - decay) * square
            power = (round + 2).double()  # Flower's server_round + 1, counted from 1
            correction = (torch.sqrt(1 - decay**power) / (1 - momentum**power)).to(update.dtype)
        return {"momentum": mean, "square": spread}, rate * correction * mean / (
            spread.sqrt() + settings.server_adaptivity
        )

    def snapshot(self) -> tuple[dict[str, Tensor], IntArray | None]:
        """Return a copy of the memory, for `rewind`."""
        counts = None if self._punctual_rounds is None else self._punctual_rounds.copy()
        return {name: array.clone() for name, array in self._memory.items()}, counts

    def rewind(self, snapshot: tuple[dict[str, Tensor], IntArray | None]) -> None:
        """Return to the memory of a snapshot; captured graphs keep their arrays."""
        memory, counts = snapshot
        for name, array in memory.items():
            self._memory[name].copy_(array)
        if counts is not None:
            self._punctual_rounds = counts.copy()

    def to_arrays(self) -> Arrays:
        """Return the memory as named arrays, for a checkpoint; none for plain averaging by size."""
        arrays: Arrays = {f"server.{name}": array.cpu().numpy() for name, array in self._memory.items()}
        if self._punctual_rounds is not None:
            arrays["server.punctual_rounds"] = self._punctual_rounds
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the arrays that `to_arrays` returned.

        Raises:
            KeyError: An array is missing.
            InputError: An array has the wrong type or shape, or counts are negative.
        """
        for name, array in self._memory.items():
            saved = fitting_array(arrays, f"server.{name}", array.cpu().numpy())
            if name == "square" and np.any(saved < 0):
                raise InputError("server.square must not be negative")
            array.copy_(torch.from_numpy(saved))
        if self._punctual_rounds is not None:
            counts = fitting_array(arrays, "server.punctual_rounds", self._punctual_rounds)
            if np.any(counts < 0):
                raise InputError("server.punctual_rounds must not be negative")
            self._punctual_rounds = counts.copy()
