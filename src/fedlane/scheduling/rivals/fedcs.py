"""FedCS: packs as many clients as possible into the round, fastest first.

Nishio and Yonetani, *Client Selection for Federated Learning with Heterogeneous Resources in Mobile Edge* (2019,
arXiv 1804.08333), Algorithm 3: among the candidates, repeatedly add the client that lengthens the round least, as long
as the round stays within T_round. With one channel per client, adding pair (i, j) to the set S lengthens the round by
[d_ij - T(S)]^+, where T(S) = max over S of d, so that pairs are added in the order of their estimated delays.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedlane.records import BoolArray, Context, FloatArray, State
from fedlane.rng import RoundRng
from fedlane.scheduling.ranges import ParameterRange, Tunable
from fedlane.scheduling.rivals.client_choice import ClientChoice, largest
from fedlane.validate import InputError


@dataclass(frozen=True)
class FedCs(ClientChoice):
    """Greedy packing on estimated delays.

    ``fraction`` of the clients, but at least N, are candidates, drawn at random in every round. The publication asks a
    tenth of 1,000 clients for their resources, to limit the messages. Here the server knows its estimates without
    asking, and a tenth of less than 10 N clients would leave no choice, so by default all clients are candidates.
    ``round_share`` is T_round in units of the deadline. Where no candidate fits, all of them are packed, so that a
    round is never empty.
    """

    name: ClassVar[str] = "fedcs"
    summary: ClassVar[str] = "as many clients as fit into the round, fastest first (Nishio and Yonetani 2019)"
    ranges: ClassVar[Mapping[str, Tunable]] = {
        "fraction": ParameterRange(0.1, 1.0),
        "round_share": ParameterRange(0.2, 1.0),
    }

    fraction: float = 1.0
    round_share: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("fraction", self.fraction), ("round_share", self.round_share)):
            if not 0 < value <= 1:
                raise InputError(f"{name} must be greater than 0 and at most 1, got {value}")

    def chosen(self, state: State, context: Context, rng: RoundRng) -> BoolArray:
        """Return the clients of the packing."""
        clients, channels = context.available.shape[1], context.problem.channels
        keys = rng.uniform(clients)
        asked = max(channels, int(np.ceil(self.fraction * clients)))
        candidates = largest(keys, context.available, asked, keys)
        delay = np.where(candidates[..., None], 1.0 - self.estimates(state, context), np.inf)
        fits = delay < self.round_share
        hopeless = ~fits.any(axis=(1, 2), keepdims=True)
        return packed(np.where(fits | hopeless, delay, np.inf), keys)


def packed(delay: FloatArray, keys: FloatArray) -> BoolArray:
    """Return the clients (R, U) of a greedy packing: again and again the pair of smallest delay whose ends are free.

    Args:
        delay: (R, U, N) estimated delay of every pair; +inf for a pair that may not be used.
        keys: (R, U): of equal delays, the client with the largest key comes first.
    """
    replicas, clients, channels = delay.shape
    order = np.argsort(-keys, axis=1)
    free = np.take_along_axis(delay, order[..., None], axis=1).reshape(replicas, clients, channels)
    served, every = np.zeros((replicas, clients), np.bool_), np.arange(replicas)
    for _ in range(min(clients, channels)):
        client, channel = np.divmod(free.reshape(replicas, -1).argmin(axis=1), channels)
        served[every, client] |= np.isfinite(free[every, client, channel])
        free[every, client, :] = np.inf
        free[every, :, channel] = np.inf
    result = np.zeros_like(served)
    np.put_along_axis(result, order, served, axis=1)
    return result
