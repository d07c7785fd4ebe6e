"""The engine: batches that are not stored yet are computed by a runner and stored, each once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fedlane.experiments.engine.cells import unique_batches
from fedlane.experiments.engine.work_batches import FinishedBatch, WorkBatch


class Runner(Protocol):
    """Something that computes batches: this process, local processes, or Ray.

    Attributes:
        retried: Number of batches that were started again because their worker died.
    """

    retried: int

    def run(self, batches: Sequence[WorkBatch]) -> Iterator[FinishedBatch]:
        """Compute batches and yield each as it finishes, in any order. Closing the iterator stops the work."""


class ResultKeeper(Protocol):
    """Something that keeps results, such as a `BatchStore`."""

    def keys(self) -> set[str]:
        """Return the keys of the batches that need not be computed."""

    def write(self, key: str, content: bytes) -> None:
        """Keep a result, a Parquet file."""


@dataclass(frozen=True)
class EngineReport:
    """What the engine did.

    Attributes:
        computed: Number of batches that were computed and stored.
        reused: Number of batches that were stored before.
        retried: Number of batches that were started again because their worker died.
        failures: One line for each batch that failed, by its key.
    """

    computed: int
    reused: int
    retried: int
    failures: Mapping[str, str]


def compute(
    batches: Sequence[WorkBatch],
    store: ResultKeeper,
    runner: Runner,
    on_finished: Callable[[FinishedBatch], None] | None = None,
) -> EngineReport:
    """Compute the batches that are not stored, and store them.

    Args:
        batches: All batches of a study; a key that occurs twice is computed once.
        store: Where results are kept. Every result is stored as soon as it is there.
        runner: What computes them.
        on_finished: Called after each batch, stored or failed.

    Raises:
        InputError: A result cannot be stored, or the runner cannot work at all.
    """
    stored = store.keys()
    unique = unique_batches(batches)
    missing = [batch for batch in unique if batch.key not in stored]
    failures: dict[str, str] = {}
    results = runner.run(missing)
    try:
        for finished in results:
            if finished.content is not None:
                store.write(finished.key, finished.content)
            else:
                failures[finished.key] = finished.error or "failed"
            if on_finished is not None:
                on_finished(finished)
    finally:
        close = getattr(results, "close", None)  # stops the workers when the caller was interrupted
        if close is not None:
            close()
    computed = len(missing) - len(failures)
    return EngineReport(computed, len(unique) - len(missing), runner.retried, failures)
