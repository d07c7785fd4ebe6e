"""The losses that clients of a federation have reported with their last accepted updates."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import RecordDict

from fedlane.files import fitting_array
from fedlane.flower.protocol import LARGEST, LOSSES, LossReport
from fedlane.records import ClientLosses
from fedlane.scheduling.policy import with_clients
from fedlane.validate import InputError


def read_losses(content: RecordDict) -> LossReport | None:
    """Return the losses in a reply, or None; raise `ProtocolError` if they are malformed."""
    return LossReport.read(content) if LOSSES in content else None


class ReportedLosses:
    """Each client's last report, (1, U); NaN for a client that has not reported any."""

    def __init__(self) -> None:
        self.mean, self.rms = np.zeros((1, 0)), np.zeros((1, 0))
        self.protected = np.zeros((1, 0), np.bool_)

    def resize(self, clients: int) -> None:
        """Make room for clients that have joined."""
        self.mean, self.rms = (
            with_clients(np.full((1, clients), np.nan), values, axis=1) for values in (self.mean, self.rms)
        )
        self.protected = with_clients(np.ones((1, clients), np.bool_), self.protected, axis=1)

    def record(self, reports: Mapping[int, LossReport]) -> None:
        """Store the reports of a round, by client."""
        for client, report in reports.items():
            at = 0, client
            self.mean[at], self.rms[at], self.protected[at] = report.mean, report.rms, report.protected

    def latest(self) -> ClientLosses:
        """Return what a policy may see; the arrays are copies."""
        return ClientLosses(self.mean.copy(), self.rms.copy(), bool(self.protected.all()))

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the arrays of a checkpoint by name."""
        return {f"losses.{name}": values for name, values in vars(self).items()}

    def restore(self, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Continue from the arrays of a checkpoint.

        Raises:
            InputError: No run can have written them.
        """
        mean, rms, protected = (fitting_array(arrays, f"losses.{name}", like) for name, like in vars(self).items())
        if not np.all(np.isnan(mean) | (np.abs(mean) <= LARGEST)) or not np.all(
            np.isnan(rms) | (np.abs(rms) <= LARGEST)
        ):
            raise InputError(f"losses must be at most {LARGEST:g}")
        self.mean, self.rms, self.protected = mean.copy(), rms.copy(), protected.copy()
