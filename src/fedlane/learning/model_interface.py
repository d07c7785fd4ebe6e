"""The interface of every model: flat weights, and scores of classes or numbers.

Weights are rows of a matrix (G, d) for G weight sets. Copying, noising and averaging models are then single operations.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from fedlane.learning.dataset_records import CLASSES, Objective


@dataclass(frozen=True)
class Batch:
    """B training samples for each of G weight sets."""

    x: Tensor
    """(G, B, ...): model inputs."""
    targets: Tensor
    """(G, B, M): one-hot labels, or numbers; (G, B, L): classes of sequences (see `Objective`)."""
    squares: Tensor | None = None
    """(G, B): squared norm of each input, if already computed."""
    counts: Tensor | None = None
    """(G,): number of places up to the last sample; later places are padding. None if all B places may hold samples."""
    records: Tensor | None = None
    """(G, B): if given, ``x``, ``targets`` and ``squares`` are the whole data set, (samples, ...), and these are the
    samples' indices in it. Only for models that read records in place (`Model.reads_records`)."""
    mask: Tensor | None = None
    """(G, B): True for the places that hold a record; None if all do. The other places have scale 0."""
    seeds: Tensor | None = None
    """(G,): 64-bit seeds for layers that draw random numbers, such as dropout."""
    starts: Tensor | None = None
    """(G + 1,): if given, the samples are not padded: ``x`` is (n, ...), ``targets`` (n, M), ``squares`` (n,), and
    samples starts[g] to starts[g + 1] belong to weight set g. Only for models that take such batches
    (`Model.takes_unpadded`)."""


class Model(ABC):
    """A model with flat weights."""

    objective: Objective = CLASSES
    """What the model learns."""
    size: int
    """d, the number of weights."""
    trained: int
    """Number of weights that gradients change: the first ones. The others are running statistics."""
    per_record: bool = True
    """Whether the model can be trained with gradients of single records, which clipping needs."""
    whole_batch: bool = False
    """Whether a batch passes through the model as a whole, not record by record; no CUDA graph can capture that."""
    smallest_batch: int = 1
    """Smallest number of records with which a step can be made."""
    test_batch: int | None = None
    """Number of samples that are evaluated together, for a model whose scores depend on it; None if they do not."""

    @abstractmethod
    def initial(self, seed: int) -> Tensor:
        """Return a replica's initial weights (d,)."""

    @abstractmethod
    def logits(self, weights: Tensor, x: Tensor) -> Tensor:
        """Return scores (G, B, M), or (G, B, L, M) of sequences.

        Args:
            weights: (G, d) weight sets.
            x: (G, B, ...) inputs, or (1, B, ...) shared by all weight sets.
        """

    @abstractmethod
    def descend(
        self, weights: Tensor, batch: Batch, clip_norm: float | None, scale: Tensor, into: Tensor | None = None
    ) -> None:
        """Subtract scale_s min(1, C / |g_s|) g_s, summed over the samples s, from ``into`` in place.

        g_s is the gradient of the loss of sample s at the weights. Without a clip norm, g_s is not clipped. With
        a clip norm, a sample whose gradient is not finite contributes nothing.

        Args:
            weights: (G, d) weights at which the gradients are taken.
            batch: The samples.
            clip_norm: C, or None for no clipping.
            scale: (G, B) factor of each sample, or (n,) if the batch is not padded.
            into: (G, d) array to update; the weights themselves if None.
        """

    def constants(self) -> dict[str, Tensor]:
        """Return tensors that are saved with the model and never trained, by name; none unless overridden."""
        return {}

    def reads_records(self, weights: Tensor) -> bool:
        """Return whether `descend` reads samples from the data set in place, on the device of these weights."""
        return False

    def takes_unpadded(self, weights: Tensor) -> bool:
        """Return whether `descend` takes samples of different lengths without padding, on the device of the weights."""
        return False

    @abstractmethod
    def bytes_per_sample(self) -> int:
        """Return the approximate memory in bytes that one sample needs during training."""

    @abstractmethod
    def tensors(self, weights: Tensor) -> dict[str, Tensor]:
        """Return one flat weight set (d,) as named tensors, for saving."""
