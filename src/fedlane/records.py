"""The frozen records that the planes exchange, with units in their field names.

Shapes: R replicas, U clients, N channels. Indices start at 0; a channel of -1 means "unassigned".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedlane.loss_records import ClientLosses as ClientLosses
from fedlane.loss_records import LossQuery as LossQuery

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Problem:
    """The scheduling problem: what a policy knows before the first round.

    Attributes:
        clients: Number of clients, U.
        channels: Number of channels, N.
        rounds: Number of rounds.
        deadline_s: Deadline of a round, in seconds.
        quotas: Share of rounds in which each client must be punctual (R, U), before any slack of the policy.
        sizes: Number of each client's training records (R, U); in Flower, as the client claims it, possibly with noise.
            Every run sets it.

    Examples:
        >>> quotas, sizes = np.full((1, 10), 0.4), np.full((1, 10), 600.0)
        >>> problem = Problem(clients=10, channels=4, rounds=500, deadline_s=5.0, quotas=quotas, sizes=sizes)
        >>> problem.replicas
        1
    """

    clients: int
    channels: int
    rounds: int
    deadline_s: float
    quotas: FloatArray
    sizes: FloatArray | None = None

    @property
    def replicas(self) -> int:
        """Number of replicas, R."""
        return len(self.quotas)

    def replica(self, r: int) -> "Problem":
        """Return the problem of one replica, with quotas and sizes (U,)."""
        return replace(self, quotas=self.quotas[r], sizes=None if self.sizes is None else self.sizes[r])


@dataclass(frozen=True)
class DelayDistributions:
    """The true delay distribution of every client-channel pair, for benchmark policies such as `genie`.

    The time up to the deadline is divided into G equal cells. 1 - cdf.mean(-1) is the mean of min(delay, deadline) in
    units of the deadline.

    Attributes:
        cdf: Mean of P(delay <= x) over the x of each cell (R, U, N, G).
        success: P(delay <= deadline) of each pair (R, U, N).
        standard_error: Upper bound on the standard error of every entry.
        stationary: Whether every round has these distributions; if not, they are averages over time.
    """

    cdf: FloatArray
    success: FloatArray
    standard_error: float
    stationary: bool = True

    def replica(self, r: int) -> "DelayDistributions":
        """Return those of one replica, which keep a leading axis of 1."""
        return replace(self, cdf=self.cdf[r : r + 1], success=self.success[r : r + 1])


@dataclass(frozen=True)
class Context:
    """What a policy sees when it selects clients.

    Attributes:
        round: Index of the round.
        problem: The problem in this round.
        available: Whether each client may be selected (R, U).
        present: Whether each client is present (R, U): the queues of others do not grow.
        queue: How far each client is behind the quota that the policy serves, in rounds (R, U).
        previous: Each client's channel in the round before (R, U); -1 for none.
        losses: The losses that clients reported with their last uploads, if the policy `requires` "losses".
        channel_state: This round's delay of every pair in seconds (R, U, N), if it `requires` "channel_state".
        distributions: The true delay distributions, if it `requires` "distributions".
    """

    round: int
    problem: Problem
    available: BoolArray
    present: BoolArray
    queue: FloatArray
    previous: IntArray
    losses: ClientLosses | None = None
    channel_state: FloatArray | None = None
    distributions: DelayDistributions | None = None

    @classmethod
    def first(cls, problem: Problem, **changes: Any) -> "Context":
        """Return the context of a first round in which every client is available; ``changes`` are other fields."""
        shape = problem.quotas.shape
        everybody = np.ones(shape, np.bool_)
        values = {"round": 0, "available": everybody, "present": everybody, "queue": np.zeros(shape)}
        return cls(**{**values, "problem": problem, "previous": np.full(shape, -1, np.int64), **changes})

    def replica(self, r: int) -> "Context":
        """Return the context of one replica, with arrays (U,) and (U, N)."""
        return Context(
            round=self.round,
            problem=self.problem.replica(r),
            available=np.asarray(self.available[r]),
            present=np.asarray(self.present[r]),
            queue=self.queue[r],
            previous=self.previous[r],
            losses=self.losses and replace(self.losses, mean=self.losses.mean[r], rms=self.losses.rms[r]),
            channel_state=None if self.channel_state is None else self.channel_state[r],
            distributions=self.distributions and self.distributions.replica(r),
        )


@dataclass(frozen=True)
class Delays:
    """Each client's delay on its channel, in three parts; NaN for unassigned clients.

    Attributes:
        download_s: Time to download the model, in seconds (R, U).
        compute_s: Time of local training, in seconds (R, U).
        upload_s: Time to upload the update, in seconds (R, U).

    Examples:
        >>> delays = Delays(np.array([[0.5]]), np.array([[2.0]]), np.array([[1.0]]))
        >>> delays.total_s.tolist()
        [[3.5]]
    """

    download_s: FloatArray
    compute_s: FloatArray
    upload_s: FloatArray

    @property
    def total_s(self) -> FloatArray:
        """Sum of the three parts, in seconds (R, U)."""
        return self.download_s + self.compute_s + self.upload_s


@dataclass(frozen=True)
class Feedback:
    """What a policy learns from one round.

    Attributes:
        context: What the policy saw when it selected.
        channel: Each client's channel (R, U), -1 if unassigned.
        delays: Each client's delays, NaN if unassigned. What a policy receives has +inf for a late client, in all three
            parts: a server cuts a late upload off and does not know how late it would have been.
        punctual: Whether a client was assigned and met the deadline (R, U).

    Examples:
        >>> problem = Problem(2, 4, rounds=10, deadline_s=5.0, quotas=np.full((1, 2), 0.4))
        >>> parts = np.array([[1.0, np.nan]])
        >>> delays = Delays(parts, parts, parts)
        >>> feedback = Feedback(Context.first(problem), np.array([[3, -1]]), delays, delays.total_s <= 5.0)
        >>> feedback.reward.round(3).tolist()
        [[0.4, nan]]
    """

    context: Context
    channel: IntArray
    delays: Delays
    punctual: BoolArray

    @property
    def delay_s(self) -> FloatArray:
        """Each client's delay in seconds (R, U): +inf if it was late, NaN if unassigned."""
        return self.delays.total_s

    @property
    def reward(self) -> FloatArray:
        """Each client's reward max(1 - d / d_max, 0), (R, U): 0 if it was late, NaN if unassigned."""
        return np.maximum(1.0 - self.delays.total_s / self.context.problem.deadline_s, 0.0)

    def observed(self) -> "Feedback":
        """Return what a server observes: the parts of every late client's delay are +inf."""
        late = (self.channel >= 0) & ~self.punctual
        parts = self.delays.download_s, self.delays.compute_s, self.delays.upload_s
        return replace(self, delays=Delays(*(np.where(late, np.inf, part) for part in parts)))

    def replica(self, r: int) -> "Feedback":
        """Return the feedback of one replica, with arrays (U,)."""
        delays = self.delays
        return Feedback(
            self.context.replica(r),
            np.asarray(self.channel[r]),
            Delays(delays.download_s[r], delays.compute_s[r], delays.upload_s[r]),
            np.asarray(self.punctual[r]),
        )


