"""What passes between the planes: frozen records with units in their field names.

Shapes: R replicas, U clients, N channels. Indices start at 0; -1 is "no channel".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Problem:
    """What a policy knows before the first round."""

    clients: int
    channels: int
    rounds: int
    deadline_s: float
    quotas: FloatArray
    """(R, U): the share of rounds each client must reach, before any slack of the policy."""

    @property
    def replicas(self) -> int:
        return len(self.quotas)


@dataclass(frozen=True)
class DelayDistributions:
    """The true distribution of every pair's delay, for yardsticks such as `genie`.

    The deadline is cut into G equal cells; ``cdf[r, i, j, g]`` is the mean over cell g of P(delay <= x).
    So 1 - cdf.mean(-1) is the mean of min(delay, deadline) in units of the deadline.
    """

    cdf: FloatArray
    """(R, U, N, G)"""
    success: FloatArray
    """(R, U, N): P(delay <= deadline)."""
    standard_error: float
    """Bound on the standard error of every entry, from the number of samples behind it."""


@dataclass(frozen=True)
class Context:
    """What a policy sees when it selects: the round, who may be asked, and what it declared in `requires`."""

    round: int
    available: BoolArray
    """(R, U)"""
    losses: FloatArray | None = None
    """(R, U): each client's last known training loss (`requires = {"losses"}`)."""
    channel_state: FloatArray | None = None
    """(R, U, N): this round's delay_s of every pair (`requires = {"channel_state"}`)."""
    distributions: DelayDistributions | None = None
    """The true delay distributions (`requires = {"distributions"}`)."""
    problem: Problem | None = None
    """The problem as it is in this round; every run sets it."""


@dataclass(frozen=True)
class Delays:
    """Each client's delay on the channel it was given, in its three parts; (R, U), NaN where unassigned."""

    download_s: FloatArray
    compute_s: FloatArray
    upload_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        return self.download_s + self.compute_s + self.upload_s


@dataclass(frozen=True)
class Feedback:
    """What the base station learned from one round. An unassigned client has channel -1 and NaN delays."""

    round: int
    assignment: IntArray
    """(R, U): each client's channel."""
    delays: Delays
    punctual: BoolArray
    """(R, U): assigned, and delay <= deadline."""
    problem: Problem | None = None
    """The problem as it was in this round; every run sets it."""


MEASURES = ("delay_s", "clock_s", "punctual", "accuracy", "loss", "max_queue", "epsilon")
"""Names of the per-round measures that trackers log."""


@dataclass(frozen=True)
class RunInfo:
    """What is fixed during a simulated run and shown with every round.

    Attributes:
        scenario: Name of the scenario.
        policy: The policy as the user named it, parameters included.
        seeds: One seed per replica.
        rounds: Number of rounds of the whole run.
        channels: Number of channels, N.
        deadline_s: Deadline of a round in seconds.
        mechanism: Name of the privacy mechanism: ``none``, ``paper`` or ``rigorous``.
        epsilon_agreed: The largest epsilon that any client agreed to; infinite without a mechanism.
    """

    scenario: str
    policy: str
    seeds: tuple[int, ...]
    rounds: int
    channels: int
    deadline_s: float
    mechanism: str
    epsilon_agreed: float


@dataclass(frozen=True)
class RoundDetail:
    """Assignments, queues, budgets and the history after a round, as displays show them.

    The arrays are views of the run's own memory: read them, but do not change them.

    Attributes:
        client: (R, N): the client on each channel, -1 for none.
        download_s: (R, N): download time in seconds; NaN on an unused channel.
        compute_s: (R, N): computation time in seconds; NaN on an unused channel.
        upload_s: (R, N): upload time in seconds; NaN on an unused channel.
        queue: (R, U): each client's queue, in rounds behind its quota.
        uploads_left: (R, U): uploads that each client's privacy budget still allows.
        delay_history_s: (R, rounds so far): delay of every round in seconds, capped at the deadline.
        accuracy_history: (R, rounds so far): test accuracy; NaN where the model was not evaluated.
        epsilon_paper: (R,): the largest epsilon of a client by the paper's formula; None for other mechanisms.
    """

    client: IntArray
    download_s: FloatArray
    compute_s: FloatArray
    upload_s: FloatArray
    queue: FloatArray
    uploads_left: IntArray
    delay_history_s: FloatArray
    accuracy_history: FloatArray
    epsilon_paper: FloatArray | None


