"""The federations of all replicas on one device: global models, clients' data, and a round of learning.

The inputs of a round are the client on each channel and whether it was punctual, from a running simulation or from a
saved schedule. Only PyTorch and NumPy are needed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlane.learning.aggregate import Uploads, aggregate_
from fedlane.learning.counter_rng import CounterNoise, bits, keys, normals
from fedlane.learning.datasets import Dataset
from fedlane.learning.devices import resident, squared_norms, torch_device
from fedlane.learning.evaluate import evaluate
from fedlane.learning.federation_checks import check_model, check_rates
from fedlane.learning.local import ClientData, TrainingBatch, train_locally
from fedlane.learning.loss_reports import LossReports
from fedlane.learning.losses import training_targets
from fedlane.learning.model_interface import Model
from fedlane.learning.optimization import Optimization
from fedlane.learning.partition import sample_order, stacked_orders
from fedlane.learning.round_graph import RoundGraph
from fedlane.learning.sampling import draw_samples, sampling_of, with_more_places, without_unused_places
from fedlane.learning.server_step import ServerStep
from fedlane.records import BoolArray, FloatArray, IntArray, MechanismSpec
from fedlane.validate import InputError, check_proximal

__all__ = ["Evaluation", "Federation", "FederationBatch", "torch_device"]

CPU_MEMORY_BYTES = 2e9
"""Memory in bytes that one chunk of work may use on a CPU, which leaves room for other programs."""

ROUNDS_BETWEEN_CHECKS = 64
"""Rounds that a GPU plays before it is asked whether all samples had enough places."""

PLAIN = Optimization()


@dataclass(frozen=True)
class Evaluation:
    """Results of each replica's model on the whole test set.

    Attributes:
        accuracy: (R,) share of test samples that are classified correctly; NaN where numbers are learned.
        loss: (R,) mean cross-entropy, or mean squared error.
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
        optimization: Local and server optimisers, aggregation and learning-rate schedule; federated averaging by
            default.

    Attributes:
        server: The server's optimiser and its memory.
        weights: (R, d) global models.
        sizes: (R, U) training samples of each client.
        losses: The losses that clients reported; None if the mechanism has no `loss_query`. With it, replicas train one
            by one: a schedule that follows from losses must not depend on how products of other replicas are rounded.

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
        optimization: Optimization = PLAIN,
    ) -> None:
        self.device = torch_device(device)
        self.model, self.mechanism, self.learning_rate = model, mechanism, learning_rate
        self.optimization = optimization
        self.sizes = label_counts.sum(axis=2)
        check_rates(mechanism, self.sizes)
        check_model(model, mechanism)
        check_proximal(optimization.proximal, learning_rate)
        samples = dataset.train
        orders = [sample_order(n, samples.labels, samples.clients, s) for n, s in zip(label_counts, seeds, strict=True)]
        images, labels = resident(dataset.train, self.device)
        self.test_images, self.test_labels = resident(dataset.test, self.device)
        self.data = ClientData(
            images=images,
            targets=training_targets(model.objective, labels, dataset.info.classes),
            squares=squared_norms(images),
            order=torch.from_numpy(stacked_orders(orders)).to(self.device),
            start=torch.from_numpy(np.cumsum(self.sizes, axis=1) - self.sizes).to(self.device),
            size=torch.from_numpy(self.sizes).to(self.device),
        )
        self.sampling = sampling_of(mechanism, self.sizes, self.device)
        self._step_noise = torch.from_numpy(mechanism.step_noise.astype(np.float32)).to(self.device)
        self._rate: Tensor | None = None
        if optimization.learning_rate_schedule != "constant":  # a captured graph reads the round's rate from here
            self._rate = torch.zeros((), device=self.device)
        self._upload_deviation = mechanism.upload_deviation(learning_rate)
        self.batch_key = keys(seeds, "batches", self.device)
        self.noise_key = keys(seeds, "upload-noise", self.device)
        self.step_key = keys(seeds, "step-noise", self.device)
        self.layer_key = keys(seeds, "layers", self.device)
        self._graph: RoundGraph | None = None
        self._at_once: int | None = None
        self._weights = torch.stack([model.initial(seed) for seed in seeds]).to(self.device)
        self.server = ServerStep(optimization, self._weights, model.trained, self.sizes.shape[1])
        self.losses = None if mechanism.loss_query is None else LossReports(mechanism, self.sizes, seeds, self.device)
        self._checked = self._weights  # the models before the rounds in `_unchecked`
        self._checked_server = self.server.snapshot()
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
        replicas = self._replicas_at_once(client.shape[1])
        captured = self.device.type == "cuda" and not self.model.whole_batch and replicas >= len(self._weights)
        captured = captured and self.losses is None
        if captured and not self._unchecked:
            self._checked, self._checked_server = self._weights.clone(), self.server.snapshot()
        uploads = Uploads.of(client, punctual, self.server.upload_weights(client, punctual, self.sizes))
        self._set_rate(round)
        if captured:
            if self._graph is None or self._graph.channels != client.shape[1]:
                self._graph = RoundGraph(self, client.shape[1])
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
            self.server.rewind(self._checked_server)
            for round, client, punctual in rounds:
                self.play(round, client, punctual)
            self._check_rounds()

    def _set_rate(self, round: int) -> None:
        """Set the learning rate of a round, and the deviation of an upload's noise, which scales with it."""
        rate = self.learning_rate * self.optimization.rate_factor(round)
        if self._rate is not None:
            self._rate.fill_(rate)
        local, noisy = self.optimization.local, self.mechanism.upload_noise.any()
        if noisy and (local is not None or self._rate is not None):
            weight = 1.0 if local is None else local.first_step_weight(rate, self.mechanism.local_iterations)
            if weight <= 0:
                raise InputError(
                    "learning.momentum and learning.proximal are too large together: steps would oscillate"
                )
            self._upload_deviation = self.mechanism.upload_deviation(rate) * weight

    def _widen(self) -> None:
        self.sampling, self._graph, self._at_once = with_more_places(self.sampling), None, None

    def _play_part(self, round: Tensor, rows: slice, uploads: Uploads) -> None:
        index = torch.from_numpy(np.stack([uploads.replica, uploads.client])).to(self.device)
        weights = self._weights[rows]
        models = self.trained(round, index[0] + rows.start, index[1])
        while bool(self.sampling.overflow):  # a sample had more records than places
            self._widen()
            models = self.trained(round, index[0] + rows.start, index[1])
        previous = None if self.optimization.averages else weights.clone()
        aggregate_(weights, models, uploads)
        deviation = self.noise_of_average(uploads, rows)
        if deviation.any():
            noise = normals(self.noise_key[rows], round, self.model.size)
            weights += noise.mul_(torch.from_numpy(deviation).to(self.device)[:, None])
        if previous is not None:
            updated = torch.zeros(len(weights), 1, dtype=torch.bool, device=self.device)
            updated[index[0]] = True
            self.server.apply_(weights, previous, updated, round, rows)

    def trained(self, round: Tensor, replica: Tensor, client: Tensor) -> Tensor:
        """Return the models (G, d) of clients (G,) of replicas (G,) after local training from their global models."""
        models = self._weights.index_select(0, replica)
        rows = self._training_batch(round, replica, client)
        if self.losses is not None:
            upload = round * self.data.size.shape[1] + client
            self.losses.record(self.model, models, self.data, rows, (replica, client), upload)
        rate = self.learning_rate if self._rate is None else self._rate
        train_locally(self.model, models, self.data, rows, rate, self.mechanism.clip_norm, self.optimization.local)
        return models

    def _training_batch(self, round: Tensor, replica: Tensor, client: Tensor) -> TrainingBatch:
        """Return the samples and the noise of a round's clients (G,) of replicas (G,)."""
        iterations, losses = self.mechanism.local_iterations, self.losses
        counter = (round * self.data.size.shape[1] + client) * iterations
        indices, mask = draw_samples(
            self.data, self.sampling, self.batch_key[replica], replica, client, counter, iterations
        )
        if losses is not None:  # the number of places depends on the other replicas
            indices, mask = without_unused_places(indices, mask)
        return TrainingBatch(
            indices,
            mask,
            self.sampling.batch_size[replica, client],
            self._step_noise[replica, client],
            CounterNoise(self.step_key[replica], counter) if self.mechanism.step_noise.any() else None,
            None if self.model.per_record else self._layer_seeds(replica, counter),
            None if losses is None else losses.first_noise(replica, client),
        )

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

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the global models, the server's memory and reported losses by name, for a checkpoint."""
        losses = {} if self.losses is None else self.losses.to_arrays()
        return {"weights": self.weights.cpu().numpy(), **self.server.to_arrays(), **losses}

    def restore(self, weights: NDArray[np.float32], server: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Continue from saved global models (R, d), and the server's memory and losses, which many runs have not."""
        if weights.shape != tuple(self.weights.shape):
            raise ValueError(f"weights must have shape {tuple(self.weights.shape)}, got {weights.shape}")
        self._unchecked = []
        self._weights.copy_(torch.from_numpy(weights))
        self.server.restore(server or {})
        if self.losses is not None:
            self.losses.restore(server or {})

    def _memory_bytes(self) -> float:
        if self.device.type == "cpu":
            return CPU_MEMORY_BYTES
        free, _ = torch.cuda.mem_get_info(self.device)
        return 0.7 * (free + torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device))

    def _replicas_at_once(self, channels: int) -> int:
        """Return the number of replicas whose clients train together: as many as fit into memory, without losses."""
        if self.losses is not None:
            return 1
        if self._at_once is None:
            per_client = self.sampling.max_batch * self.model.bytes_per_sample() + 3 * 4 * self.model.size
            self._at_once = max(1, int(self._memory_bytes() / (channels * per_client)))
        return self._at_once


Federation = FederationBatch  # old name
