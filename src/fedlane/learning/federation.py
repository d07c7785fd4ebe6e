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
from fedlane.learning.counter_rng import add_normals_, keys, largest_poisson_batch, normals
from fedlane.learning.datasets import Dataset, Samples
from fedlane.learning.evaluate import evaluate
from fedlane.learning.local import ClientData, Sampling, TrainingBatch, as_inputs, draw_samples, train_locally
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


class FederationBatch:
    """R federations side by side. ``weights`` (R, d) are their global models."""

    def __init__(
        self,
        model: Model,
        dataset: Dataset,
        label_counts: IntArray,
        seeds: Sequence[int],
        mechanism: MechanismSpec,
        learning_rate: float,
        device: str = "cpu",
    ) -> None:
        self.device = torch_device(device)
        self.model, self.mechanism, self.learning_rate = model, mechanism, learning_rate
        self.sizes = label_counts.sum(axis=2)
        _check_rates(mechanism, self.sizes)
        if mechanism.clip_norm is None and (mechanism.step_noise.any() or mechanism.upload_noise.any()):
            raise ValueError("noise needs a clip norm: without one it has no scale")
        orders = [
            assign_samples(counts, dataset.train.labels, seed) for counts, seed in zip(label_counts, seeds, strict=True)
        ]
        images, labels = _resident(dataset.train, self.device)
        self.test_images, self.test_labels = _resident(dataset.test, self.device)
        self.data = ClientData(
            images=images,
            targets=torch.nn.functional.one_hot(labels, dataset.info.classes).to(torch.float32),
            squares=_squares(images),
            order=torch.from_numpy(np.stack(orders).astype(np.int32)).to(self.device),
            start=torch.from_numpy(np.cumsum(self.sizes, axis=1) - self.sizes).to(self.device),
            size=torch.from_numpy(self.sizes).to(self.device),
        )
        self.sampling = sampling_of(mechanism, self.sizes, self.device)
        self._step_noise = torch.from_numpy(mechanism.step_noise.astype(np.float32)).to(self.device)
        self._upload_deviation = mechanism.upload_deviation(learning_rate)
        self.batch_key = keys(seeds, "batches", self.device)
        self.noise_key = keys(seeds, "upload-noise", self.device)
        self.step_key = keys(seeds, "step-noise", self.device)
        self._graph: RoundGraph | None = None
        self._at_once: int | None = None
        self.weights = torch.stack([model.initial(seed) for seed in seeds]).to(self.device)

    @torch.inference_mode()
    def play(self, round: int, client: IntArray, punctual: BoolArray) -> None:
        """One round: the punctual clients train from the global model, their noised models are averaged.

        client, punctual (R, N). A late client's model would be dropped, so on a CPU it is not trained at all; on a GPU
        every channel's client is, so that all rounds have one shape and replay as one captured graph.
        """
        uploads = Uploads.of(client, punctual, self.sizes)
        replicas = self._replicas_at_once(client.shape[1])
        if self.device.type == "cuda" and replicas >= len(self.weights):
            if self._graph is None or self._graph.channels != client.shape[1]:
                self._graph = RoundGraph(self, client.shape[1])
            self._graph.play(round, client, punctual, uploads)
            return
        for first in range(0, len(self.weights), replicas):
            part = uploads.part(first, first + replicas)
            if len(part.replica):
                self._play_part(torch.tensor(round, device=self.device), slice(first, first + replicas), part)

    def _play_part(self, round: Tensor, rows: slice, uploads: Uploads) -> None:
        index = torch.from_numpy(np.stack([uploads.replica, uploads.client])).to(self.device)
        weights = self.weights[rows]
        models = self.trained(round, index[0] + rows.start, index[1])
        aggregate_(weights, models, uploads)
        deviation = self.noise_of_average(uploads, rows)
        if deviation.any():
            noise = normals(self.noise_key[rows], round, self.model.size)
            weights += noise.mul_(torch.from_numpy(deviation).to(self.device)[:, None])

    def trained(self, round: Tensor, replica: Tensor, client: Tensor) -> Tensor:
        """The models (G, d) of clients (G,) of replicas (G,) after local training from their global models."""
        models = self.weights.index_select(0, replica)
        iterations = self.mechanism.local_iterations
        counter = (round * self.data.size.shape[1] + client) * iterations

        def add_noise(weights: Tensor, step: int, deviation: Tensor) -> object:
            return add_normals_(weights, self.step_key[replica], counter + step, deviation)

        indices, mask = draw_samples(
            self.data, self.sampling, self.batch_key[replica], replica, client, counter, iterations
        )
        rows = TrainingBatch(
            indices,
            mask,
            self.sampling.batch_size[replica, client],
            self._step_noise[replica, client],
            add_noise if self.mechanism.step_noise.any() else None,
        )
        train_locally(self.model, models, self.data, rows, self.learning_rate, self.mechanism.clip_norm)
        return models

    def noise_of_average(self, uploads: Uploads, rows: slice = slice(None)) -> NDArray[np.float32]:
        """The deviation of sum p_i n_i, (R,): independent Gaussians average to one Gaussian, which is drawn instead."""
        sigma = self._upload_deviation[rows][uploads.replica, uploads.client]
        count = len(self._upload_deviation[rows])
        return np.sqrt(np.bincount(uploads.replica, (uploads.share * sigma) ** 2, minlength=count)).astype(np.float32)

    def evaluate(self) -> Evaluation:
        """Accuracy and loss of every replica's global model."""
        accuracy, loss = evaluate(self.model, self.weights, self.test_images, self.test_labels, self._memory_bytes())
        return Evaluation(accuracy.cpu().numpy(), loss.cpu().numpy())

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """Every replica's model as named arrays; with several replicas, names begin with ``replicaN.``"""
        named = {}
        for r, weights in enumerate(self.weights.cpu().clone()):
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
        if self._at_once is None:
            per_client = self.sampling.most * self.model.bytes_per_sample() + 3 * 4 * self.model.size
            self._at_once = max(1, int(self._memory_bytes() / (channels * per_client)))
        return self._at_once


