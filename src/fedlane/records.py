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


State = Mapping[str, NDArray[Any]]
"""A policy's memory: named arrays, each with a leading replica axis, so that any state can be saved."""


@dataclass(frozen=True)
class MechanismSpec:
    """What a client does to its data before anything leaves it: made by privacy, executed by learning."""

    name: str
    """none, paper or rigorous."""
    clip_norm: float | None
    """C: no sample's gradient counts with a longer norm; None for no clipping."""
    upload_noise: FloatArray
    """(R, U): standard deviation of the Gaussian noise added once to the uploaded weights; 0 for none."""
