"""Proportional fair: serves the clients that are fastest relative to their own average.

Yang, Liu, Quek and Poor, *Scheduling Policies for Federated Learning in Wireless Networks* (2020, arXiv 1908.06287),
choose the N clients with the largest ratio of instantaneous to average signal-to-noise ratio. Here delays take its
place: the ratio is (mean measured delay of client i) / (this round's delay of client i).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import BoolArray, Context, FloatArray, State
from fedlane.rng import RoundRng
from fedlane.scheduling.rivals.client_choice import ClientChoice, largest, mean_delays


@dataclass(frozen=True)
class ProportionalFair(ClientChoice):
    """Serves the N available clients with the largest ratio; clients never tried come first.

    This round's delay of a client is the mean over channels of min(d_ij, d_max). Channels are assigned by a max-min
    matching on this round's delays.
    """

    name: ClassVar[str] = "proportional-fair"
    summary: ClassVar[str] = "the clients that are fastest relative to their own average (Yang et al. 2020)"
    requires: ClassVar[frozenset[str]] = frozenset({"channel_state"})

    def chosen(self, state: State, context: Context, rng: RoundRng) -> BoolArray:
        """Return the clients with the largest ratio."""
        now = np.maximum(1.0 - self.estimates(state, context).mean(axis=2), 1e-9)
        tried = state["count"].sum(axis=2) > 0
        ratio = np.where(tried, mean_delays(state) / now, np.inf)
        keys = rng.uniform(context.available.shape[1])
        return largest(ratio, context.available, context.problem.channels, keys)

    def estimates(self, state: State, context: Context) -> FloatArray:
        """Return the reward that every pair would earn in this round (R, U, N)."""
        assert context.channel_state is not None, "a run supplies what a policy requires"
        delay = np.nan_to_num(context.channel_state, nan=np.inf) / context.problem.deadline_s
        return 1.0 - np.minimum(delay, 1.0)
