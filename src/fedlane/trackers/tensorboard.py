"""TensorBoard tracker: event files in one folder, and in a subfolder per seed if there are several."""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlane.records import RoundRecord
from fedlane.trackers.values import PER_SEED, flattened, headline
from fedlane.validate import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.utils.tensorboard import SummaryWriter

    from fedlane.scenario import Scenario


class TensorBoardTracker:
    """Writes means over seeds to ``folder`` and each seed's curves to ``folder``/seed-N; the step is the round.

    Args:
        folder: Folder of the event files; created if it does not exist.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parameters: dict[str, Any] = {}
        self._writers: list[SummaryWriter] = []

    def start(self, scenario: "Scenario", policy: str, seeds: Sequence[int], *, round: int = 0) -> None:
        """Open the event files and write the scenario as text."""
        from torch.utils.tensorboard import SummaryWriter

        folders = [self.folder]
        if 1 < len(seeds) <= PER_SEED:
            folders += [self.folder / f"seed-{seed}" for seed in seeds]
        with self._errors():
            # A resumed run discards the events written after its checkpoint.
            self._writers = [SummaryWriter(str(folder), purge_step=round or None) for folder in folders]
        self._parameters = {**flattened(scenario), "policy": policy, "seeds": len(seeds)}
        if not round:
            rows = "\n".join(f"| {key} | {value} |" for key, value in self._parameters.items())
            self._writers[0].add_text("scenario", f"| key | value |\n|---|---|\n{rows}", 0)

    def round(self, record: RoundRecord) -> None:
        """Write one round."""
        mean, *per_seed = self._writers
        with self._errors():
            for name, values in record.values().items():
                mean.add_scalar(name, float(values.mean()), record.round)
                for writer, value in zip(per_seed, values, strict=False):
                    writer.add_scalar(name, float(value), record.round)

    def end(self, summary: Mapping[str, Any] | None, state: str) -> None:
        """Write the summary of a finished run and close the files."""
        writers, self._writers = self._writers, []
        with self._errors():
            if summary is not None and state == "finished" and writers:
                measures = {f"summary/{name}": value for name, value in headline(summary).items()}
                writers[0].add_hparams(self._parameters, measures, run_name=".")
            for writer in writers:
                writer.close()

    @contextmanager
    def _errors(self) -> "Iterator[None]":
        """Raise a one-line `InputError` if the folder cannot be written or the disk is full."""
        try:
            yield
        except OSError as error:
            reason = error.strerror or error
            raise InputError(f"TensorBoard folder {self.folder} cannot be written: {reason}") from error