MEASURES = ("delay_s", "clock_s", "punctual", "accuracy", "loss", "max_queue", "epsilon")
"""Names of the per-round measures that trackers log."""


@dataclass(frozen=True)
class RunInfo:
    """Values that stay fixed during a simulated run and are shown with every round.

    Attributes:
        scenario: Name of the scenario.
        policy: The policy as the user named it, parameters included.
        seeds: One seed per replica.
        rounds: Number of rounds of the whole run.
        channels: Number of channels, N.
        deadline_s: Deadline of a round in seconds.
        mechanism: Name of the privacy mechanism: ``none``, ``paper`` or ``rigorous``.
        epsilon_agreed: The largest epsilon that any client agreed to; infinite without a mechanism.
        delta_agreed: The largest delta that any client agreed to; 1 without a mechanism.
    """

    scenario: str
    policy: str
    seeds: tuple[int, ...]
    rounds: int
    channels: int
    deadline_s: float
    mechanism: str
    epsilon_agreed: float
    delta_agreed: float = 1.0


@dataclass(frozen=True)
class RoundDetail:
    """Assignments, queues, budgets and the history after a round, as displays show them.

    The arrays are views of the run's data and must not be modified.

    Attributes:
        client: (R, N): the client on each channel, -1 for none.
        download_s: (R, N): download time in seconds; NaN on an unused channel.
        compute_s: (R, N): computation time in seconds; NaN on an unused channel.
        upload_s: (R, N): upload time in seconds; NaN on an unused channel.
        queue: (R, U): each client's queue, in rounds behind its quota.
        uploads_left: (R, U): uploads that each client's privacy budget still allows.
        delay_history_s: (R, rounds so far): delay of every round in seconds, capped at the deadline.
        accuracy_history: (R, rounds so far): test accuracy; NaN where the model was not evaluated.
        epsilon_shown: (R,): the largest epsilon of a client that displays show; None without a mechanism.
        loss_history: (R, rounds so far): test loss; NaN where the model was not evaluated.
    """

    client: IntArray
    download_s: FloatArray
    compute_s: FloatArray
    upload_s: FloatArray
    queue: FloatArray
    uploads_left: IntArray
    delay_history_s: FloatArray
    accuracy_history: FloatArray
    epsilon_shown: FloatArray | None
    loss_history: FloatArray | None = None


