"""The losses that clients report: computed on the sample of the first training step, under the global model.

`LossQuery` says how they are released. With noise, a record's loss l is clipped to L, the sums of l and of l^2 / L over
the Poisson sample are noised, and the server divides both by q |D|, the expected number of records in the sample: the
size of a sample is private. The estimates are therefore unbiased for losses that are not clipped.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlane.files import fitting_array
from fedlane.learning.counter_rng import add_normals_, keys
from fedlane.learning.local import ClientData, TrainingBatch, first_sample
from fedlane.learning.losses import sample_losses
from fedlane.learning.model_interface import Model
from fedlane.records import ClientLosses, FloatArray, IntArray, LossQuery, MechanismSpec

STATISTICS = ("mean", "rms")


def record_losses(model: Model, weights: Tensor, x: Tensor, targets: Tensor, clip: float) -> Tensor:
    """Return the loss of every record (G, B), clipped, in float64; a loss that is not a number counts as L.

    It is the loss that is learned (see `Objective`): a cross-entropy, the mean cross-entropy of a sequence's positions,
    or the mean squared error of a record's numbers. None of them is negative, so a contribution is bounded by L alone.

    Args:
        model: The model; its layers are in evaluation mode.
        weights: (G, d) weight sets.
        x: (G, B, ...) inputs.
        targets: (G, B, ...) targets, as `Batch` has them.
        clip: Largest loss L of a record; infinite for no clipping.
    """
    scores = model.logits(weights, x).double()
    expected = targets.argmax(-1) if model.objective.kind == "classes" else targets
    losses = sample_losses(model.objective, scores.flatten(0, 1), expected.flatten(0, 1))
    return losses.view(targets.shape[:2]).nan_to_num(nan=clip, posinf=clip).clamp(min=0.0, max=clip)


def loss_sums(model: Model, weights: Tensor, data: ClientData, rows: TrainingBatch, query: LossQuery) -> Tensor:
    """Return the sums of l and of l^2 / L over each row's first sample, (G, 2) in float64, without their noise.

    Args:
        model: The model.
        weights: (G, d) the global models that the clients received.
        data: The clients' records.
        rows: The samples.
        query: Clipping.
    """
    x, targets, mask = first_sample(data, rows)
    losses = record_losses(model, weights, x, targets, query.clip).where(mask, 0.0)
    return torch.stack([losses.sum(1), (losses.square() / query.unit).sum(1)], dim=1)


def add_loss_noise_(sums: Tensor, query: LossQuery, key: Tensor, counter: Tensor) -> Tensor:
    """Add the noise of (key, counter), each (G,), to sums (G, 2) in place, and return them."""
    if query.noise > 0:
        ones = torch.ones(len(sums), device=sums.device)
        sums += query.deviation * add_normals_(torch.zeros(len(sums), 2, device=sums.device), key, counter, ones)
    return sums


def estimated_losses(sums: FloatArray, records: FloatArray, query: LossQuery) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the root mean square, (G,) each, of losses whose sums are (G, 2).

    ``records`` (G,) is the number of records in each sum, or the expected number under Poisson sampling.
    """
    square = sums[:, 1] * query.unit / records
    return sums[:, 0] / records, np.sqrt(np.maximum(square, 0.0))


class LossReports:
    """The latest reports of all clients in all replicas.

    Args:
        mechanism: The mechanism, with its `loss_query`.
        sizes: (R, U) training samples of each client.
        seeds: R seeds, one per replica.
        device: Where models are trained.
    """

    def __init__(self, mechanism: MechanismSpec, sizes: IntArray, seeds: Sequence[int], device: torch.device) -> None:
        assert mechanism.loss_query is not None
        self.query = mechanism.loss_query
        self._expected: FloatArray = mechanism.sample_rate * sizes
        self._values = {name: np.full(sizes.shape, np.nan) for name in STATISTICS}
        self._key = keys(seeds, "loss-noise", device)
        self._first_noise = torch.from_numpy(self.query.first_step_noise.astype(np.float32)).to(device)

    @property
    def latest(self) -> ClientLosses:
        """What a policy may see; the arrays are copies."""
        copies = {name: values.copy() for name, values in self._values.items()}
        return ClientLosses(**copies, protected=self.query.protected)

    def first_noise(self, replica: Tensor, client: Tensor) -> Tensor:
        """Return the noise (G,) of the first step of clients (G,) of replicas (G,)."""
        return self._first_noise[replica, client]

    def record(
        self,
        model: Model,
        weights: Tensor,
        data: ClientData,
        rows: TrainingBatch,
        clients: tuple[Tensor, Tensor],
        counter: Tensor,
    ) -> None:
        """Let clients report their losses under weights (G, d), before they train.

        Args:
            model: The model.
            weights: (G, d) the global models that the clients received.
            data: The clients' records.
            rows: The samples.
            clients: Replicas (G,) and clients (G,).
            counter: (G,) number of each upload, which selects its noise.
        """
        sums = loss_sums(model, weights, data, rows, self.query)
        add_loss_noise_(sums, self.query, self._key[clients[0]], counter)
        at = clients[0].cpu().numpy(), clients[1].cpu().numpy()
        counted = np.full(len(sums), rows.indices.shape[2], np.float64)
        if rows.mask.numel():
            counted = rows.mask[:, 0].sum(1).cpu().numpy().astype(np.float64)
        records = self._expected[at] if self.query.protected else np.maximum(counted, 1.0)
        statistics = estimated_losses(sums.cpu().numpy(), records, self.query)
        for name, values in zip(STATISTICS, statistics, strict=True):
            self._values[name][at] = values

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the reports as named arrays, for a checkpoint."""
        return {f"losses.{name}": values for name, values in self._values.items()}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Continue from the arrays that `to_arrays` returned."""
        for name, values in self._values.items():
            values[:] = fitting_array(arrays, f"losses.{name}", values)
