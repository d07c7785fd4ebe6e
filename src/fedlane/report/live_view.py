"""The state of a run in progress, as the live panel shows it."""

import math
from dataclasses import dataclass, field

import numpy as np

from fedlane.records import BoolArray, FloatArray


@dataclass(frozen=True)
class Assigned:
    """An assigned client, with the parts of its delay in the last round."""

    client: int
    channel: int
    download_s: float
    compute_s: float
    upload_s: float

    @property
    def total_s(self) -> float:
        """Delay of the client, in seconds."""
        return self.download_s + self.compute_s + self.upload_s


@dataclass(frozen=True)
class PrivacySpent:
    """Privacy spent so far, over all clients and replicas."""

    mechanism: str
    epsilon: float
    """Largest epsilon spent by a client; for the mechanism `paper`, by its own formula."""
    agreed: float
    """Largest epsilon that a client agreed to, for the whole run (`rigorous`) or per round (`paper`)."""
    uploads_left: int
    """Uploads left for the client with the fewest."""
    delta: float
    """Largest delta that a client agreed to."""


@dataclass(frozen=True)
class Finished:
    """A finished run of the same comparison."""

    policy: str
    clock_s: float
    late_share: float
    accuracy: float | None


@dataclass(frozen=True)
class LiveView:
    """A run in progress: the last round of the first replica, and means over all replicas."""

    scenario: str
    policy: str
    seeds: tuple[int, ...]
    """Seeds of the replicas; the panel shows the rounds of the first."""
    round: int
    """Number of completed rounds."""
    rounds: int
    channels: int
    deadline_s: float
    assigned: tuple[Assigned, ...]
    queue: FloatArray
    """(U,): virtual queues, the number of rounds by which each client is behind its quota."""
    available: BoolArray
    """(U,): False once a client's privacy budget is exhausted."""
    delay_s: FloatArray
    """(completed rounds,): duration of each round, mean over replicas."""
    accuracy: FloatArray
    """(tests so far,): test accuracy, mean over replicas; empty without learning."""
    spent: PrivacySpent | None
    rounds_per_s: float
    finished: tuple[Finished, ...] = ()
    loss: FloatArray = field(default_factory=lambda: np.zeros(0))
    """(tests so far,): test loss, mean over replicas; empty without learning."""

    @property
    def clock_s(self) -> float:
        """Simulated time so far, in seconds."""
        return float(self.delay_s.sum())

    @property
    def eta_s(self) -> float:
        """Estimated wall-clock time to the end, in seconds; infinite if the speed is unknown."""
        return (self.rounds - self.round) / self.rounds_per_s if self.rounds_per_s > 0 else math.inf
