"""The federations of all replicas on one device: global models, clients' data, and a round of learning.

The inputs of a round are the client on each channel and whether it was punctual, from a running simulation or from a
saved schedule. Only PyTorch and NumPy are needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlane.learning.aggregate import Uploads, aggregate_
from fedlane.learning.counter_rng import CounterNoise, bits, keys, normals
from fedlane.learning.datasets import Dataset, Samples
from fedlane.learning.evaluate import evaluate
from fedlane.learning.input_range import check_inputs
from fedlane.learning.local import ClientData, TrainingBatch, as_inputs, train_locally
from fedlane.learning.model_interface import Model
from fedlane.learning.partition import sample_order
from fedlane.learning.round_graph import RoundGraph
from fedlane.learning.sampling import draw_samples, sampling_of, with_more_places
from fedlane.records import BoolArray, FloatArray, IntArray, MechanismSpec
from fedlane.validate import InputError

CPU_MEMORY_BYTES = 2e9
"""Memory in bytes that one chunk of work may use on a CPU, which leaves room for other programs."""

ROUNDS_BETWEEN_CHECKS = 64
"""Rounds that a GPU plays before it is asked whether all samples had enough places."""


@dataclass(frozen=True)
class Evaluation:
    """Results of each replica's model on the whole test set.

    Attributes:
        accuracy: (R,) share of test samples that are classified correctly.
        loss: (R,) mean cross-entropy.
    """

    accuracy: FloatArray
    loss: FloatArray


class FederationBatch:
    """R federations that learn together, one per replica.

    Args:
        model: The model.
        dataset: The data set that is divided among the clients; by `Samples.clients` if it has them.
        label_counts: (R, U, M) training samples of each class at each client.
        seeds: R seeds, one per replica.
        mechanism: Clipping, sampling and noise.
        learning_rate: Learning rate eta of local training.
        device: `cpu` or `cuda`.

    Attributes:
        weights: (R, d) global models.
        sizes: (R, U) training samples of each client.

    Raises:
        ValueError: If the mechanism does not fit the data, or adds noise without a clip norm.
        InputError: If the device is unknown or unavailable.

    Examples:
        >>> import numpy as np
        >>> from fedlane.learning.datasets import load_dataset
        >>> from fedlane.learning.models import make_model
        >>> from fedlane.records import MechanismSpec
        >>> data = load_dataset("fashion-mnist-mini")
        >>> counts = np.full((1, 4, 10), 200)  # one replica, four clients, 200 samples of each class
        >>> sgd = MechanismSpec.simple(counts.sum(axis=2), batch_size=32, local_iterations=5)
        >>> model = make_model("softmax", data.info.input_shape, data.info.classes)
        >>> federation = FederationBatch(model, data, counts, [0], sgd, learning_rate=0.1)
        >>> for t in range(10):
        ...     federation.play(t, client=np.array([[0, 1, 2]]), punctual=np.array([[True, True, False]]))
        >>> bool(federation.evaluate().accuracy[0] > 0.5)
        True
    """

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
        _check_model(model, mechanism)
        samples = dataset.train
        orders = [sample_order(n, samples.labels, samples.clients, s) for n, s in zip(label_counts, seeds, strict=True)]
        images, labels = _resident(dataset.train, self.device)
        self.test_images, self.test_labels = _resident(dataset.test, self.device)
        self.data = ClientData(
            images=images,
            targets=torch.nn.functional.one_hot(labels, dataset.info.classes).to(torch.float32),
            squares=_squares(images),
            order=torch.from_numpy(_stacked(orders)).to(self.device),
            start=torch.from_numpy(np.cumsum(self.sizes, axis=1) - self.sizes).to(self.device),
            size=torch.from_numpy(self.sizes).to(self.device),
        )
        self.sampling = sampling_of(mechanism, self.sizes, self.device)
        self._step_noise = torch.from_numpy(mechanism.step_noise.astype(np.float32)).to(self.device)
        self._upload_deviation = mechanism.upload_deviation(learning_rate)
        self.batch_key = keys(seeds, "batches", self.device)
        self.noise_key = keys(seeds, "upload-noise", self.device)
        self.step_key = keys(seeds, "step-noise", self.device)
        self.layer_key = keys(seeds, "layers", self.device)
        self._graph: RoundGraph | None = None
        self._at_once: int | None = None
        self._weights = torch.stack([model.initial(seed) for seed in seeds]).to(self.device)
        self._checked = self._weights  # the models before the rounds in `_unchecked`
        self._unchecked: list[tuple[int, IntArray, BoolArray]] = []

    @property
    def weights(self) -> Tensor:
        """(R, d) global models."""
        self._check_rounds()
        return self._weights

    @torch.no_grad()  # not inference_mode: under it, torch.func.grad of older PyTorch versions returns zeros
    def play(self, round: int, client: IntArray, punctual: BoolArray) -> None:
        """Play one round: the punctual clients train from the global model, and their noised models are averaged.

        A late client's model is dropped, so on a CPU it is not trained. On a GPU the clients of all channels are
        trained: all rounds then have the same shape and replay one captured graph.

        Args:
            round: The round's number, from 0; it selects the random numbers.
            client: (R, N) client on each channel, -1 where the channel is idle.
            punctual: (R, N) whether that client met the deadline.
        """
        uploads = Uploads.of(client, punctual, self.sizes)
        replicas = self._replicas_at_once(client.shape[1])
        if self.device.type == "cuda" and not self.model.whole_batch and replicas >= len(self._weights):
            if self._graph is None or self._graph.channels != client.shape[1]:
                self._graph = RoundGraph(self, client.shape[1])
            if not self._unchecked:
                self._checked = self._weights.clone()
            self._unchecked.append((round, client, punctual))
            self._graph.play(round, client, punctual, uploads)
            if len(self._unchecked) >= ROUNDS_BETWEEN_CHECKS:
                self._check_rounds()
            return
        for first in range(0, len(self._weights), replicas):
            part = uploads.part(first, first + replicas)
            if len(part.replica):
                self._play_part(torch.tensor(round, device=self.device), slice(first, first + replicas), part)

    def _check_rounds(self) -> None:
        """Play the latest rounds again if a Poisson sample had more records than places: no record is dropped.

        A GPU plays rounds without waiting for their results, so it is asked only now and then.
        """
        if not self._unchecked:
            return
        rounds, self._unchecked = self._unchecked, []
        if bool(self.sampling.overflow):
            self._widen()
            self._weights.copy_(self._checked)
            for round, client, punctual in rounds:
                self.play(round, client, punctual)
            self._check_rounds()

    def _widen(self) -> None:
        self.sampling, self._graph, self._at_once = with_more_places(self.sampling), None, None

    def _play_part(self, round: Tensor, rows: slice, uploads: Uploads) -> None:
        index = torch.from_numpy(np.stack([uploads.replica, uploads.client])).to(self.device)
        weights = self._weights[rows]
        models = self.trained(round, index[0] + rows.start, index[1])
        while bool(self.sampling.overflow):  # a sample had more records than places
            self._widen()
            models = self.trained(round, index[0] + rows.start, index[1])
        aggregate_(weights, models, uploads)
        deviation = self.noise_of_average(uploads, rows)
        if deviation.any():
            noise = normals(self.noise_key[rows], round, self.model.size)
            weights += noise.mul_(torch.from_numpy(deviation).to(self.device)[:, None])

    def trained(self, round: Tensor, replica: Tensor, client: Tensor) -> Tensor:
        """Return the models (G, d) of clients (G,) of replicas (G,) after local training from their global models."""
        models = self._weights.index_select(0, replica)
        iterations = self.mechanism.local_iterations
        counter = (round * self.data.size.shape[1] + client) * iterations
        indices, mask = draw_samples(
            self.data, self.sampling, self.batch_key[replica], replica, client, counter, iterations
        )
        rows = TrainingBatch(
            indices,
            mask,
            self.sampling.batch_size[replica, client],
            self._step_noise[replica, client],
            CounterNoise(self.step_key[replica], counter) if self.mechanism.step_noise.any() else None,
            None if self.model.per_record else self._layer_seeds(replica, counter),
        )
        train_locally(self.model, models, self.data, rows, self.learning_rate, self.mechanism.clip_norm)
        return models

    def _layer_seeds(self, replica: Tensor, counter: Tensor) -> Tensor:
        """Return the seeds (G, tau) of random layers; they follow from the replica's seed, round, client and step."""
        steps = torch.arange(self.mechanism.local_iterations, device=self.device)
        return bits(self.layer_key[replica][:, None], counter[:, None] + steps)

    def noise_of_average(self, uploads: Uploads, rows: slice = slice(None)) -> NDArray[np.float32]:
        """Return the standard deviation (R,) of sum p_i n_i, which is Gaussian and therefore drawn once."""
        sigma = self._upload_deviation[rows][uploads.replica, uploads.client]
        count = len(self._upload_deviation[rows])
        return np.sqrt(np.bincount(uploads.replica, (uploads.share * sigma) ** 2, minlength=count)).astype(np.float32)

    def evaluate(self) -> Evaluation:
        """Test every replica's global model.

        Returns:
            Accuracy and loss on the whole test set.
        """
        accuracy, loss = evaluate(self.model, self.weights, self.test_images, self.test_labels, self._memory_bytes())
        return Evaluation(accuracy.cpu().numpy(), loss.cpu().numpy())

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Return every replica's model as named arrays, including its constants.

        Returns:
            Arrays by name; with several replicas, names begin with `replicaN.`.
        """
        named = {}
        for r, weights in enumerate(self.weights.cpu().clone()):
            prefix = f"replica{r}." if len(self.weights) > 1 else ""
            tensors = {**self.model.tensors(weights), **self.model.constants()}
            named.update({prefix + name: tensor.numpy() for name, tensor in tensors.items()})
        return named

    def restore(self, weights: NDArray[np.float32]) -> None:
        """Continue from saved global models (R, d)."""
        if weights.shape != tuple(self.weights.shape):
            raise ValueError(f"weights must have shape {tuple(self.weights.shape)}, got {weights.shape}")
        self._unchecked = []
        self._weights.copy_(torch.from_numpy(weights))

    def _memory_bytes(self) -> float:
        if self.device.type == "cpu":
            return CPU_MEMORY_BYTES
        free, _ = torch.cuda.mem_get_info(self.device)
        return 0.7 * (free + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device))

    def _replicas_at_once(self, channels: int) -> int:
        """Return the number of replicas whose clients can train in memory together."""
        if self._at_once is None:
            per_client = self.sampling.max_batch * self.model.bytes_per_sample() + 3 * 4 * self.model.size
            self._at_once = max(1, int(self._memory_bytes() / (channels * per_client)))
        return self._at_once


Federation = FederationBatch  # old name


def _check_rates(mechanism: MechanismSpec, sizes: IntArray) -> None:
    """Reject a mechanism for other data, because its privacy accounting would not describe this training."""
    if mechanism.batch_size.shape != sizes.shape:
        raise ValueError(f"the mechanism is for {mechanism.batch_size.shape} clients, the data for {sizes.shape}")
    short = mechanism.sample_rate < mechanism.batch_size / sizes * (1 - 1e-9)
    if np.any(short) or np.any(mechanism.batch_size > sizes):
        raise ValueError("the mechanism was made for larger data sets: its sample rate is too small")


def _check_model(model: Model, mechanism: MechanismSpec) -> None:
    """Reject a model that the mechanism cannot train."""
    if mechanism.clip_norm is not None and not model.per_record:
        raise ValueError("clipping needs a model with gradients of single records (per_record=True)")
    if int(mechanism.batch_size.min()) < model.smallest_batch:
        replica, client = np.argwhere(mechanism.batch_size < model.smallest_batch)[0]
        raise InputError(
            f"this model needs at least {model.smallest_batch} records in a batch, but client {client} has a batch of "
            f"{mechanism.batch_size[replica, client]}: raise learning.batch_size, or use GroupNorm"
        )


def torch_device(name: str) -> torch.device:
    """Return the device by name; on a GPU, matrix products may use bfloat16 and TF32 (norms are summed in float32)."""
    if name == "cuda":
        if not torch.cuda.is_available():
            raise InputError("device cuda is not available here: PyTorch finds no GPU")
        torch.set_float32_matmul_precision("high")
    elif name != "cpu":
        raise InputError(f"device must be cpu or cuda, got '{name}'")
    return torch.device(name)


def _resident(samples: Samples, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return images, bytes if the data set has bytes, and labels on the device."""
    images = torch.from_numpy(np.array(samples.images)).to(device)
    check_inputs(images)
    return images, torch.from_numpy(samples.labels).to(device)


def _stacked(orders: Sequence[IntArray]) -> NDArray[np.int32]:
    """Return the orders of all replicas as one array; natural clients of two replicas may have different totals."""
    stacked = np.zeros((len(orders), max(map(len, orders))), np.int32)
    for row, order in zip(stacked, orders, strict=True):
        row[: len(order)] = order
    return stacked


def _squares(images: Tensor) -> Tensor:
    """Return the squared norm of each image as a model input, a few thousand at a time; 0 for tokens."""
    if as_inputs(images[:1]).dtype == torch.int64:
        return torch.zeros(len(images), device=images.device)
    return torch.cat([as_inputs(piece).flatten(1).square().sum(1) for piece in torch.split(images, 4096)])