@dataclass(frozen=True)
class RoundRecord:
    """One round in every replica: what trackers log and displays show. Every array has shape (R,).

    Attributes:
        round: Index of the round, starting at 0; -1 before the first round.
        delay_s: Delay of the round in seconds, capped at the deadline.
        clock_s: Simulated time in seconds at the end of the round.
        punctual: Number of clients that met the deadline.
        max_queue: The longest queue after the round.
        accuracy: Test accuracy; None if the model was not evaluated in this round, or learns numbers.
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
"""State of a policy: named arrays, each with a leading replica axis, so that any state can be saved."""


@dataclass(frozen=True)
class MechanismSpec:
    """The processing of every client's data before an upload, and hence the privacy event that is accounted for.

    The privacy plane creates and accounts for it; the learning plane executes it. An upload takes tau steps. Each step
    samples records (b at random, or every record with probability q), clips each record's gradient to norm C, sums
    them, adds N(0, (step_noise C)^2) and moves the weights by eta / b times the result. Once per upload,
    N(0, (upload_noise eta C / b)^2) is added to the weights; eta C / b is the largest distance that one record can move
    them in a step.

    Attributes:
        name: "none", "paper" or "rigorous" ("simple" in audits, benchmarks and tests).
        sampling: "fixed" (b distinct records) or "poisson" (every record independently).
        clip_norm: Largest norm C of a record's gradient; None for no clipping.
        local_iterations: Steps of an upload, tau.
        asked_batch: Requested batch sizes (U,).
        batch_size: Batch sizes b that sums are divided by (R, U): as requested, but at most the client's records.
        sample_rate: Probability q that a record is in a step's sample (R, U).
        step_noise: Noise of each step, in multiples of C (R, U); 0 for none.
        upload_noise: Noise of each upload, in multiples of eta C / b (R, U); 0 for none.
        epsilon: Agreed epsilons (U,), per round (paper) or over all uploads (rigorous); infinite for none.
        delta: Agreed deltas (U,).
        max_uploads: Largest number of uploads of each client (U,).
        histogram_noise: Noise of the label-histogram release, in records; 0 if the budget covers no release.
        loss_query: How clients report losses; None if they report none.

    Examples:
        >>> spec = MechanismSpec.simple(np.array([[600, 800]]), batch_size=64, local_iterations=5, clip_norm=1.0)
        >>> spec.sample_rate.shape
        (1, 2)
    """

    name: str
    sampling: str
    clip_norm: float | None
    local_iterations: int
    asked_batch: IntArray
    batch_size: IntArray
    sample_rate: FloatArray
    step_noise: FloatArray
    upload_noise: FloatArray
    epsilon: FloatArray
    delta: FloatArray
    max_uploads: IntArray
    histogram_noise: float
    loss_query: LossQuery | None = None

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
        """Return a spec that is the same for every client and has no budget, for audits, benchmarks and tests.

        Args:
            sizes: Records of each client (R, U).
            batch_size: Requested batch size; a number, or (U,).
            local_iterations: Steps of an upload, tau.
            clip_norm: Largest norm C of a record's gradient; None for no clipping.
            step_noise: Noise of each step, in multiples of C.
            upload_noise: Noise of each upload, in multiples of eta C / b.
            sampling: "fixed" or "poisson".
        """
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
        """Return the standard deviation of the noise added to the uploaded weights (R, U).

        Args:
            learning_rate: Step size of local training, eta.
        """
        return self.upload_noise * learning_rate * (self.clip_norm or 0.0) / self.batch_size
