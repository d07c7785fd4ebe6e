"""All replicas' federations on one device: their models, their clients' data, and one round of learning for all.

It learns from a schedule (who used which channel, and who was punctual), whether that comes round by round or was
computed elsewhere; it needs PyTorch and NumPy alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlane.learning.aggregate import Uploads, aggregate_
from fedlane.learning.datasets import Dataset, Samples
from fedlane.learning.draws import keys, normals
from fedlane.learning.evaluate import evaluate
from fedlane.learning.local import ClientData, LocalTask, draw_batches, train_locally
from fedlane.learning.models import Model
from fedlane.learning.partition import assign_samples
from fedlane.records import BoolArray, FloatArray, IntArray, MechanismSpec
from fedlane.validate import InputError

CPU_MEMORY_BYTES = 2e9
"""What a piece of work may take on a CPU, where the rest of the machine is somebody else's."""


@dataclass(frozen=True)
class Evaluation:
    """Each replica's model on the whole test set, (R,)."""

    accuracy: FloatArray
    loss: FloatArray


class Federation:
    """R federations side by side. ``weights`` (R, d) are their global models."""

    def __init__(
        self,
        model: Model,
        dataset: Dataset,
        label_counts: IntArray,
        seeds: Sequence[int],
        task: LocalTask,
        mechanism: MechanismSpec,
        batch_size: IntArray,
        device: str = "cpu",
    ) -> None:
        self.device = torch_device(device)
        self.model, self.task, self.mechanism = model, task, mechanism
        self.sizes = label_counts.sum(axis=2)
        orders = [
            assign_samples(counts, dataset.train.labels, seed) for counts, seed in zip(label_counts, seeds, strict=True)
        ]
        inputs, labels = _resident(dataset.train, self.device)
        self.test_inputs, self.test_labels = _resident(dataset.test, self.device)
        batches = np.minimum(batch_size, self.sizes.min(axis=0))
        self.data = ClientData(
            inputs=inputs,
            targets=torch.nn.functional.one_hot(labels, dataset.info.classes).to(torch.float32),
            squares=inputs.flatten(1).square().sum(1),
            order=torch.from_numpy(np.stack(orders).astype(np.int32)).to(self.device),
            start=torch.from_numpy(np.cumsum(self.sizes, axis=1) - self.sizes).to(self.device),
            size=torch.from_numpy(self.sizes).to(self.device),
            batch_size=torch.from_numpy(batches).to(self.device),
            largest_batch=int(batches.max()),
            equal_batches=bool(np.all(batches == batches[0])),
        )
        self.batch_key = keys(seeds, "batches", self.device)
        self.noise_key = keys(seeds, "upload-noise", self.device)
        self.weights = torch.stack([model.initial(seed) for seed in seeds]).to(self.device)

    @torch.inference_mode()
    def play(self, round: int, client: IntArray, punctual: BoolArray) -> None:
        """One round: the punctual clients train from the global model, their noised models are averaged.

        client, punctual (R, N). A late client's model would be dropped, so it is not trained.
        """
        uploads = Uploads.of(client, punctual, self.sizes)
        replicas = self._replicas_at_once(client.shape[1])
        for first in range(0, len(self.weights), replicas):
            part = uploads.part(first, first + replicas)
            if len(part.replica):
                self._play_part(round, slice(first, first + replicas), part)

    def _play_part(self, round: int, rows: slice, uploads: Uploads) -> None:
        index = torch.from_numpy(np.stack([uploads.replica, uploads.client])).to(self.device)
        replica, client = index[0], index[1]
        weights = self.weights[rows]
        models = weights.index_select(0, replica)
        within = replica + (rows.start or 0)
        batch = self.data.batch_size[client]
        indices, mask = draw_batches(self.data, self.batch_key, within, client, round, self.task.local_iterations)
        train_locally(self.model, self.task, models, self.data, indices, mask, batch)
        aggregate_(weights, models, uploads)
        deviation = self._noise_of_average(rows, uploads)
        if deviation.any():
            noise = normals(self.noise_key[rows], round, self.model.size)
            weights += noise.mul_(torch.from_numpy(deviation).to(self.device)[:, None])

    def _noise_of_average(self, rows: slice, uploads: Uploads) -> NDArray[np.float32]:
        """The deviation of sum p_i n_i, (R,): independent Gaussians average to one Gaussian, which is drawn instead."""
        sigma = self.mechanism.upload_noise[rows][uploads.replica, uploads.client]
        count = len(self.weights[rows])
        return np.sqrt(np.bincount(uploads.replica, (uploads.share * sigma) ** 2, minlength=count)).astype(np.float32)

    def evaluate(self) -> Evaluation:
        """Accuracy and loss of every replica's global model."""
        accuracy, loss = evaluate(self.model, self.weights, self.test_inputs, self.test_labels, self._memory_bytes())
        return Evaluation(accuracy.cpu().numpy(), loss.cpu().numpy())

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Every replica's model as named arrays; with several replicas, names begin with ``replicaN.``"""
        named = {}
        for r, weights in enumerate(self.weights.cpu()):
            prefix = f"replica{r}." if len(self.weights) > 1 else ""
            named.update({prefix + name: tensor.numpy() for name, tensor in self.model.tensors(weights).items()})
        return named

    def restore(self, weights: NDArray[np.float32]) -> None:
        """Go on from saved global models (R, d)."""
        if weights.shape != tuple(self.weights.shape):
            raise ValueError(f"weights must have shape {tuple(self.weights.shape)}, got {weights.shape}")
        self.weights.copy_(torch.from_numpy(weights))

    def _memory_bytes(self) -> float:
        if self.device.type == "cpu":
            return CPU_MEMORY_BYTES
        free, _ = torch.cuda.mem_get_info(self.device)
        return 0.7 * (free + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device))

    def _replicas_at_once(self, channels: int) -> int:
        """How many replicas fit into memory while their clients train."""
        per_client = self.data.largest_batch * self.model.bytes_per_sample() + 3 * 4 * self.model.size
        return max(1, int(self._memory_bytes() / (channels * per_client)))


def torch_device(name: str) -> torch.device:
    """The device by name; on a GPU, matrix products may use TF32 (norms are summed in float32)."""
    if name == "cuda":
        if not torch.cuda.is_available():
            raise InputError("device cuda is not available here: PyTorch sees no GPU")
        torch.set_float32_matmul_precision("high")
    elif name != "cpu":
        raise InputError(f"device must be cpu or cuda, got '{name}'")
    return torch.device(name)


def _resident(samples: Samples, device: torch.device) -> tuple[Tensor, Tensor]:
    """Images as floats in [0, 1] and labels, on the device."""
    images = torch.from_numpy(np.array(samples.images)).to(device)
    return images.to(torch.float32).div_(255.0), torch.from_numpy(samples.labels).to(device)