Federation = FederationBatch  # the old name


class RoundGraph:
    """A round of all replicas as one CUDA graph: hundreds of small launches become one replay."""

    def __init__(self, federation: FederationBatch, channels: int) -> None:
        self.federation, self.channels = federation, channels
        replicas, device = len(federation.weights), federation.device
        self._round = torch.zeros((), dtype=torch.int64, device=device)
        self._client = torch.zeros(replicas * channels, dtype=torch.int64, device=device)
        self._share = torch.zeros(replicas, 1, channels, device=device)
        self._present = torch.zeros(replicas, 1, dtype=torch.bool, device=device)
        self._deviation = torch.zeros(replicas, 1, device=device)
        self._replica = torch.arange(replicas, device=device).repeat_interleave(channels)
        self._noisy = bool(federation.mechanism.upload_noise.any())
        before = federation.weights.clone()
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # libraries set themselves up on a first pass that is not captured
            self._work()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._work()
        federation.weights.copy_(before)

    def _work(self) -> None:
        federation = self.federation
        weights = federation.weights
        models = federation.trained(self._round, self._replica, self._client)
        models = models.view(len(weights), self.channels, -1)
        models = torch.where(
            self._share.transpose(1, 2) > 0, models, 0.0
        )  # a late model counts for nothing, NaN or not
        average = torch.bmm(self._share, models)[:, 0]
        if self._noisy:
            average += normals(federation.noise_key, self._round, federation.model.size).mul_(self._deviation)
        weights.copy_(torch.where(self._present, average, weights))

    def play(self, round: int, client: IntArray, punctual: BoolArray, uploads: Uploads) -> None:
        """Fill in the round's inputs and replay."""
        share = np.zeros(client.shape, np.float32)
        share[punctual] = uploads.share  # both go replica by replica, channel by channel
        self._round.fill_(round)
        self._client.copy_(torch.from_numpy(np.maximum(client, 0).astype(np.int64).ravel()))
        self._share.copy_(torch.from_numpy(share[:, None]))
        self._present.copy_(torch.from_numpy(punctual.any(axis=1, keepdims=True)))
        self._deviation.copy_(torch.from_numpy(self.federation.noise_of_average(uploads)[:, None]))
        self._graph.replay()


def sampling_of(mechanism: MechanismSpec, sizes: IntArray, device: torch.device) -> Sampling:
    """How the mechanism samples from clients of sizes (R, U), on the device."""
    poisson = mechanism.sampling == "poisson"
    most = largest_poisson_batch(sizes, mechanism.sample_rate) if poisson else int(mechanism.asked_batch.max())
    return Sampling(
        poisson=poisson,
        batch_size=torch.from_numpy(mechanism.batch_size).to(device),
        rate=torch.from_numpy(mechanism.sample_rate).to(device),
        most=most,
        equal=not poisson and bool(np.all(mechanism.batch_size == most)),
    )


def _check_rates(mechanism: MechanismSpec, sizes: IntArray) -> None:
    """Refuse a mechanism that was made for other data: its accounting would not be that of what is done here."""
    if mechanism.batch_size.shape != sizes.shape:
        raise ValueError(f"the mechanism is for {mechanism.batch_size.shape} clients, the data for {sizes.shape}")
    short = mechanism.sample_rate < mechanism.batch_size / sizes * (1 - 1e-9)
    if np.any(short) or np.any(mechanism.batch_size > sizes):
        raise ValueError("the mechanism was made for larger data sets than these: its sample rate is too small")


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
    """Images and labels on the device: bytes on a CPU, floats on a GPU."""
    images = torch.from_numpy(np.array(samples.images)).to(device)
    return images if device.type == "cpu" else as_inputs(images), torch.from_numpy(samples.labels).to(device)


def _squares(images: Tensor) -> Tensor:
    """The squared norm of each image as an input, a few thousand at a time."""
    return torch.cat([as_inputs(piece).flatten(1).square().sum(1) for piece in torch.split(images, 4096)])