@dataclass(frozen=True)
class RoundRecord:
    """One round in every replica: what trackers log and displays show. Every array has shape (R,).

    Attributes:
        round: Index of the round, starting at 0; -1 before the first round.
        delay_s: Delay of the round in seconds, capped at the deadline.
        clock_s: Simulated time in seconds at the end of the round.
        punctual: Number of clients that met the deadline.
        max_queue: The longest queue after the round.
        accuracy: Test accuracy; None if the model was not evaluated in this round.
        loss: Test loss; None if the model was not evaluated in this round.
        epsilon: The largest epsilon that any client has spent; None without a mechanism.
        detail: Everything else that a display shows; None in a record that was not made by a simulation.
    """

    round: int
    delay_s: FloatArray
    clock_s: FloatArray
    punctual: IntArray
    max_queue: FloatArray
    accuracy: FloatArray | None
    loss: FloatArray | None
    epsilon: FloatArray | None
    detail: RoundDetail | None = None

    def values(self) -> dict[str, FloatArray]:
        """The measures that exist in this round, by name, in the order of `MEASURES`."""
        measures = {name: getattr(self, name) for name in MEASURES}
        return {name: np.asarray(array, np.float64) for name, array in measures.items() if array is not None}


State = Mapping[str, NDArray[Any]]
"""A policy's memory: named arrays, each with a leading replica axis, so that any state can be saved."""


@dataclass(frozen=True)
class MechanismSpec:
    """What every client does to its data before anything leaves it, and so the privacy event that an upload is.

    Made by privacy, executed by learning and accounted for by privacy, from these fields and no others. An upload is
    tau steps. Each samples records (b at random, or every record with probability q), clips each record's gradient to
    C, sums, adds N(0, (step_noise C)^2) and moves by eta / b times that, b fixed. Once per upload,
    N(0, (upload_noise eta C / b)^2) is added to the weights; eta C / b is the most that one record moves in a step.
    """

    name: str
    """none, paper or rigorous."""
    sampling: str
    """"fixed" (b distinct records) or "poisson" (every record on its own)."""
    clip_norm: float | None
    """C: no sample's gradient counts with a longer norm; None for no clipping."""
    local_iterations: int
    """tau"""
    asked_batch: IntArray
    """(U,): the b asked for."""
    batch_size: IntArray
    """(R, U): b, what sums are divided by: the b asked for, or |D_i| where that is less."""
    sample_rate: FloatArray
    """(R, U): q, the chance of a record to be in a step's sample."""
    step_noise: FloatArray
    """(R, U): z, the noise of each step in multiples of C; 0 for none."""
    upload_noise: FloatArray
    """(R, U): the noise of each upload in multiples of eta C / b; 0 for none."""
    epsilon: FloatArray
    """(U,): what the client agreed to, per round (paper) or over all its uploads (rigorous); infinite for none."""
    delta: FloatArray
    """(U,)"""
    max_uploads: IntArray
    """(U,): upload max_uploads + 1 is refused."""
    histogram_noise: float
    """Noise of the label histogram's release, in multiples of one record; 0 where the budget pays for no release."""

    @classmethod
    def simple(
        cls,
        sizes: IntArray,
        *,
        batch_size: int | IntArray,
        local_iterations: int,
        clip_norm: float | None = None,
        step_noise: float = 0.0,
        upload_noise: float = 0.0,
        sampling: str = "fixed",
    ) -> "MechanismSpec":
        """Every client of sizes (R, U) alike, and no terms agreed to: for audits, benchmarks and tests."""
        batches, clients = np.minimum(batch_size, sizes), sizes.shape[1]
        return cls(
            name="simple",
            sampling=sampling,
            clip_norm=clip_norm,
            local_iterations=local_iterations,
            asked_batch=np.full(clients, batch_size),
            batch_size=batches,
            sample_rate=batches / sizes,
            step_noise=np.full(sizes.shape, step_noise),
            upload_noise=np.full(sizes.shape, upload_noise),
            epsilon=np.full(clients, np.inf),
            delta=np.ones(clients),
            max_uploads=np.full(clients, np.iinfo(np.int64).max),
            histogram_noise=0.0,
        )

    def upload_deviation(self, learning_rate: float) -> FloatArray:
        """(R, U): the standard deviation of the noise added once to the uploaded weights."""
        return self.upload_noise * learning_rate * (self.clip_norm or 0.0) / self.batch_size
